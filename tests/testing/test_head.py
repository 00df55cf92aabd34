"""Every law of `check_head` can be broken, and says so; covfree's heads keep them all."""

import re
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree
from covfree.testing import check_head
from covfree.testing.head import HEAD_LAWS


def means_head(covariance, moments):
    """The nearest class mean by distance."""
    mean = moments.mean
    bias = jnp.where(moments.present, -0.5 * jnp.square(mean).sum(1), 0)
    return covfree.LinearHead(mean.T, bias, moments.present.astype(mean.dtype))


def changed(change):
    def head(covariance, moments):
        return change(means_head(covariance, moments), covariance, moments)

    return head


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Transposed(covfree.LinearHead):
    """Its scores have classes first."""

    def __call__(self, features):
        return covfree.LinearHead.__call__(self, features).T


count = 0


def counting(head, covariance, moments):
    global count
    count += 1
    return replace(head, bias=head.bias + count)


def on_values(head, covariance, moments):
    return head if moments.count[0] > 3 else replace(head, bias=2 * head.bias)


def of_value(head, covariance, moments):
    """`Scatter.value` may be the matrix or a factor of it."""
    return replace(head, bias=head.bias * covariance.value[0, 0])


def flipped_priors(covariance, moments):
    head = covfree.lda_head(covariance, moments)
    log_priors = jnp.log(jnp.maximum(moments.count, 1).astype(head.bias.dtype))
    return replace(head, bias=jnp.where(moments.present, head.bias - 2 * log_priors, 0))


def uninverted(covariance, moments):
    weight = covariance.dense() @ moments.mean.T
    bias = -0.5 * (moments.mean.T * weight).sum(0)
    return covfree.LinearHead(weight, bias, moments.present.astype(weight.dtype))


def formula(covariance, counts, means):
    weight = np.linalg.solve(covariance, means.T)
    bias = np.log(np.maximum(counts, 1)) - 0.5 * (means.T * weight).sum(0)
    return lambda features: features @ weight + bias


BROKEN = {
    "pytree": changed(lambda head, *_: replace(head, bias=head.bias + jnp.nan)),
    "scores": changed(lambda head, *_: Transposed(**vars(head))),
    "pure": changed(counting),
    "jit": changed(on_values),
    "finite": changed(lambda head, *_: replace(head, present=None)),
    "classes": changed(lambda head, *_: replace(head, bias=head.bias + jnp.arange(6.0))),
    "scaling": changed(lambda head, *_: replace(head, bias=head.bias + 5.0 * jnp.arange(6.0))),
    "rotation": changed(lambda head, *_: replace(head, weight=jnp.abs(head.weight))),
    "translation": changed(lambda head, *_: replace(head, bias=2 * head.bias)),
    "priors": flipped_priors,
    "means": changed(lambda head, *_: replace(head, bias=-head.bias)),
    "variances": uninverted,
    "reference": flipped_priors,
    "factor": changed(of_value),
    "gradients": changed(lambda head, *_: jax.tree.map(jax.lax.stop_gradient, head)),
}


@pytest.mark.parametrize("law", BROKEN)
def test_what_breaks_a_law_is_caught(law):
    others = {one.__name__: "another test's" for one in HEAD_LAWS if one.__name__ != law}
    says = next(one.__doc__ for one in HEAD_LAWS if one.__name__ == law)
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law '{law}'. {says}")):
        check_head(BROKEN[law], exclude=others, reference=formula if law == "reference" else None)


def test_a_head_that_takes_other_features_is_told():
    untransposed = changed(lambda head, *_: replace(head, weight=head.weight.T))
    raised = r"the head raised ValueError when it was called with features \[16, 5\] of the data: features: "
    with pytest.raises(AssertionError, match=raised):
        check_head(untransposed, exclude={"pytree": "another test's"})


def test_every_law_has_something_that_breaks_it():
    # Nothing that is one function can be traced twice for one shape: see test_method.py.
    assert {law.__name__ for law in HEAD_LAWS} == {*BROKEN, "trace"}


def ncm(covariance, moments):
    return covfree.ncm_head(moments)


def of_classes(covariance, moments):
    return covfree.gaussian_head(jnp.broadcast_to(covariance.dense(), (6, 5, 5)), moments)


def of_diagonals(covariance, moments):
    return covfree.gaussian_head(jnp.broadcast_to(jnp.diag(covariance.dense()), (6, 5)), moments)


def test_a_reference_is_kept_up_to_a_constant_a_row():
    others = {one.__name__: "another test's" for one in HEAD_LAWS if one.__name__ != "reference"}
    check_head(covfree.lda_head, reference=formula, exclude=others)


ORIGIN = {"translation": "it is about the origin"}


@pytest.mark.parametrize(
    ("head", "exclude"),
    [
        (means_head, {}),
        (ncm, ORIGIN),
        (covfree.lda_head, {}),
        (covfree.ridge_head, ORIGIN),
        (of_classes, {}),
        (of_diagonals, {"rotation": "a diagonal is one of the axes"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_heads_keep_the_laws(head, exclude):
    check_head(head, exclude=exclude)
