"""The messages of a folder in one, however often the server looks into it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from covfree.core.checks import check_type
from covfree.core.types import Message
from covfree.protocol.files import shown
from covfree.protocol.folder import MessageFile, MessageFolder
from covfree.protocol.received import Bounds
from covfree.protocol.server import Collected, checksum, collect, dim_of

# Bytes of messages that are held at once while they are put together.
_BATCH = 2**28


def collect_files(
    folder: MessageFolder,
    *,
    num_classes: int,
    dim: int | None = None,
    num_examples: Mapping[Any, int] | None = None,
    max_count: int | float | None = None,
    max_norm: int | float | None = None,
    before: Collected | None = None,
) -> Collected:
    """Check and put together the message files of a folder: `collect`, with few messages in memory at once.

    Works for every method. Matrices are added up as they are read; rows are kept. If the rows alone do not
    fit in memory, use `solve_stream`.

    A server that waits for clients opens the folder again and again, and passes the last result as
    ``before``. Files that were counted are not read again. A file that a client wrote since then is a message
    sent again: it is named in ``repeated``, and the first counts.

    Args:
        folder: the files; a client's name is that of its file, without ``.safetensors``.
        num_classes: C.
        dim: d; by default that of ``before``, or that which all files have.
        num_examples: see `collect`.
        max_count: see `collect`.
        max_norm: see `collect`.
        before: the result of earlier rounds.

    Returns:
        The sound messages in one, for `solve_message`, the reason for each file that was set aside, and when
        those came that missed the folder's deadline. That the folder is empty is no error, see `collect`.

    Raises:
        TypeError: if the folder is none, or a bound is no number.
        ValueError: if files differ in d and no ``dim`` says which is right; if a bound is wrong, see
            `collect`.

    >>> import covfree, numpy as np, tempfile
    >>> rows = covfree.Rows(np.ones((1, 2)), np.array([3]), np.array([0]))
    >>> sent = covfree.Message(rows, np.full((2, 2), 3.0))
    >>> with tempfile.TemporaryDirectory() as path:
    ...     covfree.save_message(sent, f"{path}/a.safetensors")
    ...     received = collect_files(MessageFolder(path), num_classes=1)
    ...     covfree.save_message(sent, f"{path}/a.safetensors")
    ...     covfree.save_message(sent, f"{path}/b.safetensors")
    ...     received = collect_files(MessageFolder(path), num_classes=1, before=received)
    >>> received.clients, received.message.matrix.tolist(), list(received.repeated)
    (('a', 'b'), [[6.0, 6.0], [6.0, 6.0]], ['a'])
    """
    check_type("folder", folder, MessageFolder)
    bounds = Bounds(num_classes, dim, num_examples or {}, max_count, max_norm)
    collected = collect({}, num_classes=num_classes, dim=dim, before=before)
    # Who sent what is late or cannot be read has sent.
    if not any(name in bounds.num_examples for name in (*folder.rejected, *folder.late)):
        bounds.check_announced({*(file.name for file in folder.files), *collected.clients})
    receipts = {client: receipt.file for client, receipt in collected.receipts.items()}
    counted, unread = set(collected.clients), [f for f in folder.files if receipts.get(f.name) != f.mark]
    owners = {(r.identity, r.checksum): client for client, r in collected.receipts.items()}
    # Files without an identity are no copies.
    identities = {identity for identity, _ in owners} - {None}
    # What a client sends after it was counted may have any shape.
    new = [file for file in unread if file.name not in counted]
    files, rejected = folder.sound(
        new, dim_of(before, dim), replace(collected.message, solved=collected.solved)
    )
    if files:
        bounds = replace(bounds, dim=files[0].header.rows.mean.shape[1])
    for batch in _batches([*files, *(file for file in unread if file.name in counted)]):
        messages: dict[Hashable, Message] = {}
        for file in batch:
            try:
                message = file.message()
            except (OSError, RuntimeError, ValueError) as error:
                rejected[file.name] = str(error)
                continue
            # The file that was counted may have been moved or replaced since then.
            copied = file.identity in identities and file.name not in counted
            first = owners.get((file.identity, checksum(message))) if copied else None
            if first is None:
                messages[file.name] = message
            else:
                rejected[file.name] = (
                    f"path: {shown(file.path)}: expected a message of its own, got a copy of what {first!r} "
                    "sent"
                )
        announced = {name: number for name, number in bounds.num_examples.items() if name in messages}
        collected = collect(messages, **{**vars(bounds), "num_examples": announced}, before=collected)
    sent: dict[Hashable, MessageFile] = {file.name: file for file in new}
    broken = {
        name: f"sent what was set aside ({reason}); the first counts"
        for name, reason in rejected.items()
        if name in counted
    }
    late, counts = {**collected.late, **folder.late}, set(collected.clients)
    return replace(
        collected,
        rejected={**collected.rejected, **{c: reason for c, reason in rejected.items() if c not in counted}},
        repeated={**collected.repeated, **broken},
        late={c: time for c, time in late.items() if c not in counts and folder.holds(str(c))},
        receipts={
            c: receipt._replace(file=sent[c].mark, identity=sent[c].identity) if c in sent else receipt
            for c, receipt in collected.receipts.items()
        },
    )


def _batches(files: Sequence[MessageFile]) -> Iterator[list[MessageFile]]:
    batch, size = [], 0
    for file in files:
        if batch and size + file.stamp[0] > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.stamp[0]
    yield batch
