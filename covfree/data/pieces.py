"""Data that is written in pieces, in a folder from which the writing goes on however it ended.

The folder holds two files that only grow:

- ``data``: the pieces, one after the other.
- ``journal``: a line that says what the data is, then a line for each piece, with its size, the checksum of
  all data up to its end, and a note. Every line starts with the checksum of all lines up to and with it.

A piece counts when its line is whole and the data is what the line says. Whatever comes after the last piece
that counts is cut off.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

from covfree.atomic import lock

# Bytes that are copied at a time.
_BLOCK = 2**22


class Pieces:
    """A folder of pieces, open for writing by one process at a time.

    Attributes:
        notes: of the pieces that count.
        size: bytes of data that count.
    """

    notes: list[Any]
    size: int

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Open the folder, or make it.

        Args:
            folder: the folder.
            about: what the data is, in what JSON can hold.

        Raises:
            ValueError: if the folder's data is something else.
            BlockingIOError: if another process has the folder open.
        """
        self.notes, self.size, self._crc = [], 0, 0
        self._journal_size = self._journal_crc = 0
        self._folder = folder
        with ExitStack() as stack:
            self._journal = stack.enter_context(locked(folder))
            (folder / "data").touch()
            self._data = stack.enter_context((folder / "data").open("r+b"))
            self._resume(as_stored(about))
            self._opened = stack.pop_all()

    def append(self, data: bytes, note: Any) -> None:
        """Write a piece. After this a kill does not lose it, and what a power cut loses is noticed.

        Args:
            data: the piece.
            note: what to remember of it, in what JSON can hold.
        """
        crc = zlib.crc32(data, self._crc)
        # Places are sought, as an earlier call may have failed half-way, e.g. on a full disk.
        self._data.seek(self.size)
        self._data.write(data)
        self._data.flush()
        self._write_line({"size": len(data), "crc32": crc, "note": note})
        self._count(len(data), crc, note)

    def copy_to(self, target: Any) -> None:
        """Write all pieces to an open file.

        Raises:
            OSError: if the data on disk is not what was written.
        """
        self._data.seek(0)
        crc, left = 0, self.size
        while block := self._data.read(min(_BLOCK, left)):
            target.write(block)
            crc, left = zlib.crc32(block, crc), left - len(block)
        if left or crc != self._crc:
            raise OSError(f"{self._folder}: what was written is damaged; run again to write that part anew")

    def remove(self) -> None:
        """Remove the folder."""
        remove(self._folder)
        self.close()

    def close(self) -> None:
        """Let others open the folder."""
        self._opened.close()

    def _resume(self, about: Mapping[str, Any]) -> None:
        """Take what counts, and cut off the rest."""
        for number, line in enumerate(self._journal):
            body = line[9:-1]
            crc = zlib.crc32(body, self._journal_crc)
            if line != _line(crc, body):
                break
            entry = json.loads(body)
            if number == 0:
                differing = differences(entry, about)
                if differing:
                    raise ValueError(
                        f"{self._folder}: was begun with something else ({'; '.join(differing)}); "
                        "remove it to start anew, or write to another file"
                    )
            else:
                data = self._data.read(entry["size"])
                if len(data) != entry["size"] or zlib.crc32(data, self._crc) != entry["crc32"]:
                    break
                self._count(len(data), entry["crc32"], entry["note"])
            self._journal_size, self._journal_crc = self._journal_size + len(line), crc
        self._journal.truncate(self._journal_size)
        self._data.truncate(self.size)
        if self._journal_size == 0:
            self._write_line(about)

    def _count(self, size: int, crc: int, note: Any) -> None:
        self.size, self._crc = self.size + size, crc
        self.notes.append(note)

    def _write_line(self, entry: Mapping[str, Any]) -> None:
        body = json.dumps(entry).encode()
        crc = zlib.crc32(body, self._journal_crc)
        line = _line(crc, body)
        self._journal.seek(self._journal_size)
        self._journal.write(line)
        self._journal.flush()
        self._journal_size, self._journal_crc = self._journal_size + len(line), crc


def locked(folder: Path) -> BinaryIO:
    """Make the folder, and open its journal for this process alone, until it is closed or the process ends.

    Raises:
        BlockingIOError: if another process has it.
    """
    busy = BlockingIOError(f"{folder}: another process is writing there; wait until it has ended")
    path = folder / "journal"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        journal = path.open("r+b")
    except FileNotFoundError:
        # It has just finished, and removed them.
        raise busy from None
    try:
        mine = lock(journal)
        if not mine or not path.exists() or not os.path.samestat(os.fstat(journal.fileno()), path.stat()):
            raise BlockingIOError
    except BlockingIOError:
        journal.close()
        raise busy from None
    return journal


def remove(folder: Path) -> None:
    """Remove a folder that is `locked`; what cannot be removed, or is of somebody else, stays."""
    with suppress(OSError):
        # First, as nobody goes on from the rest without it, should it end here.
        (folder / "journal").unlink()
        (folder / "data").unlink(missing_ok=True)
        folder.rmdir()


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """What differs between two descriptions; nothing if they agree.

    >>> differences({"crop": {"size": 224}, "seed": 0}, {"crop": {"size": 256}, "seed": 0})
    ['crop.size: 224 there, 256 here']
    """
    there, here = dict(_entries(as_stored(theirs))), dict(_entries(as_stored(ours)))

    def shown(entries: Mapping[str, Any], name: str) -> str:
        return repr(entries[name]) if name in entries else "nothing"

    return [
        f"{name}: {shown(there, name)} there, {shown(here, name)} here"
        for name in {**here, **there}
        if shown(there, name) != shown(here, name)
    ]


def as_stored(value: Mapping[str, Any]) -> dict[str, Any]:
    """A description as it is when it has been in a file: e.g. tuples are lists."""
    return json.loads(json.dumps(value))


def _entries(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield from _entries(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def _line(crc: int, body: bytes) -> bytes:
    return b"%08x %s\n" % (crc, body)
