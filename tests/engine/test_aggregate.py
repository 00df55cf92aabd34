"""Totals that add up in any order: over any tree of merges they hold the sums, and give the head."""

import pickle
from random import Random

import jax
import numpy as np
import pytest
from classifiers import assert_same_classifier, expected_head, make, tolerance
from federations import CLASSES
from federations import make as federation
from hypothesis import given, settings
from hypothesis import strategies as st

import covfree
from covfree import aggregate
from covfree.engine import tables

# One method for each of what totals keep, and each way in which heads are made of them.
HEADS = ["fedcof-random", "naive-bayes", "fed3r-within", "afl", "fedcgs"]
COVARIANCES = ["fedcof-oracle", "qda"]
KINDS = ["fedcof", "fedcof-spherical", "naive-bayes", "fed3r", *COVARIANCES]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Few rows wait, so that eighty examples are merged often."""
    monkeypatch.setattr(aggregate, "_WAITING", 6)
    for module in (aggregate, tables):
        monkeypatch.setattr(module, "BLOCK", 16)


def of_tree(method, examples, sizes, random, shipped=True):
    """The total of the examples, cut into shards, added up in a random tree."""
    order = list(range(len(examples.labels)))
    random.shuffle(order)
    empty = aggregate.zero(method, num_classes=CLASSES)
    totals = [empty]
    for number, shard in enumerate(np.split(np.array(order), np.cumsum(sizes))):
        # Some workers take several shards one after the other.
        start = totals.pop() if number % 3 == 2 else empty
        totals.append(aggregate.add(start, *(column[shard] for column in examples)))
    while len(totals) > 1:
        random.shuffle(totals)
        merged = aggregate.merge(totals.pop(), totals.pop())
        totals.append(pickle.loads(pickle.dumps(merged)) if shipped and random.random() < 0.5 else merged)
    return totals[0]


def expected_rows(examples, layout):
    """Groups, counts, means and spreads in float64, each group by itself."""
    clean = examples.clean
    clients = clean.clients if layout.by_client else 0 * clean.clients
    pairs = sorted(set(zip(clients.tolist(), clean.labels.tolist(), strict=True)))
    groups = [clean.features[(clients == k) & (clean.labels == c)].astype(np.float64) for k, c in pairs]
    spread = [(group - group.mean(0)).T @ (group - group.mean(0)) for group in groups]
    return pairs, np.array([len(group) for group in groups]), np.stack([g.mean(0) for g in groups]), spread


@given(
    seed=st.integers(0, 9),
    offset=st.sampled_from([0.0, 1e3]),
    scale=st.sampled_from([1.0, 1e-6, 1e6]),
    sizes=st.lists(st.integers(0, 30), max_size=6),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=8, deadline=None)
def test_whatever_the_tree_a_total_holds_the_sums(seed, offset, scale, sizes, random):
    examples = federation(seed, offset=offset)
    # Exact in float32, the type that features come in.
    examples = examples.with_features((scale * examples.features).astype(np.float32))
    for name in KINDS:
        total = of_tree(make(name), examples, sizes, random)
        assert total.num_examples == examples.kept.sum()
        layout = total.layout
        pairs, counts, means, spread = expected_rows(examples, layout)
        (rows, pooled) = pickle.loads(pickle.dumps(total)).rows, pickle.loads(pickle.dumps(total)).pooled
        assert list(zip(rows.client.tolist(), rows.label.tolist(), strict=True)) == pairs, name
        assert rows.count.tolist() == counts.tolist()
        np.testing.assert_allclose(rows.mean, means, rtol=1e-12, atol=1e-12 * scale)
        if layout.pooled:
            found, expected = pooled, sum(spread)
        elif layout.squares == "full":
            found, expected = rows.squares, np.stack(spread)
        elif layout.squares == "diagonal":
            found, expected = rows.squares, np.stack([np.diag(own) for own in spread])
        else:
            found, expected = rows.squares, np.array([np.trace(own) for own in spread])
        if layout.squares is None:
            assert pooled is None
            assert rows.squares is None
        else:
            # About their own means, features far from 0 lose nothing.
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * scale**2)


@pytest.mark.parametrize("name", HEADS + COVARIANCES)
def test_the_head_is_that_of_all_examples_at_once(name):
    examples, random = federation(3), Random(0)
    method = make(name)
    total = of_tree(method, examples, [11, 0, 17, 30, 5], random)
    assert_same_classifier(aggregate.finish(total), expected_head(name, method, examples), tolerance(name))


def test_two_phases_choose_the_shrinkage_as_fit_does():
    """The automatic rule looks at clients, so a client's parts on several workers must become one row."""
    examples, random = federation(4), Random(1)
    method = covfree.fedcof()
    head = aggregate.finish(of_tree(method, examples, [20, 20, 20], random))
    assert_same_classifier(head, covfree.fit(method, *as_float32(examples), num_classes=CLASSES), 1e-4)


def as_float32(examples):
    return examples.with_features(examples.features.astype(np.float32))


def test_features_far_from_zero_keep_their_spread():
    """Gram matrices are merged about class means and subtracted in float64."""
    examples, random = as_float32(federation(5, offset=3e3)), Random(2)
    method = make("fedcgs", shrinkage=0.3)
    head = aggregate.finish(of_tree(method, examples, [40, 20], random))
    near = examples.with_features(examples.features - np.float32(3e3))
    expected = covfree.fit(method, *near, num_classes=CLASSES)
    probe = near.clean.features
    found, expected = map(jax.nn.softmax, (head(probe + np.float32(3e3)), expected(probe)))
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_totals_of_unlike_features_or_methods_are_refused():
    empty = aggregate.zero(covfree.fedcof(), num_classes=2)
    x, y = np.ones((2, 3), np.float32), np.array([0, 1])
    total = aggregate.add(empty, x, y, y)
    other = aggregate.zero(covfree.fed3r(), num_classes=2)
    wider = aggregate.zero(covfree.fedcof(), num_classes=3)
    assert aggregate.merge(empty, total).num_examples == 2
    assert empty.num_examples == 0
    assert repr(total) == "Aggregate of 'fedcof': 2 examples, 2 rows"

    def scaled(unit):
        feature_map = covfree.fourier_features(8, unit=unit)
        return aggregate.zero(covfree.fed3r().with_feature_map(feature_map), num_classes=2)

    for call, error, words in (
        (lambda: aggregate.add(total, x[:, :2], y, y), ValueError, "dimension 3"),
        (lambda: aggregate.add(total, x, y), TypeError, "clients: expected integers"),
        (lambda: aggregate.add(total, x, y + 1, y), ValueError, "num_classes = 2"),
        (lambda: aggregate.add(total, x * np.nan, y, y), ValueError, "row 0 of client 0"),
        (lambda: jax.jit(aggregate.add, static_argnums=0)(total, x, y, y), TypeError, "with values"),
        (lambda: aggregate.merge(total, aggregate.add(empty, x[:, :1], y, y)), ValueError, "second"),
        (lambda: aggregate.merge(total, other), ValueError, "method"),
        (lambda: aggregate.merge(total, wider), ValueError, "num_classes"),
        (lambda: aggregate.merge(scaled(True), scaled(False)), ValueError, "of the first, got 'Gram"),
        (
            lambda: aggregate.add(total, x, y, np.array(["a", None])),
            TypeError,
            "the same name always has the same number",
        ),
        (lambda: aggregate.finish(empty), ValueError, "got none"),
        (lambda: aggregate.zero(covfree.fedpft(), num_classes=2), ValueError, "use covfree.fit"),
        (lambda: aggregate.zero(covfree.fedcof_components(), num_classes=2), ValueError, "use covfree.fit"),
        (lambda: aggregate.zero(covfree.deepafl(), num_classes=2), ValueError, "single message"),
        (lambda: aggregate.zero(covfree.fedcof(), num_classes=0), ValueError, "num_classes"),
    ):
        with pytest.raises(error, match=words):
            call()
    noisy = covfree.fedcof().with_transforms(covfree.count_noise("laplace", 1.0))
    with pytest.raises(ValueError, match="without transforms"):
        aggregate.zero(noisy, num_classes=2)


def test_clients_of_any_number_and_padding_of_any_value():
    """Numbers beyond int32, names, NaN in padding, half precision; a shard of padding alone adds nothing."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float16), np.arange(40) % 2
    clients = np.array([7, 2**40, 2**50, 11])[np.arange(40) // 10]
    expected = covfree.fit(covfree.fedcof(1.0), x, y, clients)
    for names in (clients, clients.astype(str), clients.astype(str).astype(object)):
        total = aggregate.zero(covfree.fedcof(1.0), num_classes=2)
        for shard in np.array_split(rng.permutation(40), 5):
            total = aggregate.add(total, x[shard], y[shard], names[shard])
        total = aggregate.add(total, np.full((4, 3), np.nan, np.float32), np.full(4, -1), np.zeros(4, int))
        assert len(aggregate.compacted(total).rows.count) == 8
        assert_same_classifier(aggregate.finish(total), expected, 1e-4, dim=3)


def test_memory_beside_the_examples_stays_that_of_sums():
    """A worker that adds many shards holds one row for each class, d² numbers, and few rows that wait."""
    total = aggregate.zero(covfree.fed3r(), num_classes=2)
    rng = np.random.default_rng(0)
    for _ in range(50):
        total = aggregate.add(total, rng.normal(size=(10, 4)).astype(np.float32), np.arange(10) % 2)
        assert total.rows is None or len(total.rows.count) == 2
        assert sum(len(table.count) for table in total.waiting) <= 16
