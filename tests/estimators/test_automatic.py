"""The automatic shrinkage: its two ingredients against plain loops, its laws, and what it is worth."""

import math

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from precision import x64
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import multivariate_normal

import covfree
from covfree.data import load, load_digits
from covfree.estimators.auto import _eigenbasis, _error, _evidence
from covfree.estimators.foretold import deterministic_equivalents, mistake_chance
from covfree.estimators.scatter import Freedom, centred_rows, class_weights
from covfree.federation import inner_dirichlet
from covfree.linalg import Scatter

HINDSIGHT = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def chosen(rows, num_classes, weighting="per_class"):
    """The multiple of I that the rule adds."""
    moments = covfree.first_moments(rows, num_classes)
    weight = class_weights(moments, weighting) / moments.within_degrees
    covariance = Scatter.from_factor(centred_rows(rows, moments, weight))
    return float(
        covfree.automatic().apply(covariance, moments, Freedom.of_classes(moments, weight), None).shift
    )


def rows_of(features, labels, clients):
    count = covfree.count_rows(labels, clients)
    return covfree.client_rows(
        jnp.asarray(features), jnp.asarray(labels), jnp.asarray(clients), num_rows=count
    )


def gaussian_rows(seed=0, num_classes=4, dim=6, clients=12, examples=600, spread=2.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, examples)
    scale = np.logspace(0, -1, dim)
    features = spread * rng.normal(size=(num_classes, dim)) * scale + 0.0
    features = features[labels] + rng.normal(size=(examples, dim)) * scale
    return rows_of(features, labels, rng.integers(0, clients, examples))


@pytest.mark.parametrize("num_rows_of", ["many", "few"])
def test_foretold_error_is_that_of_plain_loops(num_rows_of):
    """Margins pair by pair with explicit matrices, T by bracketing, where the code uses one eigenbasis."""
    with x64():
        rows = (
            gaussian_rows()
            if num_rows_of == "many"
            else gaussian_rows(dim=40, clients=3, num_classes=4, examples=60)
        )
        moments = covfree.first_moments(rows, 4)
        weight = class_weights(moments, "per_class") / moments.within_degrees
        factor = centred_rows(rows, moments, weight)
        covariance = Scatter.from_factor(factor)
        assert covariance.factored == (num_rows_of == "few")
        values, means, outside = _eigenbasis(covariance, moments)
        gammas = np.array([1e-3, 0.1, 10.0])
        freedom = Freedom.of_classes(moments, weight)
        unit = float(values.sum()) / covariance.dim
        scaled = (values / unit, means / math.sqrt(unit), outside / unit)
        floor = jnp.zeros(())
        got = _error(*scaled, moments, freedom, jnp.asarray(gammas), covariance.dim, floor)

        sigma, mean, count = (
            np.asarray(factor.T @ factor) / unit,
            np.asarray(moments.mean) / math.sqrt(unit),
            np.asarray(moments.count),
        )
        degrees, w = np.asarray(moments.rows) - 1, np.asarray(weight)
        for gamma, foretold in zip(gammas, got, strict=True):
            inverse = np.linalg.inv(sigma + gamma * np.eye(len(sigma)))
            trace = np.trace(inverse @ sigma)
            true_trace = brentq(lambda t, trace=trace: (degrees * w * t / (1 + w * t)).sum() - trace, 0, 1e12)
            kindness = (degrees * w / (1 + w * true_trace) ** 2).sum()
            expected = 0.0
            for i in range(4):
                ratios = []
                for j in range(4):
                    if j == i:
                        continue
                    apart = mean[i] - mean[j]
                    margin = (
                        0.5 * apart @ inverse @ apart
                        - true_trace / count[i]
                        + math.log(count[i] / count[j]) / (1 + gamma)
                    )
                    variance = apart @ inverse @ sigma @ inverse @ apart / kindness
                    ratios.append(margin / math.sqrt(variance))
                expected += count[i] / count.sum() * equicorrelated_loss(ratios)
            np.testing.assert_allclose(foretold, expected, rtol=1e-3, atol=1e-6)


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
    got = mistake_chance(mean, variance, rival)
    expected = ndtr(-ratios[0]) if len(ratios) == 1 else equicorrelated_loss(ratios)
    np.testing.assert_allclose(got, [expected], rtol=2e-3, atol=1e-6)


def test_the_trace_is_kept():
    """Neither the rule nor a part of Σ̂ that is held as a multiple of I changes the size as a whole."""
    rows = gaussian_rows()
    moments = covfree.first_moments(rows, 4)
    weight = class_weights(moments, "per_class") / moments.within_degrees
    freedom = Freedom.of_classes(moments, weight)
    factor = centred_rows(rows, moments, weight)
    split = Scatter.from_factor(factor).shifted(0.3)
    whole = Scatter.from_matrix(split.dense())
    shrunk = [covfree.automatic().apply(s, moments, freedom, None).dense() for s in (split, whole)]
    np.testing.assert_allclose(shrunk[0], shrunk[1], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(jnp.trace(shrunk[0]), jnp.trace(whole.dense()), rtol=1e-4)


def test_evidence_is_the_marginal_likelihood():
    """Differences between candidates equal those of the textbook formula, and of direct integration."""
    values, degrees = np.array([2.0]), 5.0
    scatter = degrees * values[0]

    def integrated(gamma):
        # One dimension: νΣ̂ ~ Σ χ²_ν and Σ ~ inverse-gamma(m/2, γν/2) with m = γν + 2.
        freedom, scale = gamma * degrees + 2, gamma * degrees
        sigma = np.exp(np.linspace(-12, 12, 200_001))
        log_density = (
            -0.5 * degrees * np.log(sigma)
            - 0.5 * scatter / sigma
            + 0.5 * freedom * math.log(scale / 2)
            - math.lgamma(freedom / 2)
            - (freedom / 2 + 1) * np.log(sigma)
            - 0.5 * scale / sigma
        )
        return math.log(np.trapezoid(np.exp(log_density) * sigma, np.log(sigma)))

    with x64():
        got = [
            float(_evidence(jnp.asarray(values), jnp.asarray(degrees), jnp.asarray(g)))
            for g in (0.1, 1.0, 7.0)
        ]
    expected = [integrated(g) for g in (0.1, 1.0, 7.0)]
    np.testing.assert_allclose(np.diff(got), np.diff(expected), rtol=1e-6)


def test_deterministic_equivalents_of_equal_weights():
    moments = covfree.Moments(jnp.array([50, 50]), jnp.array([11, 6]), jnp.zeros((2, 3)))
    true_trace, kindness = deterministic_equivalents(
        jnp.float32(6.0), Freedom.of_classes(moments, jnp.full(2, 1 / 15))
    )
    # κ = 6/15: T = 6/(1 − κ) = 10, φ = (1 − κ)².
    np.testing.assert_allclose((true_trace, kindness), (10.0, 0.36), rtol=1e-5)


@pytest.mark.parametrize("shape", [{"dim": 6}, {"dim": 60, "clients": 3, "examples": 60}])
def test_scale_translation_rotation(shape):
    rows = gaussian_rows(**shape)
    gamma = chosen(rows, 4)
    dim = rows.mean.shape[1]
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(dim, dim)))[0].astype(np.float32)
    for scale in (1e-4, 1e4):
        scaled = covfree.Rows(rows.mean * scale, rows.count, rows.label)
        np.testing.assert_allclose(chosen(scaled, 4), gamma * scale**2, rtol=1e-3)
    moved = covfree.Rows(rows.mean + 30, rows.count, rows.label)
    np.testing.assert_allclose(chosen(moved, 4), gamma, rtol=1e-2)
    turned = covfree.Rows(rows.mean @ rotation, rows.count, rows.label)
    np.testing.assert_allclose(chosen(turned, 4), gamma, rtol=1e-2)


def test_a_factor_and_its_product_agree():
    rows = gaussian_rows(dim=60, clients=3, examples=60)
    moments = covfree.first_moments(rows, 4)
    weight = class_weights(moments, "per_class") / moments.within_degrees
    factor = centred_rows(rows, moments, weight)
    with x64():
        rules = [
            covfree.automatic().apply(covariance, moments, Freedom.of_classes(moments, weight), None).shift
            for covariance in (Scatter.from_factor(factor), Scatter.from_matrix(factor.T @ factor))
        ]
    np.testing.assert_allclose(*rules, rtol=1e-3)


def test_more_classes_than_are_looked_at(monkeypatch):
    """Beyond 128 classes the error is that of a sample of them: near that of all."""
    rng = np.random.default_rng(0)
    labels = rng.choice(200, 6000, p=np.r_[np.full(100, 3.0), np.full(100, 1.0)] / 400)
    features = 3 * rng.normal(size=(200, 10))[labels] + rng.normal(size=(6000, 10))
    rows = rows_of(features, labels, rng.integers(0, 10, 6000))
    moments = covfree.first_moments(rows, 200)
    weight = class_weights(moments, "pooled") / moments.within_degrees
    basis = _eigenbasis(Scatter.from_factor(centred_rows(rows, moments, weight)), moments)
    rest = (moments, Freedom.of_classes(moments, weight), jnp.array([0.1]), 10, jnp.zeros(()))
    sampled = _error(*basis, *rest)[0]
    monkeypatch.setattr("covfree.estimators.foretold._MOST_CLASSES", 200)
    everyone = _error(*basis, *rest)[0]
    assert sampled != everyone
    np.testing.assert_allclose(sampled, everyone, atol=0.02)


@pytest.mark.parametrize(
    "rows",
    [
        covfree.Rows(jnp.ones((3, 4)), jnp.array([5, 5, 5]), jnp.array([0, 1, 2])),
        covfree.Rows(jnp.ones((4, 4)), jnp.array([5, 5, 5, 5]), jnp.array([0, 0, 1, 1])),
        covfree.Rows(jnp.eye(3, 4), jnp.array([5, 5, 5]), jnp.array([0, 1, 2])),
        covfree.Rows(jnp.eye(3, 4), jnp.array([1, 0, 0]), jnp.array([0, 1, 2])),
    ],
    ids=["one row a class, all equal", "no spread", "one row a class", "one example"],
)
def test_nothing_observed(rows):
    """Without any spread the head is a nearest-mean classifier: finite, and right on the means."""
    gamma = chosen(rows, 3)
    assert math.isfinite(gamma)
    assert gamma > 0
    head = covfree.solve_rows(covfree.fedcof(), rows, num_classes=3)
    assert np.isfinite(np.asarray(head.weight)).all()
    if np.unique(np.asarray(rows.mean), axis=0).shape[0] == 3:
        kept = np.asarray(rows.count) > 0
        assert (head(rows.mean).argmax(-1) == rows.label)[kept].all()


def test_works_under_vmap_and_has_finite_derivatives():
    federation = federations.make(0).clean
    rows = rows_of(federation.features.astype(np.float32), federation.labels, federation.clients)

    def bias(scale):
        scaled = covfree.Rows(rows.mean * scale, rows.count, rows.label)
        head = covfree.solve_rows(covfree.fedcof(), scaled, num_classes=federations.CLASSES)
        return jnp.where(jnp.isfinite(head.bias), head.bias, 0)

    # LDA does not feel the scale of the features, and the automatic shrinkage keeps it so.
    batch = jax.vmap(bias)(jnp.array([0.5, 1.0, 4.0]))
    np.testing.assert_allclose(batch, jnp.broadcast_to(batch[1], batch.shape), rtol=1e-3)
    assert np.isfinite(jax.grad(lambda scale: bias(scale).sum())(1.0))


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


def test_caltech_without_tuning(shared):
    data = load(shared / "data/features/caltech101-efficientnet_lite0.npz")
    automatic, best = compared_with_hindsight([data] * 2)
    assert automatic >= best - 0.5
