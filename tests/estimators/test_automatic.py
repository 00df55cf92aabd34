"""The automatic shrinkage: its predictions against plain loops, its laws, and what it is worth."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from precision import FLOAT32, x64
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import multivariate_normal

import covfree
from covfree.core.linalg import Scatter
from covfree.data import load, load_digits
from covfree.data.partitions import inner_dirichlet
from covfree.estimators.automatic import predicted as predicting
from covfree.estimators.automatic.discriminant import Basis, predicted_margins
from covfree.estimators.automatic.offsets import client_sums, no_offsets, offsets_of
from covfree.estimators.automatic.predicted import (
    deterministic_equivalents,
    misclassification_probability,
    predicted_error,
)
from covfree.estimators.scatter import Freedom, centred_rows, class_weights
from covfree.estimators.shrinkage import mean_variance

HINDSIGHT = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FEW_ROWS = {"dim": 60, "clients": 3, "examples": 60}


@partial(jax.jit, static_argnames=("num_classes", "weighting"))
def phases(rows, num_classes=4, weighting="per_class"):
    """What the rule is made of: moments, weights of the classes, factor of the covariance, freedom."""
    moments = covfree.first_moments(rows, num_classes)
    weight = class_weights(moments, weighting) / moments.within_degrees
    return moments, weight, centred_rows(rows, moments, weight), Freedom.of_classes(moments, weight)


def padded(rows):
    """Few rows padded to 50, still fewer than 60 dimensions, many to 900: they share compiled functions."""
    size = 50 if len(rows.count) <= 50 else 900
    more = max(size - len(rows.count), 0)
    return jax.tree.map(lambda x: np.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)), rows)


@partial(jax.jit, static_argnames=("num_classes", "weighting"))
def applied(rows, num_classes, weighting):
    """The shift, and the mean variance of the covariance before and after."""
    moments, weight, factor, freedom = phases(rows, num_classes, weighting)
    rule = covfree.automatic()
    statistics = rule.statistics(factor, rows, moments, weight)
    assert (statistics is None) == (rows.client is None)
    covariance = Scatter.from_factor(factor)
    shrunk = rule.apply(covariance, moments, freedom, statistics)
    return shrunk.shift, mean_variance(covariance), mean_variance(shrunk.unshifted)


def chosen(rows, num_classes, weighting="per_class"):
    """What is added, γ, γ/t and s; the rule knows whose rows they are where the rows say it."""
    shift, before, after = applied(padded(rows), num_classes, weighting)
    gamma, relative = shift * before / after, shift / after
    scale = after / before * (1 + relative)
    found = {"added": shift, "gamma": gamma, "relative": relative, "scale": scale}
    return SimpleNamespace(**{name: float(value) for name, value in found.items()})


def rows_of(features, labels, clients, num_rows=None):
    num_rows = num_rows or covfree.count_rows(labels, clients)
    arrays = jax.device_put((np.asarray(features), labels, clients))
    return covfree.client_rows(*arrays, num_rows=num_rows)


def gaussian_rows(seed=0, num_classes=4, dim=6, clients=12, examples=600, spread=2.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, examples)
    scale = np.logspace(0, -1, dim)
    features = spread * rng.normal(size=(num_classes, dim)) * scale + 0.0
    features = features[labels] + rng.normal(size=(examples, dim)) * scale
    return rows_of(features, labels, rng.integers(0, clients, examples))


@partial(jax.jit, static_argnames=("num_classes", "weighting"))
def described(rows, gammas, scale, num_classes, weighting):
    moments, weight, factor, freedom = phases(rows, num_classes, weighting)
    covariance = Scatter.from_factor(factor)
    unit = mean_variance(covariance)
    offsets = no_offsets(moments, freedom)
    if rows.client is not None:
        offsets = offsets_of(client_sums(factor, rows, moments, weight), moments, freedom, unit)
    basis = Basis.of(covariance.scaled(1 / unit), moments, offsets, unit)
    margins = predicted_margins(basis, moments, freedom, offsets, gammas)
    return {
        "error": predicted_error(margins, gammas, scale)[:, 0],
        "told_apart": offsets.told_apart,
        "ratio": offsets.ratio,
        "factor": factor / jnp.sqrt(unit),
        "mean": moments.mean / jnp.sqrt(unit),
        "count": moments.count,
        "degrees": moments.num_rows - 1,
        "weight": weight,
    }


def predicted(rows, gammas, *, num_classes=4, weighting="per_class", scale=1.0):
    """What the code predicts, with all that it is made of; in units of the mean variance."""
    got = described(padded(rows), jnp.asarray(gammas), jnp.array([scale]), num_classes, weighting)
    got["factor"] = got["factor"][: len(rows.count)]
    return SimpleNamespace(**jax.tree.map(np.asarray, got))


def is_dual(factor):
    return Scatter.from_factor(jnp.asarray(factor)).factored


def error_of_margins(margin, variance, count):
    """E from the margin of each class over each other one."""
    expected = 0.0
    for i in range(len(count)):
        others = [j for j in range(len(count)) if j != i]
        ratios = [margin(i, j) / math.sqrt(variance(i, j)) for j in others]
        expected += count[i] / count.sum() * equicorrelated_loss(ratios)
    return expected


@pytest.mark.parametrize("num_rows_of", ["many", "few"])
def test_predicted_error_is_that_of_plain_loops(num_rows_of):
    """Margins pair by pair with explicit matrices, T by bracketing, where the code uses one eigenbasis."""
    with x64():
        rows = gaussian_rows() if num_rows_of == "many" else gaussian_rows(**FEW_ROWS)
        gammas = np.array([1e-3, 0.1, 10.0])
        got = predicted(replace(rows, client=None), gammas, scale=1.7)
        assert is_dual(got.factor) == (num_rows_of == "few")
        mean, count, degrees, w = got.mean, got.count, got.degrees, got.weight
        sigma = got.factor.T @ got.factor
        for gamma, error in zip(gammas, got.error, strict=True):
            inverse = np.linalg.inv(sigma + gamma * np.eye(len(sigma)))
            trace = np.trace(inverse @ sigma)
            true_trace = brentq(lambda t, trace=trace: (degrees * w * t / (1 + w * t)).sum() - trace, 0, 1e12)
            optimism = (degrees * w / (1 + w * true_trace) ** 2).sum()

            def margin(i, j, gamma=gamma, inverse=inverse, true_trace=true_trace):
                apart = mean[i] - mean[j]
                odds = 1.7 * math.log(count[i] / count[j]) / (1 + gamma)
                return 0.5 * apart @ inverse @ apart - true_trace / count[i] + odds

            def variance(i, j, inverse=inverse, optimism=optimism):
                apart = mean[i] - mean[j]
                return (1 + 1 / count[i]) * apart @ inverse @ sigma @ inverse @ apart / optimism

            np.testing.assert_allclose(error, error_of_margins(margin, variance, count), rtol=1e-3, atol=1e-6)


def shifted_rows(seed=0, *, dim, clients, keep, shift=1.0, spread=1.0, num_classes=4):
    """Rows of clients with offsets; clients lack classes, and the first holds two rows of one."""
    rng = np.random.default_rng(seed)
    held = rng.random((clients, num_classes)) < keep
    held[0] = held[:, 0] = True
    client, label = np.nonzero(held)
    client, label = np.r_[client, 0], np.r_[label, 1]
    count = rng.integers(1, 12, len(label))
    scale = np.logspace(0, -1, dim)
    mean = spread * (rng.normal(size=(num_classes, dim)) * scale)[label]
    mean = mean + shift * (rng.normal(size=(clients, dim)) * scale[::-1])[client]
    mean = mean + rng.normal(size=mean.shape) * scale / np.sqrt(count)[:, None]
    return covfree.Rows(*jax.device_put((mean, count, label, client)))


@pytest.mark.parametrize(
    ("shape", "told_apart"),
    [
        ({"dim": 6, "clients": 12, "keep": 0.7}, True),
        ({"dim": 60, "clients": 7, "keep": 0.6, "shift": 0.3}, True),
        ({"dim": 6, "clients": 12, "keep": 0.05}, False),
        ({"dim": 60, "clients": 12, "keep": 0.05}, False),
    ],
)
def test_predicted_error_with_offsets_is_that_of_plain_loops(shape, told_apart):
    """Every matrix that the derivation speaks of, in full; the traces by bracketing."""
    with x64():
        rows = shifted_rows(**shape)
        gammas = np.array([1e-2, 0.1, 10.0])
        got = predicted(rows, gammas)
        unaware = predicted(replace(rows, client=None), gammas)
    assert is_dual(got.factor) == (shape["dim"] == 60)
    assert got.told_apart == told_apart
    client, label, row_count = (np.asarray(x) for x in (rows.client, rows.label, rows.count))
    mean, count, w = got.mean, got.count, got.weight
    num_clients = shape["clients"]
    held = np.zeros((4, num_clients))
    for n, c, k in zip(row_count, label, client, strict=True):
        held[c, k] += n / count[c]
    design = np.array(
        [
            math.sqrt(w[c] * n) * (np.eye(num_clients)[k] - held[c])
            for n, c, k in zip(row_count, label, client, strict=True)
        ]
    )
    gram = design.T @ design
    projector = design @ np.linalg.pinv(gram, rcond=1e-9) @ design.T
    strength, vectors = np.linalg.eigh(gram)
    used = strength > 1e-9
    assert used.sum() == num_clients - 1
    strength, share = np.where(used, strength, 0), held @ vectors
    sigma, part = got.factor.T @ got.factor, got.factor.T @ projector @ got.factor
    leverage = np.diag(projector)
    degrees = got.degrees - np.array([leverage[label == c].sum() for c in range(4)])
    noise = np.trace(projector @ np.diag(w[label])) / used.sum()

    for gamma, error, without in zip(gammas, got.error, unaware.error, strict=True):
        inverse = np.linalg.inv(sigma + gamma * np.eye(len(sigma)))
        # What shows Σ: the rest, or all.
        shown, nu, v = sigma - part, degrees, w
        if not told_apart:
            shown = sigma
            nu, v = np.r_[degrees, np.ones(used.sum())], np.r_[w, strength[used] * got.ratio + noise]
        trace = np.trace(inverse @ shown)
        true_trace = brentq(lambda t, s=trace, nu=nu, v=v: (nu * v * t / (1 + v * t)).sum() - s, 0, 1e12)
        optimism = (nu * v / (1 + v * true_trace) ** 2).sum()

        def seen(t, true_trace=true_trace):
            """a_j."""
            return 1 / (1 + strength * t + noise * true_trace)

        directions = np.trace(inverse @ part)
        offset_trace = got.ratio * true_trace
        if told_apart:
            offset_trace = brentq(lambda t, d=directions, seen=seen: (1 - seen(t))[used].sum() - d, 0, 1e12)
        a = seen(offset_trace)
        felt = (1 + noise * true_trace) * a
        h_shown_h, h_part_h = inverse @ shown @ inverse, inverse @ part @ inverse

        def margin(i, j, gamma=gamma, inverse=inverse, owed=(true_trace, offset_trace * felt)):
            apart = mean[i] - mean[j]
            odds = math.log(count[i] / count[j]) / (1 + gamma)
            own = owed[0] / count[i] + (owed[1] * share[i] * (share[i] - share[j])).sum()
            return 0.5 * apart @ inverse @ apart - own + odds

        def variance(i, j, t=offset_trace, a=a, felt=felt, h=(h_shown_h, h_part_h), optimism=optimism):
            apart = mean[i] - mean[j]
            own = (strength * (t * a) ** 2 * (share[i] - share[j]) ** 2).sum()
            within = (apart @ h[0] @ apart - (0 if told_apart else own)) / optimism
            of_noise = noise * (a[used] ** 2).sum() * within
            offset = max((apart @ h[1] @ apart - own - of_noise) / (strength * a**2).sum(), 0)
            if not told_apart:
                offset = got.ratio * within
            unknown = 1 / count[i] + noise * t**2 * (share[i] ** 2 * strength * a**2).sum()
            return within * (1 + unknown) + offset * (1 + (share[i] ** 2 * felt**2).sum())

        expected = error_of_margins(margin, variance, count)
        np.testing.assert_allclose(error, expected, rtol=1e-3, atol=1e-6)
        assert abs(without - expected) > 0.01 * expected


@pytest.mark.parametrize("dim", [6, 60], ids=["matrix", "factor"])
def test_offsets_far_larger_than_all_else_in_float32(dim):
    """What is left of them behind H is a millionth, and still known."""
    gammas = np.logspace(-3, 0, 3)
    with x64():
        rows = shifted_rows(dim=dim, clients=12, keep=0.8, shift=30.0, spread=4.0)
        expected = predicted(rows, gammas)
    assert is_dual(expected.factor) == (dim == 60)
    single = jax.tree.map(lambda x: np.asarray(x, np.float32 if x.ndim > 1 else np.int32), rows)
    got = predicted(jax.tree.map(jnp.asarray, single), gammas)
    assert np.ptp(expected.error) > 0.02
    np.testing.assert_allclose(got.error, expected.error, rtol=0.01)


@pytest.mark.parametrize(("dim", "expected"), [(6, 6 / 36), (60, 1)], ids=["many rows", "few rows"])
def test_as_many_observations_as_dimensions_are_added(dim, expected):
    # Classes too far apart for any strength to matter. 10 rows a class: 36 degrees of freedom.
    rows = replace(gaussian_rows(dim=dim, clients=10, spread=1e3), client=None)
    assert np.bincount(rows.label).tolist() == [10] * 4
    np.testing.assert_allclose(chosen(rows, 4).relative, expected, rtol=0.01)


@pytest.mark.parametrize("keep", [0.8, 0.05], ids=["told apart", "not told apart"])
def test_strength_is_expected_at_the_variance_of_an_example(keep):
    """Of features and its client's offset, each as often as an example has them; not as Σ̂ holds them."""
    dim, num_classes = (40, 30) if keep > 0.5 else (60, 4)  # those of other tests
    rows = shifted_rows(dim=dim, clients=40, keep=keep, shift=2.0, spread=1e3)
    got = chosen(rows, num_classes)
    variance = np.square(np.logspace(0, -1, dim)).mean() * (1 + 2.0**2)
    added = min(1, dim / (len(rows.count) - 4))
    np.testing.assert_allclose(got.gamma, variance * added, rtol=0.25)
    assert got.gamma / got.relative > 2 * variance
    np.testing.assert_allclose(got.scale, 1, rtol=1e-4)


def federation_of_thirty(seed, shift):
    """Thirty clients with about half of thirty classes each, every client with an offset of its own."""
    return shifted_rows(seed, dim=40, clients=30, keep=0.5, shift=shift, spread=1.0, num_classes=30)


def test_clients_that_differ_ask_for_more():
    """With offsets γ is far larger where it is known whose the rows are; without, it is about the same."""
    ratios = {}
    for shift in (0.0, 2.0):
        rows = federation_of_thirty(0, shift)
        untold = replace(rows, client=jnp.full_like(rows.client, -1))
        ratios[shift] = chosen(rows, 30).gamma / chosen(untold, 30).gamma
    assert 1 / 1.5 < ratios[0.0] < 1.5
    assert ratios[2.0] > 2


def rare_classes(seed, shift):
    """Thirty clients with a few of thirty classes each, of which the first has a quarter of all examples.

    And test examples, each from a client of its own.
    """
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, 31)
    labels, test_labels = (rng.choice(30, size, p=share / share.sum()) for size in (3000, 4000))
    clients = inner_dirichlet(labels, 30, 0.1, seed=seed)
    means = 0.5 * rng.normal(size=(30, 40))
    features = means[labels] + rng.normal(size=(3000, 40)) + shift * rng.normal(size=(30, 40))[clients]
    strange = means[test_labels] + rng.normal(size=(4000, 40)) * np.sqrt(1 + shift**2)
    return rows_of(features.astype(np.float32), labels, clients, 900), strange.astype(np.float32), test_labels


@pytest.mark.slow
def test_unknown_clients_change_nothing():
    """Where all are: as if the rows did not say whose they are. Which number is whose is all one."""
    rows, *_ = rare_classes(1, shift=1.0)
    nobody = replace(rows, client=jnp.full_like(rows.client, -1))
    expected, got = chosen(replace(rows, client=None), 30), chosen(nobody, 30)
    np.testing.assert_allclose(got.gamma, expected.gamma, rtol=1e-5)
    np.testing.assert_allclose((got.scale, expected.scale), 1, rtol=1e-5)
    names = jnp.asarray(np.random.default_rng(0).permutation(256))[rows.client]
    known, renamed = (chosen(some, 30) for some in (rows, replace(rows, client=names)))
    assert known.scale < 0.9
    np.testing.assert_allclose((renamed.gamma, renamed.scale), (known.gamma, known.scale), rtol=1e-3)


@pytest.mark.parametrize("seed", [1, 2])
def test_class_frequencies_count_as_they_should(seed):
    """With clients' offsets less than the covariance says, which is worth points; without, as it says."""
    rows, features, labels = rare_classes(seed, shift=1.0)
    found = chosen(rows, 30)
    assert found.scale < 0.8
    np.testing.assert_allclose(chosen(rare_classes(seed, shift=0.0)[0], 30).scale, 1, rtol=0.1)

    columns = map(np.asarray, (rows.mean, rows.count, rows.label))
    table = [row for row in zip(*columns, strict=True) if row[1] > 0]

    def accuracy(scale):
        def shrink(covariance):
            return scale * oracle.relative(covariance, found.relative) / (1 + found.relative)

        weight, bias = oracle.from_rows(table, 30, shrink, "per_class", "lda")
        return 100 * ((features @ weight + bias).argmax(1) == labels).mean()

    assert accuracy(found.scale) > accuracy(1.0) + 1


def equicorrelated_loss(ratios):
    """Chance that one of several standard normals of correlation ½ lies below minus its ratio, by SciPy."""
    correlation = 0.5 * (np.eye(len(ratios)) + np.ones((len(ratios),) * 2))
    law = multivariate_normal(np.zeros(len(ratios)), correlation, seed=0)
    return 1 - law.cdf(np.asarray(ratios))


@pytest.mark.parametrize("ratios", [[1.3], [-0.4], [3.5], [0.5, 2.0], [-1.0, 0.1, 1.5]])
def test_chance_of_a_mistake_is_the_orthant_probability(ratios):
    ratios = np.array(ratios)
    scale = np.array([0.5, 2.0, 7.0])[: len(ratios)]
    mean = jnp.asarray(np.r_[np.nan, ratios * scale], jnp.float32)[None, :]
    variance = jnp.asarray(np.r_[0.0, scale**2], jnp.float32)[None, :]
    rival = jnp.arange(len(ratios) + 1)[None, :] > 0
    got = misclassification_probability(mean, variance, rival)
    expected = ndtr(-ratios[0]) if len(ratios) == 1 else equicorrelated_loss(ratios)
    np.testing.assert_allclose(got, [expected], rtol=2e-3, atol=1e-6)


def test_the_trace_is_kept():
    """However Σ̂ is held: by a factor or in full, with a multiple of I apart or within."""
    moments, _, factor, freedom = phases(gaussian_rows(**FEW_ROWS))
    with x64():
        split = Scatter.from_factor(factor).shifted(jnp.float32(0.3))
        whole = Scatter.from_matrix(split.dense())
        apply = jax.jit(lambda scatter: covfree.automatic().apply(scatter, moments, freedom, None).dense())
        shrunk = [apply(scatter) for scatter in (split, whole)]
    assert split.factored
    assert not whole.factored
    np.testing.assert_allclose(shrunk[0], shrunk[1], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(np.trace(shrunk[0]), np.trace(whole.dense()), rtol=1e-4)


def test_deterministic_equivalents_of_equal_weights():
    moments = covfree.Moments(jnp.array([50, 50]), jnp.array([11, 6]), jnp.zeros((2, 3)))
    true_trace, optimism = deterministic_equivalents(
        jnp.float32(6.0), Freedom.of_classes(moments, jnp.full(2, 1 / 15))
    )
    # κ = 6/15: T = 6/(1 − κ) = 10, φ = (1 − κ)².
    np.testing.assert_allclose((true_trace, optimism), (10.0, 0.36), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "named"),
    [({"dim": 6}, True), (FEW_ROWS, True), (FEW_ROWS, False)],
    ids=["many, with clients", "few, with clients", "few"],
)
def test_scale_translation_rotation(shape, named):
    rows = gaussian_rows(**shape)
    if named:
        shift = np.random.default_rng(2).normal(size=(12, rows.mean.shape[1])).astype(np.float32)
        rows = replace(rows, mean=rows.mean + 0.3 * shift[rows.client])
    else:
        rows = replace(rows, client=None)
    gamma = chosen(rows, 4).gamma
    dim = rows.mean.shape[1]
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(dim, dim)))[0].astype(np.float32)
    for scale in (1e-4, 1e4):
        scaled = replace(rows, mean=rows.mean * scale)
        np.testing.assert_allclose(chosen(scaled, 4).gamma, gamma * scale**2, rtol=1e-3)
    moved = replace(rows, mean=rows.mean + 30)
    np.testing.assert_allclose(chosen(moved, 4).gamma, gamma, rtol=1e-2)
    turned = replace(rows, mean=rows.mean @ rotation)
    np.testing.assert_allclose(chosen(turned, 4).gamma, gamma, rtol=1e-2)


@pytest.mark.slow
def test_more_classes_than_are_looked_at(monkeypatch):
    """Beyond 128 classes the error is that of a sample of them: near that of all."""
    rng = np.random.default_rng(0)
    labels = rng.choice(200, 6000, p=np.r_[np.full(100, 3.0), np.full(100, 1.0)] / 400)
    features = 3 * rng.normal(size=(200, 10))[labels] + rng.normal(size=(6000, 10))
    rows = rows_of(features, labels, rng.integers(0, 10, 6000))
    rows = replace(rows, client=None)
    sampled = predicted(rows, [0.1], num_classes=200, weighting="pooled").error[0]
    monkeypatch.setattr(predicting, "_MOST_CLASSES", 200)
    # Of another number of strengths, so that the function is traced anew.
    everyone = predicted(rows, [0.1, 0.2], num_classes=200, weighting="pooled").error[0]
    assert sampled != everyone
    np.testing.assert_allclose(sampled, everyone, atol=0.02)


@pytest.mark.parametrize(
    ("mean", "count", "label"),
    [
        (np.ones((4, 6)), [5, 5, 5, 0], [0, 1, 2, 0]),
        (np.ones((4, 6)), [5, 5, 5, 5], [0, 0, 1, 1]),
        (np.eye(4, 6), [5, 5, 5, 0], [0, 1, 2, 0]),
        (np.eye(4, 6), [1, 0, 0, 0], [0, 1, 2, 0]),
    ],
    ids=["one row a class, all equal", "no spread", "one row a class", "one example"],
)
def test_nothing_observed(mean, count, label):
    """Without any spread the head is a nearest-mean classifier: finite, and right on the means."""
    rows = covfree.Rows(FLOAT32.array(mean), FLOAT32.array(count), FLOAT32.array(label))
    added = chosen(rows, 4).added
    assert math.isfinite(added)
    assert added > 0
    head = covfree.solve_rows(covfree.fedcof(), rows, num_classes=4)
    assert np.isfinite(np.asarray(head.weight)).all()
    kept = np.asarray(count) > 0
    if len(np.unique(mean[kept], axis=0)) == kept.sum():
        np.testing.assert_array_equal(np.asarray(head(rows.mean)).argmax(-1)[kept], np.asarray(label)[kept])


@pytest.mark.slow
def test_works_under_vmap():
    rows, scales = padded(gaussian_rows()), jnp.array([0.5, 1.0, 4.0])

    def shift(scale):
        return applied(replace(rows, mean=rows.mean * scale), 4, "per_class")[0]

    batched = jax.jit(jax.vmap(shift))(scales)
    np.testing.assert_allclose(batched, [shift(scale) for scale in scales], rtol=1e-3)


def compared_with_hindsight(datasets):
    """Mean accuracy, in percent, of the default and of the best fixed γ."""
    table = []
    for seed, data in enumerate(datasets):
        clients = inner_dirichlet(data.train_labels, 100, 0.1, seed=seed)
        rows = covfree.summarise(covfree.fedcof(), data.train_features, data.train_labels, clients)
        methods = [covfree.fedcof(), *(covfree.fedcof(shrinkage=gamma) for gamma in HINDSIGHT)]
        heads = [covfree.solve_rows(method, rows, num_classes=data.num_classes) for method in methods]
        table.append(
            [100 * float(covfree.evaluate(head, data.test_features, data.test_labels)) for head in heads]
        )
    automatic, *fixed = np.mean(table, axis=0)
    return automatic, max(fixed)


def test_digits_without_tuning():
    """The default needs no tuning: near the best γ in hindsight, and at least 94.7 %."""
    automatic, best = compared_with_hindsight(load_digits(seed=seed) for seed in range(4))
    assert automatic >= 94.7
    assert automatic >= best - 0.5


@pytest.mark.slow
def test_caltech_without_tuning(shared):
    data = load(shared / "data/features/caltech101-efficientnet_lite0.npz")
    automatic, best = compared_with_hindsight([data])
    assert automatic >= best - 0.5
