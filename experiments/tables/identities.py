"""What results are of, so that they are not continued with other data or weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from covfree.core.atomic import JsonLines
from experiments.tables.data import Data


class Identities:
    """What results are of, in a file beside them, a line for each data: other processes may add theirs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, data: Data) -> None:
        """Write down what data are, or raise if results of that name are of others."""
        name, images = data.name, data.images
        own: dict[str, Any] = {}
        if images is not None:
            own = {
                "images": images.images.fingerprint[:16],
                "labels": _hash(images.images.labels),
                "clients": _hash(images.images.clients),
                "test part": _hash(images.images.is_test),
                "weights": images.weights.sha256,
                "preprocessing": str(images.preprocessing),
            }
        # Read anew for each data, as others may have added theirs meanwhile.
        lines = JsonLines(self.path, dict, "a source of results")
        before = next((line for line in lines.records if line.get("name") == name), None)
        if before is None:
            record = {"name": name, **own}
            lines.add(record, record)
            return
        for key in sorted({*own, *before} - {"name"}):
            if own.get(key) != before.get(key):
                raise ValueError(
                    f"{self.path}: holds results of {name} with {key} {before.get(key)}, got {own.get(key)}; "
                    "give --out another folder"
                )


def _hash(values: np.ndarray | None) -> str | None:
    """None, or tells equal arrays from others."""
    return (
        None
        if values is None
        else hashlib.sha256(f"{values.dtype}".encode() + values.tobytes()).hexdigest()[:16]
    )
