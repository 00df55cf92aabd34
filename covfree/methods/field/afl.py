"""AFL: analytic federated learning, which combines clients' ridge solutions exactly."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_strength
from covfree.core.linalg import Scatter
from covfree.core.types import AnyArray, LinearHead, Message, Moments, Scalar
from covfree.heads import ridge_head
from covfree.methods.fed3r import GRAM, gram_merge
from covfree.methods.method import Method
from covfree.methods.rounds import bound, head_of_moments
from covfree.methods.summary import own_solutions


class AflNumbers(NamedTuple):
    """The hyperparameters of `afl`, which ``vmap`` may sweep.

    Attributes:
        gamma: γ, the ridge of each client's own solution.
        ridge: λ, the ridge of the final solution.
    """

    gamma: Scalar
    ridge: Scalar


def _system(numbers: AflNumbers, total: tuple[Moments, Scatter]) -> Scatter:
    return total[1].shifted(numbers.ridge)


def _merge(numbers: AflNumbers, message: Message, num_classes: int) -> tuple[tuple[Moments, Scatter]]:
    """Merge the clients' messages into the server's state: class moments and the Gram matrix F Fᵀ.

    The clients' matrices are added up in ``message``; the γI that each client added is subtracted.
    """
    ((moments, gram),) = gram_merge(numbers, message, num_classes)
    dtype = gram.value.dtype
    added = jnp.asarray(distinct(message.rows.client), dtype) * jnp.asarray(numbers.gamma, dtype)
    matrix = gram.value - added * jnp.eye(gram.dim, dtype=dtype)
    return ((moments, Scatter.from_matrix(matrix)),)


def distinct(clients: AnyArray | None) -> jax.Array | int:
    """Count the different clients; 1 if ``clients`` is None."""
    if clients is None:
        return 1
    ordered = jnp.sort(jnp.asarray(clients))
    return 1 + (ordered[1:] != ordered[:-1]).sum()


def afl(gamma: Scalar = 1.0, *, ridge: Scalar = 0.0, bias: bool = False) -> Method[LinearHead]:
    """Make AFL: clients send their own ridge solution and regularised Gram matrix; the server combines them.

    By the absolute aggregation law the result is ridge regression on the pooled features. It does not depend
    on the γ that the clients used, as the server subtracts it; with λ = 0 it is least squares of minimum
    norm. A simulation computes the Gram matrix and class sums directly.

    Bytes up: 4·(K·d² + M·d) for K clients, M client-class pairs and d features: a client does not send the
    columns of classes that it lacks, which are 0.

    Args:
        gamma: γ, added to a client's Gram matrix to make its system regular.
        ridge: λ of the final solution; the paper has 0.
        bias: whether the head has an intercept, see `ridge_head`; clients' messages are the same either way.
            The paper has none.

    Raises:
        ValueError: if a number is negative or not finite.

    Source: He, Tong, Fang, Sun, Zeng, Li, Chen and Zhuang (2025), "AFL: A Single-Round Analytic Approach for
    Federated Learning with Pre-trained Models".
    """
    numbers = AflNumbers(check_strength("gamma", gamma), check_strength("ridge", ridge))
    head = bound(head_of_moments, function=ridge_head, unit=False, bias=bias)
    return Method(numbers, "afl", own_solutions(_merge), (GRAM,), _system, head)
