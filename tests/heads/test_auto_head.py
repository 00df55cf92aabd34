"""LDA with a guard: what is foretold against plain loops, and when the guard takes over."""

import math
from functools import partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import ABSENT, CLASSES, DIM
from precision import FLOAT32
from scipy.optimize import brentq
from scipy.stats import multivariate_normal

import covfree
from covfree.heads.auto import auto_head, choose_head, foretold_errors
from covfree.linalg import Scatter

pytestmark = pytest.mark.usefixtures("cheap_compilation")


@jax.jit
def compiled(covariance, moments):
    return auto_head(covariance, moments), choose_head(covariance, moments)


compiled_errors = jax.jit(foretold_errors)


@partial(jax.jit, static_argnames="num_classes")
def statistics(rows, num_classes):
    moments = covfree.first_moments(rows, num_classes)
    return moments, covfree.within_factor(rows, moments) / jnp.sqrt(moments.within_degrees)


def parts(precision=FLOAT32, shift=0.3, dim=DIM, clients=5, seed=0):
    """Moments, and Σ̃ as the factor of FedCOF's estimate and a shift."""
    if dim == DIM:
        expected = oracle.client_rows(*federations.make(seed))
        rows = federations.rows(federations.make(seed), precision, expected, padding=48 - len(expected))
        num_classes = CLASSES
    else:
        rows, num_classes = two_classes(dim, clients)[0], 2
    moments, factor = statistics(rows, num_classes)
    return Scatter.from_factor(factor).shifted(shift), moments


def two_classes(dim=20, clients=5, seed=3):
    """Rows of two spherical classes on either side of 0, and test examples."""
    rng = np.random.default_rng(seed)
    means = 0.4 * np.array([[1.0], [-1.0]]) * rng.choice([-1, 1], dim)
    labels, test_labels = np.repeat([0, 1], 100).astype(np.int32), rng.integers(0, 2, 1000)
    features, test = ((means[y] + rng.normal(size=(len(y), dim))) for y in (labels, test_labels))
    owners = np.arange(200, dtype=np.int32) % clients
    rows = covfree.client_rows(
        jnp.asarray(features, jnp.float32), jnp.asarray(labels), jnp.asarray(owners), num_rows=2 * clients
    )
    return rows, test.astype(np.float32), test_labels


def foretold_by_loops(covariance, moments):
    """Both errors with explicit inverses, T by bracketing, the orthants by SciPy."""
    shift = float(covariance.shift)
    shrunk = np.asarray(covariance.dense(), np.float64)
    dim = len(shrunk)
    observed = shrunk - shift * np.eye(dim)
    keep = np.trace(observed) / np.trace(shrunk)  # a in Σ̃ = aΣ̂ + bI with tr Σ̃ = tr Σ̂
    estimate = observed / keep
    count, row_count = (np.asarray(x, np.float64) for x in (moments.count, moments.rows))
    total, held = np.asarray(moments.total, np.float64), [c for c in range(len(count)) if count[c] > 0]
    mean = {c: total[c] / count[c] for c in held}
    weights = [
        (row_count[c] - 1, (count[c] - 1) / (row_count[c] - 1) / sum(count[k] - 1 for k in held))
        for c in held
        if row_count[c] > 1
    ]
    # H = (Σ̂ + b/a I)⁻¹ and Σ̃⁻¹ = H/a.
    inverse = np.linalg.inv(estimate + shift / keep * np.eye(dim))
    seen = np.trace(inverse @ estimate)
    trace = brentq(lambda t: sum(v * w * t / (1 + w * t) for v, w in weights) - seen, 0, 1e9)
    kindness = sum(v * w / (1 + w * trace) ** 2 for v, w in weights)
    unbiased = sum(v * w for v, w in weights)
    errors = []
    for name, truth in (("lda", estimate / kindness), ("ncm", estimate / unbiased)):
        wrong = 0.0
        for i in held:
            ratios = []
            for j in held:
                if j == i:
                    continue
                if name == "lda":
                    column = {c: inverse @ mean[c] / keep for c in (i, j)}
                    bias = {c: -0.5 * mean[c] @ column[c] + math.log(count[c]) for c in (i, j)}
                    owed = trace / keep
                else:
                    column = {c: mean[c] / np.linalg.norm(mean[c]) for c in (i, j)}
                    bias = {c: 0.0 for c in (i, j)}
                    owed = (np.trace(truth) - column[i] @ truth @ column[i]) / np.linalg.norm(mean[i])
                apart = column[i] - column[j]
                margin = apart @ mean[i] + bias[i] - bias[j] - owed / count[i]
                ratios.append(margin / math.sqrt(apart @ truth @ apart))
            correlation = 0.5 * (np.eye(len(ratios)) + np.ones((len(ratios),) * 2))
            law = multivariate_normal(np.zeros(len(ratios)), correlation, seed=0)
            wrong += count[i] / count.sum() * (1 - law.cdf(np.array(ratios)))
        errors.append(wrong)
    return errors


@pytest.mark.parametrize(("dim", "shift"), [(DIM, 0.3), (20, 0.5)], ids=["matrix", "factor"])
def test_foretold_errors_are_those_of_plain_loops(dim, shift):
    covariance, moments = parts(shift=shift, dim=dim)
    assert covariance.factored == (dim == 20)
    got = compiled_errors(covariance, moments)
    np.testing.assert_allclose(got, foretold_by_loops(covariance, moments), rtol=3e-3, atol=1e-5)
    # However Σ̂ is held.
    whole = Scatter.from_matrix(covariance.dense() - covariance.shift * jnp.eye(dim))
    np.testing.assert_allclose(compiled_errors(whole.shifted(shift), moments), got, rtol=1e-4)


def test_lda_where_the_covariance_is_sound():
    """The same head, an absent class and padding included."""
    covariance, moments = parts()
    head, index = compiled(covariance, moments)
    lda = jax.jit(covfree.lda_head)(covariance, moments)
    assert index == 0
    np.testing.assert_allclose(head.weight, lda.weight, rtol=1e-6)
    np.testing.assert_allclose(head.bias, lda.bias, rtol=1e-6)
    assert head.present[ABSENT] == 0


def test_nearest_means_where_too_little_shrinkage_met_few_rows():
    """8 degrees of freedom in 20 dimensions: LDA makes twice the mistakes, and the guard knows."""
    _, features, labels = two_classes()
    covariance, moments = parts(shift=0.01, dim=20, clients=5)
    head, index = compiled(covariance, moments)
    ncm, lda = jax.jit(covfree.ncm_head)(moments), jax.jit(covfree.lda_head)(covariance, moments)
    assert index == 1
    # But for the rounding of another compilation.
    np.testing.assert_allclose(head.weight, ncm.weight, rtol=1e-6)
    np.testing.assert_array_equal(head.bias, ncm.bias)
    wrong = [1 - float(covfree.evaluate(h, features, labels)) for h in (head, lda)]
    assert wrong[0] < 0.7 * wrong[1]
    # The same rows, shrunk enough, need no guard.
    assert compiled(covariance.shifted(30.0), moments)[1] == 0


def test_serves_as_a_methods_head():
    rows, features, _ = two_classes()
    head = covfree.solve_rows(covfree.fedcof(0.01, head=auto_head), rows, num_classes=2)
    np.testing.assert_array_equal(
        head(features).argmax(-1), covfree.ncm_head(statistics(rows, 2)[0])(features).argmax(-1)
    )


def test_derivatives_are_those_of_the_chosen_head():
    for shift, chosen in ((0.01, "ncm"), (30.0, "lda")):
        covariance, moments = parts(shift=shift, dim=20, clients=5)

        def size(scale, pick, covariance=covariance, moments=moments):
            moved = covfree.Moments(moments.count, moments.rows, moments.total * scale)
            heads = {"lda": covfree.lda_head, "auto": auto_head, "ncm": lambda _, m: covfree.ncm_head(m)}
            head = heads[pick](covariance, moved)
            return (head.weight[0] + head.bias).sum()

        slope = jax.jit(jax.grad(size), static_argnums=1)
        slopes = [slope(1.0, pick) for pick in ("auto", chosen)]
        assert np.isfinite(slopes[0])
        np.testing.assert_allclose(*slopes, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("label", [[0, 1, 2], [0, 1, 1]], ids=["one row a class", "a class is absent"])
def test_nothing_observed(label):
    """Σ̂ = 0, as with one client: finite, and right on the means."""
    rows = covfree.Rows(jnp.eye(3, 4), jnp.array([5, 5, 5]), jnp.array(label))
    moments = covfree.first_moments(rows, 3)
    covariance = Scatter.from_matrix(jnp.zeros((4, 4))).shifted(0.1)
    head, index = compiled(covariance, moments)
    assert index in (0, 1)
    assert np.isfinite(compiled_errors(covariance, moments)).all()
    assert np.isfinite(np.asarray(head.weight)).all()
    assert (head(rows.mean).argmax(-1) == rows.label).all()


def test_wrong_size():
    with pytest.raises(ValueError, match=r"covariance: expected \[5, 5\]"):
        choose_head(jnp.eye(4), parts()[1])
