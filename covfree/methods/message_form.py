"""`MessageForm`: how clients make messages with matrices, and how the server merges these messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import jax

from covfree.core.checks import check_choice
from covfree.core.types import Message, Rows
from covfree.estimators.analytic import local_solution
from covfree.statistics import class_covariances, class_means, gram

# ``(params, message, num_classes) -> state``: the state after all rounds, from all clients' merged message.
Merge: TypeAlias = Callable[[Any, Message, int], tuple[Any, ...]]


@dataclass(frozen=True)
class MessageForm:
    """How a client turns its examples into one `Message`, and how the server uses all clients' messages.

    Attributes:
        name: what a client sends, for error messages: such as "Gram matrices".
        make: ``(params, features, labels, num_classes) -> Message`` of one client. ``rows`` of the message
            has a row for each class, such as its mean; the count is 0 for a class without examples. Arrays
            may be traced.
        merge: ``(params, message, num_classes) -> state``: the server's state after all rounds of the method.
            Its ``message`` is made by `collect` from the messages of all clients.
        matrices: ``"client"`` if a client sends one d × d matrix; ``"row"`` if it sends one for each of its
            classes.
        solved: whether a client sends, in place of class means, the columns of its own ridge solution.
        pooled: whether the server needs only the sum of the scatter matrices of all classes, not each of
            them.
    """

    name: str
    make: Callable[[Any, jax.Array, jax.Array, int], Message]
    merge: Merge
    matrices: Literal["client", "row"]
    solved: bool = False
    pooled: bool = False

    def __post_init__(self) -> None:
        check_choice("matrices", self.matrices, ("client", "row"))


def gram_matrices(merge: Merge) -> MessageForm:
    """Make the `MessageForm` in which a client sends its class means and the Gram matrix of its examples.

    The Gram matrix is F Fᵀ, with all of the client's features as columns of F. ``merge`` makes the server's
    state from the clients' messages, see `MessageForm`.
    """
    return MessageForm("Gram matrices", _gram, merge, "client")


def own_solutions(merge: Merge) -> MessageForm:
    """Make the `MessageForm` in which a client sends its own ridge solution, and its Gram matrix plus γI.

    The solution [dim, classes] takes the place of the class means: column c is sent as the mean of class c.
    γ is ``params.gamma``. ``merge`` makes the server's state from the clients' messages, see `MessageForm`.
    """
    return MessageForm("solutions", _solution, merge, "client", solved=True)


def class_covariance_matrices(merge: Merge, *, pooled: bool = False) -> MessageForm:
    """Make the `MessageForm` in which a client sends, for each class, its mean and its covariance matrix.

    For the arguments see `MessageForm`.
    """
    return MessageForm("class covariances", _covariances, merge, "row", pooled=pooled)


def _means(features: jax.Array, labels: jax.Array, num_classes: int) -> Rows:
    return Rows.from_means(*class_means(features, labels, num_classes))


def _gram(params: Any, features: jax.Array, labels: jax.Array, num_classes: int) -> Message:
    return Message(_means(features, labels, num_classes), gram(features, labels, num_classes).gram)


def _solution(params: Any, features: jax.Array, labels: jax.Array, num_classes: int) -> Message:
    own = local_solution(features, labels, num_classes, params.gamma)
    rows = replace(_means(features, labels, num_classes), mean=own.weight.T)
    return Message(rows, own.gram, solved=True)


def _covariances(params: Any, features: jax.Array, labels: jax.Array, num_classes: int) -> Message:
    covariances = class_covariances(features, labels, num_classes)
    return Message(replace(_means(features, labels, num_classes), covariance=covariances))
