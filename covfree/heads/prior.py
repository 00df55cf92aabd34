"""Add the scores of class embeddings (a zero-shot classifier) to a head fitted to data (GDA-CLIP)."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from covfree.core.checks import check_strength, check_type
from covfree.core.linalg import Scatter
from covfree.core.types import AnyArray, LinearHead, Moments, Scalar, is_traced
from covfree.heads.lda import lda_head


def gda_head(covariance: Float[AnyArray, "dim dim"] | Scatter, moments: Moments) -> LinearHead:
    """Make the head of `lda_head` with equal class priors, but without the constant log π in its bias.

    w_c = P(μ_c − μ_g) and b_c = −½ (μ_c + μ_g)ᵀw_c with P the inverse of the covariance and μ_g the grand
    mean. A class whose mean is μ_g has the score 0. A class without examples has weight and bias 0, so
    `with_prior_means` gives it only its prior score.

    Args:
        covariance: see `lda_head`.
        moments: `first_moments` of all rows.

    Returns:
        The head. Classes without examples are marked absent.

    Raises:
        ValueError: if the covariance and the moments differ in size.

    Source: GDA-CLIP (Wang et al. 2024), eq. 4 and 5, less a term that all classes share.
    """
    equal = jnp.ones_like(moments.total[:, 0])
    head = lda_head(covariance, moments, priors=equal)
    return replace(head, bias=jnp.where(moments.present, head.bias + jnp.log(equal.sum()), 0))


def with_prior_means(
    head: LinearHead,
    prior_means: Float[AnyArray, "classes dim"],
    strength: Scalar = 1.0,
    *,
    scale: Scalar = 100.0,
) -> LinearHead:
    """Add a zero-shot classifier to a head: scores scale · xᵀt_c + strength · (xᵀw_c + b_c).

    Here w_c and b_c are the head's weight and bias for class c. The t_c represent the classes before any data
    is seen: for CLIP features, the normalised embeddings of the class names. A class without examples has
    only its prior score, and can be predicted.

    With ``covfree.fedcof(covfree.empirical_bayes(), head=covfree.gda_head)`` this is GDA-CLIP on class means;
    with ``fedcof_oracle`` in place of ``fedcof``, on the exact scatter. Any linear head may be used. If some
    classes have no examples, use `gda_head`: the log π_c in an `lda_head` would lower the scores of
    classes with examples.

    Args:
        head: a head from data, on the same features (normalised, as for CLIP).
        prior_means: t_c of every class.
        strength: factor of the head's scores, at least 0; may be swept. GDA-CLIP chooses it on validation
            examples.
        scale: factor of the prior scores, at least 0; 100 is CLIP's inverse temperature.

    Returns:
        The head, in which every class is present.

    Raises:
        TypeError: if the head is no `LinearHead`, or ``prior_means`` are no floats.
        ValueError: if a number is out of its range, or ``prior_means`` do not fit the head or are not finite.

    Source: Wang, Liang, Sheng, He, Wang and Tan (2024), "A Hard-to-Beat Baseline for Training-free CLIP-based
    Adaptation", eq. 7.

    >>> import jax.numpy as jnp
    >>> head = LinearHead(jnp.array([[1.0, 0.0]]), jnp.array([0.5, 0.0]), jnp.array([1.0, 0.0]))
    >>> with_prior_means(head, jnp.array([[0.0], [1.0]]), 2.0, scale=10.0)(jnp.array([0.3])).tolist()
    [1.600000023841858, 3.0]
    """
    check_type("head", head, LinearHead)
    check_strength("strength", strength)
    check_strength("scale", scale)
    expected = head.weight.shape[::-1]
    if jnp.shape(prior_means) != expected:
        raise ValueError(
            f"prior_means: expected shape {list(expected)}, a row for each class of the head, got "
            f"{list(jnp.shape(prior_means))}"
        )
    kind = jnp.result_type(prior_means)
    if not jnp.issubdtype(kind, jnp.floating):
        raise TypeError(f"prior_means: expected floats, got {kind}")
    if not is_traced(prior_means) and not np.isfinite(np.asarray(prior_means, np.float64)).all():
        raise ValueError("prior_means: expected finite numbers, got NaN or infinite ones")
    dtype = head.weight.dtype
    prior = jnp.asarray(prior_means, dtype).T * jnp.asarray(scale, dtype)
    # A head may mark a class as absent by `present` alone, so mask its weight and bias.
    known = 1.0 if head.marks is None else head.marks > 0
    strength = jnp.asarray(strength, dtype) * jnp.broadcast_to(jnp.asarray(known, dtype), head.bias.shape)
    return LinearHead(prior + strength[None, :] * head.weight, strength * head.bias)
