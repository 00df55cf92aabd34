"""A folder of message files: which of them are sound, and all of them in one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import jax

from covfree.checks import check_row_structure, check_type
from covfree.protocol.files import load_message, read_header, read_rows
from covfree.protocol.received import Bounds, common_dim, sort_out, unlike
from covfree.protocol.server import Collected, collect
from covfree.row_types import count_sum
from covfree.types import Message, Rows

_SUFFIX = ".safetensors"
# Bytes of messages that are held at once while they are put together.
_BATCH = 2**28


@dataclass(frozen=True, slots=True)
class MessageFile:
    """A client's message in a folder.

    Attributes:
        name: the file's name in the folder without ``.safetensors``: the client.
        path: the file.
        header: the message with zeros in the place of its numbers.
        stamp: size and time of the last change, when the folder was opened.
        total: the sum of its counts.
    """

    name: str
    path: str
    header: Message
    stamp: tuple[int, int]
    total: float

    def rows(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop`` alone, which must be some.

        Raises:
            RuntimeError: if the file is not what it was when the folder was opened.
        """
        if _stamp(Path(self.path)) != self.stamp:
            raise RuntimeError(
                f"path: {self.path}: expected the file as it was when the folder was opened; it changed"
            )
        return read_rows(self.path, start, stop)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


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

    Files that come or change later are not seen.

    Attributes:
        files: the files that can be read, ordered by name.
        rejected: the reason for each file that was set aside, by the client's name. At first these are files
            that cannot be read or are copies of another; after `accumulate_stream` or `solve_stream` all
            files that did not count.

    >>> import covfree, numpy as np, tempfile
    >>> sent = covfree.Message(covfree.Rows(np.ones((1, 2)), np.array([3]), np.array([0])))
    >>> with tempfile.TemporaryDirectory() as path:
    ...     covfree.save_message(sent, f"{path}/a.safetensors")
    ...     [file.name for file in MessageFolder(path).files]
    ['a']
    """

    def __init__(self, path: str | PathLike[str], pattern: str = f"*{_SUFFIX}") -> None:
        """Open a folder.

        Args:
            path: the folder.
            pattern: which files in it hold messages, e.g. ``"**/*.safetensors"`` for folders in it too.

        Raises:
            ValueError: if there is no such folder, or no such file in it.
        """
        root, headers = Path(path), {}
        files: list[MessageFile] = []
        self.rejected: dict[str, str] = {}
        copies, names = _Copies(), set[str]()
        for file in sorted(root.glob(pattern)):
            name = file.relative_to(root).as_posix()
            # What is shorter comes first, so that the name with the suffix is not taken.
            name = name if (short := name.removesuffix(_SUFFIX)) in names else short
            names.add(name)
            try:
                # Looked at first, so that what changes while the header is read shows.
                stamp, (header, count, identity) = _stamp(file), read_header(file)
                first = name if identity is None else copies.first(identity, name, file)
            except (OSError, ValueError) as error:
                self.rejected[name] = str(error)
                continue
            if first != name:
                self.rejected[name] = f"path: {file}: expected a message of its own, got a copy of {first!r}"
            else:
                # Clients share shapes, and a folder may hold very many.
                leaves, structure = jax.tree.flatten(header)
                key = structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
                files.append(
                    MessageFile(name, str(file), headers.setdefault(key, header), stamp, count_sum(count))
                )
        if not files and not self.rejected:
            raise ValueError(f"path: expected a folder with files {pattern!r}, got {os.fspath(path)!r}")
        self.files = tuple(files)
        self._unreadable = dict(self.rejected)

    def sound(self, dim: int | None = None) -> tuple[list[MessageFile], dict[str, str]]:
        """The files whose shapes fit together, as `collect` would have them, and why the others do not.

        Args:
            dim: d; by default that which all messages have.

        Raises:
            ValueError: if there is none (it names the first reasons), or if they differ in d and no ``dim``
                says which is right.
        """
        rejected = dict(self._unreadable)
        headers: dict[Hashable, Message] = {file.name: file.header for file in self.files}
        dim = common_dim(headers.values()) if dim is None else dim
        for name, header in list(headers.items()):
            try:
                check_row_structure(header.rows, dim=dim)
            except (TypeError, ValueError) as error:
                rejected[str(name)] = str(error)
                del headers[name]
        others = unlike(headers, None)
        sound = [file for file in self.files if file.name in headers and file.name not in others]
        rejected.update((str(name), reason) for name, reason in others.items())
        if not sound:
            raise ValueError(none_sound(rejected))
        return sound, rejected


def none_sound(rejected: Mapping[str, str]) -> str:
    """What to say where no file can be used."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in list(rejected.items())[:3])
    return f"folder: expected a sound message, got none among {len(rejected)} files. {reasons}"


def collect_files(
    folder: MessageFolder,
    *,
    num_classes: int,
    dim: int | None = None,
    num_examples: Mapping[Hashable, int] | None = None,
    max_count: int | float | None = None,
    max_norm: int | float | None = None,
) -> Collected:
    """Check and put together the message files of a folder: `collect`, with few messages in memory at once.

    Works for every method. Matrices are added up as they are read; rows are kept. If the rows alone do not
    fit in memory, use `solve_stream`.

    Args:
        folder: the files; a client's name is that of its file, without ``.safetensors``.
        num_classes: C.
        dim: d; by default that which all files have.
        num_examples: see `collect`.
        max_count: see `collect`.
        max_norm: see `collect`.

    Returns:
        The sound messages in one, for `solve_message`, and the reason for each file that was set aside.

    Raises:
        TypeError: if the folder is none, or a bound is no number.
        ValueError: if no file holds a sound message (it names the first reasons); if files differ in d and
            no ``dim`` says which is right; if a bound is wrong, see `collect`.

    >>> import covfree, numpy as np, tempfile
    >>> rows = covfree.Rows(np.ones((1, 2)), np.array([3]), np.array([0]))
    >>> sent = covfree.Message(rows, np.full((2, 2), 3.0))
    >>> with tempfile.TemporaryDirectory() as path:
    ...     covfree.save_message(sent, f"{path}/a.safetensors")
    ...     covfree.save_message(sent, f"{path}/b.safetensors")
    ...     received = collect_files(MessageFolder(path), num_classes=1)
    >>> received.clients, received.message.matrix.tolist()
    (('a', 'b'), [[6.0, 6.0], [6.0, 6.0]])
    """
    check_type("folder", folder, MessageFolder)
    bounds = Bounds(num_classes, dim, num_examples or {}, max_count, max_norm)
    bounds.check_announced([file.name for file in folder.files])
    files, rejected = folder.sound(dim)
    bounds = replace(bounds, dim=files[0].header.rows.mean.shape[1])
    collected: Collected | None = None
    for batch in _batches(files):
        messages: dict[Hashable, Message] = {}
        for file in batch:
            try:
                messages[file.name] = load_message(file.path)
            except (OSError, ValueError) as error:
                rejected[file.name] = str(error)
        announced = {name: number for name, number in bounds.num_examples.items() if name in messages}
        try:
            collected = collect(messages, **{**vars(bounds), "num_examples": announced}, before=collected)
        except ValueError:
            # None of them is sound, and none was before.
            reasons = sort_out(messages, bounds, None)[1]
            rejected.update((str(name), reason) for name, reason in reasons.items())
    if collected is None:
        raise ValueError(none_sound(rejected))
    return replace(collected, rejected={**rejected, **collected.rejected})


def _batches(files: list[MessageFile]) -> Iterator[list[MessageFile]]:
    batch, size = [], 0
    for file in files:
        if batch and size + file.stamp[0] > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.stamp[0]
    yield batch
