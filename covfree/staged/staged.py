"""A method of several rounds: what clients sum over their examples, and what the server makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from covfree.heads.columns import head_for_present
from covfree.linalg import Scatter, factorise, solve
from covfree.products import product, symmetric_product
from covfree.statistics.groups import as_examples
from covfree.sums import fold_parts
from covfree.types import AnyArray, H, LinearHead, Scalar, accumulation_dtype

# (params, state, features, classes one-hot, which are no padding) to sums over these examples.
Terms: TypeAlias = Callable[[Any, Any, jax.Array, jax.Array, jax.Array], Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Staged(Generic[H]):
    """A method of several rounds. In each the server sends its state, and clients sums over their examples.

    The sums over all clients are those over all examples: the head does not depend on who holds which, and
    secure aggregation can hide what a single client sends. A pytree whose leaves are the numbers in
    ``params``.

    Attributes:
        params: the numbers that may be swept.
        name: the method's name.
        rounds: how many.
        terms: ``(params, state, features, targets, kept) -> pytree`` of sums over these examples, with
            one-hot targets; where ``kept`` is false these are 0, and the sums must not see the example.
        advance: ``(params, state, totals) -> state``; the first state is None.
        head: ``(params, state) -> Head``, or None where there is none yet.
        flops: ``(params, num_examples, dim, num_classes) -> int``, operations of all clients together.
    """

    params: Any
    name: str = field(metadata={"static": True})
    rounds: int = field(metadata={"static": True})
    terms: Terms = field(metadata={"static": True})
    advance: Callable[[Any, Any, Any], Any] = field(metadata={"static": True})
    head: Callable[[Any, Any], H | None] = field(metadata={"static": True})
    flops: Callable[[Any, int, int, int], int] = field(metadata={"static": True})

    def sums(self, state: Any, features: AnyArray, labels: AnyArray, num_classes: int) -> Any:
        """Sum over examples, part by part, what the round asks for.

        Args:
            state: of the server.
            features: [examples, dim]; half precisions are summed in float32.
            labels: [examples]; outside [0, num_classes) is padding.
            num_classes: C.
        """
        features, labels = as_examples(features, labels=labels)
        dtype = accumulation_dtype(features)

        def terms(part: tuple[jax.Array, jax.Array]) -> Any:
            features, labels = part
            kept = (labels >= 0) & (labels < num_classes)
            features = jnp.where(kept[:, None], features, 0).astype(dtype)
            targets = jax.nn.one_hot(jnp.where(kept, labels, -1), num_classes, dtype=dtype)
            return self.terms(self.params, state, features, targets, kept)

        examples = features, labels
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(terms, examples))
        return fold_parts(lambda total, part: jax.tree.map(jnp.add, total, terms(part)), zeros, examples)

    def shapes(self, dim: int, num_classes: int) -> list[tuple[list[Any], list[Any]]]:
        """The shapes of each round's arrays: of the state that a client receives, and of what it sends."""

        def all_rounds(features: jax.Array, labels: jax.Array) -> list[tuple[list[Any], list[Any]]]:
            state, rounds = None, []
            for _ in range(self.rounds):
                totals = self.sums(state, features, labels, num_classes)
                rounds.append((jax.tree.leaves(state), jax.tree.leaves(totals)))
                state = self.advance(self.params, state, totals)
            return rounds

        return jax.eval_shape(all_rounds, jnp.zeros((1, dim)), jnp.zeros(1, jnp.int32))


@partial(jax.jit, static_argnames="num_classes")
def summed(method: Staged, state: Any, features: AnyArray, labels: AnyArray, num_classes: int) -> Any:
    """A round's sums over all clients, which are those over all examples; see `Staged.sums`."""
    return method.sums(state, features, labels, num_classes)


@jax.jit
def advanced(method: Staged, state: Any, totals: Any) -> Any:
    """What the server makes of a round's sums."""
    return method.advance(method.params, state, totals)


class Normal(NamedTuple):
    """The sums of least squares; they add up over examples.

    Attributes:
        gram: ΦᵀΦ.
        cross: ΦᵀY, for one-hot classes Y.
        counts: N_c, examples of each class.
    """

    gram: Float[Array, "features features"]
    cross: Float[Array, "features classes"]
    counts: Int[Array, " classes"]


def normal_terms(
    mapped: Float[Array, "examples features"],
    targets: Float[Array, "examples classes"],
    kept: Bool[Array, " examples"],
) -> Normal:
    """The sums of least squares of some examples."""
    mapped = jnp.where(kept[:, None], mapped, 0)
    return Normal(symmetric_product(mapped), product(mapped.T, targets), targets.sum(0, dtype=jnp.int32))


def least_squares(normal: Normal, ridge: Scalar) -> LinearHead:
    """The head W = (ΦᵀΦ + λI)⁻¹ ΦᵀY, its columns as they are."""
    weight = solve(factorise(Scatter.from_matrix(normal.gram).shifted(ridge)), normal.cross)
    return head_for_present(weight, jnp.zeros_like(weight[0]), normal.counts > 0)
