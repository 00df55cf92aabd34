"""FedRAN: ridge regression on random features; clients send low-rank parts of their Gram matrices."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from covfree.core.checks import check_strength
from covfree.core.linalg import Scatter
from covfree.core.products import divide_or_zero
from covfree.core.types import Moments, Rows, Scalar
from covfree.estimators import first_moments
from covfree.estimators.directed import valid_directions
from covfree.estimators.moments import row_means
from covfree.heads import ridge_head
from covfree.heads.composed import MappedHead
from covfree.methods.method import Method
from covfree.methods.rounds import Factor, Round, bound, head_of_moments
from covfree.methods.summaries import send_directions
from covfree.statistics.feature_maps import relu_features


class _LeftOut(NamedTuple):
    """Sums over clients of c_k, which measures what client k leaves out of its Gram matrix.

    Attributes:
        total: Σ_k c_k, with c_k a weighted mean of the squared singular values that client k does not send,
            see `fedran`.
        squares: Σ_k c_k².
    """

    total: jax.Array
    squares: jax.Array


_Total: TypeAlias = tuple[Moments, Scatter, _LeftOut]


def _terms(ridge: Scalar, sent: tuple[()], rows: Rows, num_classes: int) -> tuple[Moments, Factor, _LeftOut]:
    directions = valid_directions(rows)
    if rows.covariance is None:
        raise ValueError("message: expected a variance beside the rows, as the method sends it; got none")
    own = jnp.where(directions, jnp.asarray(rows.covariance), 0)
    left_out = _LeftOut(own.sum(), jnp.square(own).sum())
    return first_moments(rows, num_classes), Factor(row_means(rows, directions)), left_out


def _system(ridge: Scalar, total: _Total) -> Scatter:
    _, scatter, left_out = total
    # An infinite shift would give a head of zeros without an error; NaN raises one.
    squares = jnp.where(jnp.isinf(left_out.squares), jnp.nan, left_out.squares)
    return scatter.shifted(divide_or_zero(squares, left_out.total, left_out.squares > 0) + ridge)


def fedran(
    num_directions: int = 16, ridge: Scalar = 1.0, num_features: int = 1000, *, seed: int = 0
) -> Method[MappedHead]:
    """Make FedRAN: ridge regression on random features; clients send low-rank Gram matrices.

    Let the columns of F_k be the random ReLU features of client k's examples, with singular values s_k1 ≥
    s_k2 ≥ … and left singular vectors v_kj. The client sends s_kj v_kj for j ≤ r, its class means, and
    c_k = Σ_{j > r} s_kj⁴ / Σ_{j > r} s_kj², a weighted mean of the other squares. The server's Gram matrix is

        Ĝ = Σ_k Σ_{j ≤ r} s_kj² v_kj v_kjᵀ + cI,    c = Σ_k c_k² / Σ_k c_k,

    and the head is (Ĝ + λI)⁻¹ P with the class sums P; columns are not scaled. If no client has more than r
    examples, c is 0, and this is ridge regression on all examples: `fed3r` without scaled columns.
    Bytes up: 4·(M + K·r)·(D + 1) for K clients, M client-class pairs and D features. (c_k is one number for
    each client, but every row has a column for it.)

    The paper has no c. In directions that no client sends, its Ĝ is far too small, or 0, but P is not 0. So
    unless λ is large, these directions dominate the paper's head. Let R_k be the Gram matrix of client k
    minus what it sends, with trace τ_k = Σ_{j > r} s_kj², and R their sum. The error of cI, weighted by R, is
    tr R (R − cI)²; its minimum is at c = tr R² / tr R. The server does not know the cross terms tr R_k R_l
    ≥ 0 of two clients. Without them the quotient is Σ τ_k c_k / Σ τ_k, a lower bound. The weights τ_k are
    not sent and are replaced by c_k, as both grow with a client's examples. In float32, features above about
    1e8 make c_k² infinite, and an error is raised; below about 1e-9 it underflows, and c is 0.

    The paper's server merges the clients' subspaces by QR and SVD. Here they are added without truncation,
    which gives the same Ĝ as a merge without truncation. `fedcof_residuals` sends directions about the class
    means instead.

    Args:
        num_directions: r, the largest number of directions of a client.
        ridge: λ, at least 0.
        num_features: D, the number of random features.
        seed: the seed of the random features.

    Raises:
        TypeError: if ``num_directions``, ``num_features`` or ``seed`` is not an integer.
        ValueError: if a number is out of its range.

    Source: FedRAN (2026), arXiv 2606.11480, "Accurate and Resource-Efficient Federated Continual Learning". c
    and the defaults are covfree's.
    """
    # `Any` for the type checker: the feature map makes a `MappedHead` of the linear head.
    method: Any = Method(
        check_strength("ridge", ridge),
        "fedran",
        send_directions(num_directions, centred=False),
        (Round(_terms),),
        _system,
        bound(head_of_moments, function=ridge_head, unit=False),
        feature_map=relu_features(num_features, seed=seed),
    )
    return method
