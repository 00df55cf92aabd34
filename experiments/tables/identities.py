"""What results are of, so that they are not continued with other data or weights."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tables.data import Data


class Identities:
    """What results are of, in a file beside them, so that they are not continued with other data."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _known(self) -> dict[str, Any]:
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}

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
        before = self._known.setdefault(name, own)
        for key in sorted({*own, *before}):
            if own.get(key) != before.get(key):
                raise ValueError(
                    f"{self.path}: holds results of {name} with {key} {before.get(key)}, got {own.get(key)}; "
                    "give --out another folder"
                )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self._known, indent=2) + "\n", encoding="utf-8")


def _hash(values: np.ndarray | None) -> str | None:
    """None, or tells equal arrays from others."""
    return (
        None
        if values is None
        else hashlib.sha256(f"{values.dtype}".encode() + values.tobytes()).hexdigest()[:16]
    )
