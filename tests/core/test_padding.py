"""Eager calls on tables of any number of rows: few compilations, and what the rows alone give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compilations
from jax.sharding import NamedSharding, PartitionSpec

import covfree
from covfree.core.padding import few_sizes, pad_rows

RNG = np.random.default_rng(0)
SIZES = (0, 1, 5, 9, 17, 30, 40, 41, 63)
# No other test has features of so many numbers: nothing is compiled before.
CLASSES, DIM = 4, 13
CLIENTS = [
    (RNG.normal(size=(size, DIM)).astype(np.float32), RNG.integers(0, CLASSES, size)) for size in SIZES
]


FUNCTIONS = {
    "class_means": lambda x, y: covfree.class_means(x, y, CLASSES),
    "class_covariances": lambda x, y: covfree.class_covariances(x, y, CLASSES),
    "gram": lambda x, y: covfree.gram(x, y, CLASSES),
    "estimate_covariance": lambda x, y: covfree.estimate_covariance(x, y),
    "ledoit_wolf": lambda x, y: covfree.estimate_covariance(x, y, shrinkage=covfree.ledoit_wolf()),
    "aggregate_covariances": lambda x, y: covfree.aggregate_covariances(x, y, x[:, :, None] * x[:, None]),
    "shift_bias": lambda x, y: covfree.shift_bias(x, y),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_padding_changes_nothing_and_few_functions_are_compiled(name):
    function = FUNCTIONS[name]
    found = []
    number = compilations(lambda: found.extend(function(x, y) for x, y in CLIENTS))
    assert number <= 2
    place = SIZES.index(41)
    expected = jax.jit(function)(*CLIENTS[place])  # where nothing is padded
    for one, other in zip(jax.tree.leaves(found[place]), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_mixtures_of_clients_of_about_one_size_share_what_is_compiled():
    """However many classes they hold, and examples of one."""

    def message(size, classes):
        x, y = RNG.normal(size=(size, DIM)).astype(np.float32), np.arange(size) % classes
        return covfree.client_message(covfree.fedpft(), x, y, num_classes=CLASSES, key=key).rows.mean

    key = jax.random.key(0)
    message(63, 4)
    assert compilations(lambda: [message(40, 2), message(50, 3), message(33, 4)]) == 0


def test_where_arrays_are():
    """Arrays of a device stay on it; those on several are not padded; half precisions are taken."""
    last = jax.devices()[-1]
    x, y = CLIENTS[2]
    placed = covfree.class_means(jax.device_put(x, last), jax.device_put(y, last), CLASSES)
    assert placed[0].devices() == {last}
    spread = jax.device_put(
        np.zeros((8, DIM), np.float32), NamedSharding(jax.make_mesh((8,), ("x",)), PartitionSpec("x"))
    )
    given = {"means": spread, "counts": jnp.ones(8)}
    assert pad_rows(given, {"means": 0, "counts": 0})["means"] is spread
    half = covfree.class_means(jnp.asarray(x, jnp.bfloat16), y, CLASSES)
    np.testing.assert_allclose(half[0], placed[0], atol=0.05)
    assert few_sizes(2**16 + 1) == 2**16 + 1
    assert all(size <= few_sizes(size) < max(2 * size, 33) for size in range(5000))
    assert len({few_sizes(size) for size in range(2**16)}) < 45


@pytest.mark.parametrize("name", ["fedcof", "fed3r", "fedcof-residuals", "afl"])
def test_messages_of_ragged_clients_are_compiled_once_a_bucket(name):
    method = covfree.methods.registry()[name].make()
    covfree.client_message(method, *CLIENTS[4], num_classes=CLASSES)
    others = [
        lambda x=x, y=y: covfree.client_message(method, x, y, num_classes=CLASSES) for x, y in CLIENTS[1:6]
    ]
    assert compilations(lambda: [other() for other in others]) == 0


@pytest.mark.usefixtures("untyped")
def test_messages_under_vmap():
    """A row for each class; those that a client lacks count nothing."""
    method = covfree.fedcof(0.1)
    x = RNG.normal(size=(3, 8, DIM)).astype(np.float32)
    y = RNG.integers(0, CLASSES - 1, (3, 8))
    messages = jax.jit(jax.vmap(lambda x, y: covfree.client_message(method, x, y, num_classes=CLASSES)))(x, y)
    assert messages.rows.mean.shape == (3, CLASSES, DIM)
    each = {k: jax.tree.map(lambda leaf, k=k: leaf[k], messages) for k in range(3)}
    alone = {k: covfree.client_message(method, x[k], y[k], num_classes=CLASSES) for k in range(3)}
    first, second = (
        covfree.solve_message(method, covfree.collect(sent, num_classes=CLASSES).message, num_classes=CLASSES)
        for sent in (each, alone)
    )
    for one, other in zip(*map(jax.tree.leaves, (first, second)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
