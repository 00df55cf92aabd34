"""What a head was fitted to: fingerprints of its data, so that nobody takes training examples for a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from covfree.core.gathered import blocks
from covfree.data import FeatureSet

_MODULUS = 2**64


def origin_of(data: FeatureSet, seed: int) -> dict[str, Any]:
    """What a head's file says of its data: name, seed of the split, fingerprints of its two parts."""
    parts = {
        part: f"{_fingerprint(getattr(data, f'{part}_features'), getattr(data, f'{part}_labels')):016x}"
        for part in ("train", "test")
    }
    return {"dataset": data.name, "seed": seed, **parts}


def is_same_data(data: FeatureSet, origin: Mapping[str, Any]) -> bool:
    """Whether data are those of an origin, however they are split."""
    return _whole(origin_of(data, 0)) == _whole(origin)


def seen_in_training(data: FeatureSet, seed: int, origin: Mapping[str, Any]) -> str:
    """Why the test part of data is one that a head was fitted to; nothing if it is none.

    Args:
        data: to test on, split.
        seed: of the split.
        origin: of the head.
    """
    now = origin_of(data, seed)
    if origin["train"] == now["test"]:
        return f"they are the training part of {origin['dataset']}"
    if origin["train"] == f"{_whole(now):016x}":
        return f"all of {data.name} is the training part of {origin['dataset']}"
    if _whole(origin) == _whole(now) and origin["train"] != now["train"]:
        return f"the split of --seed {seed} is not that of --seed {origin['seed']}, which it was fitted with"
    return ""


def _whole(origin: Mapping[str, Any]) -> int:
    return (int(origin["train"], 16) + int(origin["test"], 16)) % _MODULUS


def _fingerprint(features: Any, labels: np.ndarray) -> int:
    """A sum of hashes of the examples: the same in any order, and that of two parts the parts' sum."""
    total = 0
    for part in blocks(features):
        block = np.ascontiguousarray(features[part]).view(np.uint8).reshape(part.stop - part.start, -1)
        # Any odd numbers, the same everywhere.
        factors = np.random.PCG64(block.shape[1]).random_raw(block.shape[1]).astype(np.uint64) | np.uint64(1)
        hashes = (block * factors).sum(1, dtype=np.uint64) + labels[part].astype(np.uint64)
        # What was only summed is mixed, so that exchanged labels are other examples.
        hashes ^= hashes >> np.uint64(33)
        hashes *= np.uint64(0xFF51AFD7ED558CCD)
        hashes ^= hashes >> np.uint64(29)
        total += int(hashes.sum(dtype=np.uint64))
    return total % _MODULUS
