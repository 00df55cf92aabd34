"""The covariance of the features that a method's server knows, and the rounds in which it gets it.

`corrected` uses it as a metric: it optimises the head in coordinates in which this covariance is the
identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.linalg import Scatter
from covfree.core.types import Moments, Rows
from covfree.estimators import pseudo_observations
from covfree.estimators.automatic import as_shrinkage
from covfree.estimators.class_scatter import scatter_about
from covfree.estimators.shrinkage import loading, mean_variance
from covfree.methods.fed3r import GRAM
from covfree.methods.fedcof import fedcof
from covfree.methods.method import Method
from covfree.methods.rounds import Round, bound, moments_of

# A covariance computed from a Gram matrix gets this many times eps·‖μ_g‖², the size of rounding, added to its
# diagonal; μ_g is the mean of all examples. At means of 10³ to 10⁶ standard deviations, up to 1.5 times were
# needed.
_ROUNDING = 4


def metric_of(method: Method[Any]) -> tuple[tuple[Round, ...], Callable[..., Scatter]]:
    """Return what `corrected` needs to get a shrunk covariance of the features: extra rounds and a function.

    Returns:
        A pair. First the rounds to be run after the method's own: those of FedCOF if the method only sums
        class means, () if its own rounds suffice. Then ``(params, *state) -> Scatter``, which computes the
        covariance from the method's ``params`` and the server's state after all rounds.
    """
    if method.estimate is not None:
        return (), method.estimate.covariance
    if method.summary.name == "ClassMeans" and len(method.rounds) == method.rounds_over_rows:
        own, estimate = len(method.rounds), fedcof()
        more = (Round(bound(_terms, client=each.client, own=own)) for each in estimate.rounds)
        return tuple(more), bound(_estimated, own=own, system=estimate.system)
    if method.summary.matrices in ("gram", "solution"):
        gram = GRAM in method.rounds
        return (), bound(_of_totals, gram=gram)
    raise ValueError(
        "method: expected one whose server knows a covariance of the features, such as covfree.fedcof(), "
        f"covfree.fedncm() or covfree.fed3r(), got {method.name!r}"
    )


def _terms(
    numbers: Any, state: tuple[Any, ...], rows: Rows, num_classes: int, *, client: Any, own: int
) -> Any:
    """Compute what a client adds to a round of FedCOF that is run after the rounds of another method.

    ``client`` is the function of FedCOF that computes it. ``state`` has the totals of all earlier rounds; the
    first ``own`` of them are the other method's, and are dropped.
    """
    return client(as_shrinkage("auto"), state[own:], rows, num_classes)


def _estimated(numbers: Any, *state: Any, own: int, system: Callable[..., Scatter]) -> Scatter:
    return system(as_shrinkage("auto"), *state[own:])


def _of_totals(numbers: Any, *state: Any, gram: bool) -> Scatter:
    """Compute a shrunk covariance of the features from a state that contains a scatter matrix.

    The first `Scatter` in ``state`` is the within-class or the total scatter of the examples; with ``gram``
    it is their Gram matrix, which is first converted to the total scatter. The first `Moments` has the
    classes' counts and feature sums.
    """
    moments = moments_of(state)
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Scatter))
    scatter = next(node for node in nodes if isinstance(node, Scatter))
    degrees = jnp.maximum(moments.num_examples - 1, 1)
    found = scatter.scaled(1 / degrees)
    if gram:
        # Add the size of rounding: for means far from zero the difference of large sums is mostly rounding,
        # and may be negative in some direction.
        rounding = jnp.finfo(moments.total.dtype).eps * jnp.square(moments.grand_mean).sum()
        found = _about_mean(moments, scatter).shifted(_ROUNDING * rounding)
    return found.shifted(loading(pseudo_observations(), mean_variance(found), found.dim, degrees))


def _about_mean(moments: Moments, gram: Scatter) -> Scatter:
    """Make the covariance of N examples of mean μ_g from their Gram matrix G: (G − N μ_g μ_gᵀ)/(N − 1)."""
    count = moments.num_examples
    matrix = scatter_about(moments.grand_mean[None, :], count[None], gram.dense())
    return Scatter.from_matrix(matrix / jnp.maximum(count - 1, 1))
