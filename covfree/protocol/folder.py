"""A folder of message files: which of them are there, came in time and are sound."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

import jax

from covfree.core.atomic import is_temporary, remove_abandoned
from covfree.core.checks import check_row_structure
from covfree.core.row_types import count_sum
from covfree.core.types import Message, Rows
from covfree.protocol.files import load_message, read_header, read_rows, shown
from covfree.protocol.received import common_dim, unlike

_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class MessageFile:
    """A client's message in a folder.

    Attributes:
        name: the file's name in the folder without ``.safetensors``: the client.
        path: the file.
        header: the message with zeros in the place of its numbers.
        stamp: what the file system said of it when the folder was opened, see `_stamp`.
        total: the sum of its counts.
        identity: what `save_message` wrote into it, which a copy of it has too; None if it has none.
        mark: what tells it from a file that the same client writes later: its identity, its size and the time
            of its last change. It stays if the file is moved.
    """

    name: str
    path: str
    header: Message
    stamp: tuple[int, int, int, int]
    total: float
    identity: str | None
    mark: str

    def rows(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop`` alone, which must be some.

        Raises:
            RuntimeError: if the file is not what it was when the folder was opened.
        """
        self._check_unchanged()
        rows = read_rows(self.path, start, stop)
        self._check_unchanged()
        return rows

    def message(self) -> Message:
        """The whole message.

        Raises:
            RuntimeError: if the file is not what it was when the folder was opened.
            OSError: if it cannot be read.
            ValueError: if it holds no message.
        """
        self._check_unchanged()
        message = load_message(self.path)
        self._check_unchanged()
        return message

    def _check_unchanged(self) -> None:
        if _stamp(_status(Path(self.path))) != self.stamp:
            raise RuntimeError(
                f"path: {shown(self.path)}: expected the file as it was when the folder was opened; it "
                "changed: open the folder again"
            )


def _status(path: Path) -> os.stat_result:
    """What the file system says of a file, or raise if it is none: to open a pipe could wait forever."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a pipe, socket or device")
        raise ValueError(f"path: {shown(path)}: expected a file of its own, got {kind}")
    return status


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    """Size, time of the last change, and what a sender cannot set back: ctime and the place on the disk."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


class _Copies:
    """Files by what they hold. Files with one identity alone are read: it may be stolen, their bytes not."""

    def __init__(self) -> None:
        self._alone: dict[str, tuple[str, Path] | None] = {}
        self._digests: dict[bytes, str] = {}

    def first(self, identity: str, name: str, file: Path) -> str:
        """The name of the first file with these bytes, which may be this one."""
        if identity not in self._alone:
            self._alone[identity] = name, file
            return name
        if (other := self._alone[identity]) is not None:
            self._digests[_digest(other[1])] = other[0]
            self._alone[identity] = None
        return self._digests.setdefault(_digest(file), name)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class MessageFolder:
    """Open a folder of message files; of each file the header and the counts are read, and no more.

    Files that come or change later are not seen. An empty folder is no error, as a server may look before any
    client has sent. What killed writers left is removed, see ``docs/server.md``.

    Attributes:
        files: the files that can be read and came in time, ordered by name.
        rejected: the reason for each file that was set aside, by the client's name. At first these are files
            that cannot be read or are copies of another; after `accumulate_stream` or `solve_stream` all
            files that did not count.
        late: when each file came that missed the deadline, by the client's name. It stays where it is.

    >>> import covfree, numpy as np, tempfile
    >>> sent = covfree.Message(covfree.Rows(np.ones((1, 2)), np.array([3]), np.array([0])))
    >>> with tempfile.TemporaryDirectory() as path:
    ...     covfree.save_message(sent, f"{path}/a.safetensors")
    ...     [file.name for file in MessageFolder(path).files]
    ['a']
    """

    def __init__(
        self,
        path: str | PathLike[str],
        pattern: str = f"*{_SUFFIX}",
        *,
        deadline: datetime | None = None,
    ) -> None:
        """Open a folder.

        Args:
            path: the folder.
            pattern: which files in it hold messages, e.g. ``"**/*.safetensors"`` for folders in it too.
            deadline: a time with its zone, e.g. ``datetime.now(UTC)``; files that came later are late. When a
                file came is told by the clock of the file system, which senders cannot set (its ctime): when
                it was last written, renamed, or given another owner or mode.

        Raises:
            TypeError: if the deadline is no time.
            ValueError: if there is no such folder; if the deadline has no zone.
            OSError: if the folder cannot be read.
        """
        self._root = root = Path(path)
        if not root.is_dir():
            raise ValueError(f"path: expected a folder, got {os.fspath(path)!r}")
        _check_deadline(deadline)
        found, self.rejected = _found(root, pattern)
        self.late: dict[str, datetime] = {}
        came: list[tuple[int, str, Path, os.stat_result]] = []
        for name, file in found.items():
            try:
                # Looked at first, so that what changes while the header is read shows.
                status = _status(file)
            except (OSError, ValueError) as error:
                self.rejected[name] = str(error)
                continue
            time = datetime.fromtimestamp(status.st_ctime, UTC)
            if deadline is not None and time > deadline:
                self.late[name] = time
            else:
                came.append((status.st_ctime_ns, name, file, status))
        copies, headers, files = _Copies(), {}, list[MessageFile]()
        # Of a file and its copies that which came first counts.
        for _, name, file, status in sorted(came, key=lambda each: each[:2]):
            try:
                header, count, identity = read_header(file)
                first = name if identity is None else copies.first(identity, name, file)
            except (OSError, ValueError) as error:
                self.rejected[name] = str(error)
                continue
            if first != name:
                self.rejected[name] = (
                    f"path: {shown(file)}: expected a message of its own, got a copy of {first!r}"
                )
                continue
            # Clients share shapes, and a folder may hold very many.
            leaves, structure = jax.tree.flatten(header)
            header = headers.setdefault(
                (structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)), header
            )
            mark = f"{identity} {status.st_size} {status.st_mtime_ns}"
            files.append(
                MessageFile(name, str(file), header, _stamp(status), count_sum(count), identity, mark)
            )
        self.files = tuple(sorted(files, key=lambda file: file.name))
        self._unreadable = dict(self.rejected)

    def holds(self, name: str) -> bool:
        """Whether a client's file is there now, whatever the pattern."""
        return any(os.path.isfile(self._root / file) for file in (name + _SUFFIX, name))

    def sound(
        self, files: Sequence[MessageFile], dim: int | None = None, before: Message | None = None
    ) -> tuple[list[MessageFile], dict[str, str]]:
        """Those of the files whose shapes fit together, as `collect` would have them, and why others do not.

        Args:
            files: some of the folder's.
            dim: d; by default that which all of them have.
            before: what was collected before, whose parts they must have.

        Returns:
            The sound ones; and why the others are not, and why files could not be read.

        Raises:
            ValueError: if they differ in d and no ``dim`` says which is right.
        """
        rejected = dict(self._unreadable)
        headers: dict[Hashable, Message] = {file.name: file.header for file in files}
        dim = common_dim(headers.values()) if dim is None else dim
        for name, header in list(headers.items()):
            try:
                check_row_structure(header.rows, dim=dim)
            except (TypeError, ValueError) as error:
                rejected[str(name)] = str(error)
                del headers[name]
        others = unlike(headers, before)
        sound = [file for file in files if file.name in headers and file.name not in others]
        rejected.update((str(name), reason) for name, reason in others.items())
        return sound, rejected


def _check_deadline(deadline: datetime | None) -> None:
    if deadline is None:
        return
    if not isinstance(deadline, datetime):
        raise TypeError(f"deadline: expected a datetime or None, got {deadline!r}")
    if deadline.tzinfo is None:
        raise ValueError(
            f"deadline: expected a time with its zone, such as datetime.now(UTC), got {deadline!r}"
        )


def _found(root: Path, pattern: str) -> tuple[dict[str, Path], dict[str, str]]:
    """The files that may hold messages, by the client's name; and why a folder could not be looked into.

    Removes what killed writers left in these folders.
    """
    refused: list[OSError] = []
    # `glob` passes over a folder that it may not read.
    for folder, _, _ in os.walk(root, onerror=refused.append):
        remove_abandoned(Path(folder))
        if "/" not in pattern:
            break
    found: dict[str, Path] = {}
    for file in sorted(root.glob(pattern)):
        if is_temporary(file.name):
            continue
        name = file.relative_to(root).as_posix()
        # What is shorter comes first, so that the name with the suffix is not taken.
        found[name if (short := name.removesuffix(_SUFFIX)) in found else short] = file
    rejected: dict[str, str] = {}
    for error in refused:
        if Path(error.filename) == root:
            raise error
        rejected[Path(error.filename).relative_to(root).as_posix() + "/"] = str(error)
    return found, rejected


def none_sound(rejected: Mapping[str, str]) -> str:
    """What to say where no file can be used."""
    if not rejected:
        return "folder: expected a sound message, got a folder without messages"
    reasons = "; ".join(f"{shown(name)}: {reason}" for name, reason in list(rejected.items())[:3])
    return f"folder: expected a sound message, got none among {len(rejected)} files. {reasons}"
