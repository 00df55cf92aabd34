"""No server's door hands out a head that is not finite."""

import dataclasses
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deployed import rows

import covfree
from covfree.core.doors import finite

METHOD = covfree.fedcof(shrinkage=1.0)
SOUND = rows(mean=((1, 2), (3, 4), (2, 2)), count=(3, 5, 4), label=(0, 2, 0))
# Finite, and so large that squares are not.
HUGE = rows(mean=((1, 2), (3e38, 4), (2, 2)), count=(3, 5, 4), label=(0, 2, 0))


@pytest.mark.parametrize(
    ("solve", "name"),
    [
        (lambda rows: covfree.solve_message(METHOD, covfree.Message(rows), num_classes=3), "message"),
        (lambda rows: covfree.solve_message(covfree.qda(), covfree.Message(rows), num_classes=3), "qda"),
        (
            lambda rows: covfree.solve_totals(METHOD, *covfree.accumulate(METHOD, rows, num_classes=3)),
            "totals",
        ),
    ],
    ids=["message", "Gaussian", "totals"],
)
def test_a_head_that_is_not_finite_is_an_error(solve, name):
    def message(rows):
        return dataclasses.replace(rows, covariance=np.ones((3, 2, 2), np.float32)) if name == "qda" else rows

    solve(message(SOUND.rows))  # class 1 is absent, which is no error
    with pytest.raises(ValueError, match=r"head: holds (nan|-?inf) in .* at \(.*; expected finite numbers"):
        solve(message(HUGE.rows))


def test_under_jit_and_vmap_there_is_nothing_to_look_at():
    def weight(gamma, rows):
        method = covfree.fedcof(shrinkage=gamma)
        return covfree.solve_message(method, covfree.Message(rows), num_classes=3).weight

    swept = jax.jit(jax.vmap(weight, in_axes=(0, None)))(jnp.array([0.5, 1.0]), SOUND.rows)
    expected = covfree.solve_message(METHOD, SOUND, num_classes=3).weight
    np.testing.assert_allclose(swept[1], expected, rtol=1e-5)
    assert not np.isfinite(jax.jit(weight)(1.0, HUGE.rows)).all()


def test_every_number_of_a_head_is_looked_at():
    weight, bias = jnp.array([[1.0, 0.0]]), jnp.array([0.5, 0.0])
    head = covfree.LinearHead(weight, bias, jnp.array([1.0, 0.0]))
    assert finite(head) is head
    for wrong, place in (
        (replace(head, bias=jnp.array([0.5, -jnp.inf])), r"-inf in bias of shape \[2\] at \(1,\)"),
        (replace(head, bias=jnp.array([jnp.nan, 0.0])), r"nan in bias of shape \[2\] at \(0,\)"),
        (replace(head, weight=weight * jnp.inf), r"inf in weight of shape \[1, 2\] at \(0, 0\)"),
        ({"mine": jnp.array([[0.0, -jnp.inf]])}, r"-inf in \['mine'\] of shape \[1, 2\] at \(0, 1\)"),
        ((jnp.array(jnp.nan), 3), r"nan in \[0\]"),
    ):
        with pytest.raises(ValueError, match=f"head: holds {place}"):
            finite(wrong)


@pytest.mark.parametrize("options", [{}, {"head": "ridge"}, {"head": "ridge", "bias": True}])
@pytest.mark.parametrize("shrinkage", [0.0, "10%"])
def test_a_head_that_knows_nothing_is_an_error(shrinkage, options):
    """At one client no class has two means, so the covariance is 0, and so is any share of it."""
    method, clients = covfree.fedcof(shrinkage, **options), np.zeros(6, int)
    features, labels = np.arange(12, dtype=np.float32).reshape(6, 2) ** 2, np.arange(6) % 3
    with pytest.raises(
        ValueError, match=r"head: expected weights that differ between classes, .* num_subsets"
    ):
        covfree.fit(method, features, labels, clients)
    covfree.fit(method, features, labels, np.arange(6))
    # Of equal features, of one class, or of one example a class, no head knows more.
    covfree.fit(method, features[:3], labels[:3], clients[:3])
    covfree.fit(method, np.ones_like(features), labels, clients)
    covfree.fit(method, features, np.zeros(6, int), clients)
    covfree.fit(covfree.fedcof(0.1, **options), features, labels, clients)


@pytest.mark.parametrize("size", [1e21, 1.0, 1e-30])
def test_weights_are_compared_at_any_size(size):
    def head(covariance, moments, *, line):
        weight = jnp.outer(moments.mean.sum(0), jnp.arange(1.0, 4)) if line else moments.mean.T
        return covfree.LinearHead(weight * jnp.float32(size), jnp.zeros(3))

    features, labels = np.arange(12, dtype=np.float32).reshape(6, 2) ** 2, np.arange(6) % 3
    data = features, labels, np.zeros(6, int)
    covfree.fit(covfree.fedcof(0.1, head=partial(head, line=False)), *data)
    with pytest.raises(ValueError, match="multiples of one vector"):
        covfree.fit(covfree.fedcof(0.1, head=partial(head, line=True)), *data)
