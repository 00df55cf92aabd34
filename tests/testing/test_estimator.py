"""Every law of `check_estimator` can be broken, and says so; covfree's estimators and rules keep them."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from variants import slow

import covfree
from covfree.estimators import class_scatters
from covfree.testing import check_estimator
from covfree.testing.estimator import ESTIMATOR_LAWS


def within(rows, num_classes):
    """FedCOF's scatter within classes."""
    return covfree.within_scatter(rows, covfree.first_moments(rows, num_classes))


def pooled(rows, num_classes):
    return covfree.within_scatter(rows, covfree.first_moments(rows, num_classes), weighting="pooled")


def between(rows, num_classes):
    return covfree.between_scatter(covfree.first_moments(rows, num_classes))


def both(rows, num_classes):
    return covfree.total_gram(within(rows, num_classes), covfree.first_moments(rows, num_classes)).dense()


def of_classes(rows, num_classes):
    return class_scatters(rows, covfree.first_moments(rows, num_classes))


def weighed(rows, weight):
    """Rows of other weights, by their place in the table."""
    return covfree.within_scatter(
        covfree.Rows(rows.mean * weight[:, None], rows.count, rows.label), covfree.first_moments(rows, 6)
    )


def divided_by_rows(rows, num_classes):
    """By K_c in place of K_c − 1."""
    moments = covfree.first_moments(rows, num_classes)
    scatters = class_scatters(rows, moments)
    weight = (moments.count - 1) / jnp.maximum(moments.num_rows, 1)
    return (weight.astype(scatters.dtype)[:, None, None] * scatters).sum(0)


def about_plain_means(rows, num_classes):
    """Class means as if each row were one example."""
    counts = jnp.where(jnp.asarray(rows.count) > 0, 1, 0)
    plain = covfree.first_moments(replace(rows, count=counts), num_classes)
    moments = covfree.first_moments(rows, num_classes)
    total = plain.mean * moments.count.astype(plain.total.dtype)[:, None]
    return covfree.within_scatter(rows, replace(moments, total=total))


def by_squares(rows, num_classes):
    """E[xxᵀ] − E[x]E[x]ᵀ."""
    used = (jnp.asarray(rows.count) > 0) & (jnp.asarray(rows.label) >= 0)
    mean = jnp.where(used[:, None], rows.mean, 0)
    weight = jnp.where(used, rows.count, 0).astype(mean.dtype)
    weight = weight / jnp.maximum(weight.sum(), 1)
    middle = weight @ mean
    return mean.T @ (weight[:, None] * mean) - middle[:, None] * middle[None, :]


def without_counts(rows, num_classes):
    return within(replace(rows, count=jnp.where(jnp.asarray(rows.count) > 0, 1, 0)), num_classes)


calls = 0


def counting(rows, num_classes):
    global calls
    calls += 1
    return calls * within(rows, num_classes)


def on_values(rows, num_classes):
    return within(rows, num_classes) * (2 if rows.count[0] > 3 else 1)


def by_place(rows, num_classes):
    place = jnp.linspace(1, 2, len(rows.label)).astype(rows.mean.dtype)
    return covfree.within_scatter(
        covfree.Rows(rows.mean * place[:, None], rows.count, rows.label), covfree.first_moments(rows, 6)
    )


def formula(means, counts, labels, num_classes):
    """FedCOF's eq. 5, and the weights of its Alg. 1."""
    total = np.zeros((means.shape[1], means.shape[1]))
    for c in np.unique(labels):
        x, n = means[labels == c], counts[labels == c]
        away = x - (n @ x) / n.sum()
        total += (n.sum() - 1) * (away.T * n) @ away / max(len(n) - 1, 1)
    return total


KNOWN = {"unbiased": {"unbiased_for": "scatter"}, "reference": {"reference": formula}}
BROKEN = {
    "pytree": lambda rows, _: within(rows, 6)[0],
    "pure": counting,
    "jit": on_values,
    "order": by_place,
    "padding": lambda rows, _: within(rows, 6) / len(rows.label),
    "finite": lambda rows, _: within(rows, 6) / within(rows, 6).trace(),
    "centring": by_squares,
    "positive": lambda rows, _: within(rows, 6) - 10 * jnp.eye(5),
    "scaling": lambda rows, _: within(rows, 6) + jnp.eye(5),
    "translation": both,
    "doubling": without_counts,
    "merging": about_plain_means,
    "unbiased": divided_by_rows,
    "reference": divided_by_rows,
    "rotation": lambda rows, _: jnp.diag(jnp.diag(within(rows, 6))),
    "gradients": lambda rows, _: jax.lax.stop_gradient(within(rows, 6)),
}


@pytest.mark.parametrize("law", BROKEN)
def test_what_breaks_a_law_is_caught(law):
    others = {one.__name__: "another test's" for one in ESTIMATOR_LAWS if one.__name__ != law}
    says = next(one.__doc__ for one in ESTIMATOR_LAWS if one.__name__ == law)
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law '{law}'. {says}")):
        check_estimator(BROKEN[law], exclude=others, **KNOWN.get(law, {}))


def test_every_law_has_something_that_breaks_it():
    # Nothing that is one function can be traced twice for one shape: see test_method.py.
    assert {law.__name__ for law in ESTIMATOR_LAWS} == {*BROKEN, "trace"}


def as_one_class(rows, num_classes):
    return covfree.estimate_covariance(rows.mean, jnp.where(jnp.asarray(rows.label) >= 0, rows.count, 0))


def spreads(covariance, rows):
    """Of the scatters of each class, K_c − 1 degrees of freedom of five rows."""
    return np.broadcast_to(4 * covariance, (6, *covariance.shape))


TWO_PARTS = dict.fromkeys(("doubling", "merging"), "its parts grow differently")


@pytest.mark.parametrize(
    ("estimate", "known", "exclude"),
    [
        (within, {"unbiased_for": "scatter", "reference": formula}, {}),
        (pooled, {"unbiased_for": "scatter"}, {}),
        (of_classes, {"unbiased_for": spreads}, {}),
        *slow((between, {}, {}), (as_one_class, {"unbiased_for": "covariance"}, {})),
        (both, {}, {"translation": "it is about the origin", **TWO_PARTS}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_estimators_keep_the_laws(estimate, known, exclude):
    check_estimator(estimate, exclude=exclude, **known)


def test_padding_is_blamed_for_forgotten_padding():
    def forgetful(rows, num_classes):
        away = rows.mean - rows.mean.mean(0)[None, :]
        return away.T @ away

    with pytest.raises(AssertionError, match="breaks the law 'padding'"):
        check_estimator(forgetful, exclude=dict.fromkeys(("jit", "order"), "another test's"))


RULES = {
    "diagonal loading": (covfree.diagonal_loading(0.1), {"scaling": "γ is in the features' unit"}),
    "relative": (covfree.relative(0.1), {}),
    "pseudo-observations": (covfree.pseudo_observations(), {}),
    "empirical Bayes": (covfree.empirical_bayes(), {}),
    "oas": (covfree.oas(), {}),
    "ledoit-wolf": (covfree.ledoit_wolf(), {}),
    "automatic": (covfree.automatic(), {"gradients": "what the rule chose is taken as given"}),
}


@pytest.mark.parametrize(
    "name", ["diagonal loading", "automatic", *slow(*sorted({*RULES} - {"diagonal loading", "automatic"}))]
)
def test_shrinkage_rules_keep_the_laws(name):
    rule, exclude = RULES[name]

    def shrunk(rows, num_classes):
        count = jnp.where(jnp.asarray(rows.label) >= 0, rows.count, 0)
        return covfree.estimate_covariance(rows.mean, count, shrinkage=rule)

    check_estimator(shrunk, exclude=exclude)
