"""DP-SGD as local training: clipped gradients of single examples, the noise of the promise, and an audit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import covfree
from covfree import finetune
from covfree.privacy import private_training
from covfree.privacy.lower_bound import epsilon_lower_bound
from covfree.rounds import ClientData, run

RNG = np.random.default_rng(0)
LABELS, OWNERS = RNG.integers(0, 3, 1200), np.arange(1200) % 6
FEATURES = (RNG.normal(size=(1200, 4)) + 3 * np.eye(3, 4)[LABELS]).astype(np.float32)
HEAD = covfree.LinearHead(jnp.zeros((4, 3)), jnp.zeros(3))


def fedavg(head=HEAD, **options):
    return finetune.fedavg(finetune.linear_model(head), **{"client": 0.3, "batch_size": 8, **options})


def make(epsilon=8.0, clip=1.0, rounds=2, algorithm=None):
    algorithm = fedavg(epochs=2) if algorithm is None else algorithm
    return private_training(algorithm, epsilon=epsilon, delta=1e-5, clip=clip, rounds=rounds)


def change(algorithm, features, labels, key):
    """What one client sends in the first round."""
    params = algorithm.params
    state, memory = algorithm.init(params, 1, jax.random.key(0))
    sent, data = algorithm.broadcast(params, state), ClientData.own(features, labels)
    return algorithm.client(params, sent, data, memory, key)[0].change


def test_steps_are_those_of_clipped_gradients():
    x, y = FEATURES[:16].astype(np.float64), LABELS[:16]
    made, _ = make(1e9, clip=0.4, algorithm=fedavg(batch_size=16, weighting="uniform"), rounds=1)
    found = change(made, jnp.asarray(FEATURES[:16]), jnp.asarray(y), jax.random.key(1))
    residual = np.full((16, 3), 1 / 3) - np.eye(3)[y]
    length = np.sqrt((residual**2).sum(1) * ((x**2).sum(1) + 1))
    assert (length > 0.4).any()
    residual *= np.minimum(1, 0.4 / length)[:, None]
    weight, bias = sorted(jax.tree.leaves(found), key=jnp.ndim, reverse=True)
    np.testing.assert_allclose(weight, 0.3 * x.T @ residual / 16, atol=2e-5)
    np.testing.assert_allclose(bias, 0.3 * residual.sum(0) / 16, atol=2e-5)
    # An example that is not finite is left out; in the mean's place it would spoil all.
    far = jnp.asarray(FEATURES[:16]).at[0].set(jnp.inf)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(change(made, far, y, jax.random.key(1))))


def test_noise_is_what_the_promise_needs():
    algorithm, promise = make(epsilon=1.5, clip=0.7, rounds=3)
    assert (promise.unit, promise.neighbours, promise.noise) == ("example", "replace_one", "local")
    # Six epochs, in each of which an example moves one sum by 2·clip (Balle and Wang 2018, Theorem 8).
    moved = np.sqrt(6) * 2 * 0.7 / float(algorithm.params.training.private.deviation)
    low, high = (norm.cdf(sign * moved / 2 - 1.5 / moved) for sign in (1, -1))
    assert low - np.exp(1.5) * high == pytest.approx(1e-5, rel=1e-3)
    assert promise.epsilon == pytest.approx(1.5, rel=1e-6)
    # Padding alone: what is sent is the noise of the steps. One client's batches are of 2.
    one = fedavg(batch_size=2, weighting="uniform")
    quiet, _ = make(0.5, rounds=1, algorithm=one)
    keys = jax.random.split(jax.random.key(0), 2000)
    blank = jnp.full((4, 4), jnp.nan)  # gradients that are left out
    sent = jax.vmap(lambda key: change(quiet, blank, jnp.zeros(4, jnp.int32), key))(keys)
    noise = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(sent)])
    expected = 0.3 * np.sqrt(2) / 2 * float(quiet.params.training.private.deviation)
    assert noise.std() == pytest.approx(expected, rel=0.03)


def audited(algorithm):
    """A lower bound on ε of one client's upload, of data that differ in one example's class."""
    x = jnp.zeros((6, 2)).at[0].set(jnp.array([100.0, 0.0]))
    keys, sides = jax.random.split(jax.random.key(5), 40_000), []
    for label in (0, 1):
        y = jnp.array([label, 0, 0, 1, 1, 1])
        sent = jax.jit(jax.vmap(lambda key, y=y: change(algorithm, x, y, key)))(keys)
        weight = max(jax.tree.leaves(sent), key=jnp.ndim)
        sides.append(np.asarray(weight[:, 0, 1] - weight[:, 0, 0]))
    return epsilon_lower_bound(*sides, 1e-3, 0.99)


@pytest.mark.slow
def test_an_audit_finds_epsilon_and_a_mutant_with_half_the_noise():
    start = covfree.LinearHead(jnp.zeros((2, 2)), jnp.zeros(2))
    algorithm = fedavg(start, client=1e-3, batch_size=6, weighting="uniform")
    made, promise = private_training(algorithm, epsilon=2.0, delta=1e-3, clip=1.0, rounds=1)
    assert 1.0 < audited(made) <= promise.epsilon
    training = made.params.training
    half = dataclasses.replace(training.private, deviation=training.private.deviation / 2)
    params = made.params._replace(training=dataclasses.replace(training, private=half))
    assert audited(dataclasses.replace(made, params=params)) > promise.epsilon


def test_training_learns():
    def accuracy(algorithm, **rounds):
        head = run(algorithm, FEATURES, LABELS, OWNERS, key=jax.random.key(0), **rounds).result
        return float((np.asarray(head(FEATURES)).argmax(-1) == LABELS).mean())

    plain = accuracy(fedavg(), rounds=2)
    assert accuracy(make(epsilon=8.0, algorithm=fedavg(batch_size=64))[0]) > plain - 0.05


@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_promised_is_refused():
    model = finetune.linear_model(HEAD)
    for algorithm, why in (
        (finetune.scaffold(model), "algorithm: expected fedavg, or one that differs from it"),
        (fedavg(steps=3), "algorithm: expected epochs"),
        (finetune.oll(model, client=0.3, epochs=1), "algorithm: expected a loss over all classes"),
    ):
        with pytest.raises(ValueError, match=why):
            make(algorithm=algorithm)
    with pytest.raises(ValueError, match="clip"):
        make(clip=0.0)
    with pytest.raises(TypeError, match=r"expected a covfree.rounds.Algorithm"):
        make(algorithm=covfree.fedncm())
