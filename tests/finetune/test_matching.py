"""PFPT's matching: the likelihood in NumPy, the assignment by hand, padding, and what a summary is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from covfree.finetune.baselines import matching

KEY = jax.random.key(0)
SUMMARISE = jax.jit(matching.summarise)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def network(layers, x):
    """A network of one hidden layer, in float64."""
    first, second = jax.tree.map(lambda x: np.asarray(x, float), layers)
    return np.maximum(x @ first.weight + first.bias, 0) @ second.weight + second.bias


@pytest.fixture(scope="module")
def case():
    """Four centres, the last of which is not there, and three prompts of a client, the second padding."""
    rng = np.random.default_rng(0)
    networks = matching.Networks.draw(5, KEY)
    centres = jnp.asarray(rng.normal(size=(4, 5)), jnp.float32)
    prompts = jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)
    return matching.MatchedModel(centres, networks), prompts, jnp.array([True, True, True, False])


def likelihood(model, prompts, assigned, number):
    """As the model says it: for each centre, whether the client has it, and the density of what it has."""
    centres = np.asarray(model.centres, float)[:number]
    deviation = sigmoid(network(model.networks.deviation, centres))
    chance = sigmoid(network(model.networks.chance, centres))[:, 0]
    total = 0.0
    for i in range(number):
        mine = [j for j, z in enumerate(assigned) if z == i]
        total += np.log(chance[i]) if mine else np.log(1 - chance[i])
        for j in mine:
            total += norm.logpdf(np.asarray(prompts, float)[j], centres[i], deviation[i]).sum()
    return total


def test_the_likelihood_is_the_models(case):
    model, prompts, open_to = case
    for assigned in ((0, -1, 2), (1, -1, 0), (-1, -1, -1)):
        got = matching.log_likelihood(model, prompts, jnp.array(assigned), open_to)
        np.testing.assert_allclose(got, likelihood(model, prompts, assigned, 3), rtol=1e-5)


def test_the_assignment_has_the_largest_likelihood_of_all(case):
    model, prompts, open_to = case
    kept = jnp.array([True, False, True])
    got = matching.assign(matching.gains(model, prompts), kept, open_to)
    every = [(a, -1, b) for a, b in itertools.permutations(range(3), 2)]
    values = [likelihood(model, prompts, z, 3) for z in every]
    assert tuple(np.asarray(got)) == every[int(np.argmax(values))]
    # Not only the best: pairs differ by what the likelihoods differ by.
    gains = np.asarray(matching.gains(model, prompts), float)
    np.testing.assert_allclose(
        [gains[0, a] + gains[2, b] - gains[0, 0] - gains[2, 1] for a, _, b in every],
        np.array(values) - values[every.index((0, -1, 1))],
        rtol=1e-4,
        atol=1e-4,
    )


def test_gains_of_small_deviations_are_exact():
    """σ = 0.003 and prompts about 1: what is squared is the difference, not the numbers."""
    rng = np.random.default_rng(1)
    dim, sigma = 64, 0.003
    zero = matching.Layer(jnp.zeros((dim, dim)), jnp.zeros(dim))
    deviation = zero, zero._replace(bias=jnp.full(dim, np.log(sigma / (1 - sigma)), jnp.float32))
    chance = zero, matching.Layer(jnp.zeros((dim, 1)), jnp.zeros(1))
    prompts = (rng.choice([-1.0, 1.0], (3, dim)) + 0.002 * rng.normal(size=(2, 3, dim))).astype(np.float32)
    model = matching.MatchedModel(jnp.asarray(prompts[1]), matching.Networks(deviation, chance))
    got = np.diag(np.asarray(matching.gains(model, jnp.asarray(prompts[0])), float))
    apart = (prompts[0].astype(float) - prompts[1]) / sigma
    np.testing.assert_allclose(got, -dim * np.log(sigma) - 0.5 * (apart**2).sum(1), rtol=1e-5)


def test_what_is_not_finite_is_not_matched():
    """An error on the host would end the run; a pool of nan is undone by it."""
    table = np.random.default_rng(0).normal(size=(6, 4))
    for bad in (np.nan, np.inf, 1e20):
        given = table.copy()
        given[1] = bad
        pool, _ = summarised(given, 3, range(3), 5, sweeps=2)
        assert np.isnan(pool).all(), bad
    assert np.isfinite(summarised(table, 3, range(3), 5, sweeps=2)[0]).all()


def test_the_assignment_by_hand():
    """Both want centre 0; the sum is largest if the second, which would lose more, gets it."""
    matrix = jnp.array([[9.0, 8.0, 0.0], [9.0, 1.0, 5.0]])
    everything = jnp.ones(2, bool), jnp.ones(3, bool)
    np.testing.assert_array_equal(matching.assign(matrix, *everything), [1, 0])
    np.testing.assert_array_equal(
        matching.assign(matrix, everything[0], jnp.array([True, False, True])), [0, 2]
    )
    np.testing.assert_array_equal(matching.assign(matrix, jnp.array([False, True]), everything[1]), [-1, 0])


def sets(clients=6, prompts=4, dim=16, noise=0.01, seed=0):
    """Clients' sets of four prompts that are far from each other, each in an order of its own."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(-0.3, 0.3, (prompts, dim))
    orders = [rng.permutation(prompts) for _ in range(clients)]
    return truth, np.concatenate([truth[order] + noise * rng.normal(size=(prompts, dim)) for order in orders])


def summarised(table, size, used, most, sweeps=50):
    networks = matching.Networks.draw(table.shape[1], KEY)
    kept = jnp.zeros(most, bool).at[jnp.array(used)].set(True)
    pool, found = SUMMARISE(
        jnp.asarray(table, jnp.float32), jnp.int32(size), kept, networks, sweeps=sweeps, learning_rate=1e-3
    )
    return np.asarray(pool), int(found)


@pytest.mark.slow
def test_sets_in_any_order_are_summarised_by_what_they_have_in_common():
    truth, table = sets()
    pool, size = summarised(table, 4, range(4), 8)
    assert size == 4
    assert not pool[4:].any()
    nearest = np.linalg.norm(pool[:4, None] - truth[None], axis=2)
    assert sorted(nearest.argmin(1)) == [0, 1, 2, 3]
    assert nearest.min(1).max() < 0.1  # their mean distance is 1
    # Averages in the places of the pool are none of them.
    mean = table.reshape(6, 4, 16).mean(0)
    assert np.linalg.norm(mean[:, None] - truth[None], axis=2).min() > 0.3
    # The room that is left for more prompts changes nothing.
    more, same = summarised(table, 4, range(4), 12)
    assert same == 4
    np.testing.assert_allclose(more[:4], pool[:4], rtol=1e-5, atol=1e-6)


def test_what_nobody_trained_is_left_out():
    _, table = sets()
    # One more in the last place of each client, which nobody uses.
    wider = np.concatenate([np.r_[table[4 * k : 4 * k + 4], np.full((1, 16), 0.5)] for k in range(6)])
    pool, size = summarised(wider, 5, range(4), 8)
    assert size == 4
    assert np.linalg.norm(pool[:4] - 0.5, axis=1).min() > 1


def test_a_pool_holds_no_more_than_its_most():
    _, table = sets(noise=5.0)  # nobody has anything in common
    pool, size = summarised(table, 4, range(4), 6, sweeps=2)
    assert size == 6
    assert pool.any(1).all()
