"""Write files atomically: a reader sees the complete file or none; add JSON records line by line."""

from __future__ import annotations

import json
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

try:
    import fcntl
except ImportError:  # Windows, where a file that is open for writing cannot be removed
    fcntl = None

_PREFIX, _SUFFIX = ".covfree-", ".tmp"
# A temporary file counts as abandoned only if it has not changed for this many seconds.
_AGE = 3600.0
# Bytes that are read at a time.
_BLOCK = 1 << 16

Record = TypeVar("Record")


@contextmanager
def replacing(path: Path, check: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
    """Yield a binary file to write to; it replaces ``path`` when the ``with`` block ends without an error.

    Until then the content is in a temporary file in the same folder (see `is_temporary`). If two processes
    write the same path, the last to finish wins. The file's mode follows the umask, as for any new file.
    ``check`` is called last, and an error in it leaves ``path`` as it is.
    """
    temporary = path.with_name(f"{_PREFIX}{uuid.uuid4().hex}{_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            lock(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
        check()
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


class JsonLines(Generic[Record]):
    """Records in a file, each a line of JSON.

    Each record is flushed to disk when it is added, so it survives if the process is killed later. If the
    last line was cut short, it is ignored, and removed when a record is added. Several processes may add to
    one file: each locks the file while it writes. ``records`` lists the records that were in the file when it
    was opened, and those that this object has added since.

    Args:
        path: the file; it and its folder are made when the first record is added.
        read: converts a line's content to a record; may raise ``ValueError``, ``KeyError`` or ``TypeError``.
        expected: what a line should contain, for error messages.

    Raises:
        ValueError: if a complete line cannot be read; the message names the file and the line.
    """

    def __init__(self, path: Path, read: Callable[[Any], Record], expected: str) -> None:
        self.path = path
        self.records: list[Record] = []
        content = path.read_bytes() if path.exists() else b""
        # Text after the last newline is a record that was cut short.
        for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
            try:
                self.records.append(read(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}: line {number}: expected {expected} ({error!r})") from error

    def add(self, record: Record, content: Any) -> None:
        """Add ``record`` to ``records``, and ``content``, the same record in JSON's types, to the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(content).encode() + b"\n"
        with self.path.open("a+b") as file:
            lock(file, wait=True)
            file.truncate(_sound_size(file))
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)


def _sound_size(file: BinaryIO) -> int:
    """Return the number of bytes up to the last newline, included. The caller must have locked the file."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(end - _BLOCK, 0)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0
