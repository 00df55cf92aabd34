"""Bounds on the difference between a head after `forget` and one solved without the forgotten clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from covfree.core.checks import check_type
from covfree.core.row_types import double
from covfree.core.types import Message
from covfree.engine.batch import state_of_message
from covfree.methods import Method
from covfree.methods.method import check_method
from covfree.protocol import Collected
from covfree.protocol.checks import check_known


class Certificate(NamedTuple):
    """Bounds on the difference between a server that forgot clients and one that never had them.

    Attributes:
        statistics: bound on ‖A − A₀‖_F: A is the server's sum of clients' matrices, A₀ the exact sum over the
            remaining clients.
        solutions: bound on ‖S⁻¹B − S₀⁻¹B‖_F/‖S₀⁻¹B‖_F for any B, a matrix or a single column. S and S₀ are
            the method's regularised matrices, made from A and A₀. Infinite if S₀ may be singular.

    If corresponding columns of S⁻¹B and S₀⁻¹B are then scaled to norm 1, they differ by at most twice
    ``solutions``.
    """

    statistics: float
    solutions: float


def certify(method: Method[Any], collected: Collected, *, num_classes: int) -> Certificate:
    """Bound the difference, caused by rounding, from a server that never had the forgotten clients.

    The bounds assume that both servers use the same messages of the other clients. In `collect`, the
    forgotten clients influenced which messages were accepted: kind, class names and extractor (by majority),
    the bounds on counts and norms, and the judgement of sites. To undo this, collect the others' messages
    anew.

    Rows are stored unchanged and removed exactly. So if clients send rows only, or a covariance with each
    row, the head after `forget` equals the head of a retrained server: both bounds are 0. Matrices are summed
    in float64, which leaves a rounding error E (its bound is `Collected.rounding`): the server's matrix is
    A = A₀ + E, where A₀ is the exact sum over the remaining clients. The regularised matrix S is linear in A,
    with slope s: S = S₀ + sE. So for any B, S⁻¹B − S₀⁻¹B = −sS⁻¹E S₀⁻¹B, whose norm is at most
    s‖E‖/λ_min(S) times ‖S₀⁻¹B‖. The bound leaves out the rounding of the solve itself, which a retrained
    head has too.

    Args:
        method: the method; clients must send a single message each.
        collected: the result of calls of `collect` and `forget`, in any order.
        num_classes: C.

    Returns:
        The bounds, computed from the server's matrix by an ``eigvalsh`` in float64.

    Raises:
        TypeError: if ``collected`` or ``method`` is of another type.
        ValueError: if the messages are of another method, no client is left, or a label is not below
            ``num_classes``.

    Source: Quan, Wu and Montana (2026), arXiv 2603.12977, which states that both servers' heads are equal in
    exact arithmetic; the bound on rounding is covfree's.

    >>> import covfree, jax.numpy as jnp
    >>> method = covfree.fed3r()
    >>> one = covfree.client_message(method, jnp.eye(2), jnp.arange(2), num_classes=2)
    >>> both = covfree.collect({"a": one, "b": one}, num_classes=2)
    >>> certify(method, covfree.forget(both, "a", message=one), num_classes=2).solutions < 1e-14
    True
    """
    check_method(method)
    check_type("collected", collected, Collected)
    method.check_message()
    message = collected.message
    method.check_sends(message.sends)
    if not collected.clients or not len(message.rows.count):
        raise ValueError("collected: expected the message of a client at least, got none")
    check_known(message.rows, num_classes, "the messages")
    if message.matrix is None:
        return Certificate(0.0, 0.0)
    matrix = np.asarray(message.matrix, np.float64)
    step = float(np.trace(matrix)) / len(matrix) or 1.0
    system = _system(method, message, matrix, num_classes)
    # The regularised matrix S is linear in the message's matrix A. Add step·I to A to find the slope: by how
    # much S moves if rounding moves A.
    moved = np.diagonal(_system(method, message, matrix + step * np.eye(len(matrix)), num_classes) - system)
    slope = float(np.abs(moved).max()) / step
    values = np.linalg.eigvalsh(system)
    # The least eigenvalue may be off by the error of `eigvalsh`, so subtract a bound on that error.
    least = float(values[0]) - len(matrix) * np.finfo(np.float64).eps * float(np.abs(values).max())
    error = slope * float(collected.rounding)
    return Certificate(collected.rounding, float(error / least) if least > error else float("inf"))


def _system(method: Method[Any], message: Message, matrix: np.ndarray, num_classes: int) -> np.ndarray:
    """Compute, in float64, the regularised matrix S with which the method's head is solved.

    ``matrix`` takes the place of the matrix in ``message``, the merged message of all clients.
    """
    assert method.system is not None
    rows = replace(message.rows, mean=np.asarray(message.rows.mean, np.float64))
    with double():
        state = state_of_message(method, replace(message, rows=rows, matrix=matrix), num_classes)
        return np.asarray(method.system(method.params, *state).dense(), np.float64)
