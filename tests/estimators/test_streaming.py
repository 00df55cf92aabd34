"""Covariances of rows in parts and over mapped axes: those of all rows at once."""

from functools import partial
from itertools import pairwise

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import covfree
from covfree import streaming
from covfree.core.compiling import shard_map
from covfree.estimators.automatic import as_shrinkage

pytestmark = pytest.mark.usefixtures("untyped")

RNG = np.random.default_rng(0)
DIM, PARTS, ROWS = 3, 8, 4
MEANS = RNG.normal(size=(PARTS, ROWS, DIM)).astype(np.float32)
COUNTS = RNG.integers(0, 9, (PARTS, ROWS))
RULES = {"number": 0.5, "relative": covfree.relative(0.1), "oas": covfree.oas(), "auto": "auto"}


@jax.jit
def at_once(means, counts, shrinkage=0.0):
    return covfree.estimate_covariance(means.reshape(-1, DIM), counts.reshape(-1), shrinkage=shrinkage)


@jax.jit
def streamed(means, counts):
    """The state after a scan over the parts."""

    def step(state, part):
        return streaming.update(state, *part), None

    return jax.lax.scan(step, streaming.init(DIM), (means, counts))[0]


@pytest.mark.parametrize("rule", RULES)
def test_a_stream_is_all_rows_at_once(rule):
    state = streamed(MEANS, COUNTS)
    expected = at_once(MEANS, COUNTS, as_shrinkage(RULES[rule]))
    found = jax.jit(partial(streaming.finalize, shrinkage=RULES[rule]))(state)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_far_from_zero():
    """At a mean of 10⁴ spreads, against float64."""
    means = (MEANS + np.float32(1e4)).astype(np.float32)
    exact = means.astype(np.float64).reshape(-1, DIM)
    weight = COUNTS.reshape(-1).astype(float)
    centred = exact - weight @ exact / weight.sum()
    expected = (centred.T * weight) @ centred / ((weight > 0).sum() - 1)
    found = streaming.finalize(streamed(means, COUNTS))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    equal = streamed(np.full_like(MEANS, 1e4 / 3), COUNTS)
    assert not np.asarray(streaming.finalize(equal)).any()


def test_merged_batched_and_ragged():
    """Under ``vmap`` over classes; of parts of any number of rows; in any tree."""
    classes = jax.jit(jax.vmap(lambda means, counts: streaming.finalize(streamed(means, counts))))
    found = classes(np.stack([MEANS, 2 * MEANS]), np.stack([COUNTS, COUNTS]))
    for scale, covariance in zip((1, 4), found, strict=True):
        np.testing.assert_allclose(covariance, scale * at_once(MEANS, COUNTS), rtol=1e-5, atol=1e-5)
    flat, counts = MEANS.reshape(-1, DIM), COUNTS.reshape(-1)
    cuts = [0, 1, 6, 6, len(flat)]
    states = [
        streaming.update(streaming.init(DIM), flat[start:stop], counts[start:stop].tolist())
        for start, stop in pairwise(cuts)
    ]
    whole = streaming.merge(streaming.merge(states[0], states[1]), streaming.merge(states[2], states[3]))
    np.testing.assert_allclose(streaming.finalize(whole), at_once(flat, counts), rtol=1e-5, atol=1e-5)
    assert int(whole.num_rows) == (counts > 0).sum()
    nothing = streaming.finalize(streaming.init(2), 3.0)
    np.testing.assert_array_equal(nothing, 3 * np.eye(2))


@pytest.mark.parametrize("rule", [*RULES.values(), covfree.ledoit_wolf()], ids=[*RULES, "ledoit_wolf"])
def test_over_a_mapped_axis(rule):
    """The same at each place, for rules of single rows too."""
    one = partial(covfree.estimate_covariance, shrinkage=rule, axis_name="clients")
    found = jax.jit(jax.vmap(one, axis_name="clients"))(MEANS, COUNTS)
    expected = at_once(MEANS, COUNTS, as_shrinkage(rule))
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-5, atol=1e-5)


def test_over_a_mesh():
    mesh, spec = Mesh(np.array(jax.devices()), ("clients",)), PartitionSpec("clients")

    def own(means, counts):
        state = streaming.update(streaming.init(DIM), means.reshape(-1, DIM), counts.reshape(-1))
        flat = covfree.estimate_covariance(means.reshape(-1, DIM), counts.reshape(-1), axis_name="clients")
        return flat, streaming.finalize(state, axis_name="clients")

    run = jax.jit(shard_map(own, mesh=mesh, in_specs=(spec, spec), out_specs=PartitionSpec()))
    for found in run(MEANS, COUNTS):
        np.testing.assert_allclose(found, at_once(MEANS, COUNTS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: streaming.finalize(s, covfree.ledoit_wolf()), "shrinkage: .*ledoit_wolf.*single rows"),
        (lambda s: streaming.finalize(s, -1), "shrinkage: .*got -1"),
        (lambda s: streaming.update(s, MEANS[0, :, :2], COUNTS[0]), r"means: expected \[rows, 3\].*\[4, 2\]"),
        (lambda s: streaming.update(s, MEANS[0], COUNTS[0, :2]), "means: expected .* with counts"),
        (lambda s: streaming.update(MEANS, MEANS[0], COUNTS[0]), "state: expected a CovarianceState"),
        (lambda s: streaming.update(MEANS[0], COUNTS[0], s), "counts: .* array, got CovarianceState"),
        (lambda s: streaming.merge(s, MEANS), "second: expected a CovarianceState.*got ndarray"),
        (lambda s: streaming.update(s, MEANS[0], COUNTS[0] * np.nan), "counts: .*got nan at row 0"),
        (lambda s: covfree.estimate_covariance(MEANS[0], -COUNTS[0]), "counts: .*at least 0, got -"),
        (lambda s: covfree.shift_bias(MEANS[0], COUNTS[0] * np.inf), "counts: .*at least 0, got inf"),
        (lambda s: streaming.init(0), "dim: expected"),
        (lambda s: streaming.init(4, int), "dtype: expected float32 or float64, got int64"),
        (lambda s: streaming.init(4, "bfloat16"), "dtype: expected float32 or float64, got bfloat16"),
        (lambda s: covfree.estimate_covariance(COUNTS, COUNTS[0]), "means: expected floats, got int64"),
        (lambda s: covfree.estimate_covariance(MEANS[0], ["a"] * ROWS), "counts: expected numbers"),
        (lambda s: covfree.estimate_covariance(MEANS, COUNTS), "means: .*vmap"),
        (lambda s: covfree.estimate_covariance(MEANS[0], COUNTS[0], shrinkage=[1]), "shrinkage: .*number"),
    ],
)  # fmt: skip
def test_errors_name_what_the_caller_wrote(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(streaming.init(DIM))


def test_a_state_may_be_donated():
    update = jax.jit(streaming.update, donate_argnums=0)
    state = update(streaming.init(2), np.array([[0, 1], [2, 1]], np.float32), np.array([3, 3]))
    assert streaming.finalize(state).tolist() == [[6, 0], [0, 0]]


def test_means_far_from_zero():
    """At 1e6 with spread 1 the eager estimate keeps its digits."""
    rng = np.random.default_rng(0)
    counts = rng.integers(2, 20, 40)
    means = (1e6 + rng.normal(size=(40, 5))).astype(np.float32)
    away = means - (counts[:, None] * means.astype(np.float64)).sum(0) / counts.sum()
    expected = (away.T * counts) @ away / 39
    found = covfree.estimate_covariance(means, counts)
    np.testing.assert_allclose(found, expected, atol=1e-3 * abs(expected).max())
    with pytest.raises(TypeError, match="state: expected a CovarianceState"):
        covfree.streaming.finalize(3)
