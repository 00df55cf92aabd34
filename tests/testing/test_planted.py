"""Faults as people make them, each in something sound: a check, as it is called, finds every one of them."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree
import covfree.finetune as ft
from covfree.estimators import class_scatters
from covfree.rounds import as_algorithm
from covfree.statistics.transforms import Transform
from covfree.testing import check_algorithm, check_estimator, check_head, check_method, check_transform
from covfree.testing.algorithm import ALGORITHM_LAWS
from covfree.testing.estimator import ESTIMATOR_LAWS
from covfree.testing.head import HEAD_LAWS
from covfree.testing.method import METHOD_LAWS
from covfree.testing.transform import TRANSFORM_LAWS

pytestmark = pytest.mark.usefixtures("untyped")


def pooled(rows, num_classes, *, lost=1, counts=None, given=None):
    """The pooled covariance Σ_c S_c / Σ_c (K_c − 1)."""
    rows = rows if counts is None else replace(rows, count=counts(rows.count))
    moments = covfree.first_moments(rows, num_classes)
    scatters = class_scatters(rows, moments if given is None else given(rows, moments))
    degrees = jnp.maximum(moments.num_rows - lost, 0).sum()
    return scatters.sum(0) / jnp.maximum(degrees, 1).astype(scatters.dtype)


def ones(count):
    return jnp.where(jnp.asarray(count) > 0, 1, 0)


def plain_means(rows, moments):
    plain = covfree.first_moments(replace(rows, count=ones(rows.count)), 6)
    return replace(moments, total=plain.mean * moments.count.astype(plain.total.dtype)[:, None])


def one_mean(rows, moments):
    """The grand mean in place of the classes'."""
    count = moments.count.astype(rows.mean.dtype)
    return replace(moments, total=count[:, None] * moments.grand_mean[None, :])


def about_classes(covariance, moments, **wrong):
    """LDA whose weights are not centred, so that a formula can be written down."""
    mean = moments.mean
    weight = jnp.linalg.solve(covariance.dense(), mean.T)
    count = jnp.where(moments.present, moments.count, 1).astype(weight.dtype)
    numbers = {"prior": 1.0, "half": 0.5} | wrong
    bias = numbers["prior"] * jnp.log(count) - numbers["half"] * (mean.T * weight).sum(0)
    present = moments.present.astype(weight.dtype)
    return covfree.LinearHead(weight, jnp.where(moments.present, bias, 0), present)


def unweighted(params, totals, rows, num_classes):
    """Clients' means are averaged as if all had as many examples."""
    return covfree.first_moments(replace(rows, count=ones(rows.count)), num_classes)


def weighted_means(features, labels, clients, num_classes):
    """FedNCM: the normalised class means of all examples."""
    held = np.isin(np.arange(num_classes), labels)
    means = np.stack([features[labels == c].mean(0) if held[c] else features[0] for c in range(num_classes)])
    means = means / np.linalg.norm(means, axis=1, keepdims=True)
    return lambda x: np.where(held, x @ means.T, -np.inf)


def averaging(params, totals, rows, num_classes):
    """A mean over rows in place of a sum: right for all rows at once, up to the head's scale."""
    moments = covfree.first_moments(rows, num_classes)
    rows_of_class = jnp.maximum(moments.num_rows, 1).astype(moments.total.dtype)
    return replace(moments, total=moments.total / rows_of_class[:, None])


def one_draw(strength, rows, key):
    return replace(rows, mean=rows.mean + strength * jax.random.normal(key))


def clipped_together(most, rows, key):
    used = (jnp.asarray(rows.count) > 0) & (jnp.asarray(rows.label) >= 0)
    largest = jnp.sqrt(jnp.square(jnp.where(used[:, None], rows.mean, 0)).sum(1)).max()
    return replace(rows, mean=rows.mean * jnp.minimum(1, most / largest))


FEDAVG = ft.fedavg(ft.linear_model(covfree.LinearHead(jnp.zeros((5, 3)), jnp.zeros(3))), batch_size=4)
SENT = as_algorithm(covfree.fedcof(1.0), num_classes=3)


def away(params, state, total):
    return FEDAVG.server(params, state, jax.tree.map(lambda x: -x if x.ndim else x, total))


def summed(params, state, total):
    return FEDAVG.server(params, state, jax.tree.map(lambda x: x if x.ndim else jnp.ones_like(x), total))


def uphill(params, sent, data, memory, key):
    upload, *others = FEDAVG.client(params, sent, data, memory, key)
    return jax.tree.map(lambda x: -x if x.ndim else x, upload), *others


PLANTED = {
    "K in place of K − 1": (
        "unbiased",
        lambda: check_estimator(lambda r, c: pooled(r, c, lost=0), unbiased_for="covariance"),
    ),
    "a mean without weights": (
        "merging",
        lambda: check_estimator(lambda r, c: pooled(r, c, given=plain_means)),
    ),
    "counts that do not count": ("doubling", lambda: check_estimator(lambda r, c: pooled(r, c, counts=ones))),
    "one mean for all classes": (
        "unbiased",
        lambda: check_estimator(lambda r, c: pooled(r, c, given=one_mean), unbiased_for="covariance"),
    ),
    "a prior of the wrong sign": ("priors", lambda: check_head(lambda s, m: about_classes(s, m, prior=-1.0))),
    "no half before the norms": (
        "translation",
        lambda: check_head(lambda s, m: about_classes(s, m, half=1.0)),
    ),
    "clients that all weigh the same": (
        "reference",
        lambda: check_method(
            replace(covfree.fedncm(), rounds=(covfree.Round(unweighted),)),
            reference=weighted_means,
            exclude={"messages": "another test's", "splitting": "another test's"},
        ),
    ),
    "a phase that averages": (
        "splitting",
        lambda: check_method(replace(covfree.fedncm(), rounds=(covfree.Round(averaging),))),
    ),
    "noise that all rows share": ("independent", lambda: check_transform(Transform(0.5, one_draw))),
    "a bound on all rows together": ("splitting", lambda: check_transform(Transform(2.0, clipped_together))),
    "a server that goes back": ("learns", lambda: check_algorithm(replace(FEDAVG, server=away))),
    "a server that forgets to divide": ("copies", lambda: check_algorithm(replace(FEDAVG, server=summed))),
    "clients that go uphill": ("learns", lambda: check_algorithm(replace(FEDAVG, client=uphill))),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault):
    law, check = PLANTED[fault]
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law '{law}'")):
        check()


# Of the methods and algorithms above: tests/methods/test_contracts.py, tests/testing/test_algorithm.py.
def test_without_a_fault_nothing_is_found():
    check_estimator(pooled, unbiased_for="covariance")
    check_head(about_classes)


@pytest.mark.parametrize(
    ("check", "laws"),
    [
        (check_algorithm, ALGORITHM_LAWS),
        (check_estimator, ESTIMATOR_LAWS),
        (check_head, HEAD_LAWS),
        (check_method, METHOD_LAWS),
        (check_transform, TRANSFORM_LAWS),
    ],
)
def test_a_check_names_its_laws(check, laws):
    says = check.__doc__.partition("The laws: ")[2].partition(".")[0]
    assert re.findall(r"``(\w+)``", says) == [law.__name__ for law in laws]
    assert all(law.__doc__ for law in laws)
