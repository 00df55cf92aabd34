"""Least squares from sums over examples, which are computed block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from covfree.core.linalg import Scatter, factorise, solve
from covfree.core.products import product, symmetric_product
from covfree.core.sums import fold_parts
from covfree.core.types import LinearHead, Rows, Scalar, accumulation_dtype
from covfree.heads.columns import head_for_present
from covfree.methods.rounds import Bound, bound
from covfree.statistics.groups import as_examples

# ``(params, sent, features, targets, kept) -> sums``, see `over_examples`.
Terms: TypeAlias = Callable[[Any, Any, jax.Array, jax.Array, jax.Array], Any]


def over_examples(terms: Terms) -> Bound:
    """Make a round's client function, which sums ``terms`` over the client's examples, block by block.

    Args:
        terms: ``(params, sent, features, targets, kept) -> pytree`` of sums over a block of examples. Targets
            are one-hot classes. Where ``kept`` is false, the sums must leave the example out; its targets
            are 0. Half-precision features are summed in float32.
    """
    return bound(_over_examples, terms=terms)


def _over_examples(params: Any, sent: Any, rows: Rows, num_classes: int, *, terms: Terms) -> Any:
    labels = jnp.where(jnp.asarray(rows.count) > 0, rows.label, -1)
    examples = as_examples(rows.mean, labels=labels)
    dtype = accumulation_dtype(examples[0])

    def of_part(part: tuple[jax.Array, jax.Array]) -> Any:
        features, labels = part
        kept = (labels >= 0) & (labels < num_classes)
        features = jnp.where(kept[:, None], features, 0).astype(dtype)
        targets = jax.nn.one_hot(jnp.where(kept, labels, -1), num_classes, dtype=dtype)
        return terms(params, sent, features, targets, kept)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of_part, examples))
    return fold_parts(lambda total, part: jax.tree.map(jnp.add, total, of_part(part)), zeros, examples)


class Normal(NamedTuple):
    """Sums over examples from which `least_squares` computes a head; the server adds up clients' sums.

    Attributes:
        gram: ΦᵀΦ; each row of Φ is an example's features after the feature map.
        cross: ΦᵀY; each row of Y is an example's class as a one-hot vector.
        counts: N_c, the number of examples of each class.
    """

    gram: Float[Array, "features features"]
    cross: Float[Array, "features classes"]
    counts: Int[Array, " classes"]


def normal_terms(
    mapped: Float[Array, "examples features"],
    targets: Float[Array, "examples classes"],
    kept: Bool[Array, " examples"],
) -> Normal:
    """Compute ΦᵀΦ, ΦᵀY and the number of examples of each class, over some examples.

    Φ is ``mapped``, with 0 for examples that are not ``kept``; Y is ``targets``.
    """
    mapped = jnp.where(kept[:, None], mapped, 0)
    return Normal(symmetric_product(mapped), product(mapped.T, targets), targets.sum(0, dtype=jnp.int32))


def least_squares(normal: Normal, ridge: Scalar) -> LinearHead:
    """Solve for W = (ΦᵀΦ + λI)⁻¹ ΦᵀY (sums in ``normal``, λ is ``ridge``); columns are not normalised."""
    weight = solve(factorise(Scatter.from_matrix(normal.gram).shifted(ridge)), normal.cross)
    return head_for_present(weight, jnp.zeros_like(weight[0]), normal.counts > 0)
