"""Writing files atomically: a file exists as a whole or not at all."""

from __future__ import annotations

import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, which keeps a file that is being written from removal by itself
    fcntl = None

_PREFIX, _SUFFIX = ".covfree-", ".tmp"
# A temporary file counts as abandoned if it did not change for this many seconds.
_AGE = 3600.0


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that replaces ``path`` once all of it is on disk.

    Until then the content is in a temporary file in the same folder (see `is_temporary`). So two writers of
    one path do not mix: the last one to finish wins. The file's mode follows the umask, as for any new file.
    """
    temporary = path.with_name(f"{_PREFIX}{uuid.uuid4().hex}{_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            lock(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Whether this is the name of a temporary file from `replacing`."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files that killed writers left in a folder.

    A file is abandoned if it has not changed for an hour and nobody holds its lock. A writer holds the lock
    until its process ends, so no living writer on this machine loses its file. The hour protects writers on
    other machines, whose locks may be invisible in a shared folder. (Process ids would protect neither these
    nor writers in containers.) Files that this process may not remove stay.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [Path(entry.path) for entry in entries if is_temporary(entry.name)]:
            with suppress(OSError):
                if _is_abandoned(path):
                    path.unlink()


def _is_abandoned(path: Path) -> bool:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or time.time() - status.st_mtime < _AGE:
        return False
    with path.open("rb") as file:
        return lock(file)


def lock(file: BinaryIO, *, wait: bool = False) -> bool:
    """Lock a file until it is closed. If another process holds the lock, return False, or ``wait`` for it.

    Where there are no locks (on Windows and some file systems), return True: nothing keeps processes apart.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # The file system has no locks.
        return True
    return True
