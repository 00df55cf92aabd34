"""Features that are too large to be copied give what the same features in memory give."""

import jax
import numpy as np
import pytest
from variants import slow

import covfree
from covfree.core import padding
from covfree.core.padding import Gathered
from covfree.data import load_npz
from covfree.engine import examples

CLASSES, CLIENTS, DIM = 3, 9, 5


@pytest.fixture
def large(monkeypatch):
    """Everything on the host is large, and parts are of few examples."""

    def switch():
        monkeypatch.setattr(padding, "LARGE", 0)
        monkeypatch.setattr(padding, "_PART", 40 * DIM * 4)
        monkeypatch.setattr(examples, "_GATHERED", 50 * DIM * 4)

    return switch


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, CLASSES, 300)
    # One client has more than is gathered at once, one nothing, some examples have none.
    clients = np.where(rng.random(300) < 0.4, 2, rng.integers(-1, CLIENTS, 300))
    clients = np.where(clients == 5, 4, clients) + 2**40 * (clients > 6)
    features = rng.normal(size=(300, DIM)) + 2 * np.eye(CLASSES, DIM)[labels]
    return features.astype(np.float32), labels, clients


METHODS = {
    "means": covfree.fedcof(),
    "subsets of classes": covfree.fedcof(0.1, num_subsets=3),
    "examples": covfree.fed3r(),
    "examples, two rounds": covfree.fedcgs(),
    "rounds over examples after those over rows": covfree.refined(covfree.fedcof(0.1)),
    "a map of features": covfree.fed3r().with_feature_map(covfree.relu_features(8)),
    "transforms that draw": covfree.fedncm().with_transforms(covfree.count_noise("laplace", 0.1)),
}


@pytest.mark.parametrize(
    "name", ["means", "examples, two rounds", *slow(*sorted({*METHODS} - {"means", "examples, two rounds"}))]
)
def test_the_head_is_the_same(name, data, large):
    features, labels, clients = data
    method, options = METHODS[name], {"num_classes": CLASSES, "key": jax.random.key(1)}
    expected = covfree.fit(method, features, labels, clients, **options)
    accuracy = covfree.evaluate(expected, features, labels)
    large()
    # The rows of an array in another order.
    order = np.random.default_rng(1).permutation(len(labels))
    for given in (features, Gathered(features[order], np.argsort(order))):
        head = covfree.fit(method, given, labels, clients, **options)
        for got, wanted in zip(jax.tree.leaves(head), jax.tree.leaves(expected), strict=True):
            # Which examples make a subset is drawn for the parts.
            if name != "subsets of classes":
                np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-4)
        np.testing.assert_allclose(covfree.evaluate(head, given, labels), accuracy, atol=0.03)


def test_a_bad_value_is_named(data, large):
    features, labels, clients = data
    large()
    row = int(np.flatnonzero((labels >= 0) & (clients >= 0))[200])
    wrong = features.copy()
    wrong[row, 2] = np.nan
    with pytest.raises(ValueError, match=rf"features: row {row} of client .* holds nan at position 2"):
        covfree.fit(covfree.fedcof(), Gathered(wrong, np.arange(300)), labels, clients)


def test_a_large_file_stays_where_it_is(data, large, tmp_path):
    features, labels, _ = data
    labels = np.maximum(labels, 0)
    np.savez(tmp_path / "a.npz", features=features, labels=labels)
    small = load_npz(tmp_path / "a.npz")
    large()
    found = load_npz(tmp_path / "a.npz")
    assert isinstance(found.train_features, Gathered)
    for got, expected in zip(found, small, strict=True):
        np.testing.assert_array_equal(got, expected)
    apart = load_npz(tmp_path / "a.npz", test=tmp_path / "a.npz")
    np.testing.assert_array_equal(apart.test_features, features)
    assert not apart.test_features.flags.owndata
