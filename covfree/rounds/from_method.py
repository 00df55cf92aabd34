"""Training-free methods as algorithms. Clients upload messages in the first round, or sums in every round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from covfree.core.checks import check_choice, check_positive
from covfree.core.products import product
from covfree.core.sums import Table
from covfree.core.types import AnyArray, Message, PRNGKey, Rows
from covfree.engine import solve_totals
from covfree.engine.batch import state_of_message
from covfree.engine.examples import examples_of
from covfree.engine.shapes import passed
from covfree.engine.totals import serve
from covfree.estimators.automatic import SAMPLE
from covfree.methods import Method, Round
from covfree.methods.method import check_method
from covfree.methods.rounds import dense
from covfree.rounds.algorithm import Algorithm, ClientData


class Sent(NamedTuple):
    """A client's message as an upload: the server concatenates clients' rows, and adds their matrices.

    Attributes:
        rows: a `Table` of `Rows`.
        matrix: the message's matrix, such as the Gram matrix; None for methods that send none.
    """

    rows: Table
    matrix: AnyArray | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _After:
    """The server's state in an algorithm that runs a method, or what it broadcasts.

    Attributes:
        state: the state that the method's server has after ``done`` of the method's rounds; or the part of it
            that the next round broadcasts, None if clients are to send their messages instead.
        done: the number of the method's rounds that are done. If clients upload messages, a single round of
            the algorithm, its first, completes several rounds of the method.
    """

    state: Any
    done: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Run:
    """The ``params`` of an algorithm that runs a method.

    Attributes:
        method: the method.
        num_classes: C.
        messages: if clients upload messages, how many of the method's rounds the server runs on its own, over
            these messages; 0 if clients upload sums in every round.
    """

    method: Method
    num_classes: int = field(metadata={"static": True})
    messages: int = field(metadata={"static": True})

    def asks(self, done: int) -> Round | None:
        """Return the method's round that is next after ``done`` rounds; None if messages are sent instead.

        Clients then send their messages, over which the server runs the first ``messages`` rounds alone.
        """
        return None if done < self.messages else self.method.rounds[done]

    @property
    def evaluated(self) -> int:
        """The number of the method's rounds in which clients upload sums over their rows (e.g. class means).

        These are the method's first rounds. The number is 0 if clients send messages instead.
        """
        return 0 if self.messages else self.method.message_rounds


def _init(run: _Run, num_clients: int, key: PRNGKey) -> tuple[_After, Any]:
    # A client keeps the key with which it made its rows, so that all rounds use the same rows.
    memory = jnp.zeros_like(jax.random.key_data(key)) if run.evaluated else ()
    return _After((), 0), memory


def _broadcast(run: _Run, known: _After) -> _After:
    each, state = run.asks(known.done), known.state
    if each is None:
        state = None
    elif each.broadcast is not None:
        state = each.broadcast(each.own(run.method.params), state)
    return _After(state, known.done)


def _client(
    run: _Run, asked: _After, data: ClientData, memory: Any, key: PRNGKey
) -> tuple[Any, Any, dict[str, Any]]:
    method, each = run.method, run.asks(asked.done)
    features, labels = data.all()
    if each is None:
        return _message(method.made(features, labels, run.num_classes, key), data.client), memory, {}
    if run.evaluated and asked.done:
        key = jax.random.wrap_key_data(memory, impl=jax.random.key_impl(key))
    if each.examples:
        rows = examples_of(method, features, labels)
    else:
        rows = method.summary.one_client(method.mapped(features), labels, run.num_classes, key)
        rows = method.sent(rows, key)
    if asked.done < run.evaluated:
        rows = _unnamed(method, rows)
    upload = dense(each.client(each.own(method.params), asked.state, rows, run.num_classes))
    return upload, jax.random.key_data(key) if run.evaluated else memory, {}


def _server(run: _Run, known: _After, total: Any) -> _After:
    method, each = run.method, run.asks(known.done)
    if each is None:
        message = Message(total.rows.items, total.matrix)
        return replace(known, state=state_of_message(method, message, run.num_classes), done=run.messages)
    state = serve(each, each.own(method.params), known.state, total)
    return replace(known, state=state, done=known.done + 1)


def _result(run: _Run, known: _After, memory: Any) -> Any:
    rounds = run.method.rounds
    # There is a head after the last round, and after each earlier round with `Round.head`.
    if not known.done or not (known.done == len(rounds) or rounds[known.done - 1].head):
        return None
    return solve_totals(run.method, *known.state)


def _report(run: _Run, known: _After) -> dict[str, Any]:
    report = run.method.report
    if report is None or known.done <= run.method.rounds_over_rows:
        return {}
    return report(run.method.params, known.state)


def _message(message: Message, client: AnyArray) -> Sent:
    """Convert a client's message to an upload `Sent`, which can be added to other clients' uploads.

    The upload has the message's rows, marked with the number ``client``, and its matrix. When uploads are
    added, rows are concatenated and matrices summed. A ridge solution is replaced by class means.
    """
    rows, matrix = _class_sums(message) if message.solved else (message.rows, message.matrix)
    rows = replace(rows, client=jnp.full(rows.label.shape, client, jnp.int32))
    known = rows.label >= 0 if rows.sketch is None else (rows.label >= 0) | rows.sketch
    return Sent(Table(rows, (jnp.asarray(rows.count) > 0) & known), matrix)


def _class_sums(message: Message) -> tuple[Rows, jax.Array]:
    """Return a client's class means and matrix C, from a message with the client's ridge solution W and C.

    The server adds clients' messages, but solutions W cannot be added. C W has the sum of each class's
    features as columns, which gives the class means. C is the client's regularised Gram matrix.
    """
    rows, matrix = message.rows, jnp.asarray(message.matrix)
    sums = product(matrix, jnp.asarray(rows.mean).T).T
    count = jnp.asarray(rows.count)
    mean = sums / jnp.maximum(count, 1).astype(sums.dtype)[:, None]
    # Without examples the matrix is only the regulariser γI: send zeros in its place.
    return replace(rows, mean=mean), jnp.where((count > 0).any(), matrix, 0)


def _unnamed(method: Method[Any], rows: Rows) -> Rows:
    """Return a client's rows (such as class means) without the number that would identify the client.

    With the number, automatic shrinkage would upload sums with an entry for each client, and show this
    client's share of the total. If the method compares rows of the same client, all clients get one common
    number in its place, for which automatic shrinkage has no entry.
    """
    return replace(rows, client=jnp.full(rows.label.shape, SAMPLE) if method.whole_clients else None)


def as_algorithm(
    method: Method[Any], *, num_classes: int, uploads: Literal["messages", "sums"] = "messages"
) -> Algorithm:
    """Convert a training-free method to an `Algorithm`.

    In the first round each client uploads the message that it would send in a real federation, and the server
    runs the method's rounds over the rows in the messages. With ``uploads="sums"`` each of the method's
    rounds becomes a round of the algorithm: the server broadcasts its state, and each client evaluates the
    round on its own rows and uploads only sums of fixed size. Secure aggregation needs this. FedCOF then
    takes two rounds. In the first, clients upload `Moments`, which give, for class c, the mean μ_c and the
    numbers N_c of examples and K_c of client means. In the second, client k, which has n_kc examples with
    mean μ_kc, uploads a multiple of Σ_c (N_c − 1)/(K_c − 1) n_kc (μ_kc − μ_c)(μ_kc − μ_c)ᵀ.

    Rounds over clients' examples, such as those of `covfree.refined`, upload sums in either case, and so do
    all rounds of methods without a message, such as `covfree.deepafl`.

    The head equals that of `covfree.fit` within rounding. (With ``uploads="sums"``, automatic shrinkage
    cannot tell clients apart and chooses another γ, see `covfree.automatic`. Sums by client would show the
    server each client's classes and deviations, even behind secure aggregation.) Random methods draw with
    each client's own key, as in a real federation.

    Args:
        method: e.g. ``covfree.fedcof()``, ``covfree.refined(covfree.fedcof())`` or ``covfree.deepafl()``.
        num_classes: C.
        uploads: whether clients send messages or only sums.

    Raises:
        TypeError: if ``method`` is not a `Method`.
        ValueError: with ``uploads="sums"``, if a round of the method keeps rows; with messages of matrices,
            if the shrinkage rule needs rows, such as `ledoit_wolf`.

    Source: secure aggregation of FedCOF: Goswami et al. (2024), Appendix I.2. There a client's term is
    (N_c − 1) n_kc (μ_kc − μ_c)(μ_kc − μ_c)ᵀ, and the server divides by K − 1, where K counts all clients.

    >>> import covfree
    >>> as_algorithm(covfree.fedcof(), num_classes=10, uploads="sums").rounds
    2
    """
    check_method(method)
    check_positive("num_classes", num_classes)
    check_choice("uploads", uploads, ("messages", "sums"))
    if uploads == "messages":
        method.check_rules()
    run = _Run(method, num_classes, method.message_rounds if uploads == "messages" else 0)
    if run.evaluated:

        def one_row() -> Rows:
            one = jnp.zeros((1, 2)), jnp.zeros(1, jnp.int32)
            return _unnamed(method, method.summary.one_client(*one, num_classes, jax.random.key(0)))

        # Raise if a round's total has no fixed size.
        passed(method, one_row, num_classes)
    return Algorithm(
        run,
        f"{method.name}, sums" if run.evaluated else method.name,
        _init,
        _broadcast,
        _client,
        _server,
        _result,
        rounds=len(method.rounds) - max(0, run.messages - 1),
        whole=True,
        num_classes=num_classes,
        # Rounds in which clients evaluate their own rows are steps of one computation: the same clients must
        # take part in all. If clients only send messages, there is one round, so this is true as well.
        same_clients=bool(run.evaluated) or run.messages == len(method.rounds),
        report=None if method.report is None else _report,
    )


def sends_messages(algorithm: Algorithm) -> bool:
    """Return whether clients upload messages in the first round, and not sums."""
    return isinstance(algorithm.params, _Run) and algorithm.params.messages > 0
