"""Gaussian mixtures of one group and of a federation, against scikit-learn and plain NumPy."""

from functools import cache, partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import DIM
from precision import FLOAT32, PRECISIONS, assert_close, x64
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture

from covfree.core.keys import derive
from covfree.statistics import mixtures
from covfree.statistics.mixture_steps import nearest_seeds
from covfree.statistics.mixtures import client_mixtures, gaussian_mixture, mixture_sizes

STRUCTURES = ["diagonal", "spherical", "full"]
PEER_STRUCTURE = {"diagonal": "diag", "spherical": "spherical", "full": "full"}
KEY = jax.random.key(3)
FLOAT64 = PRECISIONS["float64"]


def blobs(separation, seed=0, examples=90, num_padding=11):
    """Three blobs of unequal sizes and shapes; padding is NaN and stands anywhere."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0, 0, 0], [1, 1, 0], [0, -1, 1.5]]) * separation + 4.0
    which = rng.choice(3, examples, p=[0.5, 0.3, 0.2])
    shapes = np.stack([np.diag([0.5, 1, 1]), np.eye(3) + 0.3, np.diag([2, 1, 0.7])])
    features = centres[which] + np.einsum("nd,nde->ne", rng.normal(size=(examples, 3)), shapes[which])
    kept = np.ones(examples + num_padding, bool)
    kept[rng.choice(len(kept), num_padding, replace=False)] = False
    padded = np.full((len(kept), 3), np.nan)
    padded[kept] = features
    return padded, kept, features, centres


def floor_of(features):
    """What variances are raised by: 1e-4 of the group's mean variance."""
    return 1e-4 * np.var(features, axis=0).mean()


def full_matrices(mixture):
    """Covariances in full, whatever their structure."""
    spread, dim = np.asarray(mixture.covariance, np.float64), mixture.mean.shape[1]
    if spread.ndim == 3:
        return spread
    return np.stack([np.diag(np.broadcast_to(s, dim)) for s in spread])


def log_likelihood(mixture, features):
    """Mean log-likelihood of an example."""
    total = np.zeros(len(features))
    for weight, mean, matrix in zip(mixture.weight, mixture.mean, full_matrices(mixture), strict=True):
        if weight > 0:
            total += float(weight) * multivariate_normal(np.asarray(mean), matrix).pdf(features)
    return np.log(total).mean()


def fit(structure, groups, key=KEY):
    """Mixtures of up to six groups (features, kept) in float64; one compilation for each structure."""
    features, masks = np.full((6, 101, 3), np.nan), np.zeros((6, 101), bool)
    for row, (group, kept) in enumerate(groups):
        features[row, : len(group)], masks[row, : len(group)] = group, kept
    with x64():
        mixtures = compiled(structure)(FLOAT64.array(features), jnp.asarray(masks), key)
        assert {x.dtype for x in jax.tree.leaves(mixtures)} == {FLOAT64.dtype}
        return [jax.tree.map(lambda x, r=r: np.asarray(x[r]), mixtures) for r in range(len(groups))]


@cache
def compiled(structure):
    def one(features, kept, key):
        return gaussian_mixture(features, kept, num_components=3, covariance=structure, key=key)

    return jax.jit(jax.vmap(one, in_axes=(0, 0, None)))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("structure", STRUCTURES)
def test_fixed_point_is_that_of_scikit_learn(structure):
    # Where the blobs overlap the steps end before they have converged to the last digit.
    cases = [(blobs(separation=12), 1e-9), (blobs(separation=3.5, seed=1), 1e-2)]
    found = fit(structure, [case[:2] for case, _ in cases])
    for mixture, ((_, _, features, _), tolerance) in zip(found, cases, strict=True):
        options = {"covariance_type": PEER_STRUCTURE[structure], "reg_covar": floor_of(features)}
        peer = GaussianMixture(
            3,
            **options,
            tol=1e-13,
            max_iter=1000,
            weights_init=mixture.weight,
            means_init=mixture.mean,
            precisions_init=np.linalg.inv(mixture.covariance)
            if structure == "full"
            else 1 / mixture.covariance,
        ).fit(features)
        assert_close(mixture.weight, peer.weights_, tolerance)
        assert_close(mixture.mean, peer.means_, tolerance)
        assert_close(mixture.covariance, peer.covariances_, tolerance)
        best = GaussianMixture(3, **options, n_init=3, random_state=0).fit(features)
        assert log_likelihood(mixture, features) > best.score(features) - 1e-3
    # Each blob has its component: 18 examples and more, of a deviation of up to 2.
    distances = np.linalg.norm(found[0].mean[:, None] - cases[0][0][3][None], axis=2)
    assert sorted(distances.argmin(0)) == [0, 1, 2]
    assert distances.min(0).max() < 5 * 2 * np.sqrt(3 / 18)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("structure", STRUCTURES)
def test_degenerate_groups(structure):
    few = np.random.default_rng(0).normal(size=(5, 3))
    groups = {
        "none": np.zeros((0, 3)),
        "one": few[:1],
        "two": few[:2],
        "five": few,
        # 0.1 is no float: its mean is not exactly itself.
        "equal": np.full((9, 3), 0.1),
        "two places": np.repeat(few[:2], [4, 6], axis=0),
    }
    mixtures = fit(structure, [(group, np.ones(len(group), bool)) for group in groups.values()])
    found = dict(zip(groups, mixtures, strict=True))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
    # No more than half the examples, nor than the distinct ones.
    used = {"none": 0, "one": 1, "two": 1, "five": 2, "equal": 1, "two places": 2}
    for name, group in groups.items():
        mixture, unused = found[name], found[name].weight == 0
        assert (~unused).sum() == used[name]
        np.testing.assert_array_equal(mixture.mean[unused], 0)
        np.testing.assert_array_equal(mixture.covariance[unused], 0)
        if len(group):
            np.testing.assert_allclose(mixture.weight.sum(), 1, rtol=1e-12)
            np.testing.assert_allclose(mixture.weight @ mixture.mean, group.mean(0), atol=1e-12)
    for name in ("one", "equal"):
        np.testing.assert_array_equal(found[name].covariance, 0)
        np.testing.assert_array_equal(found[name].mean[0], groups[name][0])
    # One component is the mean and the covariance.
    two, floor = np.cov(few[:2], rowvar=False, ddof=0), floor_of(few[:2])
    if structure != "full":
        two = np.diag(np.diag(two)) if structure == "diagonal" else np.diag(two).mean() * np.eye(3)
    assert_close(full_matrices(found["two"])[0], two + floor * np.eye(3), 1e-9)
    places = found["two places"]
    order = np.argsort(places.weight[:2])
    np.testing.assert_allclose(places.weight[order], [0.4, 0.6], rtol=1e-9)
    np.testing.assert_allclose(places.mean[order], few[:2], rtol=1e-9)
    floor = floor_of(groups["two places"])
    assert_close(full_matrices(places)[:2], np.stack([floor * np.eye(3)] * 2), 1e-9)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("structure", STRUCTURES)
def test_order_padding_place_and_scale_of_the_examples(structure):
    padded, kept, features, _ = blobs(separation=1.5, seed=4)
    order = np.random.default_rng(1).permutation(len(kept))
    # What padding holds does not matter.
    moved = np.where(kept[order][:, None], padded[order], np.inf)
    everything = np.ones(len(features), bool)
    first, *others = fit(
        structure,
        [
            (padded, kept),
            (moved, kept[order]),
            (features, everything),
            (1000 * padded, kept),
            (padded + 50, kept),
        ],
    )
    assert (first.weight > 0).all()
    for other, scale, shift in zip(others, (1, 1, 1000, 1), (0, 0, 0, 50), strict=True):
        assert_close(other.weight, first.weight, 1e-7)
        assert_close((other.mean - shift) / scale, first.mean, 1e-7)
        assert_close(other.covariance / scale**2, first.covariance, 1e-7)
    # Another key starts elsewhere.
    (other,) = fit(structure, [(padded, kept)], key=jax.random.key(5))
    assert np.abs(other.mean - first.mean).max() > 1e-5


def test_fewer_examples_than_features_in_full():
    # Of rank 12 before the floor, with features of deviations from 1 to 1000.
    rng = np.random.default_rng(0)
    features = rng.normal(size=(24, 48)) @ np.diag(np.logspace(0, 3, 48))
    mixture = gaussian_mixture(
        FLOAT32.array(features), jnp.ones(24, bool), num_components=2, covariance="full", key=KEY
    )
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(mixture))
    np.testing.assert_allclose(mixture.weight.sum(), 1, rtol=1e-6)
    # Within and between the components is all there is (and the floor).
    weight, mean = np.asarray(mixture.weight, np.float64), np.asarray(mixture.mean) - features.mean(0)
    total = np.einsum("m,mde->de", weight, full_matrices(mixture)) + np.einsum(
        "m,md,me->de", weight, mean, mean
    )
    assert_close(total, np.cov(features, rowvar=False, ddof=0), 1e-3)


def test_seeds_are_spread():
    # Six places far apart: drawn evenly, six seeds would hit them all in 1.5 of 100 cases.
    places = np.array([[0.0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [2, 0]])
    values = FLOAT32.array(
        np.repeat(places, 5, axis=0) + 1e-3 * np.random.default_rng(0).normal(size=(30, 2))
    )
    kept = jnp.arange(30) < 25
    nearest = np.asarray(
        jax.vmap(lambda key: nearest_seeds(values, kept, 5, key))(jax.random.split(KEY, 100))
    )
    for seeds in nearest:
        groups = seeds.reshape(6, 5)[:5]
        assert (groups == groups[:, :1]).all()
        assert sorted(groups[:, 0]) == [0, 1, 2, 3, 4]
    # The key draws: components are not always in the same order.
    assert len(np.unique(nearest, axis=0)) > 10


@pytest.mark.slow
def test_mixtures_of_a_federation_are_those_of_its_groups(monkeypatch):
    features, labels, clients = federations.make(0)
    groups = sorted({(k, y) for k, y in zip(clients, labels, strict=True) if k >= 0 and y >= 0})
    num_groups, group_size = mixture_sizes(labels, clients)
    sizes = [int(((clients == k) & (labels == y)).sum()) for k, y in groups]
    assert (num_groups, group_size) == (len(groups), max(sizes))
    fit_all = partial(
        client_mixtures,
        num_groups=num_groups + 3,
        num_components=2,
        covariance="diagonal",
        key=KEY,
    )
    table = [FLOAT32.array(x) for x in (features, labels, clients)]
    rows = fit_all(*table, group_size=group_size)
    assert rows.mean.shape == rows.covariance.shape == (2 * num_groups + 6, DIM)
    one = jax.jit(partial(gaussian_mixture, num_components=2, covariance="diagonal"))
    for g, (client, label) in enumerate(groups):
        mine = (clients == client) & (labels == label)
        padded = np.full((group_size, DIM), np.nan, np.float32)
        padded[: mine.sum()] = features[mine]
        own = jax.random.fold_in(jax.random.fold_in(derive(KEY, "mixtures"), int(label)), int(client))
        mixture = one(jnp.asarray(padded), jnp.arange(group_size) < mine.sum(), key=own)
        pair = slice(2 * g, 2 * g + 2)
        np.testing.assert_allclose(rows.count[pair], mine.sum() * mixture.weight, rtol=1e-4)
        np.testing.assert_allclose(rows.mean[pair], mixture.mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(rows.covariance[pair], mixture.covariance, rtol=1e-3, atol=1e-5)
        used = np.asarray(mixture.weight) > 0
        np.testing.assert_array_equal(rows.label[pair], np.where(used, label, -1))
        np.testing.assert_array_equal(rows.client[pair], np.where(used, client, -1))
    assert (np.asarray(rows.count).reshape(-1, 2)[:num_groups] > 0).any(1).all()
    np.testing.assert_array_equal(rows.label[-6:], -1)
    np.testing.assert_array_equal(rows.client[-6:], -1)
    for padding in (rows.count[-6:], rows.mean[-6:], rows.covariance[-6:]):
        np.testing.assert_array_equal(padding, 0)

    def assert_same(actual, expected):
        np.testing.assert_array_equal(actual.label, expected.label)
        np.testing.assert_allclose(actual.count, expected.count, rtol=1e-4)
        np.testing.assert_allclose(actual.mean, expected.mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(actual.covariance, expected.covariance, rtol=1e-3, atol=1e-5)

    # A client alone: the others' examples are padding.
    alone = int(clients[labels == 1][0])
    own = fit_all(table[0], table[1], jnp.where(table[2] == alone, alone, -1), group_size=group_size)
    assert_same(*(jax.tree.map(lambda x, mine=r.client == alone: x[mine], r) for r in (own, rows)))
    # In another order, compiled as a whole, in batches of seven groups, with more padding.
    held = 4 * (group_size + 1) * (DIM + 2) + 4 * DIM
    monkeypatch.setattr(mixtures, "_BATCH_NUMBERS", 7 * held)
    assert (num_groups + 3) % 7 != 0
    order = np.random.default_rng(0).permutation(len(labels))
    assert_same(jax.jit(partial(fit_all, group_size=group_size + 1))(*(x[order] for x in table)), rows)


def test_sizes_of_nothing():
    assert mixture_sizes(np.array([-1, 3]), np.array([0, -2])) == (1, 1)


@pytest.mark.usefixtures("untyped")
def test_errors():
    features, labels, clients = (FLOAT32.array(x) for x in federations.make(0))
    fit = partial(client_mixtures, features, labels, clients, num_components=1, key=KEY)
    num_groups, group_size = mixture_sizes(np.asarray(labels), np.asarray(clients))
    for sizes in ((num_groups - 1, group_size), (num_groups, group_size - 1)):
        with pytest.raises(ValueError, match=f"{num_groups} of at most {group_size}; see mixture_sizes"):
            fit(num_groups=sizes[0], group_size=sizes[1], covariance="diagonal")
    with pytest.raises(ValueError, match=r"covariance: expected one of .*'full'.*, got 'tied'"):
        fit(num_groups=num_groups, group_size=group_size, covariance="tied")
    with pytest.raises(ValueError, match=r"kept: expected shape \[80\].*got \[3\]"):
        gaussian_mixture(features, jnp.ones(3, bool), num_components=1, covariance="full", key=KEY)
