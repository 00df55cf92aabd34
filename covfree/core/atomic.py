"""Write files atomically: a reader sees the complete file or none."""

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
except ImportError:  # Windows, where a file that is open for writing cannot be removed
    fcntl = None

_PREFIX, _SUFFIX = ".covfree-", ".tmp"
# A temporary file counts as abandoned only if it has not changed for this many seconds.
_AGE = 3600.0


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file to write to; it replaces ``path`` when the ``with`` block ends without an error.

    Until then the content is in a temporary file in the same folder (see `is_temporary`). If two processes
    write the same path, the last to finish wins. The file's mode follows the umask, as for any new file.
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
    """Return whether ``name`` is the file name of a temporary file that `replacing` makes."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of `replacing` from a folder if the processes that wrote them were killed.

    A file counts as abandoned if it has not changed for an hour and no process has locked it. `replacing`
    locks the file that it writes. In a shared folder, the lock of another machine may be invisible: there,
    only the hour protects the file. (A check of process ids would not protect files that are written on other
    machines or in containers.) Files that this process has no permission to remove are skipped.
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
    """Lock an open file until it is closed, and return True; if another process has locked it, return False.

    With ``wait``, wait until the other process unlocks it. Windows and some file systems have no such locks:
    there the file is not locked, and the result is True.
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
