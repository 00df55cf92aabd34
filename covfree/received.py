"""Which messages are sound, and fit the others: what the server's doors share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from covfree.checks import check_rows
from covfree.types import Message, Rows


def sort_out(
    messages: Mapping[Hashable, Message],
    num_classes: int,
    dim: int | None,
    num_examples: Mapping[Hashable, int],
    before: Message | None,
) -> tuple[dict[Hashable, Message], dict[Hashable, str]]:
    """The sound messages, and why each of the others is not.

    Args:
        messages: by client.
        num_classes: C.
        dim: d; None for any.
        num_examples: how many examples clients say that they have, where they do.
        before: those of earlier rounds in one, whose parts new ones must have.
    """
    sound, rejected = {}, {}
    for client, message in messages.items():
        try:
            if not isinstance(message, Message):
                raise TypeError(f"message: expected a Message, got {type(message).__name__}")
            check_rows(message.rows, num_classes=num_classes, dim=dim)
            _check_matrix(message)
            if client in num_examples:
                _check_sum(message.rows, num_examples[client])
        except (TypeError, ValueError) as error:
            rejected[client] = str(error)
        else:
            sound[client] = message
    for client, reason in unlike(sound, before).items():
        rejected[client] = reason
        del sound[client]
    return sound, rejected


def most_frequent_dim(messages: Iterable[Any]) -> int | None:
    """The dimension of most messages; None if none has one."""
    sizes = [np.shape(message.rows.mean) for message in messages if isinstance(message, Message)]
    dims = Counter(size[1] for size in sizes if len(size) == 2)
    # The smaller of two that are as frequent, whatever the order of the clients.
    return max(sorted(dims), key=dims.__getitem__, default=None)


def _parts(message: Message) -> dict[str, int]:
    """Dimensions of each part that may be there or not, 0 where it is not; and whether it is a solution."""
    rows = message.rows
    parts = {"covariance": rows.covariance, "sketch": rows.sketch, "matrix": message.matrix}
    sizes = {name: 0 if part is None else np.ndim(part) for name, part in parts.items()}
    return {**sizes, "solved": message.solved}


def unlike(sound: Mapping[Hashable, Message], before: Message | None) -> dict[Hashable, str]:
    """Why each message that does not hold the parts that others hold cannot be put together with them.

    The others are those of earlier rounds, else most of this one, whatever the order of the clients. A
    message without rows may hold any parts, as it adds nothing.
    """
    parts = {client: _parts(message) for client, message in sound.items() if len(message.rows.count)}
    structures = Counter(tuple(own.items()) for own in parts.values())
    # The one with fewer parts of two that are as frequent.
    ordered = sorted(structures, key=lambda structure: tuple(size for _, size in structure))
    expected = dict(max(ordered, key=structures.__getitem__, default=()))
    if before is not None and len(before.rows.count):
        # Solutions of earlier rounds are class means by now: whether they were is not known any more.
        expected = {**_parts(before), "solved": expected.get("solved", False)}
    reasons = {}
    for client, own in parts.items():
        for name in own:
            if own[name] != expected[name]:
                wanted, got = _described(name, expected[name]), _described(name, own[name])
                reasons[client] = f"{name}: expected {wanted} as others send, got {got}"
                break
    return reasons


def _described(name: str, size: int) -> str:
    if name == "solved":
        return str(size)
    return "none" if size == 0 else f"an array of {size} dimensions"


def _check_matrix(message: Message) -> None:
    dim = np.shape(message.rows.mean)[1]
    if message.matrix is None:
        if message.solved:
            raise ValueError("matrix: expected the one that the solution was computed with, got none")
        return
    if np.shape(message.matrix) != (dim, dim):
        raise ValueError(f"matrix: expected shape {[dim, dim]}, got {list(np.shape(message.matrix))}")
    if not np.isfinite(message.matrix).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(message.matrix))[0])
        raise ValueError(
            f"matrix: holds {np.asarray(message.matrix)[place]} at {place}; expected finite numbers"
        )


def _check_sum(rows: Rows, num_examples: int) -> None:
    counts = np.asarray(rows.count)[np.asarray(rows.label) >= 0]
    total = counts.sum()
    # The parts of a class that a mixture's components hold add up but for rounding.
    wrong = total != num_examples if counts.dtype.kind in "iu" else not np.isclose(total, num_examples)
    if wrong:
        raise ValueError(f"count: counts sum to {total}; expected the {num_examples} examples announced")
