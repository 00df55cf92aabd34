"""Virtual features: shares of the rows, moments of what is drawn, singular covariances, padding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import FLOAT32

import covfree
from covfree.core.keys import derive
from covfree.heads.virtual import sample_rows
from covfree.heads.virtual_descent import descended_head, shuffled

ROWS, DIM, SAMPLES = 6, 3, 4000
STRUCTURES = ["none", "spherical", "diagonal", "full"]
KEY = jax.random.key(0)


def table(precision, structure, seed=0):
    """Six rows, the third and the last of them padding that holds NaN; and full covariances."""
    rng = np.random.default_rng(seed)
    mean = 5 * rng.normal(size=(ROWS, DIM))
    factor = rng.normal(size=(ROWS, DIM, DIM))
    full = factor @ factor.transpose(0, 2, 1)
    diagonal = np.einsum("rdd->rd", full)
    # The first row has less than a block of 128 samples, the second many blocks.
    count = np.array([1.5, 40.0, 0.0, 11.0, 7.25, 9.0])
    label = np.array([2, 0, 1, 2, 1, -1])
    mean[[2, 5]] = np.nan
    covariance = {"none": None, "spherical": diagonal.mean(1), "diagonal": diagonal, "full": full}[structure]
    if structure == "none":
        full = np.zeros_like(full)
    else:
        covariance[[2, 5]] = np.nan
        covariance = precision.array(covariance)
        if structure != "full":
            full = np.stack([np.diag(np.broadcast_to(v, DIM)) for v in np.asarray(covariance)])
    rows = covfree.Rows(
        precision.array(mean), precision.array(count), precision.array(label), covariance=covariance
    )
    return rows, mean, full, np.where(label >= 0, count, 0)


def row_of(labels, count, label):
    """The row of each sample: they come in order, and only rows 0 and 3 share a class."""
    ends = np.cumsum(np.bincount(labels, minlength=3))
    assert ends[-1] == len(labels)
    changes = np.flatnonzero(np.diff(labels)) + 1
    drawn = [r for r in range(len(count)) if count[r] > 0 and label[r] >= 0]
    assert len(changes) == len(drawn) - 1
    return np.array(drawn)[np.searchsorted(changes, np.arange(len(labels)), side="right")]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_moments_of_each_row(precision, structure):
    rows, mean, full, count = table(precision, structure)
    features, labels = sample_rows(rows, SAMPLES, key=KEY)
    assert features.dtype == precision.dtype
    assert labels.dtype == jnp.int32
    features, labels = np.asarray(features, np.float64), np.asarray(labels)
    row = row_of(labels, count, np.asarray(rows.label))
    np.testing.assert_array_equal(labels, np.asarray(rows.label)[row])
    for r in np.flatnonzero(count):
        mine, variance = features[row == r], np.diag(full[r])
        n = len(mine)
        assert abs(n - SAMPLES * count[r] / count.sum()) < 1.001
        rounding = 1e-5
        assert (np.abs(mine.mean(0) - mean[r]) <= 5 * np.sqrt(variance / n) + rounding).all()
        centred = mine - mean[r]
        # The variance of a product of normals: S_ii S_jj + S_ij².
        error = np.sqrt((variance[:, None] * variance[None, :] + full[r] ** 2) / n)
        assert (np.abs(centred.T @ centred / n - full[r]) <= 5 * error + rounding).all()


def test_structures_agree(precision):
    # The same noise: a diagonal covariance in full is coloured block by block, to the same features.
    rows, _, full, _ = table(precision, "diagonal")
    expected, labels = sample_rows(rows, SAMPLES, key=KEY)
    in_full = covfree.Rows(rows.mean, rows.count, rows.label, covariance=precision.array(full))
    actual, again = sample_rows(in_full, SAMPLES, key=KEY)
    np.testing.assert_array_equal(labels, again)
    precision.assert_close(actual, expected)


def test_shares_are_met_within_one():
    rng = np.random.default_rng(0)
    count = np.where(rng.random(40) < 0.3, 0, rng.gamma(0.5, size=40) + 1e-3).astype(np.float32)
    label = np.where(rng.random(40) < 0.2, -1, np.arange(40)).astype(np.int32)
    # Each row's number is its feature.
    mean = jnp.arange(40.0)[:, None]
    rows = covfree.Rows(jnp.where(count[:, None] > 0, mean, jnp.nan), jnp.asarray(count), jnp.asarray(label))
    draw = jax.jit(jax.vmap(lambda key: sample_rows(rows, 97, key=key)))
    features, labels = draw(jax.random.split(KEY, 400))
    np.testing.assert_array_equal(features[..., 0], labels)
    numbers = np.stack([np.bincount(x, minlength=40) for x in np.asarray(labels)])
    share = np.where(label >= 0, count, 0).astype(np.float64)
    share *= 97 / share.sum()
    assert (numbers.sum(1) == 97).all()
    assert (np.abs(numbers - share) < 1.001).all()
    np.testing.assert_array_equal(numbers[:, share == 0], 0)
    # The random offset makes the shares right on average: a number is ⌊s⌋ or ⌈s⌉, Bernoulli about s.
    fraction = share % 1
    error = np.sqrt(fraction * (1 - fraction) / 400)
    assert (np.abs(numbers.mean(0) - share) <= 5 * error + 1e-3).all()
    assert (np.diff(np.asarray(labels), axis=1) >= 0).all()


def test_singular_and_indefinite_covariances():
    direction = np.array([3.0, -1.0, 0.0])
    negative = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1e-6]])
    matrices = np.stack([np.outer(direction, direction), np.zeros((3, 3)), negative, 1e6 * np.ones((3, 3))])
    means = np.ones((4, DIM))
    rows = covfree.Rows(
        FLOAT32.array(means), jnp.ones(4), jnp.arange(4, dtype=jnp.int32), covariance=FLOAT32.array(matrices)
    )
    features, labels = sample_rows(rows, 4 * 500, key=KEY)
    features = np.asarray(features, np.float64) - 1
    line, point, clipped, large = (features[np.asarray(labels) == k] for k in range(4))
    # A feature of variance 0 does not move; what depends on others does so but for √(3 eps).
    np.testing.assert_array_equal(line[:, 2], 0)
    np.testing.assert_allclose(line[:, 0] / 3, -line[:, 1], atol=5 * 6e-4)
    np.testing.assert_array_equal(point, 0)
    np.testing.assert_allclose(large[:, :1] + 0 * large, large, atol=5 * 6e-4 * 1e3 * np.sqrt(2))
    # The nearest semi-definite matrix: eigenvalue −1 becomes 0, and 3 stays.
    np.testing.assert_allclose(clipped[:, 0], clipped[:, 1], atol=1e-5)
    for values, variance in (
        (line[:, 1], 1.0),
        (clipped[:, 0], 1.5),
        (clipped[:, 2], 1e-6),
        (large[:, 0], 1e6),
    ):
        assert abs(np.mean(values**2) / variance - 1) < 5 * np.sqrt(2 / 500)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_only_padding(structure):
    rows, *_ = table(FLOAT32, structure)
    nothing = covfree.Rows(
        rows.mean * jnp.nan, rows.count, -jnp.ones_like(rows.label), covariance=rows.covariance
    )
    features, labels = sample_rows(nothing, SAMPLES, key=KEY)
    np.testing.assert_array_equal(labels, -1)
    assert np.isfinite(np.asarray(features)).all()


def test_many_rows():
    # Sums of many shares round, at padding too: still no sample may be of padding.
    rng = np.random.default_rng(0)
    label = np.where(rng.random(20_000) < 0.5, np.arange(20_000) % 7, -1).astype(np.int32)
    count = rng.gamma(0.5, size=20_000)
    rows = covfree.Rows(jnp.zeros((20_000, 1)), FLOAT32.array(count), jnp.asarray(label))
    labels = np.asarray(sample_rows(rows, 1_000_000, key=KEY)[1])
    assert (labels >= 0).all()
    share = np.bincount(label[label >= 0], count[label >= 0])
    assert np.abs(np.bincount(labels) / 1_000_000 - share / share.sum()).max() < 1e-3


@pytest.mark.usefixtures("untyped")
def test_errors():
    rows, *_ = table(FLOAT32, "none")
    draw = partial(sample_rows, num_samples=5, key=KEY)
    wrong = covfree.Rows(rows.mean, rows.count, rows.label, covariance=jnp.ones((ROWS, 2)))
    with pytest.raises(
        ValueError, match=r"covariance: expected shape \[6\], \[6, 3\] or \[6, 3, 3\].*\[6, 2\]"
    ):
        draw(wrong)
    with pytest.raises(ValueError, match="num_samples"):
        draw(rows, num_samples=0)


def descent_by_loop(rows, num_classes, epochs, rate, momentum, size, key):
    """The draws one by one, and PyTorch's SGD on them, in float64."""
    kept = (np.asarray(rows.count) > 0) & (np.asarray(rows.label) >= 0)
    owner = np.repeat(np.flatnonzero(kept), np.asarray(rows.count)[kept].astype(int))
    number, covariance = len(owner), np.asarray(rows.covariance, float)
    noise, orders = derive(key, "normal"), derive(key, "order")
    noise = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(noise, i), (3,)))(jnp.arange(number))
    moved = np.einsum("nij,nj->ni", np.linalg.cholesky(covariance)[owner], np.asarray(noise, float))
    x = np.asarray(rows.mean, float)[owner] + moved
    x, y = np.concatenate([x, np.ones((number, 1))], 1), np.eye(num_classes)[np.asarray(rows.label)[owner]]
    present = y.any(0)
    weight = np.zeros((4, num_classes))
    velocity = 0 * weight
    for epoch in range(epochs):
        own = jax.random.fold_in(orders, epoch)
        order = np.asarray(jax.vmap(lambda p, k=own: shuffled(p, number, k))(jnp.arange(number)))
        assert sorted(order) == list(range(number))
        for first in range(0, number, size):
            batch = order[first : first + size]
            chances = np.where(present, np.exp(x[batch] @ weight), 0)
            chances /= chances.sum(1, keepdims=True)
            velocity = momentum * velocity + x[batch].T @ (chances - y[batch]) / len(batch)
            weight = weight - rate * velocity
    return weight[:3], weight[3]


@pytest.mark.slow
def test_descent_on_draws_is_a_loop_over_them():
    rng = np.random.default_rng(0)
    count, label = np.array([3, 0, 7, 2, 5], np.float32), np.array([0, 1, 3, 0, -1])
    mean, root = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(5, 3, 3))
    spread = (root @ root.swapaxes(1, 2) + 0.1 * np.eye(3)).astype(np.float32)
    mean[1] = np.nan
    rows, key = covfree.Rows(mean, count, label, covariance=spread), jax.random.key(3)
    head = descended_head(rows, 4, epochs=3, learning_rate=0.3, momentum=0.9, batch_size=5, key=key)
    weight, bias = descent_by_loop(rows, 4, 3, 0.3, 0.9, 5, key)
    np.testing.assert_allclose(head.weight, weight, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(head.bias, bias, rtol=2e-4, atol=1e-5)
    assert head.present.tolist() == [1, 0, 0, 1]


def test_orders_without_a_permutation_in_memory_are_equally_likely():
    places = jnp.arange(4)
    orders = jax.vmap(lambda key: jax.vmap(lambda place: shuffled(place, 4, key))(places))
    found = np.asarray(orders(jax.random.split(jax.random.key(1), 24_000)))
    numbers = np.unique(found @ [64, 16, 4, 1], return_counts=True)[1]
    assert len(numbers) == 24
    assert abs(numbers - 1000).max() < 150
