"""Files with one JSON record per line, to which records are appended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from covfree.core.atomic import lock

Record = TypeVar("Record")
_BLOCK = 1 << 16


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
