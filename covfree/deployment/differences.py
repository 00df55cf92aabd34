"""Compare the settings on which a federation agreed with those that a site uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from covfree.data.feature_file import flat

_SHA_256 = re.compile("[0-9a-f]{64}")


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return one text for each difference between the agreed settings, ``expected``, and a site's, ``found``.

    >>> agreed = {"dim": 2, "weights": "81b6ae", "class_names": ["cat", "cow", "dog"]}
    >>> differences(agreed, {"dim": 2, "weights": "5793ff", "class_names": ["cow", "cat", "dog"]})
    ['weights: expected 81b6ae, got 5793ff', 'class_names: classes 0 and 1 are swapped']
    """
    left, right = flat(expected), flat(found)
    classes = [each.pop("class_names", None) for each in (left, right)]
    texts = [
        f"{name}: expected {_shown(left.get(name))}, got {_shown(right.get(name))}"
        for name in {**left, **right}
        if left.get(name) != right.get(name)
    ]
    return texts + _renumbered(*classes)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    # The first digits of a SHA-256 are enough.
    return f"{value[:12]}…" if isinstance(value, str) and _SHA_256.fullmatch(value) else str(value)


def _renumbered(wanted: Any, own: Any) -> list[str]:
    if wanted == own:
        return []
    if not isinstance(own, list) or not all(isinstance(name, str) for name in own):
        return [f"class_names: expected {len(wanted)} names, got {own if own is None else 'something else'}"]
    if missing := [name for name in wanted if name not in own]:
        return [f"class_names: expected {', '.join(map(repr, missing[:3]))} among them, got none such"]
    if len(own) != len(wanted):
        return [f"class_names: expected {len(wanted)} names, got {len(own)}"]
    place = {name: c for c, name in enumerate(own)}
    moved = [c for c, name in enumerate(wanted) if place[name] != c]
    swapped = [
        (c, place[wanted[c]]) for c in moved if own[c] == wanted[place[wanted[c]]] and c < place[wanted[c]]
    ]
    if 2 * len(swapped) == len(moved) <= 6:
        return [f"class_names: classes {a} and {b} are swapped" for a, b in swapped]
    shown = ", ".join(f"class {c} is {own[c]!r}, expected {wanted[c]!r}" for c in moved[:3])
    return [f"class_names: {shown}" + f" ({len(moved)} classes are renumbered)" * (len(moved) > 3)]
