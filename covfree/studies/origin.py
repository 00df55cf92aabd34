"""What a head's file records about its data, so that the head is not tested on its training examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from covfree.core.padding import blocks
from covfree.data import FeatureSet

# How many hashes of training examples a file stores: the smallest ones, which are a fair sample.
_KEPT = 1024
# Data sets repeat a few examples. Above this share, the test part counts as seen in training.
_REPEATED = 0.1


def origin_of(data: FeatureSet, seed: int) -> dict[str, Any]:
    """Return, by name, what a head's file records about its data.

    This is the data's name, the number of examples, the seed of the split into training and test part, the
    sum of the training examples' hashes, and the smallest of these hashes.
    """
    total, kept = 0, np.zeros(0, np.uint64)
    for hashes in _hashes(data.train_features):
        total += int(hashes.sum(dtype=np.uint64))
        kept = np.unique(np.concatenate([kept, hashes]))[:_KEPT]
    return {
        "dataset": data.name,
        "examples": _examples(data),
        "seed": seed,
        "train": f"{total % 2**64:016x}",
        "hashes": [f"{one:016x}" for one in kept.tolist()],
    }


def says_enough(origin: Mapping[str, Any] | None) -> bool:
    """Return whether ``origin`` has all entries that `origin_of` makes; False if it is None.

    ``origin`` is what a head's file says about the data to which the head was fitted. Entries may be missing,
    as `covfree.save_head` accepts any dict.
    """
    return origin is not None and {"dataset", "examples", "seed", "train", "hashes"} <= set(origin)


def seen_in_training(data: FeatureSet, seed: int, origin: Mapping[str, Any]) -> str:
    """Return a warning if a head was fitted to over a tenth of the test examples of ``data``, else "".

    ``origin`` is the record, in the head's file, of the examples to which it was fitted; ``seed`` is the seed
    with which ``data`` was split. If these examples are exactly the training part, there is no warning.
    """
    known = np.array([int(one, 16) for one in origin["hashes"]], np.uint64)
    looked_at = found = 0
    for hashes in _hashes(data.test_features):
        # If the file has only the smallest hashes of a larger training part, compare none above these.
        seen = hashes[hashes <= known[-1]] if len(known) == _KEPT else hashes
        looked_at += len(seen)
        found += int(np.isin(seen, known).sum())
    if found <= _REPEATED * looked_at or origin_of(data, seed)["train"] == origin["train"]:
        return ""
    share = f"{found:,} of {looked_at:,} test examples looked at are among them"
    if (now := _examples(data)) != origin["examples"]:
        return (
            f"{share}; it was fitted to a part of {origin['examples']:,} examples, where {data.name} has "
            f"{now:,}: if it was made with a --test-file, give the same one"
        )
    if seed == origin["seed"]:
        return f"{share}; with --seed {seed} it was fitted to other examples, or to these in another order"
    return (
        f"{share}; it was fitted with the split of --seed {origin['seed']}, got --seed {seed}: give --seed "
        f"{origin['seed']}"
    )


def _examples(data: FeatureSet) -> int:
    return len(data.train_labels) + len(data.test_labels)


def _hashes(features: Any) -> Iterator[np.ndarray]:
    """Yield arrays of the examples' hashes.

    Features are rounded to float16, so that copies in other precisions have the same hashes.
    """
    for part in blocks(features):
        block = np.asarray(features[part])
        largest = abs(block).max(1, initial=0, keepdims=True).astype(np.float64)
        # Scale examples outside float16's range first; otherwise all of them would be alike.
        far = (largest > 0) & ((largest < 2.0**-14) | (largest > 65504))
        scale = np.where(far, 2.0 ** -np.frexp(largest)[1], 1)
        # Adding zero turns −0 into 0.
        coarse = (block * scale if far.any() else block).astype(np.float16) + np.float16(0)
        block = np.ascontiguousarray(coarse).view(np.uint16).astype(np.uint64)
        # Any odd factors will do, if they are the same on every machine.
        factors = np.random.PCG64(block.shape[1]).random_raw(block.shape[1]) | np.uint64(1)
        hashes = (block * factors).sum(1, dtype=np.uint64)
        hashes ^= hashes >> np.uint64(33)
        hashes *= np.uint64(0xFF51AFD7ED558CCD)
        hashes ^= hashes >> np.uint64(29)
        yield hashes
