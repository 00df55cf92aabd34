"""No random key is drawn with twice, nor drawn with and derived from: watched by a generator that records."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import define_prng_impl, threefry_prng_impl

import covfree
from covfree.core.keys import derive

FEATURES = np.random.default_rng(0).normal(size=(36, 3)).astype(np.float32)
LABELS, CLIENTS = np.arange(36) % 3, np.arange(36) % 4
DRAWN, PARENTS = [], []


def _note(place, key):
    # Under vmap the generator is called for each lane.
    place.append(tuple(np.asarray(key).tolist()))


def _draw(key, bit_width, shape):
    jax.debug.callback(partial(_note, DRAWN), key)
    return threefry_prng_impl.random_bits(key, bit_width, shape)


def _fold_in(key, data):
    jax.debug.callback(partial(_note, PARENTS), key)
    return threefry_prng_impl.fold_in(key, data)


def _split(key, shape):
    jax.debug.callback(partial(_note, PARENTS), key)
    return threefry_prng_impl.split(key, shape)


RECORDING = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_draw,
    fold_in=_fold_in,
    name="recording",
    tag="rec",
)


def recorded(run):
    """The keys that were drawn with, and those that others were derived from."""
    DRAWN.clear()
    PARENTS.clear()
    jax.block_until_ready(run(jax.random.key(0, impl=RECORDING)))
    jax.effects_barrier()
    return list(DRAWN), set(PARENTS)


def noised(method):
    return method.with_transforms(covfree.count_noise("laplace", 0.5), covfree.count_noise("uniform", 0.5))


METHODS = {
    # The method, and how often a client, or a simulation of all, draws.
    "subsets, noise": (noised(covfree.fedcof(0.1, num_subsets=2)), 3),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_client_and_a_simulation_draw_with_each_key_once(name):
    method, draws = METHODS[name]
    runs = (
        lambda key: covfree.fit(method, FEATURES, LABELS, CLIENTS, key=key),
        lambda key: covfree.client_message(method, FEATURES, LABELS, num_classes=3, key=key).rows.count,
    )
    for run in runs:
        drawn, parents = recorded(run)
        assert len(drawn) == len(set(drawn)) == draws
        assert not parents & set(drawn)


def test_mixtures_draw_with_each_key_once():
    """A direction for each of 12 groups, and two components to start, of which each is a draw."""
    rows = partial(covfree.summarise, noised(covfree.fedpft(2)), FEATURES, LABELS, CLIENTS)
    drawn, parents = recorded(lambda key: rows(key=key))
    assert len(drawn) >= 12 * 3 + 2
    assert len(drawn) == len(set(drawn))
    assert not parents & set(drawn)


def test_virtual_features_draw_with_each_key_once():
    rows = covfree.Rows(jnp.ones((2, 3)), jnp.array([4, 5]), jnp.arange(2), covariance=jnp.ones(2))
    drawn, parents = recorded(lambda key: covfree.sample_rows(rows, 9, key=key))
    assert len(drawn) == len(set(drawn)) == 2
    assert not parents & set(drawn)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
def test_streams_differ_from_one_another_and_from_a_callers_own(make):
    """Also from the first 1,000 keys that the caller may split off or fold in, which are the same."""
    key = make(3)
    names = ["subsets", "signs", "mixtures", "direction", "starts", "transforms", "count noise"]
    names += ["offset", "normal", "directions", "phases"]
    keys = [derive(key, name) for name in names] + [key]
    data = [jax.random.key_data(k) if make is jax.random.key else k for k in keys]
    split = jax.random.split(key, 1000)
    data.extend(np.asarray(jax.random.key_data(split) if make is jax.random.key else split))
    assert len(np.unique(np.stack(data), axis=0)) == len(names) + 1001
