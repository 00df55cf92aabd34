"""Transform the rows that a client sends, such as by noise on their counts.

The noise on counts gives no differential privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp

from covfree.core.checks import check_choice, check_strength
from covfree.core.keys import derive
from covfree.core.types import PRNGKey, Rows, Scalar, accumulation_dtype, is_traced


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transform:
    """A function that changes the rows that a client sends, such as `count_noise`; a pytree.

    It changes each row by itself. So a simulation may apply it to the rows of all clients at once.

    Attributes:
        strength: the pytree's one leaf, which a user may sweep or differentiate. Its meaning depends on the
            transform: for `count_noise` it is ε.
        apply: ``(strength, rows, key) -> rows``.
    """

    strength: Scalar
    apply: Callable[[Scalar, Rows, jax.Array], Rows] = field(metadata={"static": True})

    def __call__(self, rows: Rows, *, key: PRNGKey) -> Rows:
        """Return the transformed rows; ``key`` is for transforms that draw random numbers."""
        return self.apply(self.strength, rows, key)


CountNoise: TypeAlias = Literal["uniform", "gaussian", "laplace"]


# For each kind of noise: a function that draws standard noise, and the scale by which the noise is
# multiplied, as a function of counts n and ε.
_LAWS: dict[str, tuple[Callable[..., jax.Array], Callable[..., Any]]] = {
    "uniform": (partial(jax.random.uniform, minval=-1.0, maxval=1.0), lambda n, epsilon: (1 - epsilon) * n),
    "gaussian": (jax.random.normal, lambda n, epsilon: 1 / jnp.sqrt(epsilon)),
    "laplace": (jax.random.laplace, lambda n, epsilon: 1 / epsilon),
}


# A dataclass, not a closure, so that transforms are equal after pickling.
@dataclass(frozen=True)
class _Noise:
    """Adds noise of one kind to the counts of rows."""

    kind: CountNoise

    def __call__(self, epsilon: Scalar, rows: Rows, key: PRNGKey) -> Rows:
        draw, scale = _LAWS[self.kind]
        dtype = accumulation_dtype(rows.mean)
        count = jnp.asarray(rows.count)
        # Padding, whose count may be NaN, gets count 0.
        used = (count > 0) & (jnp.asarray(rows.label) >= 0)
        exact = jnp.where(used, count, 0).astype(dtype)
        noise = scale(exact, jnp.asarray(epsilon, dtype)) * draw(
            derive(key, "count noise"), count.shape, dtype
        )
        noisy = jnp.where(used, jnp.maximum(exact + noise, 0), 0)
        if rows.sketch is not None:
            # Rows of a sketch are scaled singular vectors, not class means. Their counts are degrees of
            # freedom, not numbers of examples, so they get no noise.
            noisy = jnp.where(rows.sketch, count.astype(dtype), noisy)
        return replace(rows, count=noisy)


def count_noise(kind: CountNoise, epsilon: Scalar) -> Transform:
    """Make a transform that adds noise to the counts of a client's rows: ñ = max(n + σ, 0) replaces n.

    The noise σ has one of FedCOF's three distributions:

    - ``"uniform"``: σ uniform on [−(1 − ε)n, (1 − ε)n].
    - ``"gaussian"``: σ normal with mean 0 and *variance* 1/ε.
    - ``"laplace"``: σ from the Laplace distribution with mean 0 and scale 1/ε (variance 2/ε²).

    A smaller ε means more noise. A row with ñ = 0 is not sent at all.

    **This is not differential privacy**, whatever ε. A class that a client lacks is never sent, so a sent
    class proves that the client has an example of it. Besides, uniform noise is bounded, and means are sent
    without noise. For noise with a privacy guarantee see `covfree.privacy`.

    Args:
        kind: the distribution, one of these three.
        epsilon: ε; above 0, and at most 1 if uniform. It may be swept.

    Raises:
        TypeError: if ε is no number.
        ValueError: if the kind is unknown or ε out of range.

    Source: FedCOF (Goswami et al. 2024), eq. 23 and App. I.1, with ε of 0.1 to 0.9. The paper writes N(0,
    1/ε); here 1/ε is the variance, as is usual, though the standard deviation may be meant. The paper does
    not say whether ñ is rounded; here it is not.

    >>> import covfree
    >>> noisy = covfree.fedcof().with_transforms(count_noise("laplace", 0.5))
    """
    check_choice("kind", kind, get_args(CountNoise))
    check_strength("epsilon", epsilon)
    most = 1 if kind == "uniform" else math.inf
    if not is_traced(epsilon) and not 0 < epsilon <= most:
        expected = "a number above 0" if kind != "uniform" else "a number above 0 and at most 1"
        raise ValueError(f"epsilon: expected {expected} for {kind} noise, got {epsilon!r}")
    return Transform(epsilon, _Noise(kind))
