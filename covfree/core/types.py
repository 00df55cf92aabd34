"""The basic types of the library: `Rows` of class means, their `Moments`, `Message`s and the linear head.

Axes in all modules: ``examples`` (n), ``dim`` (d), ``classes`` (C), ``clients`` (K), ``rows`` (M).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Key, Num, Real, UInt32

# The types of arrays that a caller may pass; results are always jax.Array.
AnyArray: TypeAlias = jax.Array | np.ndarray
# A PRNG key, typed or raw.
PRNGKey: TypeAlias = Key[Array, ""] | UInt32[Array, "2"]
# A Python number or a scalar array: a number that a user may sweep with vmap or differentiate.
Scalar: TypeAlias = float | int | Real[Array, ""]
# The covariance of a row: a full matrix, its diagonal, or one variance for all directions.
RowCovariance: TypeAlias = (
    Float[AnyArray, "rows dim dim"] | Float[AnyArray, "rows dim"] | Float[AnyArray, " rows"]
)


# The label of rows that are scaled singular vectors, not means (`Rows.sketch`).
DIRECTION = -2


@runtime_checkable
class Head(Protocol):
    """A classifier: a callable pytree that maps features ``[*batch, dim]`` to a score for each class."""

    def __call__(self, features: Any, /) -> jax.Array:
        """Compute the scores of each class; −∞ for an absent class."""
        ...


# The type of head that a method returns.
H = TypeVar("H", bound=Head, covariant=True)
Call = TypeVar("Call", bound=Callable[..., jax.Array])


def accumulation_dtype(values: Any) -> np.dtype:
    """Return the data type in which covfree sums ``values``: their own in jax, but at least float32."""
    dtype = jax.dtypes.canonicalize_dtype(values.dtype if hasattr(values, "dtype") else values)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def is_traced(*values: Any) -> bool:
    """Return whether any value is traced by jax, under ``jit``, ``vmap`` or ``grad``."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """A table of rows: row r says that ``count[r]`` examples of class ``label[r]`` have mean ``mean[r]``.

    A raw example is a row with count 1; the mean of client k's n_kc examples of class c is a row with count
    n_kc. A row with count 0, or with a label below 0, is padding: it changes no result.

    Attributes:
        mean: mean feature of each row.
        count: number of examples behind each row, integer or float, at least 0.
        label: class of each row, in [0, num_classes), or below 0 for padding.
        client: number of the client that sent each row, from 0; −1 if it is unknown. If a table is processed
            in parts, a client has the same number in all parts. Most estimators do not need it.
        covariance: covariance of the examples behind each row, if clients send it: a full matrix, its
            diagonal, or one variance for all directions. 0 if the count is below 2. For rows with
            ``sketch``, see `directed_rows`.
        sketch: True for rows that are not means but scaled singular vectors of a client's examples, usually
            after the class means are subtracted (`directed_rows`). Their label, −2 (`DIRECTION`), makes them
            padding for functions that do not know them.

    >>> import dataclasses, jax.numpy as jnp
    >>> rows = Rows(jnp.eye(2), jnp.array([3, 1]), jnp.array([0, 1]))
    >>> dataclasses.replace(rows, count=jnp.minimum(rows.count, 2)).count.tolist()  # a copy with other counts
    [2, 1]
    """

    mean: Float[AnyArray, "rows dim"]
    count: Num[AnyArray, " rows"]
    label: Integer[AnyArray, " rows"]
    client: Integer[AnyArray, " rows"] | None = None
    covariance: RowCovariance | None = None
    sketch: Bool[AnyArray, " rows"] | None = None

    @classmethod
    def from_means(
        cls, means: Float[AnyArray, "*batch classes dim"], counts: Num[AnyArray, "*batch classes"]
    ) -> Rows:
        """Flatten dense class means to rows.

        Args:
            means: ``[classes, dim]`` of one client, or ``[clients, classes, dim]`` of many, as ``vmap``
                returns them.
            counts: the number of examples of each mean; 0 if a client lacks the class (the row is padding).

        Returns:
            Rows, one for each entry of ``counts``; with the client's index if there is an axis of clients.

        Raises:
            ValueError: if shapes are not as described.

        >>> import jax.numpy as jnp
        >>> Rows.from_means(jnp.ones((5, 3, 2)), jnp.ones((5, 3))).mean.shape
        (15, 2)
        """
        means, counts = (x if hasattr(x, "dtype") else np.asarray(x) for x in (means, counts))
        shape = jnp.shape(counts)
        if len(shape) not in (1, 2) or jnp.shape(means)[:-1] != shape:
            raise ValueError(
                "means: expected [classes, dim] or [clients, classes, dim] with counts to match, got "
                f"{list(jnp.shape(means))} and {list(shape)}"
            )
        label = jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape).reshape(-1)
        client = jnp.repeat(jnp.arange(shape[0], dtype=jnp.int32), shape[1]) if len(shape) == 2 else None
        return cls(means.reshape(-1, means.shape[-1]), counts.reshape(-1), label, client)

    @classmethod
    def from_examples(
        cls,
        features: Float[AnyArray, "examples dim"],
        labels: Integer[AnyArray, " examples"],
        clients: Integer[AnyArray, " examples"] | None = None,
    ) -> Rows:
        """Make rows of count 1 from raw examples.

        From such rows, estimators compute the exact within-class scatter, as the method `fedcof_oracle` does.
        """
        return cls(features, jnp.ones(labels.shape, jnp.int32), labels, clients)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moments:
    """Sums for each class over all rows, from which class means and priors follow.

    Row r has n_r examples with mean x_r.

    Attributes:
        count: N_c, examples of each class; floats, which do not overflow.
        num_rows: K_c, rows of each class with a count above 0. If each client sends one mean for each class,
            this is the number of clients with examples of the class.
        total: sum of the class's features, Σ_r n_r x_r.
        magnitude: Σ_r n_r max_j |x_rj|, a scale for the rounding error of ``total`` (`resolved_sums` in
            ``heads/columns.py`` uses it); None if unknown.
    """

    count: Num[Array, " classes"]
    num_rows: Num[Array, " classes"]
    total: Float[Array, "classes dim"]
    magnitude: Float[Array, " classes"] | None = None

    @property
    def mean(self) -> Float[Array, "classes dim"]:
        """Class means μ_c; 0 for an absent class."""
        count = jnp.where(self.count > 0, self.count, 1).astype(self.total.dtype)
        return self.total / count[:, None]

    @property
    def num_examples(self) -> Float[Array, ""]:
        """N = Σ_c N_c, as a float: the sum over all classes may exceed int32."""
        return self.count.astype(self.total.dtype).sum()

    @property
    def grand_mean(self) -> Float[Array, " dim"]:
        """Mean μ_g of all examples; 0 if there are none."""
        count = self.num_examples
        return self.total.sum(0) / jnp.where(count > 0, count, 1)

    @property
    def present(self) -> jax.Array:
        """Whether each class has an example."""
        return self.count > 0

    @property
    def within_degrees(self) -> Float[Array, ""]:
        """Σ_c (N_c − 1) over the present classes: the degrees of freedom of examples about class means."""
        return jnp.maximum(self.count.astype(self.total.dtype) - 1, 0).sum()

    @property
    def hidden_degrees(self) -> Float[Array, ""]:
        """The degrees of freedom of the scatter of examples about the means of their rows: Σ_c (N_c − K_c).

        Rows summarise examples: the N_c examples of class c have K_c rows.
        """
        return (self.count - self.num_rows.astype(self.count.dtype)).sum()

    @property
    def spread_degrees(self) -> Float[Array, ""]:
        """Degrees of freedom of the rows about their class means: Σ_c (K_c − 1), over classes with a row."""
        return jnp.maximum(self.num_rows.astype(self.total.dtype) - 1, 0).sum()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Message:
    """What one client sends, or the messages of several clients merged into one.

    Attributes:
        rows: class means and counts of the client's classes, or the other rows that its method sends.
        matrix: Fed3R's F Fᵀ or AFL's F Fᵀ + γI, to be added up over clients; the columns of F are the
            examples' features. Fed3R's class sums are not stored: they are means times counts of ``rows``.
        solved: whether the means in ``rows`` are columns of the client's own ridge solution, as in AFL's
            messages. False in the result of `collect`.
        sends: the kind of message, ``method.sends``; None if it was made by hand.
        class_names: the name of each class, in the order of the labels; None if the sender did not say.
        extractor: `Extractor.fingerprint` of the features' extractor; None if the sender did not say.
    """

    rows: Rows
    matrix: Float[AnyArray, "dim dim"] | None = None
    solved: bool = field(default=False, metadata={"static": True})
    sends: str | None = field(default=None, metadata={"static": True})
    class_names: tuple[str, ...] | None = field(default=None, metadata={"static": True})
    extractor: str | None = field(default=None, metadata={"static": True})


def masked(
    scores: Float[Array, "*batch classes"], present: Float[Array, " classes"] | None
) -> Float[Array, "*batch classes"]:
    """Return the scores with −∞ for absent classes, those whose ``present`` is not above 0."""
    if present is None:
        return scores
    return jnp.where(jnp.broadcast_to(present > 0, scores.shape), scores, -jnp.inf)


def as_features(features: Any, dim: int) -> Any:
    """Return the features; raise a ValueError if their last axis does not have size ``dim``."""
    if features.shape[-1:] != (dim,):
        raise ValueError(f"features: expected [..., {dim}], got {list(features.shape)}")
    return features


def at_once(call: Call) -> Call:
    """Decorate ``__call__`` of a head or feature map so that jax compiles it as a whole, not by operation."""
    run = partial(jax.jit, inline=True)(call)

    @wraps(call)
    def door(self: Any, features: Any) -> jax.Array:
        if not isinstance(features, jax.Array | np.ndarray):
            features = jnp.asarray(features)
        # A head that is no pytree (an unregistered subclass, say) cannot enter ``jit``: call it uncompiled.
        return (call if jax.tree_util.all_leaves([self]) else run)(self, features)

    return cast(Call, door)


# With eq=False, heads are hashed by identity: `jax.jit(head)` needs a hashable function.
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LinearHead:
    """A linear classifier: ``head(features)`` computes a score for each class.

    A class without rows has a weight column of 0, a bias of 0 and ``present`` 0. Its score is −∞: it is never
    predicted and has probability 0 under a softmax. All leaves are finite floats, so that heads can be
    subtracted, averaged and differentiated leaf by leaf. ``present`` cancels in the difference of two heads.
    In the mean of several heads, a class is present if it is present in any of them.

    ``present`` holds floats, as `jax.grad` refuses boolean leaves. (A bias of −∞ in its place would become
    NaN under weight decay.) In training its gradient is 0, so only weight decay changes it. Decay
    multiplies all entries by one number, so 0 stays 0. If decay brings all entries to 0 or below, absent
    classes are still recognised by their zero column and bias, which training does not change (see `marks`).
    If noise is added to all leaves, or code refuses scores of −∞, use `with_finite_scores`.

    Attributes:
        weight: [dim, classes], a column for each class.
        bias: [classes], a number for each class.
        present: above 0 for a class that is present (1 in the heads that covfree makes), 0 for an absent
            class. None if all classes are present.

    >>> import jax.numpy as jnp
    >>> head = LinearHead(weight=jnp.eye(2), bias=jnp.zeros(2))
    >>> head(jnp.array([[0.2, 0.7]])).argmax(-1)
    Array([1], dtype=int32)
    """

    weight: Float[Array, "dim classes"]
    bias: Float[Array, " classes"]
    present: Float[Array, " classes"] | None = None

    @at_once
    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch classes"]:
        """Compute the scores (logits) of each class; −∞ for an absent class.

        Raises:
            ValueError: if the sizes of features, weight and bias do not fit.
        """
        features = as_features(features, self.weight.shape[0])
        # Not checked at construction: jax makes heads of placeholders, and of arrays of any shape.
        if jnp.shape(self.bias)[-1:] not in ((), (1,), self.weight.shape[1:]):
            raise ValueError(
                f"bias: expected [{self.weight.shape[1]}], one number for each column of weight, got "
                f"{list(jnp.shape(self.bias))}"
            )
        scores = jnp.matmul(features, self.weight, precision=jax.lax.Precision.HIGHEST)
        return masked(scores + jnp.broadcast_to(self.bias, scores.shape), self.marks)

    @property
    def marks(self) -> Float[Array, "*batch classes"] | None:
        """1 for each present class, 0 for an absent one; None if ``present`` is None.

        A class is present where ``present`` is above 0. If it is above 0 for no class, a class is present
        unless its column of ``weight`` and its bias are 0.
        """
        if self.present is None:
            return None
        present = self.present > 0
        empty = jnp.all(self.weight == 0, axis=-2)
        empty &= jnp.broadcast_to(self.bias == 0, empty.shape)
        return jnp.where(present.any(-1, keepdims=True), present, ~empty).astype(self.weight.dtype)
