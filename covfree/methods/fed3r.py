"""Fed3R: ridge regression from Gram matrices.

Each client sends its Gram matrix and class means, and `gram_merge` makes the server's state from the messages
of all clients. A simulation forms no client's matrix: the round `GRAM` computes the same state from the
examples of all clients, one row each. ``Factor(Y)`` stands for the matrix YᵀY.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp

from covfree.core.checks import check_choice, check_strength
from covfree.core.linalg import Scatter
from covfree.core.types import LinearHead, Message, Moments, Rows, Scalar
from covfree.estimators import first_moments, gram_factor, total_gram, within_factor
from covfree.estimators.class_scatter import scatter_about
from covfree.estimators.moments import example_moments
from covfree.heads import ridge_head
from covfree.methods.fedncm import CLASS_SUMS
from covfree.methods.method import Method
from covfree.methods.rounds import Factor, Round, bound, head_of_moments
from covfree.methods.summary import gram_matrices


def gram_terms(params: object, sent: tuple[()], rows: Rows, num_classes: int) -> tuple[Moments, Factor]:
    """Compute a client's terms: class sums and counts, and its Gram matrix YᵀY as ``Factor(Y)``."""
    return first_moments(rows, num_classes), Factor(gram_factor(rows, num_classes))


# The terms depend on no hyperparameter (``fixed``), so `covfree.select` computes them once for all λ.
GRAM = Round(gram_terms, fixed=True)


def gram_system(ridge: Scalar, total: tuple[Moments, Scatter]) -> Scatter:
    """Add λI to the Gram matrix."""
    _, gram = total
    return gram.shifted(ridge)


def gram_merge(params: object, message: Message, num_classes: int) -> tuple[tuple[Moments, Scatter]]:
    """Return the state that the round of `gram_terms` gives, from all clients' messages merged into one.

    A server that has clients' messages, not their rows, calls this function instead of running the round. The
    state is a tuple with one entry: the pair of class sums and Gram matrix.
    """
    # Count examples as rows: `gram_terms` gets a row for each example, but a message has only class means.
    moments = example_moments(message.rows, num_classes)
    # The server adds matrices up in float64; cast to the moments' type.
    gram = jnp.asarray(message.matrix).astype(moments.total.dtype)
    return ((moments, Scatter.from_matrix(gram)),)


def _within_terms(params: object, sent: tuple[Moments], rows: Rows, num_classes: int) -> Factor:
    """Compute what a client adds to the within-class scatter, a `Factor`; ``sent`` has the class means.

    If ``rows`` are the client's examples, the sum over all clients is the exact scatter. If they are means of
    its classes, or of subsets of them, the sum is FedCOF's estimate of the scatter.
    """
    (moments,) = sent
    return Factor(within_factor(rows, moments))


WITHIN = Round(_within_terms, fixed=True)


def _within_system(ridge: Scalar, moments: Moments, within: Scatter) -> Scatter:
    return total_gram(within, moments, scatter="within").shifted(ridge)


def _within_merge(ridge: Scalar, message: Message, num_classes: int) -> tuple[Moments, Scatter]:
    """Return the state after both rounds, from the merged messages: class moments and within-class scatter.

    The scatter is the Gram matrix minus Σ_c N_c μ_c μ_cᵀ; class c has N_c examples with mean μ_c.
    """
    ((moments, gram),) = gram_merge(ridge, message, num_classes)
    return moments, Scatter.from_matrix(scatter_about(moments.mean, moments.count, gram.value))


def fed3r(
    ridge: Scalar = 1.0,
    scatter: Literal["both", "within"] = "both",
    *,
    bias: bool = False,
) -> Method[LinearHead]:
    """Make Fed3R: clients send their Gram matrix F Fᵀ and class sums; the server solves ridge regression.

    The columns of F are a client's feature vectors, of d features. The head is ridge regression of one-hot
    labels on the features of all clients; its columns are scaled to norm 1. Bytes up: 4·(K·d² + M·d) for K
    clients and M client-class pairs. With a map of random Fourier features (`Method.with_feature_map`) it is
    the paper's Fed3R-RF.

    Args:
        ridge: λ, at least 0.
        scatter: ``"within"`` leaves out the scatter between classes, as FedCOF does. The server subtracts it
            from sums over all clients (F Fᵀ, class sums, counts), so this works under secure aggregation. The
            server computes F Fᵀ − Σ_c N_c μ_c μ_cᵀ + N μ_g μ_gᵀ: class c has N_c of the N examples, with
            mean μ_c, and μ_g is the mean of all. In float32 the relative error of the difference is about
            eps·(1 + m²/s²), for features of mean m and standard deviation s within classes.
        bias: whether the head has an intercept, see `ridge_head`; clients' messages are the same either way.
            The paper has none, its authors' code has one.

    Raises:
        ValueError: if ``ridge`` is negative or not finite, or ``scatter`` unknown.

    Source: Fanì, Camoriano, Caputo and Ciccone (2024), eq. 4 to 6 and Alg. 1; without
    between-class scatter, FedCOF (Goswami et al. 2024), section 4.3.
    """
    check_strength("ridge", ridge)
    check_choice("scatter", scatter, ("both", "within"))
    head = bound(head_of_moments, function=ridge_head, bias=bias)
    if scatter == "both":
        summary, rounds = gram_matrices(gram_merge), (GRAM,)
        return Method(ridge, "fed3r", summary, rounds, gram_system, head)
    summary, rounds = gram_matrices(_within_merge), (CLASS_SUMS, WITHIN)
    return Method(ridge, "fed3r-within", summary, rounds, _within_system, head)
