"""Rows, moments and the linear head; saving and loading."""

import copy
import dataclasses
import pickle

import federations
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federations import CLASSES
from flax.training.train_state import TrainState

import covfree
from covfree.heads import EnsembleHead, GaussianHead, MappedHead
from covfree.statistics.feature_maps import Adapter


def test_rows_of_dense_means():
    means = jnp.arange(24.0).reshape(2, 4, 3)
    counts = jnp.arange(8).reshape(2, 4)
    rows = covfree.Rows.from_means(means, counts)
    np.testing.assert_array_equal(rows.mean, means.reshape(8, 3))
    np.testing.assert_array_equal(rows.count, counts.reshape(8))
    assert rows.label.tolist() == [0, 1, 2, 3] * 2
    one = covfree.Rows.from_means(means[0], counts[0])
    assert one.label.tolist() == [0, 1, 2, 3]


def test_lists_are_taken_or_refused_by_name(untyped):
    rows = covfree.Rows.from_means([[1.0, 2.0], [3.0, 4.0]], [1, 2])
    assert covfree.first_moments(rows, 2).total.tolist() == [[1, 2], [6, 8]]
    with pytest.raises(TypeError, match="mean: expected an array of floats, got list"):
        covfree.first_moments(covfree.Rows([[1.0]], [1], [0]), 2)
    with pytest.raises(TypeError, match="label: expected an array of integers, got list"):
        covfree.first_moments(covfree.Rows(jnp.ones((1, 1)), jnp.ones(1), [0]), 2)


def test_rows_of_examples():
    rows = covfree.Rows.from_examples(jnp.ones((3, 2)), jnp.array([2, -1, 0]))
    assert rows.count.tolist() == [1, 1, 1]
    assert covfree.first_moments(rows, 3).count.tolist() == [1, 0, 1]


def test_records_are_pytrees():
    rows = covfree.Rows(jnp.ones((3, 2)), jnp.ones(3), jnp.zeros(3, jnp.int32))
    for record in (rows, covfree.first_moments(rows, 2), covfree.fit(covfree.fedncm(), *federations.make(0))):
        leaves, structure = jax.tree.flatten(record)
        assert len(leaves) == len(jax.tree.leaves(jax.jit(lambda x: x)(record)))
        again = jax.tree.unflatten(structure, leaves)
        assert type(again) is type(record)
        for a, b in zip(leaves, jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["linear", "gaussian", "mapped", "ensemble", "adapter"])
def test_heads_are_functions_to_jax(untyped, kind):
    linear = covfree.LinearHead(jnp.arange(6.0).reshape(2, 3), jnp.zeros(3), jnp.array([1.0, 0.0, 1.0]))
    adapter = Adapter(jnp.ones((2, 1)), jnp.ones((1, 2)))
    head = {
        "linear": linear,
        "gaussian": GaussianHead(jnp.arange(6.0).reshape(3, 2), jnp.ones((3, 2)), jnp.zeros(3)),
        "mapped": MappedHead(adapter, linear),
        "ensemble": EnsembleHead(
            linear.weight.T,
            linear.bias,
            *(jnp.array(x) for x in ([0, 0, 1], [0, 2, 2])),
            linear.bias,
            linear.present,
        ),
        "adapter": adapter,
    }[kind]
    features = jnp.array([[1.0, -2.0], [0.5, 3.0]])
    scores = head(features)
    for other in (
        jax.jit(head),
        jax.checkpoint(head),
        jax.vmap(jax.jit(head)),
        pickle.loads(pickle.dumps(head)),
        copy.deepcopy(head),
        dataclasses.replace(head),
    ):
        np.testing.assert_allclose(other(features), scores, rtol=1e-6)
    np.testing.assert_allclose(head(features.tolist()), scores, rtol=1e-6)
    with pytest.raises(ValueError, match=r"features: expected \[..., 2\].* got \[4, 3\]"):
        head(np.ones((4, 3), np.float32))


def test_an_optimiser_steps_on_a_head():
    head = covfree.LinearHead(jnp.eye(2), jnp.zeros(2))
    features, labels = jnp.eye(2), jnp.array([1, 1])
    optimiser = optax.adamw(0.1)

    def loss(head):
        return optax.softmax_cross_entropy_with_integer_labels(head(features), labels).mean()

    def of_params(params):
        return loss(params["head"])

    state = TrainState.create(apply_fn=None, params={"head": head}, tx=optimiser)
    step = jax.jit(lambda state: state.apply_gradients(grads=jax.grad(of_params)(state.params)))
    for _ in range(3):
        state = step(state)
    assert isinstance(state.params["head"], covfree.LinearHead)
    assert loss(state.params["head"]) < loss(head)


def test_head_takes_any_batch():
    head = covfree.LinearHead(jnp.arange(6.0).reshape(2, 3), jnp.array([0.0, 1.0, -jnp.inf]))
    features = jnp.ones((4, 5, 2))
    scores = head(features)
    assert scores.shape == (4, 5, 3)
    assert head(features[0, 0]).tolist() == [3.0, 6.0, -np.inf]
    np.testing.assert_array_equal(jax.vmap(jax.vmap(head))(features), scores)


def test_heads_are_subtracted_averaged_and_differentiated_leaf_by_leaf():
    features, labels, clients = federations.make(0).clean
    features = features.astype(np.float32)
    fit = jax.vmap(
        lambda gamma: covfree.fit(covfree.fedcof(gamma), features, labels, clients, num_classes=CLASSES)
    )
    heads = jax.jit(fit)(jnp.array([0.1, 1.0]))
    first, second = (jax.tree.map(lambda leaf, k=k: leaf[k], heads) for k in (0, 1))
    assert set(heads.present.ravel().tolist()) == {0, 1}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(heads))
    change = jax.tree.map(jnp.subtract, second, first)
    again = jax.tree.map(jnp.add, first, change)
    np.testing.assert_allclose(again(features), second(features), rtol=1e-4, atol=1e-4)
    mean = jax.tree.map(lambda a, b: (a + b) / 2, first, second)
    np.testing.assert_allclose(mean(features), (first(features) + second(features)) / 2, rtol=1e-4, atol=1e-4)

    def loss(head):
        return -jnp.take_along_axis(jax.nn.log_softmax(head(features)), labels[:, None], 1).mean()

    slope = jax.grad(loss)(first)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    np.testing.assert_array_equal(slope.present, 0)
    absent = np.asarray(first.present) == 0
    np.testing.assert_array_equal(np.asarray(slope.weight)[:, absent], 0)
    assert np.abs(slope.weight).max() > 0


DECAYING = {
    "more than all": optax.adamw(0.1, weight_decay=15.0),
    "adam with L2": optax.chain(optax.add_decayed_weights(1.0), optax.adam(0.1)),
    "lamb": optax.lamb(0.1, weight_decay=1.0),
    "lion": optax.lion(0.1, weight_decay=1.0),
}


@pytest.mark.parametrize("name", DECAYING)
def test_no_decay_changes_which_classes_are_absent(name):
    """Not by a step, nor by 5,000: of all leaves, ``present`` too, which most take to 0 or below."""
    head = covfree.LinearHead(jnp.eye(4).at[3, 3].set(0), jnp.zeros(4), jnp.array([1.0, 1.0, 1.0, 0.0]))
    features, labels = jnp.eye(4)[jnp.array([0, 1, 2, 3])], jnp.array([0, 1, 2, 1])
    optimiser = DECAYING[name]

    def loss(head):
        return optax.softmax_cross_entropy_with_integer_labels(head(features), labels).mean()

    def step(carry, _):
        head, state = carry
        value, slope = jax.value_and_grad(loss)(head)
        updates, state = optimiser.update(slope, state, head)
        head = optax.apply_updates(head, updates)
        return (head, state), (value, jnp.isneginf(head(features)))

    run = jax.jit(lambda head: jax.lax.scan(step, (head, optimiser.init(head)), length=5000))
    (last, _), (losses, absent) = run(head)
    assert last.present.max() <= 1e-30, "marks are not decayed, or this tests nothing"
    assert np.isfinite(losses).all()
    np.testing.assert_array_equal(absent, np.broadcast_to(jnp.arange(4) == 3, absent.shape))
    assert np.isfinite(covfree.with_finite_scores(last)(features)).all()


def test_moments_of_nothing():
    rows = covfree.Rows(jnp.full((3, 2), jnp.nan), jnp.zeros(3, jnp.int32), jnp.array([0, 1, -1]))
    moments = covfree.first_moments(rows, CLASSES)
    np.testing.assert_array_equal(moments.mean, 0)
    np.testing.assert_array_equal(moments.grand_mean, 0)
    assert not np.asarray(moments.present).any()
    assert moments.within_degrees == moments.spread_degrees == 0


def test_counts_of_all_classes_together_do_not_wrap():
    """Three classes of 10⁹ each fit int32; their sum does not."""
    moments = covfree.Moments(jnp.full(3, 10**9), jnp.full(3, 10**9), 1e9 * jnp.array([[1.0], [2.0], [6.0]]))
    np.testing.assert_allclose(moments.num_examples, 3e9, rtol=1e-6)
    np.testing.assert_allclose(moments.grand_mean, [3.0], rtol=1e-6)
    np.testing.assert_allclose([moments.spread_degrees, moments.within_degrees], 3e9, rtol=1e-6)
