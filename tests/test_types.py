"""Rows, moments and the linear head; saving and loading."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import CLASSES
from precision import x64
from safetensors import SafetensorError
from safetensors.numpy import save_file

import covfree


def test_rows_of_dense_means():
    means = jnp.arange(24.0).reshape(2, 4, 3)
    counts = jnp.arange(8).reshape(2, 4)
    rows = covfree.Rows.from_means(means, counts)
    np.testing.assert_array_equal(rows.mean, means.reshape(8, 3))
    np.testing.assert_array_equal(rows.count, counts.reshape(8))
    assert rows.label.tolist() == [0, 1, 2, 3] * 2
    one = covfree.Rows.from_means(means[0], counts[0])
    assert one.label.tolist() == [0, 1, 2, 3]


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


def test_head_takes_any_batch():
    head = covfree.LinearHead(jnp.arange(6.0).reshape(2, 3), jnp.array([0.0, 1.0, -jnp.inf]))
    features = jnp.ones((4, 5, 2))
    scores = head(features)
    assert scores.shape == (4, 5, 3)
    assert head(features[0, 0]).tolist() == [3.0, 6.0, -np.inf]
    np.testing.assert_array_equal(jax.vmap(jax.vmap(head))(features), scores)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_save_and_load_bit_for_bit(tmp_path, dtype):
    with x64():
        weight = jax.random.normal(jax.random.key(0), (5, 3)).astype(dtype)
        bias, present = jnp.array([0.0, 0.1, 3.0], dtype), jnp.array([0.0, 1.0, 1.0], dtype)
        for path in (tmp_path / "head.safetensors", str(tmp_path / "again.safetensors")):
            for head in (covfree.LinearHead(weight, bias, present), covfree.LinearHead(weight, bias)):
                head.save(path)
                loaded = covfree.LinearHead.load(path)
                assert jax.tree.structure(loaded) == jax.tree.structure(head)
                for a, b in zip(jax.tree.leaves(head), jax.tree.leaves(loaded), strict=True):
                    assert a.dtype == b.dtype
                    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_file_may_mark_absent_classes_by_their_bias(tmp_path):
    path = tmp_path / "old.safetensors"
    save_file({"weight": np.ones((2, 3), np.float32), "bias": np.float32([0, -np.inf, 2])}, path)
    head = covfree.LinearHead.load(path)
    assert head.bias.tolist() == [0, 0, 2]
    assert head.present.tolist() == [1, 0, 1]
    assert head(np.ones(2, np.float32)).tolist() == [2, -np.inf, 4]


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


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": np.ones((2, 3))},
        {"weight": np.ones((2, 3)), "bias": np.ones(3), "extra": np.ones(1)},
        {"weight": np.ones((2, 3)), "bias": np.ones(2)},
        {"weight": np.ones((2, 3)), "bias": np.ones(3), "present": np.ones(2)},
        {"weight": np.ones(3), "bias": np.ones(3)},
        {"weight": np.ones((2, 3, 3)), "bias": np.ones((3, 3))},
        {"kernel": np.ones((2, 3)), "bias": np.ones(3)},
        {"weight": np.ones((2, 3), np.int32), "bias": np.ones(3, np.int32)},
    ],
    ids=["no-bias", "extra", "sizes", "marks", "vector", "cube", "names", "integers"],
)
def test_loading_other_tensors(tmp_path, tensors):
    path = tmp_path / "other.safetensors"
    save_file({name: t.astype(np.float32) if t.dtype == float else t for name, t in tensors.items()}, path)
    with pytest.raises(ValueError, match=r"path: .*other\.safetensors is not a linear head: expected .*got "):
        covfree.LinearHead.load(path)


def test_loading_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing"):
        covfree.LinearHead.load(tmp_path / "missing.safetensors")
    path = tmp_path / "text.safetensors"
    path.write_text("not tensors, but long enough to hold a header")
    with pytest.raises((ValueError, SafetensorError), match=r"text\.safetensors|header"):
        covfree.LinearHead.load(path)


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
