"""The kind of a message (its parts and its metadata), and comparisons of kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from covfree.core.types import Message
from covfree.protocol.messages import SAID


class Kind(NamedTuple):
    """What must be equal in messages that are merged: which arrays they have, and their metadata.

    ``solved``, ``sends``, ``class_names`` and ``extractor`` are those of `Message`.

    Attributes:
        covariance: the number of axes of ``Rows.covariance``; 0 if the message has no such array.
        sketch: the number of axes of ``Rows.sketch``, or 0.
        matrix: the number of axes of ``Message.matrix``, or 0.
    """

    covariance: int
    sketch: int
    matrix: int
    solved: bool
    sends: str | None
    class_names: tuple[str, ...] | None
    extractor: str | None

    @classmethod
    def of(cls, message: Message) -> Kind:
        """Read from a message which parts and metadata it has."""
        parts = (message.rows.covariance, message.rows.sketch, message.matrix)
        covariance, sketch, matrix = (0 if part is None else np.ndim(part) for part in parts)
        said = message.sends, message.class_names, message.extractor
        return cls(covariance, sketch, matrix, bool(message.solved), *said)

    def difference(self, wanted: Kind, who: str) -> str | None:
        """Describe in words the first difference from the kind ``wanted``; return None if there is none.

        Metadata are compared only if both kinds have them. ``who`` says in the text why ``wanted`` is
        expected, e.g. ``"as others send"``.
        """
        for name, own, other in zip(self._fields[:4], self[:4], wanted[:4], strict=True):
            if own != other:
                return f"{name}: expected {_described(name, other)} {who}, got {_described(name, own)}"
        if self.sends is not None and wanted.sends is not None and self.sends != wanted.sends:
            return f"sends: expected {wanted.sends!r} {who}, got {self.sends!r}"
        return renumbered(self.class_names, wanted.class_names) or elsewhere(self.extractor, wanted.extractor)


def _described(name: str, size: int) -> str:
    if name == "solved":
        return str(bool(size))
    return "none" if size == 0 else f"an array of {size} dimensions"


def renumbered(own: tuple[str, ...] | None, wanted: tuple[str, ...] | None) -> str | None:
    """Return an error text if the class names ``own`` are not the first names in ``wanted``; else None.

    Return None too if ``own`` or ``wanted`` is None.
    """
    if own is None or wanted is None or own == wanted[: len(own)]:
        return None
    other = [c for c in range(min(len(own), len(wanted))) if own[c] != wanted[c]]
    if not other:
        return f"class_names: expected {len(wanted)} names, got {len(own)}"
    shown = ", ".join(f"{wanted[c]!r} for class {c}, got {own[c]!r}" for c in other[:3])
    more = f" ({len(other)} classes differ)" if len(other) > 3 else ""
    return f"class_names: expected {shown}{more}"


def elsewhere(own: str | None, wanted: str | None) -> str | None:
    """Return an error text if the fingerprints of two extractors differ; None if equal or one is unknown."""
    if own is None or wanted is None or own == wanted:
        return None
    return (
        f"extractor: expected the one with the fingerprint {wanted!r}, got {own!r}: another backbone, other "
        "weights or other preprocessing"
    )


def common_dim(dims: Iterable[int]) -> int | None:
    """Return the dimension d of all messages; None without messages.

    Raises:
        ValueError: if messages differ in d. If the majority decided instead, senders could choose d.
    """
    number = Counter(dims)
    if len(number) > 1:
        found = ", ".join(f"{dim} ({times})" for dim, times in sorted(number.items()))
        raise ValueError(
            f"dim: expected the number of features, as messages differ in it: {found}; give dim=, and "
            "messages of another number are set aside"
        )
    return next(iter(number), None)


def unlike(kinds: Mapping[Hashable, Kind], before: Kind | None) -> dict[Hashable, str]:
    """Return, for each client whose message is not of the wanted kind, a text that says how it differs.

    The wanted kind is ``before``, the kind of earlier rounds; if that is None, the most frequent one in
    ``kinds``. The result does not depend on the order of the clients.
    """
    if before is None:
        # On a tie, the kind with fewer parts wins, as it sorts first.
        parts = Counter(kind[:4] for kind in kinds.values())
        usual = max(sorted(parts), key=parts.__getitem__, default=(0, 0, 0, False))
        like = [kind for kind in kinds.values() if kind[:4] == usual]
        before = Kind(*usual, None, None, None)
    else:
        like = list(kinds.values())
    # For metadata that earlier rounds lack, take the most frequent value in these messages.
    said = {
        name: getattr(before, name) or _most_frequent(Counter(getattr(kind, name) for kind in like))
        for name in SAID
    }
    wanted = before._replace(**said)
    reasons = {client: kind.difference(wanted, "as others send") for client, kind in kinds.items()}
    return {client: reason for client, reason in reasons.items() if reason is not None}


def _most_frequent(found: Counter[Any]) -> Any:
    said = sorted(value for value in found if value is not None)
    return max(said, key=found.__getitem__, default=None)
