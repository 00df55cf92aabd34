"""How far a head is, after clients were forgotten, from one that never heard of them: a computed bound."""

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
    """What separates a server that has forgotten from one that was retrained; zeros if nothing does.

    Attributes:
        statistics: bound on ‖A − A₀‖_F, of the server's matrix A from the exact sum A₀ of what is left.
        solutions: bound on ‖S⁻¹B − S₀⁻¹B‖_F/‖S₀⁻¹B‖_F for any B, of what is solved with the method's system S
            of A, in place of S₀ of A₀; also column by column. Infinite if A may be singular.

    Columns scaled to norm 1 move by at most twice ``solutions``.
    """

    statistics: float
    solutions: float


def certify(method: Method[Any], collected: Collected, *, num_classes: int) -> Certificate:
    """Bound how far what was collected is from what a server would hold that never heard of the forgotten.

    That server is given the messages that count here. Which ones count was decided when they came, by all
    that had come: kind, names and extractor by majority, bounds on counts and norms, the judgement of sites.
    Without the forgotten it may be decided otherwise: collect the others' messages anew to know.

    Rows are kept and removed as they are. So methods whose clients send rows alone, or a covariance with each
    row, give the very same head after `forget` as after retraining: both bounds are 0. Matrices are sums in
    float64, of which rounding is left (`Collected.rounding`): A = A₀ + E. The system is linear in A, so
    S = S₀ + sE, and S⁻¹B − S₀⁻¹B = −sS⁻¹E S₀⁻¹B is at most s‖E‖/λ_min(S) times S₀⁻¹B. The heads' own
    rounding, in solving with S, is that of any head, retrained or not, and is not part of the bound.

    Args:
        method: the method, of a single message from each client.
        collected: from `collect` and `forget`, in any order.
        num_classes: C.

    Returns:
        The bounds, computed from the server's matrix by an ``eigvalsh`` in float64.

    Raises:
        TypeError: if ``collected`` or ``method`` is something else.
        ValueError: if the messages are not of this method, nobody is left, or classes have numbers from
            ``num_classes`` on.

    Source: Quan, Wu and Montana (2026), arXiv 2603.12977, which states that the two are equal in exact
    arithmetic; the bound on rounding is covfree's.

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
    # How the system grows with the matrix: it is linear in it.
    moved = np.diagonal(_system(method, message, matrix + step * np.eye(len(matrix)), num_classes) - system)
    slope = float(np.abs(moved).max()) / step
    values = np.linalg.eigvalsh(system)
    # What eigvalsh may be off by.
    least = float(values[0]) - len(matrix) * np.finfo(np.float64).eps * float(np.abs(values).max())
    error = slope * float(collected.rounding)
    return Certificate(collected.rounding, float(error / least) if least > error else float("inf"))


def _system(method: Method[Any], message: Message, matrix: np.ndarray, num_classes: int) -> np.ndarray:
    """The matrix that the method's head is solved with, in float64."""
    assert method.system is not None
    rows = replace(message.rows, mean=np.asarray(message.rows.mean, np.float64))
    with double():
        state = state_of_message(method, replace(message, rows=rows, matrix=matrix), num_classes)
        return np.asarray(method.system(method.params, *state).dense(), np.float64)
