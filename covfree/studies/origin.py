"""Fingerprints of the data that a head was fitted to, so that nobody tests it on its training examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from covfree.core.gathered import blocks
from covfree.data import FeatureSet

_MODULUS = 2**64


def origin_of(data: FeatureSet, seed: int) -> dict[str, Any]:
    """Return the data's name, the seed of its split, and fingerprints of both parts, for a head's file."""
    parts = {
        part: f"{_fingerprint(getattr(data, f'{part}_features'), getattr(data, f'{part}_labels')):016x}"
        for part in ("train", "test")
    }
    return {"dataset": data.name, "seed": seed, **parts}


def is_same_data(data: FeatureSet, origin: Mapping[str, Any]) -> bool:
    """Whether the data have the origin's examples, whatever the split."""
    return _whole(origin_of(data, 0)) == _whole(origin)


def seen_in_training(data: FeatureSet, seed: int, origin: Mapping[str, Any]) -> str:
    """Say why the test part may hold examples that the head was fitted to; empty if that is not known.

    Args:
        data: the data to test on.
        seed: seed of their split.
        origin: the head's `origin_of`.
    """
    now = origin_of(data, seed)
    if origin["train"] == now["test"]:
        return f"they are the training part of {origin['dataset']}"
    if origin["train"] == f"{_whole(now):016x}":
        return f"all of {data.name} is the training part of {origin['dataset']}"
    if _whole(origin) == _whole(now) and origin["train"] != now["train"]:
        return (
            f"the split of --seed {seed} is not the one that it was fitted with, of --seed {origin['seed']}: "
            "the seed or the order of the examples differs"
        )
    return ""


def _whole(origin: Mapping[str, Any]) -> int:
    return (int(origin["train"], 16) + int(origin["test"], 16)) % _MODULUS


def _fingerprint(features: Any, labels: np.ndarray) -> int:
    """Sum the examples' hashes: the order does not matter, and fingerprints of disjoint parts add up."""
    total = 0
    for part in blocks(features):
        # The same numbers in another type are the same data.
        block = np.ascontiguousarray(features[part], np.float32).view(np.uint8)
        block = block.reshape(part.stop - part.start, -1)
        # Any odd factors will do, if they are the same on every machine.
        factors = np.random.PCG64(block.shape[1]).random_raw(block.shape[1]).astype(np.uint64) | np.uint64(1)
        hashes = (block * factors).sum(1, dtype=np.uint64) + labels[part].astype(np.uint64)
        # A linear hash would not notice two examples that exchange labels, so mix the bits.
        hashes ^= hashes >> np.uint64(33)
        hashes *= np.uint64(0xFF51AFD7ED558CCD)
        hashes ^= hashes >> np.uint64(29)
        total += int(hashes.sum(dtype=np.uint64))
    return total % _MODULUS
