"""A folder of message files as a mapping from clients to messages, which are read when they are accessed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Literal

import jax

from covfree.core.atomic import is_temporary, remove_abandoned
from covfree.core.checks import check_above_zero
from covfree.core.types import Message
from covfree.protocol.files import SUFFIX, MessageFile, read_message, shown

# The largest and the smallest derived bound on a file's size, in bytes. The bound follows from the files'
# median size if there are at least _FEWEST files; else it is the largest.
_MOST_BYTES, _ALWAYS, _FEWEST = 2**30, 2**26, 4
# The largest number of bytes of messages that are kept in memory after reading.
_KEPT = 2**28


class Inbox(Mapping[str, Message]):
    """A folder of message files, as a mapping from clients to messages, for `collect` or a `covfree.Stream`.

    Each file is read once to compute its digest (hash). Messages of up to 256 MiB together stay in memory;
    others are read again when they are needed. Files that arrive later are ignored, and a file that changes
    before it is read again is set aside. An empty folder is no error, as a server may look before any client
    has sent. Temporary files of killed writers are removed.

    ``inbox[client]`` is a client's message. A client has the name of its file, without ``.safetensors``.

    Attributes:
        receipts: the digest (hash) of each file that can be read; see `Collected.receipts`.
        unreadable: for each other file, why it cannot be read, or which file it is a copy of.
        rejected: at first a copy of ``unreadable``; after a `covfree.Stream` has checked the messages, the
            reason for each file that does not count.

    >>> import covfree, numpy as np, tempfile
    >>> sent = covfree.Message(covfree.Rows(np.ones((1, 2)), np.array([3]), np.array([0])))
    >>> with tempfile.TemporaryDirectory() as path:
    ...     covfree.save_message(sent, f"{path}/a.safetensors")
    ...     covfree.collect(Inbox(path), num_classes=1).clients
    ('a',)
    """

    def __init__(
        self,
        path: str | PathLike[str],
        pattern: str = f"*{SUFFIX}",
        *,
        max_bytes: int | float | Literal["derived"] = "derived",
        max_rows: int | float = 2**20,
    ) -> None:
        """Open a folder.

        Args:
            path: the folder.
            pattern: which files are messages, e.g. ``"**/*.safetensors"`` to include subfolders.
            max_bytes: the largest size of a file that is read. ``"derived"``, the default, is 1 GiB; with at
                least four files, it is the larger of 64 MiB and 100 times their median size, but at most
                1 GiB.
            max_rows: the largest number of rows of a message.

        Raises:
            ValueError: if there is no such folder.
            OSError: if the folder cannot be read.
        """
        root = Path(path)
        if not root.is_dir():
            absent = "" if root.exists() else ", which does not exist"
            raise ValueError(f"path: expected a folder, got {os.fspath(path)!r}{absent}")
        self._files, self.unreadable = _found(root, pattern)
        largest = _largest(self._files.values()) if max_bytes == "derived" else max_bytes
        self._most = {
            "max_bytes": check_above_zero("max_bytes", largest),
            "max_rows": check_above_zero("max_rows", max_rows),
        }
        self.receipts: dict[str, str] = {}
        self._kept: dict[str, Message] = {}
        self._last: tuple[str, Message] | None = None
        self._room = _KEPT
        # Accept one of several copies of a file: the one that has the name under which it was written, else
        # the oldest.
        first: dict[str, tuple[bool, int, str]] = {}
        for name in list(self._files):
            try:
                message, client, receipt = self._read(name)
                came = self._files[name].lstat().st_ctime_ns
            # Strangers may have written the file, so reading it may raise any exception.
            except Exception as error:
                self.unreadable[name] = str(error) or type(error).__name__
                continue
            self.receipts[name] = receipt
            self._keep(name, message)
            if "-" in receipt:
                order = (client != name.rpartition("/")[2], came, name)
                first[receipt] = min(order, first.get(receipt, order))
        for name, receipt in list(self.receipts.items()):
            if receipt in first and (owner := first[receipt][2]) != name:
                where = f"path: {shown(self._files[name])}:"
                self.unreadable[name] = f"{where} expected a message of its own, got a copy of {owner!r}"
                del self.receipts[name]
                self._kept.pop(name, None)
        self.rejected = dict(self.unreadable)

    def _read(self, name: str) -> MessageFile:
        return read_message(self._files[name], **self._most)

    def _keep(self, name: str, message: Message) -> None:
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(message))
        if size <= self._room:
            self._room -= size
            self._kept[name] = message

    def __getitem__(self, name: str) -> Message:
        """Read a client's message.

        Raises:
            KeyError: if the client has no file that can be read.
            ValueError: if the file changed since the folder was opened.
            OSError: if the file cannot be read.
        """
        if name in self._kept:
            return self._kept[name]
        if name not in self.receipts:
            raise KeyError(name)
        # Keep the last message, as a large one may be read several times in a row.
        if self._last is None or self._last[0] != name:
            message, _, receipt = self._read(name)
            if receipt != self.receipts[name]:
                raise ValueError(
                    f"path: {shown(self._files[name])}: expected the file as it was when the folder was "
                    "opened; it changed: open the folder again"
                )
            self._last = name, message
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in order, of the clients whose files can be read."""
        return iter(sorted(self.receipts))

    def __len__(self) -> int:
        """The number of clients whose files can be read."""
        return len(self.receipts)


def _largest(files: Iterable[Path]) -> int:
    """Return the size in bytes up to which a message file is read: 100 times the files' median size.

    It is at least 64 MiB (`_ALWAYS`) and at most 1 GiB (`_MOST_BYTES`); with fewer than four files, 1 GiB.
    """
    sizes = []
    for file in files:
        with suppress(OSError):
            sizes.append(file.lstat().st_size)
    if len(sizes) < _FEWEST:
        return _MOST_BYTES
    return min(_MOST_BYTES, max(_ALWAYS, 100 * int(median(sizes))))


def _found(root: Path, pattern: str) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the matching files by client name, and the reasons why other files or folders cannot be read.

    Temporary files that killed writers left in the folders are removed.
    """
    refused: list[OSError] = []
    # `glob` silently skips folders that it may not read; `os.walk` reports them.
    for folder, _, _ in os.walk(root, onerror=refused.append):
        remove_abandoned(Path(folder))
        if "/" not in pattern:
            break
    found: dict[str, Path] = {}
    rejected: dict[str, str] = {}
    for file in sorted(root.glob(pattern)):
        if is_temporary(file.name):
            continue
        name = file.relative_to(root).as_posix()
        # "a" sorts before "a.safetensors"; if both exist, the latter keeps its suffix, as the name "a" is
        # taken.
        name = name if (short := name.removesuffix(SUFFIX)) in found else short
        try:
            name.encode()
        except UnicodeEncodeError:
            rejected[name] = f"path: {shown(file)}: expected a name in UTF-8"
            continue
        found[name] = file
    for error in refused:
        if Path(error.filename) == root:
            raise error
        rejected[Path(error.filename).relative_to(root).as_posix() + "/"] = str(error)
    return found, rejected


def none_sound(rejected: Mapping[str, str]) -> str:
    """Return the error text for a folder without a valid message; ``rejected`` has each file's reason."""
    if not rejected:
        return "folder: expected a sound message, got a folder without messages"
    reasons = "; ".join(f"{shown(name)}: {reason}" for name, reason in list(rejected.items())[:3])
    return f"folder: expected a sound message, got none among {len(rejected)} files. {reasons}"
