"""Uploads are elements of a commutative monoid."""

import jax
import jax.numpy as jnp
import numpy as np

from covfree.rounds.adding import Parts, Table, add, packed, size_in_bytes


def upload(seed):
    rng = np.random.default_rng(seed)
    size = 1 + seed % 3
    items = {"mean": jnp.asarray(rng.integers(0, 9, (size, 2)).astype(np.float32)), "label": jnp.arange(size)}
    return {
        "total": jnp.asarray(rng.integers(0, 9, (2, 3)).astype(np.float32)),
        "count": jnp.asarray(seed),
        "rows": Table(items, jnp.arange(size) != 1),
    }


def test_adding_is_associative_and_sums_commute():
    a, b, c = (upload(seed) for seed in (4, 5, 6))
    left, right = add(add(a, b), c), add(a, add(b, c))
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(x, y)
    there, back = add(a, b), add(b, a)
    np.testing.assert_array_equal(there["total"], back["total"])
    assert int(there["count"]) == 9


def test_tables_are_put_below_each_other():
    a, b = upload(4), upload(5)
    both = add(a, b)["rows"]
    np.testing.assert_array_equal(
        both.items["mean"], np.concatenate([a["rows"].items["mean"], b["rows"].items["mean"]])
    )
    np.testing.assert_array_equal(both.kept, [True, False, True, False, True])


def test_an_upload_is_its_parts():
    whole = upload(5)
    parts = Parts.of(whole)
    assert [part.shape for part in parts.sums] == [(), (2, 3)]
    assert [[part.shape for part in table] for table in parts.tables] == [[(3,), (3, 2), (3,)]]
    again = parts.upload()
    assert jax.tree.structure(again) == jax.tree.structure(whole)
    for x, y in zip(jax.tree.leaves(again), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(x, y)


def test_padding_is_not_sent_and_costs_nothing():
    whole = upload(5)
    assert size_in_bytes(whole) == 4 * (6 + 1 + 2 * (2 + 1))
    label, mean, kept = packed(Parts.of(whole).tables[0])
    np.testing.assert_array_equal(label, [0, 2])
    np.testing.assert_array_equal(mean, whole["rows"].items["mean"][np.array([0, 2])])
    assert kept.all()
