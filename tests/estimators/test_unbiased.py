"""The estimator's expectation and variance against theory, on Gaussian features with fixed keys.

Bounds are in standard errors z of the mean of the draws: with 20 to 100 comparisons a right estimator
stays below 4.5, and one that divides by the number of clients is off by hundreds.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree

DRAWS, DIM, BOUND = 20_000, 3, 4.5
ROOT = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.5, 1.0, 2.0]])
SIGMA = ROOT @ ROOT.T
# Ten clients; four lack the class.
COUNTS = np.array([3, 0, 1, 12, 0, 5, 0, 2, 1, 0])
HELD = int((COUNTS > 0).sum())


def worst_z(draws, expected):
    """Largest deviation of the mean of the draws from what is expected, in standard errors."""
    draws = np.asarray(draws, np.float64)
    error = draws.std(0, ddof=1) / np.sqrt(len(draws))
    return np.abs((draws.mean(0) - expected) / error).max()


estimate = jax.jit(jax.vmap(covfree.estimate_covariance, in_axes=(0, None)))


@pytest.fixture(scope="module")
def estimates():
    """Σ̂ of DRAWS federations of Gaussian features, from their means N(μ, Σ/n_k)."""
    scale = np.where(COUNTS > 0, 1 / np.sqrt(np.maximum(COUNTS, 1)), np.nan)
    noise = jax.random.normal(jax.random.key(0), (DRAWS, len(COUNTS), DIM))
    means = 2.0 + (noise @ jnp.asarray(ROOT.T, jnp.float32)) * jnp.asarray(scale, jnp.float32)[None, :, None]
    return np.asarray(estimate(means, jnp.asarray(COUNTS)), np.float64)


def variance_z(estimates):
    """Largest deviation of Var[Σ̂_ij] from (Σ_ii Σ_jj + Σ_ij²)/(K_c − 1), in its standard errors."""
    theory = (np.outer(np.diag(SIGMA), np.diag(SIGMA)) + SIGMA**2) / (HELD - 1)
    return worst_z((estimates - SIGMA) ** 2, theory)


def test_the_covariance_is_unbiased(estimates):
    assert worst_z(estimates, SIGMA) < BOUND


def test_the_variance_is_as_the_theory_says(estimates):
    assert variance_z(estimates) < BOUND


def test_dividing_by_the_number_of_clients_fails_both(estimates):
    # Eq. 5 as printed divides by K − 1, also for a class that some clients lack.
    biased = estimates * (HELD - 1) / (len(COUNTS) - 1)
    assert worst_z(biased, SIGMA) > 10 * BOUND
    assert variance_z(biased) > 2 * BOUND


# The within-class scatter, of whole federations

NUM_CLASSES = 4
LABELS = jnp.array([0] * 20 + [1] * 12 + [2] * 8)
CLIENTS = jnp.array([0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 5, 5, 5, 5, 6, 6, 6, 6] + [0, 1, 2, 3] * 3 + [3] * 8)
# Σ(K_c − 1) = 6 + 3 + 0: class 2 has one client, class 3 nobody.


@partial(jax.jit, static_argnames="summarise")
def scatters(scales, summarise):
    """Scatters of both weightings, over draws, where class c has the covariance scales[c]·Σ."""
    root = jnp.asarray(ROOT.T, jnp.float32)
    deviation = jnp.sqrt(scales)[LABELS]

    def one(key):
        features = 5.0 + (jax.random.normal(key, (len(LABELS), DIM)) @ root) * deviation[:, None]
        rows = summarise(features, key)
        moments = covfree.first_moments(rows, NUM_CLASSES)
        return [covfree.within_scatter(rows, moments, weighting=w) for w in ("per_class", "pooled")]

    return jax.vmap(one)(jax.random.split(jax.random.key(1), 6000))


EQUAL = np.ones(3, np.float32)


def client_means(features, key):
    return covfree.client_rows(features, LABELS, CLIENTS, num_rows=16)


def subset_means(features, key):
    return covfree.client_rows(features, LABELS, CLIENTS, num_rows=40, num_subsets=3, key=key)


def test_per_class_weights_are_unbiased_where_covariances_differ():
    per_class, _ = scatters(np.array([1.0, 4.0, 9.0], np.float32), client_means)
    # Class 2 shows no spread between clients: it adds nothing.
    assert worst_z(per_class, (19 * 1.0 + 11 * 4.0) * SIGMA) < BOUND
    assert worst_z(per_class, (20 * 1.0 + 12 * 4.0) * SIGMA) > BOUND


def test_pooled_weights_are_unbiased_where_covariances_are_equal():
    _, pooled = scatters(EQUAL, client_means)
    # The class without spread counts with its share: all N − C degrees.
    assert worst_z(pooled, (19 + 11 + 7) * SIGMA) < BOUND
    assert worst_z(pooled, (20 + 12 + 8) * SIGMA) > BOUND


def test_subset_means_are_unbiased_too():
    per_class, pooled = scatters(EQUAL, subset_means)
    assert worst_z(per_class, (19 + 11 + 7) * SIGMA) < BOUND
    assert worst_z(pooled, (19 + 11 + 7) * SIGMA) < BOUND
    # More rows, less variance.
    _, of_clients = scatters(EQUAL, client_means)
    assert np.asarray(pooled).var(0).trace() < np.asarray(of_clients).var(0).trace()


def test_the_covariance_of_a_method_is_unbiased_though_a_class_has_one_row():
    """E[Σ̂] = Σ of `fedcof`; in the paper's Ĝ, for a ridge head, such a class adds nothing."""
    # Class 2, of eight examples, is one client's: the other classes have 19 + 11 of N − C = 37 degrees.
    systems = {
        "per class": covfree.fedcof(0.0),
        "pooled": covfree.fedcof(0.0, weighting="pooled"),
        "paper": covfree.fedcof(0.0, head="ridge"),
    }

    def one(key):
        features = 5.0 + jax.random.normal(key, (len(LABELS), DIM)) @ jnp.asarray(ROOT.T, jnp.float32)
        rows, found = client_means(features, key), {}
        for name, method in systems.items():
            totals = covfree.accumulate(method, rows, num_classes=NUM_CLASSES)
            found[name] = method.system(method.params, *totals).dense()
        mean = totals[0].grand_mean
        found["paper"] = (found["paper"] - len(LABELS) * jnp.outer(mean, mean)) / 37
        return found

    draws = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), 6000))
    assert worst_z(draws["per class"], SIGMA) < BOUND
    assert worst_z(draws["pooled"], SIGMA) < BOUND
    assert worst_z(draws["paper"], 30 / 37 * SIGMA) < BOUND
    # What per-class weights over N − C gave.
    assert worst_z(np.asarray(draws["per class"]) * 30 / 37, SIGMA) > 2 * BOUND


def test_features_need_not_be_gaussian():
    features = np.random.default_rng(2).exponential(size=(DRAWS, COUNTS.sum(), DIM)) * [1.0, 3.0, 2.0]
    owner = np.eye(len(COUNTS))[np.repeat(np.arange(len(COUNTS)), COUNTS)]
    means = np.einsum("ek,ned->nkd", owner, features) / np.maximum(COUNTS, 1)[:, None]
    draws = estimate(jnp.asarray(means, jnp.float32), jnp.asarray(COUNTS))
    assert worst_z(draws, np.diag([1.0, 9.0, 4.0])) < BOUND
