"""Every named method's head on three small federations, as it was when it was last meant to change.

How rows are summed, and by whom, may change; heads may not. After a change that is meant, write them anew:
``PYTHONPATH=. python tests/test_frozen_heads.py``.
"""

from pathlib import Path

import jax
import numpy as np
import pytest

import covfree
from covfree.methods import registry

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)

HEADS = Path(__file__).parent / "frozen_heads.npz"
CLASSES, DIM, EXAMPLES, CLIENTS = 4, 5, 72, 6
# Small where the defaults are large.
NUMBERS = {
    "fed3r-random": {"num_features": 12, "sigma": 1.0, "unit": True},
    "fedcof-random": {"num_features": 12},
    "stsa-e": {"num_features": 12},
    "fedran": {"num_features": 12},
    "fedpft": {"num_components": 2},
    "deepafl": {"num_layers": 2, "width": 8, "inner": 7},
    "safle": {"num_buckets": 2, "group_size": 2},
    "fedcof-refined": {"rounds": 2},
    "fedcof-corrected": {"rounds": 2},
}


def federation(number):
    """Examples in float64, some of them padding: spread evenly; far from 0; each client with few classes."""
    rng = np.random.default_rng(number)
    labels = rng.integers(0, CLASSES - (number == 2), EXAMPLES)
    mixing = rng.normal(size=(DIM, DIM)) / np.sqrt(DIM)
    features = rng.normal(size=(EXAMPLES, DIM)) @ mixing + 2 * rng.normal(size=(CLASSES, DIM))[labels]
    clients = np.arange(EXAMPLES) % CLIENTS
    if number == 2:
        clients[np.argsort(labels, kind="stable")] = np.arange(EXAMPLES) // 4
    labels[:2], clients[2:4] = -1, -1
    return features + 5.0 * (number == 1), labels, clients


def scores(name):
    """Of the head at test points, one table for each federation; compiled once."""
    method = registry()[name].make(**NUMBERS.get(name, {}))
    test = np.random.default_rng(9).normal(size=(8, DIM))

    @jax.jit
    def scored(features, labels, clients, points):
        return covfree.fit(method, features, labels, clients, num_classes=CLASSES, key=jax.random.key(3))(
            points
        )

    return np.stack([scored(*federation(i), test + 5.0 * (i == 1)) for i in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize("name", registry())
def test_heads_are_as_they_were(name):
    from precision import x64

    with x64(), np.load(HEADS) as frozen:
        np.testing.assert_allclose(scores(name), frozen[name], rtol=1e-6, atol=1e-7)


def test_no_head_is_of_an_unknown_method():
    with np.load(HEADS) as frozen:
        assert sorted(frozen.files) == sorted(registry())


if __name__ == "__main__":
    np.savez_compressed(HEADS, **{name: scores(name) for name in registry()})  # pyright: ignore[reportArgumentType]
