"""Student heads: a covariance for each class, combined with any estimate of the shared covariance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_above_zero, check_positive
from covfree.core.keys import derive
from covfree.core.lapack import orthonormal
from covfree.core.linalg import Scatter
from covfree.core.sums import Table
from covfree.core.types import Message, Rows, Scalar
from covfree.estimators.class_scatter import class_products
from covfree.estimators.components import client_means
from covfree.estimators.row_law import RowLaw, client_variance, row_law
from covfree.estimators.shrinkage import Shrinkage, mean_variance
from covfree.heads.student import StudentHead, row_factor, student_head, student_of_products
from covfree.methods.method import Method
from covfree.methods.rounds import Round, bound, moments_of


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Student:
    """The settings of a Student head, made by `student`, for ``head=`` of `fedcof` and similar methods.

    Attributes:
        prior: κ/d for d features: the covariance that all classes share weighs as much as κ observations of a
            class.
        rank: how many directions the server keeps of the scatter of a class's client means; None to keep all
            client means.
    """

    prior: Scalar = 1.0
    rank: int | None = field(default=None, metadata={"static": True})


def student(prior: Scalar = 1.0, *, rank: int | None = None) -> Student:
    """Choose a Student head, with a covariance for each class, as ``head=`` of `fedcof` and similar methods.

    See `student_head` for the classifier. The method estimates the shared covariance Σ̃; a class's covariance
    is Σ̃ combined with the scatter of the class means that clients sent for it.

    Args:
        prior: κ/d, above 0: Σ̃ weighs as much as κ observations of a class. Of 0.3, 0.5 and 1, the default
            was safest: at worst, over five seeds of 17 federations, 0.7 points below LDA
            (experiments/student.md).
        rank: with None the server keeps all rows (clients' class means), and the head contains them. With a
            number r it keeps C·d·r sums instead, from which Nyström's formula gives r directions of each
            class. Give a number if no machine holds all rows (`Generated` rows, a `Stream`, secure sums). The
            sums take two more rounds, and are exact for classes of at most r + 1 rows. On four federations
            r = 16 lost at most 0.3 points, and r = 8 up to 0.8 (experiments/student.md).

    Raises:
        ValueError: if a number is out of range.

    >>> import covfree
    >>> covfree.fedcof(head=covfree.student(rank=16)).name
    'fedcof-student'
    """
    check_above_zero("prior", prior)
    if rank is not None:
        check_positive("rank", rank)
    return Student(prior, rank)


class StudentNumbers(NamedTuple):
    """The hyperparameters of a method with a Student head; ``vmap`` may sweep their numbers.

    Attributes:
        shrinkage: the rule that shrinks Σ̃, the covariance that all classes share.
        prior: κ/d for d features; Σ̃ weighs as much as κ observations of a class.
    """

    shrinkage: Shrinkage
    prior: Scalar


def _shrinkage(numbers: StudentNumbers) -> Shrinkage:
    return numbers.shrinkage


def _means(rows: Rows, num_classes: int, examples: bool) -> Rows:
    """Return each client's class means as rows, from ``rows`` that are ``examples`` or already class means.

    Examples are averaged. Class means only lose their fields ``covariance`` and ``sketch``.
    """
    return client_means(rows, num_classes) if examples else replace(rows, covariance=None, sketch=None)


def _keep(numbers: Any, state: tuple[Any, ...], rows: Rows, num_classes: int, *, examples: bool) -> Table:
    """Make a table of clients' class means: the server concatenates the tables and keeps all rows.

    With ``examples``, rows are examples, and their means are computed first.
    """
    means = _means(rows, num_classes, examples)
    return Table(means, jnp.asarray(means.count) > 0)


def _law(numbers: Any, state: tuple[Any, ...], rows: Rows, num_classes: int, *, examples: bool) -> RowLaw:
    """Compute the sums from which the server estimates how much clients' class means differ, see `row_law`.

    With ``examples``, rows are examples, and clients' class means are computed first.
    """
    first, spread = state
    means = _means(rows, num_classes, examples)
    return row_law(means, moments_of(first), mean_variance(spread.scatter))


def _products(
    numbers: Any, state: tuple[Any, ...], rows: Rows, num_classes: int, *, examples: bool, rank: int
) -> jax.Array:
    """Multiply the scatter S_c of each class by fixed vectors Ω; return the products [classes, d, vectors].

    S_c is the scatter of the clients' means of class c, weighted as in `row_factor`. Ω are min(``rank``, d)
    orthonormal columns, the same at all parties (`shared_directions`). If ``examples`` is true, ``rows`` are
    examples, and clients' class means are computed from them first.
    """
    first, _, law = state
    means = _means(rows, num_classes, examples)
    factor = row_factor(means, moments_of(first), client_variance(law))
    directions = shared_directions(factor.shape[1], rank, factor.dtype)
    return class_products(means, factor, directions, num_classes)


def shared_directions(dim: int, rank: int, dtype: Any) -> jax.Array:
    """Draw Ω [dim, min(rank, dim)], orthonormal columns that are equal at all parties."""
    shape = dim, min(rank, dim)
    return orthonormal(jax.random.normal(derive(jax.random.key(0), "student"), shape, dtype))


def _system(numbers: StudentNumbers, first: Any, spread: Any, *own: Any, system: Any) -> Scatter:
    """Compute the shrunk covariance that all classes share, by ``system`` of the method without Student head.

    ``first`` and ``spread`` are the totals of its two rounds; ``own``, the totals of later rounds for each
    class's own scatter, are not used.
    """
    return system(numbers.shrinkage, first, spread)


def _head(numbers: StudentNumbers, system: Scatter, first: Any, spread: Any, *own: Any) -> StudentHead:
    moments = moments_of(first)
    if len(own) == 1:
        return student_head(system, own[0], num_classes=moments.count.shape[0], prior=numbers.prior)
    law, products = own
    directions = shared_directions(products.shape[1], products.shape[2], products.dtype)
    return student_of_products(system, moments, law.num_rows, products, directions, numbers.prior)


def _merge(
    numbers: StudentNumbers, message: Message, num_classes: int, *, merge: Any, clients: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Compute the server's state, a tuple of totals, from ``message``: all clients' messages, merged.

    First come the totals for the shared covariance, which the function ``merge`` computes. Then come the
    totals for each class's scatter, which the functions ``clients`` compute from the message's class means.
    """
    state = merge(numbers.shrinkage, message, num_classes)
    for client in clients:
        total = client(numbers.shrinkage, state, message.rows, num_classes)
        state = (*state, total.items if isinstance(total, Table) else total)
    return state


def with_student(method: Method[Any], choice: Student) -> Method[StudentHead]:
    """Replace the LDA head of a FedCOF-like method by a Student head with the same shared covariance."""

    def clients(examples: bool) -> tuple[Any, ...]:
        if choice.rank is None:
            return (bound(_keep, examples=examples),)
        return bound(_law, examples=examples), bound(_products, examples=examples, rank=choice.rank)

    examples, summary = method.summary.stays, method.summary
    if summary.merge is not None:
        # The rows of messages are class means, not examples: hence ``False``.
        summary = replace(summary, merge=bound(_merge, merge=summary.merge, clients=clients(False)))
    own = tuple(replace(each, numbers=_shrinkage) for each in method.rounds)
    rounds = *own, *(Round(client, numbers=_shrinkage, fixed=True) for client in clients(examples))
    system = bound(_system, system=method.system)
    assert method.estimate is not None
    made: Any = replace(
        method,
        params=StudentNumbers(method.params, choice.prior),
        name=f"{method.name}-student",
        summary=summary,
        rounds=rounds,
        system=system,
        head=_head,
        estimate=replace(method.estimate, covariance=system, made=(system, rounds)),
        whole_clients=method.whole_clients or examples,
    )
    return made
