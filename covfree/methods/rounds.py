"""A method's rounds: what clients compute and the server adds up (`Round`), and functions for these sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Float

from covfree.core.linalg import Scatter
from covfree.core.products import symmetric_product
from covfree.core.sums import Table
from covfree.core.types import Head, Moments, Rows


@dataclass(frozen=True)
class Bound:
    """A function with fixed keyword arguments; unlike `functools.partial`, it compares by value.

    Attributes:
        function: a module-level function, so that it can be pickled.
        options: names and values; all are hashable.
    """

    function: Callable[..., Any]
    options: tuple[tuple[str, Any], ...]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function with the arguments and the options."""
        return self.function(*arguments, **named, **dict(self.options))


def bound(function: Callable[..., Any], /, **options: Any) -> Bound:
    """Fix the keyword arguments ``options`` of a function; return the function of its other arguments."""
    return Bound(function, tuple(options.items()))


def option(function: Any, name: str) -> Any:
    """Return the value of a `Bound` function's option; None if it has no such option."""
    return dict(function.options).get(name) if isinstance(function, Bound) else None


def moments_of(state: Any) -> Any:
    """Return the first `Moments` (class sums and counts) in a server's state; None if it has none."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Moments))
    return next((node for node in nodes if isinstance(node, Moments)), None)


def head_of_moments(
    params: Any, system: Any, *state: Any, function: Callable[..., Head], **options: Any
) -> Head:
    """Make the head as ``function(system, moments, **options)`` does, such as `ridge_head`.

    ``system`` is the regularised matrix, and ``moments`` are the first `Moments` in ``state``.
    """
    return function(system, moments_of(state), **options)


def of_first(numbers: Any, *, inner: Callable[[Any], Any] | None) -> Any:
    """Return the hyperparameters of a method M from those of the method that refines or corrects M's head.

    ``numbers`` are the ``params`` of the refining or correcting method. With ``inner``, a `Round.numbers` of
    M, return only the hyperparameters of M that this round uses.
    """
    return numbers.first if inner is None else inner(numbers.first)


@dataclass(frozen=True)
class Round:
    """One round of sums: the server broadcasts, clients compute terms from rows, the server uses their sum.

        state ──broadcast──▶ client(params, sent, rows, num_classes) ──▶ terms
          ▲                                                          │ added up over rows and clients
          └───────────── server(params, state, total) ◀──────────────┘

    A round is hashable: methods with the same client or server function share its compiled code.

    Attributes:
        client: ``(params, sent, rows, num_classes) -> terms``, a pytree that adds up over rows: arrays are
            summed, a `Factor` is summed as YᵀY, and `Table`s are concatenated.
        server: ``(params, state, total) -> state``, the server's next state, with ``total`` the sum of all
            terms. A state is a tuple, ``()`` at first. None appends ``total`` to the tuple.
        broadcast: ``(params, state) -> sent``, what clients receive; None sends them the whole state.
        numbers: ``(params) -> params``, selects the hyperparameters that the other functions get; None
            selects all.
        examples: True if the rows are the client's examples, whatever it sent before; False if they are those
            of the method's summary, such as class means.
        head: whether a head can be made from the state after this round. It always can after the last.
        fixed: True if the clients' terms depend on no number in ``params``. `covfree.select` then computes
            them once for methods that differ only in hyperparameters.
    """

    client: Callable[[Any, Any, Rows, int], Any]
    server: Callable[[Any, Any, Any], tuple[Any, ...]] | None = None
    broadcast: Callable[[Any, Any], Any] | None = None
    numbers: Callable[[Any], Any] | None = None
    examples: bool = False
    head: bool = False
    fixed: bool = False

    def own(self, params: Any) -> Any:
        """Return the hyperparameters that this round uses: those that ``numbers`` selects from ``params``."""
        return params if self.numbers is None else self.numbers(params)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Factor:
    """A matrix Y (``value``) that a client function returns in place of YᵀY, the matrix to be summed.

    The round's total is the sum of the matrices YᵀY. The code that computes the sum can choose how: by the
    full products, by their upper triangles, or without a product if Y has few rows (`Scatter.from_factor`).
    """

    value: Float[Array, "rows dim"]


def is_special(term: Any) -> bool:
    """Return whether ``term``, a client function's result, is a `Factor` or a `Table` instead of an array."""
    return isinstance(term, (Factor, Table))


def as_total(terms: Any) -> Any:
    """Convert what a round's client function returned for all rows to the total that the server gets.

    A `Factor` Y becomes the `Scatter` YᵀY, a `Table` becomes its items; sums stay as they are.
    """

    def one(term: Any) -> Any:
        if isinstance(term, Factor):
            return Scatter.from_factor(term.value)
        return term.items if isinstance(term, Table) else term

    return jax.tree.map(one, terms, is_leaf=is_special)


def dense(terms: Any) -> Any:
    """Convert what a client computed in a round to arrays whose size does not depend on its number of rows.

    A `Factor` Y becomes the `Scatter` YᵀY; sums stay as they are. Raise ValueError for a `Table`, which keeps
    all rows.
    """

    def one(term: Any) -> Any:
        if isinstance(term, Table):
            raise ValueError(
                "method: expected one with totals of fixed size, got one that keeps all rows; either "
                "hold the rows in memory and call solve_rows, or set a rank in each Student head, those in "
                "select included: covfree.student(rank=16)"
            )
        return Scatter.from_matrix(symmetric_product(term.value)) if isinstance(term, Factor) else term

    return jax.tree.map(one, terms, is_leaf=is_special)
