"""Unbiased by Monte Carlo, with a z bound; what leaves the noise in must fail the same bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree
from covfree.privacy import (
    Upload,
    debiased_reciprocal,
    debiased_within,
    noise_edge,
    positive_part,
    public_projection,
    server,
    shrunk_means,
)
from covfree.privacy.server import NoisySums, head_of
from covfree.privacy.uploads import Grid

RUNS, DIM = 20_000, 3
SIGMA = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]], np.float32)


def z_of(estimates, truth):
    estimates = np.asarray(estimates, np.float64)
    return (estimates.mean(0) - truth) / (estimates.std(0) / np.sqrt(len(estimates)))


def test_reciprocal_is_unbiased_where_the_count_stands_out():
    count, deviation = 400.0, 20.0
    noisy = count + deviation * jax.random.normal(jax.random.key(0), (400_000,))
    assert abs(z_of(debiased_reciprocal(noisy, deviation), 1 / count)) < 4
    assert abs(z_of(1 / noisy, 1 / count)) > 10
    floor = debiased_reciprocal(jnp.array([-5.0, 0.0, 1e-3]), 2.0)
    np.testing.assert_allclose(floor, 0.75 / 4)


def test_within_scatter_is_unbiased_under_noise_in_all_of_it():
    rng = np.random.default_rng(1)
    counts = np.array([300.0, 500.0], np.float32)
    means = np.array([[4.0, 0.0, 1.0], [-2.0, 3.0, 0.0]], np.float32)
    within = (counts.sum() * SIGMA).astype(np.float32)
    sums = means * counts[:, None]
    second = within + (sums / counts[:, None]).T @ sums
    sum_dev, count_dev = 30.0, 8.0
    shape = (RUNS, 2, DIM)
    noisy_sums = sums + sum_dev * rng.normal(size=shape).astype(np.float32)
    noisy_counts = counts + count_dev * rng.normal(size=(RUNS, 2)).astype(np.float32)
    function = jax.jit(jax.vmap(debiased_within, in_axes=(None, 0, 0, None, None)))
    estimates = function(second, noisy_sums, noisy_counts, sum_dev, count_dev)
    assert np.abs(z_of(estimates, within)).max() < 4.5
    # As if there were no noise: the product of the sums then holds 2σ²/N too much.
    naive = second - np.einsum("rci,rcj->rij", noisy_sums / noisy_counts[..., None], noisy_sums)
    assert np.abs(z_of(naive, within)).max() > 10


def test_integers_are_taken_for_floats():
    whole = (9 * np.eye(DIM), np.full((2, DIM), 3), np.array([4, 7]), 1, 1)
    integers = (whole[0].astype(int), *whole[1:])
    np.testing.assert_allclose(
        debiased_within(*integers), debiased_within(whole[0], 1.0 * whole[1], *whole[2:])
    )
    found = shrunk_means(*whole[1:])
    np.testing.assert_allclose(found, shrunk_means(1.0 * whole[1], *whole[2:]))


@pytest.mark.slow
def test_absent_classes_add_nothing_to_the_scatter(monkeypatch):
    rng, seen, counts = np.random.default_rng(6), [], np.array([400.0, 0, 600, 0, 0, 0, 0, 0])
    positive = server._positive
    monkeypatch.setattr(server, "_positive", lambda m: seen.append(np.asarray(m)) or positive(m))
    grid = Grid.of("matrix", 22, 50.0, 1, 1.0, None, "add_remove")
    means = np.zeros((8, DIM))
    means[[0, 2]] = [[2.0, 0, 1], [-1.0, 3, 0]]
    sums, between = counts[:, None] * means, means.T @ (counts[:, None] * means)
    second = between + counts.sum() * SIGMA
    packed = np.rint(second[np.triu_indices(DIM)] / grid.step).astype(np.int64)
    total = Upload("matrix", packed)  # exact, so that what is left is of the sums
    centre = sums.sum(0) / counts.sum()
    expected = {
        "fedcof": counts.sum() * SIGMA,
        "fedcgs": (second - counts.sum() * np.outer(centre, centre)) / (counts.sum() - 1),
    }
    for method in (covfree.fedcof(), covfree.fedcgs()):
        seen.clear()
        for _ in range(150):
            noisy = sums + 60 * rng.normal(size=sums.shape), counts + 4 * rng.normal(size=8)
            head_of(method, NoisySums(*noisy, 1.0, 60.0, 4.0), grid, total)
        assert np.abs(z_of(seen, expected[method.name])).max() < 4.5


def test_positive_part_is_the_nearest():
    matrix = jnp.diag(jnp.array([3.0, -1.0, 0.5]))
    np.testing.assert_allclose(positive_part(matrix), np.diag([3.0, 0.0, 0.5]), atol=1e-6)
    assert np.isfinite(jax.grad(lambda m: positive_part(m).sum())(jnp.asarray(SIGMA))).all()


def test_edge_is_the_largest_eigenvalue_of_the_packed_noise():
    dim, rng = 300, np.random.default_rng(4)
    noise = rng.normal(size=(dim, dim))
    noise = (noise + noise.T) / 2  # deviation 1/√2 off the diagonal, 1 on it
    assert np.linalg.eigvalsh(noise)[-1] == pytest.approx(float(noise_edge(1.0, dim)), rel=0.03)


def test_projection_keeps_norms_on_average_and_never_asks_the_data():
    x = np.random.default_rng(5).normal(size=(2000, 64)).astype(np.float32)
    mapped = public_projection(16)(x)
    assert np.square(mapped).sum() == pytest.approx(np.square(x).sum(), rel=0.03)
    np.testing.assert_allclose(public_projection(16)(x[:3]), mapped[:3], rtol=1e-4, atol=1e-5)
    assert not np.allclose(public_projection(16, seed=1)(x[:3]), mapped[:3])
    with pytest.raises(ValueError, match="at most the features' 64"):
        public_projection(65)(x)


def test_shrunk_means_are_nearer_than_noisy_ones_and_the_means_themselves_without_noise():
    draws = np.random.default_rng(0)
    means, counts = 3 + draws.normal(size=(30, 40)), np.full(30, 100.0)
    noisy = means * counts[:, None] + 150 * draws.normal(size=means.shape)
    found = np.asarray(shrunk_means(noisy, counts, 150.0, 1.0))
    # Of noise of variance 2.25 beside the means' own 1, the best estimate keeps 2.25/3.25.
    assert np.square(found - means).mean() < 1.1 * 2.25 / 3.25
    exact = np.asarray(shrunk_means(means * counts[:, None], counts, 1e-3, 1e-3))
    np.testing.assert_allclose(exact, means, rtol=1e-4)
