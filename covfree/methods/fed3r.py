"""Fed3R: ridge regression from Gram matrices."""

from __future__ import annotations

import jax.numpy as jnp

from covfree.checks import check_strength
from covfree.estimators import first_moments, gram_factor, total_gram, within_factor
from covfree.estimators.moments import example_moments
from covfree.estimators.scatter import centred_rows
from covfree.heads import ridge_head
from covfree.linalg import Scatter
from covfree.methods.fedncm import moments_phase
from covfree.methods.method import Examples, Factor, Method, sent_matrix
from covfree.types import LinearHead, Message, Moments, Rows, Scalar


def _gram_phase(params: Scalar, totals: tuple[()], rows: Rows, num_classes: int) -> tuple[Moments, Factor]:
    return first_moments(rows, num_classes), Factor(gram_factor(rows, num_classes))


def _gram_system(ridge: Scalar, totals: tuple[Moments, Scatter]) -> Scatter:
    return totals[1].shifted(ridge)


def _gram_head(ridge: Scalar, system: Scatter, totals: tuple[Moments, Scatter]) -> LinearHead:
    return ridge_head(system, totals[0])


def _gram_merge(ridge: Scalar, message: Message, num_classes: int) -> tuple[tuple[Moments, Scatter]]:
    matrix = sent_matrix(message.matrix, "matrix")
    return ((example_moments(message.rows, num_classes), Scatter.from_matrix(matrix)),)


def _within_phase(params: Scalar, totals: tuple[Moments], rows: Rows, num_classes: int) -> Factor:
    return Factor(within_factor(rows, totals[0]))


def _within_system(ridge: Scalar, moments: Moments, within: Scatter) -> Scatter:
    return total_gram(within, moments, between_class=False).shifted(ridge)


def _within_head(ridge: Scalar, system: Scatter, moments: Moments, within: Scatter) -> LinearHead:
    return ridge_head(system, moments)


def _within_merge(ridge: Scalar, message: Message, num_classes: int) -> tuple[Moments, Scatter]:
    """Scatter about the clients' own means, and of those about the global ones: nothing cancels."""
    moments = example_moments(message.rows, num_classes)
    between_clients = centred_rows(message.rows, moments, jnp.ones_like(moments.total[:, 0]))
    matrix = sent_matrix(message.matrix, "matrix")
    return moments, Scatter.from_matrix(matrix).with_factor(between_clients)


def fed3r(ridge: Scalar = 1.0, between_class: bool = True) -> Method:
    """Fed3R: clients send their Gram matrix F Fᵀ and class sums, the server solves ridge regression.

    Equal to ridge regression to one-hot labels on the pooled features, with columns scaled to norm 1.
    Bytes up: 4·(K·d² + M·d) for K clients and M client-class pairs.

    Args:
        ridge: λ, at least 0.
        between_class: False leaves the scatter between classes out of the Gram matrix, as FedCOF does.
            Clients then send the scatter of their examples about their own class means, at the same
            bytes: F Fᵀ − Σ_c N_c μ_c μ_cᵀ would give the same from F Fᵀ, but cancels in float32 where the
            mean is large against the spread.

    Raises:
        ValueError: if ``ridge`` is negative or not finite.

    Source: Fanì, Camoriano, Caputo and Ciccone (2024), eq. 4 to 7; without between-class scatter, FedCOF
    (Goswami et al. 2024), section 4.3.
    """
    check_strength("ridge", ridge)
    if between_class:
        phases = (_gram_phase,)
        return Method(ridge, "fed3r", Examples(), phases, _gram_system, _gram_head, "gram", _gram_merge)
    phases = (moments_phase, _within_phase)
    return Method(
        ridge, "fed3r-within", Examples(), phases, _within_system, _within_head, "scatter", _within_merge
    )
