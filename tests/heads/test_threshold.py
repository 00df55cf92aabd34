"""The cut between two classes of different variance: against plain matrices, its laws, what it is worth."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from precision import assert_heads_close, x64
from scipy.optimize import brentq
from scipy.stats import norm

import covfree
from covfree.engine.stream import solve_stream
from covfree.estimators.scatter import Freedom, centred_rows, class_weights
from covfree.heads.auto import auto_head
from covfree.heads.threshold import Parts, unequal_cut
from covfree.linalg import Scatter

pytestmark = pytest.mark.usefixtures("cheap_compilation")

SPREAD = np.array([1.0, 2.5])
METHOD = covfree.fedcof(0.4, head="auto")


def examples(seed=0, *, dim=6, number=(120, 80), spread=SPREAD, apart=2.0):
    """Two Gaussian classes of different size, the second wider."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 1], number).astype(np.int32)
    features = spread[labels][:, None] * rng.normal(size=(len(labels), dim)) * np.logspace(0, -0.5, dim)
    features[:, 0] += apart * labels
    return features + 3.0, labels


def rows_of(clients=10, **kwargs):
    features, labels = examples(**kwargs)
    owners = np.random.default_rng(1).integers(0, clients, len(labels)).astype(np.int32)
    return covfree.client_rows(
        jnp.asarray(features), jnp.asarray(labels), jnp.asarray(owners), num_rows=2 * clients
    )


@partial(jax.jit, static_argnames="weighting")
def parts_of(rows, shift, scale=0.7, weighting="per_class"):
    """Σ̃ = scale·Σ̂ + shift·I, the moments, and the parts of scale·Σ̂."""
    moments = covfree.first_moments(rows, 2)
    weight = class_weights(moments, weighting) / moments.within_degrees
    whole, second = (
        Scatter.from_factor(centred_rows(rows, moments, w)).scaled(scale)
        for w in (weight, weight.at[0].set(0))
    )
    return whole.shifted(shift), moments, Parts(second, Freedom.of_classes(moments, weight))


@jax.jit
def cut(covariance, moments, parts):
    lda = covfree.lda_head(covariance, moments)
    return lda, unequal_cut(covariance, moments, parts, lda)


def cut_along(head, moments):
    """Where along w the classes tie, from the point halfway between the means."""
    column = head.weight[:, 1] - head.weight[:, 0]
    return float(head.bias[0] - head.bias[1] - column @ moments.mean.sum(0) / 2)


@pytest.mark.parametrize("weighting", ["per_class", "pooled"])
@pytest.mark.parametrize(("dim", "clients"), [(6, 10), (40, 6)], ids=["matrix", "factor"])
def test_cuts_where_the_densities_cross(dim, clients, weighting):
    """Each class's own shrunk covariance in full, explicit inverses, and the root by bracketing."""
    with x64():
        rows = rows_of(clients, dim=dim, apart=4.0)
        covariance, moments, parts = parts_of(rows, 0.4, weighting=weighting)
        assert covariance.factored == (dim == 40)
        lda, head = cut(covariance, moments, parts)
        np.testing.assert_array_equal(head.weight, lda.weight)
        got, by_lda = cut_along(head, moments), cut_along(lda, moments)
        label, count, means, total, mean, shrunk = (
            np.asarray(x)
            for x in (rows.label, rows.count, rows.mean, moments.count, moments.mean, covariance.dense())
        )
    shift = 0.4
    column = np.linalg.solve(shrunk, mean[1] - mean[0])
    observed = shrunk - shift * np.eye(dim)
    degrees, own, size, lost = np.zeros(2), [], np.zeros(2), np.zeros(2)
    share = total - 1
    for c in (0, 1):
        mine = means[label == c] - mean[c]
        degrees[c] = len(mine) - 1
        own.append((count[label == c, None] * mine).T @ mine / degrees[c])
    if weighting == "pooled":
        share = degrees
    share = share / share.sum()
    np.testing.assert_allclose(0.7 * (share[0] * own[0] + share[1] * own[1]), observed, rtol=1e-9, atol=1e-12)
    for c in (0, 1):
        lost[c] = 0.7 * share[c] * np.trace(np.linalg.solve(shrunk, own[c])) / degrees[c]
        size[c] = np.trace(own[c]) / dim
    assert lost.max() > 0.2
    along = np.array([column @ own[c] @ column for c in (0, 1)]) / (1 - lost) ** 2
    along, size = ((degrees * x + 2 * share @ x) / (degrees + 2) for x in (along, size))
    variance = 0.7 * along + shift * size / (share @ size) * (column @ column)
    apart = column @ (mean[1] - mean[0])
    deviation = np.sqrt(variance / (share @ variance) * apart)

    def odds(y):
        densities = norm.logpdf([y + apart / 2, y - apart / 2], scale=deviation)
        return math.log(total[1] / total[0]) + densities[1] - densities[0]

    np.testing.assert_allclose(got, brentq(odds, -apart / 2, apart / 2), rtol=1e-6)
    assert abs(got - by_lda) > 0.05 * apart


def test_is_lda_where_the_classes_are_alike():
    """The second class is the first one moved: not even rounding tells them apart."""
    rng = np.random.default_rng(0)
    mean = rng.integers(-8, 8, (12, 4)).astype(np.float32)
    mean -= mean.mean(0).round()
    rows = covfree.Rows(
        jnp.asarray(np.r_[mean, mean + 16]),
        jnp.full(24, 4),
        jnp.repeat(jnp.arange(2), 12),
        jnp.arange(24) % 12,
    )
    covariance, moments, parts = parts_of(rows, 0.3)
    lda, head = cut(covariance, moments, parts)
    np.testing.assert_allclose(cut_along(head, moments), cut_along(lda, moments), atol=1e-4)


def test_variances_are_those_of_new_examples():
    """As often too large as too small, where the rows' own variance along w is a third of it."""
    got, true, seen = [], [], []
    for seed in range(12):
        rows = rows_of(8, seed=seed, dim=20, number=(80, 80))
        covariance, moments, parts = parts_of(rows, 0.3)
        lda, _ = cut(covariance, moments, parts)
        column = np.asarray(lda.weight[:, 1] - lda.weight[:, 0])
        second = np.asarray(parts.second.dense())
        first = np.asarray(covariance.dense()) - second - 0.3 * np.eye(20)
        share = np.asarray(parts.freedom.degrees * parts.freedom.weight)
        own = np.array([column @ part @ column for part in (first, second)]) / share
        inverse = np.linalg.inv(covariance.dense())
        lost = np.array([np.trace(inverse @ part) for part in (first, second)]) / parts.freedom.degrees
        seen.append(own)
        got.append(own / (1 - lost) ** 2)
        true.append(0.7 * SPREAD**2 * (np.square(column) * np.logspace(0, -1, 20)).sum())
    got, true, seen = (np.log(x).mean(0) for x in (got, true, seen))
    # Twelve variances of 7 degrees of freedom each: a standard error of 0.15, and a mean log of -0.15.
    np.testing.assert_allclose(got, true, atol=0.45)
    assert (seen < true - 0.7).all()


def test_better_than_lda_where_one_class_is_wider():
    wide = {"number": (200, 200), "spread": np.array([1.0, 3.0]), "apart": 6.0}
    head, lda = (
        covfree.solve_rows(covfree.fedcof(0.4, head=name), rows_of(20, **wide), num_classes=2)
        for name in ("auto", "lda")
    )
    features, labels = examples(seed=9, **{**wide, "number": (5000, 5000)})
    right = [float(covfree.evaluate(h, features.astype(np.float32), labels)) for h in (head, lda)]
    assert right[0] > right[1] + 0.01


def solved_in_every_way(rows):
    yield covfree.solve_rows(METHOD, jax.tree.map(lambda x: x[::-1], rows), num_classes=2)
    yield solve_stream(METHOD, jax.tree.map(np.asarray, rows), num_classes=2, part_rows=7)
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    totals = covfree.accumulate_sharded(METHOD, covfree.shard_rows(rows, mesh), num_classes=2, mesh=mesh)
    yield covfree.solve_totals(METHOD, *totals)


def test_the_same_whoever_adds_up():
    rows = rows_of(6, dim=40)
    expected = covfree.solve_rows(METHOD, rows, num_classes=2)
    lda = covfree.solve_rows(covfree.fedcof(0.4), rows, num_classes=2)
    assert abs(jnp.diff(expected.bias - lda.bias)[0]) > 0.05
    for head in solved_in_every_way(rows):
        assert_heads_close(head, expected, 1e-3)


def test_the_oracle_from_messages_and_from_examples():
    method = covfree.fedcof_oracle(0.4, head="auto")
    features, labels = examples(number=(60, 60))
    features, clients = features.astype(np.float32), np.arange(120) % 4
    sent = {
        k: covfree.client_message(method, features[clients == k], labels[clients == k], num_classes=2)
        for k in range(4)
    }
    received = covfree.collect(sent, num_classes=2).message
    got = covfree.solve_message(method, received, num_classes=2)
    expected = covfree.fit(method, features, labels, clients)
    assert_heads_close(got, expected, 1e-3)
    lda = covfree.fit(covfree.fedcof_oracle(0.4), features, labels, clients)
    assert abs(jnp.diff(expected.bias - lda.bias)[0]) > 0.05


@pytest.mark.parametrize(
    "case", ["a class is absent", "one row a class", "one of many", "equal means", "unshrunk"]
)
def test_finite_where_little_is_known(case):
    rows = rows_of()
    label = rows.label
    if case == "a class is absent":
        rows = replace(rows, label=jnp.zeros_like(label))
    elif case == "one row a class":
        rows = jax.tree.map(lambda x: x[jnp.array([0, -1])], replace(rows, label=jnp.sort(label)))
    elif case == "one of many":
        rows = replace(rows, label=jnp.zeros_like(label).at[3].set(1))
    elif case == "equal means":
        rows = replace(rows, mean=jnp.ones_like(rows.mean))
    covariance, moments, parts = parts_of(rows, 0.0 if case == "unshrunk" else 0.4)
    lda, head = cut(covariance, moments, parts)
    present = np.asarray(moments.present)
    assert np.isfinite(head.bias).all()
    np.testing.assert_array_equal(head.present, present)
    if case in ("a class is absent", "one row a class", "equal means"):
        np.testing.assert_allclose(np.asarray(head.bias)[present], np.asarray(lda.bias)[present], rtol=1e-5)


def test_derivatives_take_the_variances_as_given():
    covariance, moments, parts = parts_of(rows_of(), 0.4)

    def bias(scale, cut_again):
        moved = covfree.Moments(moments.count, moments.rows, moments.total * scale)
        head = auto_head(covariance, moved, parts) if cut_again else covfree.lda_head(covariance, moved)
        return jnp.diff(head.bias)[0]

    slope, step = jax.jit(jax.grad(bias), static_argnums=1), 1e-2
    jitted = jax.jit(bias, static_argnums=1)
    difference = (jitted(1 + step, True) - jitted(1 - step, True)) / (2 * step)
    assert np.isfinite(slope(1.0, True))
    assert slope(1.0, True) != slope(1.0, False)
    # The ratio of the variances changes with the direction alone, which stays.
    np.testing.assert_allclose(slope(1.0, True), difference, rtol=1e-2)
