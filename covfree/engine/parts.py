"""Cut a table of rows (arrays, memory maps or message files) into parts, on the host."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import numpy as np

from covfree.core.checks import check_row_structure
from covfree.core.row_types import RowTypes
from covfree.core.types import Rows
from covfree.engine.checkpoint import Mark, digest
from covfree.engine.senders import numbers_of, numbers_of_messages, senders
from covfree.protocol.checks import Rules, as_received
from covfree.protocol.door import check_messages
from covfree.protocol.inbox import Inbox, none_sound
from covfree.protocol.values import sound_rows

# A table is identified by this many of its means, as reading all of them would take a pass over the file.
_SAMPLE = 64


def padded_rows(rows: Rows, size: int) -> Rows:
    """Return a table padded to ``size`` rows; the new rows have count 0, label −1 and client −1."""
    short = size - len(rows.label)

    def fill(leaf: Any, value: int = 0) -> np.ndarray:
        leaf = np.asarray(leaf)
        # Widen an unsigned type, which cannot hold −1; NumPy would widen uint64 to a float.
        if value < 0:
            wide = np.int64 if leaf.dtype == np.uint64 else np.promote_types(leaf.dtype, np.int8)
            leaf = leaf.astype(wide, copy=False)
        return np.concatenate([leaf, np.full((short, *leaf.shape[1:]), value, leaf.dtype)])

    client = None if rows.client is None else fill(rows.client, -1)
    return replace(jax.tree.map(fill, rows), label=fill(rows.label, -1), client=client)


def clients_of(rows: Rows) -> Any:
    """Return the client of each row; raise a ValueError if the rows have no clients."""
    if rows.client is None:
        raise ValueError(
            "rows: expected rows with a client each, as they must stay together; got client = None"
        )
    return rows.client


def cuts(clients: np.ndarray | None, num_rows: int, size: int) -> np.ndarray:
    """Return where to cut a table into parts of at most ``size`` rows: [parts + 1] row numbers from 0 on.

    Args:
        clients: the client of each row if a client's rows must stay together; the rows of a client must then
            be adjacent. None if rows can be cut anywhere.
        num_rows: rows of the table.
        size: the largest number of rows in a part.
    """
    if clients is None:
        return np.append(np.arange(0, num_rows, size), num_rows)
    places, named = [0], [np.zeros(0, clients.dtype)]
    # Read in blocks, as the column may be a memory map that is larger than memory.
    while places[-1] < num_rows:
        start = places[-1]
        own = np.asarray(clients[start : start + size + 1])
        # A negative number marks an unknown client: each such row is a group of its own.
        first = np.append(True, (own[1:] != own[:-1]) | (own[1:] < 0))
        if len(own) > size:
            end = int(np.flatnonzero(first)[-1])
            if end == 0:
                raise ValueError(
                    f"client: expected at most {size} rows of a client, the size of a part, as they must "
                    f"stay together; client {int(own[0])} has more, from row {start} on"
                )
            own, first = own[:end], first[:end]
        places.append(start + len(own))
        named.append(own[first & (own >= 0)])
    owners, times = np.unique(np.concatenate(named), return_counts=True)
    if (times > 1).any():
        twice = int(owners[np.argmax(times > 1)])
        raise ValueError(
            f"client: expected the rows of each client to be contiguous; those of {twice} are not"
        )
    return np.array(places)


class TableParts:
    """A table of rows, in arrays or memory maps, that is read part by part; all parts have the same shape.

    A bad value raises an error that names its row.

    Attributes:
        places: [parts + 1] the row at which each part starts, and then the number of rows.
        padding: a part that is all padding.
        rejected: always empty, as bad values raise.
    """

    def __init__(
        self, rows: Rows, size: int, num_classes: int, whole_clients: bool, dim: int | None = None
    ) -> None:
        """Choose where to cut the table ``rows`` into parts of at most ``size`` rows each.

        For this the counts are read and, if rows have clients, also clients and labels. With more than 256
        clients, a sample of clients is chosen (see `numbers_of`), and some means are read: those of clients
        that have the same count of each class as another client. Other means are read later, by `read`.
        """
        # `np.asarray` of a memory map is a view, which reads nothing.
        rows = jax.tree.map(np.asarray, rows)
        check_row_structure(rows, dim=dim)
        clients = clients_of(rows) if whole_clients else None
        self._rows = rows
        self._size, self._num_classes = size, num_classes
        # Fix the data types here: the thread that reads parts does not see settings that jax keeps for each
        # thread, such as whether float64 is enabled.
        self._types = RowTypes.of(rows)
        self.places = cuts(clients, len(rows.label), size)
        self._senders = senders(rows)
        self._numbers = np.append(numbers_of(rows, self._senders, self._types, size), -1)
        self.rejected: dict[str, str] = {}
        self.padding = padded_rows(self._as_received(self._between(0, 0)), size)

    def _between(self, start: int, stop: int) -> Rows:
        return jax.tree.map(lambda leaf: leaf[start:stop], self._rows)

    def _as_received(self, part: Rows) -> Rows:
        part = self._types.cast(part)
        if part.client is None:
            return part
        # Renumber clients, the same way in all parts; their own numbers may exceed int32.
        numbers = self._numbers[np.searchsorted(self._senders, part.client)]
        return replace(part, client=np.where(np.isin(part.client, self._senders), numbers, -1))

    def read(self, index: int, check: bool) -> Rows:
        """Return part number ``index`` of the table, padded; if ``check``, raise if it has a bad value."""
        start, stop = (int(place) for place in self.places[index : index + 2])
        part = self._between(start, stop)
        if check:
            reason = bad_value(part, start, self._types, num_classes=self._num_classes)
            if reason is not None:
                raise ValueError(reason)
        return padded_rows(self._as_received(part), self._size)

    def identity(self) -> Mapping[str, Mark]:
        """Identify the table: return its shapes and a digest.

        The digest covers all labels, counts and clients, but only some of the means.
        """
        length = len(self._rows.label)
        sample = np.unique(np.linspace(0, max(length - 1, 0), _SAMPLE).astype(int))[:length]

        def looked_at(leaf: np.ndarray) -> Iterable[np.ndarray]:
            if leaf.ndim > 1:
                return (leaf[row] for row in sample)
            return (leaf[start : start + self._size] for start in range(0, length, self._size))

        leaves = jax.tree.leaves(self._rows)
        return {
            "rows": Mark(", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)),
            "the rows' values": Mark("", digest(values for leaf in leaves for values in looked_at(leaf))),
        }


class LostMessage(RuntimeError):
    """The error for a message file that is gone, or that has changed since its folder was opened."""

    def __init__(self, client: str, reason: str) -> None:
        super().__init__(reason)
        self.client = client


class FolderParts:
    """The rows of all valid messages in an `Inbox` (a folder of message files), read in parts of one shape.

    Attributes:
        places: [parts + 1], where the parts start; the last entry is the number of rows.
        padding: a part that is all padding.
        rejected: for each client name whose file was set aside, the reason.
    """

    def __init__(self, inbox: Inbox, size: int, rules: Rules, whole_clients: bool) -> None:
        """Check the messages by ``rules``, and choose where to cut the table of all their rows into parts.

        The rows are stacked file by file. A part has at most ``size`` rows; with ``whole_clients``, it has
        all rows of each of its clients.
        """
        self._inbox, self._size, self._whole_clients = inbox, size, whole_clients
        self._found, rejected, *_ = check_messages(inbox, inbox, rules)
        self.rejected = inbox.rejected = {**inbox.unreadable, **rejected}
        self._last: tuple[str, Rows] | None = None
        self._cut()

    def leave_out(self, lost: LostMessage) -> None:
        """Leave out a message whose file was lost, and divide the rows of all other files into parts anew."""
        del self._found[lost.client]
        self.rejected[lost.client] = str(lost)
        self._cut()

    def _cut(self) -> None:
        try:
            self._cut_found()
        except LostMessage as lost:
            self.leave_out(lost)

    def _cut_found(self) -> None:
        if not self._found:
            raise ValueError(none_sound(self.rejected))
        found = list(self._found.values())
        lengths = [each.length for each in found]
        self._names, self._lengths, self._ends = list(self._found), lengths, np.cumsum(lengths)
        self.places = self._between_files() if self._whole_clients else cuts(None, sum(lengths), self._size)
        # All files are read in one data type, as when messages are merged in memory.
        rows = [each.none for each in found if each.length] or [found[0].none]
        total = sum(each.size.count for each in found)
        # Fix the data types here: the thread that reads parts does not see settings that jax keeps for each
        # thread, such as whether float64 is enabled.
        self._types = RowTypes.common([RowTypes.of(own, total) for own in rows])
        none = replace(self._types.cast(rows[0]), client=np.zeros(0, np.int32))
        self.padding = padded_rows(none, self._size)
        sent = np.flatnonzero(lengths)
        sizes = [found[number].size for number in sent]
        self._numbers = np.full(len(found), -1, np.int32)
        self._numbers[sent] = numbers_of_messages(
            [(size.label, size.number.astype(self._types.count)) for size in sizes],
            lambda place: self._rows(self._names[sent[place]]),
            found[0].none.mean.shape[1],
        )

    def _between_files(self) -> np.ndarray:
        places = [0]
        while places[-1] < self._ends[-1]:
            last = int(np.searchsorted(self._ends, places[-1] + self._size, side="right")) - 1
            if last < 0 or self._ends[last] == places[-1]:
                raise ValueError(
                    f"part_rows: expected at least {self._lengths[last + 1]}, as a client's rows must "
                    f"stay together, those of {self._names[last + 1]!r}; got {self._size}"
                )
            places.append(int(self._ends[last]))
        return np.array(places)

    def read(self, index: int, check: bool) -> Rows:
        """Return part number ``index`` of the table that stacks the rows of all messages, with padding.

        ``check`` has no effect: all values were checked when the folder was opened.

        Raises:
            LostMessage: if a file is gone or has changed.
        """
        start, stop = (int(place) for place in self.places[index : index + 2])
        part = jax.tree.map(np.copy, self.padding)
        columns = jax.tree.leaves(replace(part, client=None))
        for number in range(int(np.searchsorted(self._ends, start, side="right")), len(self._names)):
            begin = int(self._ends[number]) - self._lengths[number]
            if begin >= stop:
                break
            first, last = max(start - begin, 0), min(stop - begin, self._lengths[number])
            rows = self._rows(self._names[number])
            place = slice(begin + first - start, begin + last - start)
            for column, values in zip(columns, jax.tree.leaves(rows), strict=True):
                column[place] = values[first:last]
            part.client[place] = self._numbers[number]
        return part

    def _rows(self, name: str) -> Rows:
        """Read the rows of one file, and keep them in case the next part needs the same file."""
        if self._last is None or self._last[0] != name:
            try:
                received = as_received(self._inbox[name])
            except (OSError, ValueError) as error:
                # A failing disk is not the client's fault: raise, so that the run can be resumed.
                if isinstance(error, OSError) and error.errno == errno.EIO:
                    raise
                raise LostMessage(name, str(error)) from error
            self._last = name, self._types.cast(received.rows)
        return self._last[1]

    def identity(self) -> Mapping[str, Mark]:
        """Identify the folder: return the number of its files, and a digest of their names and contents."""
        files = (f"{name}\0{each.receipt}" for name, each in self._found.items())
        found = digest(np.frombuffer(file.encode(), np.uint8) for file in files)
        return {
            "number of files": Mark(str(len(self._found))),
            "the files' names and digests": Mark("", found),
        }


Parts: TypeAlias = TableParts | FolderParts


def bad_value(rows: Rows, start: int, types: RowTypes, *, num_classes: int) -> str | None:
    """Check rows by `sound_rows`; return the text of its error, or None if all values are good.

    In the text, the first of these rows has the number ``start``.
    """
    try:
        sound_rows(rows, types, num_classes=num_classes)
    except (TypeError, ValueError) as error:
        return re.sub(r"\brow (\d+)", lambda match: f"row {start + int(match[1])}", str(error), count=1)
    return None
