"""The shapes of what clients send and receive in each round; costs and checkpoints are derived from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from covfree.core.forms import Form, forms_of
from covfree.core.types import Rows
from covfree.engine.totals import through
from covfree.methods.method import Method
from covfree.methods.rounds import Round, as_total, dense


class Passed(NamedTuple):
    """The shapes of what clients and server exchange in one round.

    Attributes:
        sent: what each client receives.
        upload: what each client uploads.
        state: the server's state after the round.
    """

    sent: Form
    upload: Form
    state: Form


def passed(
    method: Method, make_rows: Callable[[], Rows], num_classes: int, *, start: int = 0
) -> list[Passed]:
    """Return the shapes of what server and clients exchange, for each round from number ``start`` on.

    No values are computed. Clients' rows have the shapes of ``make_rows()``. Raise ValueError if clients
    upload a `Table` in one of these rounds, as its size depends on the number of rows.
    """

    def look() -> list[Any]:
        rows, found = make_rows(), []

        def source(each: Round, params: Any, sent: Any) -> Any:
            upload = dense(each.client(params, sent, rows, num_classes))
            found.extend((sent, upload))
            return upload

        def of_rows(each: Round, params: Any, sent: Any) -> Any:
            return as_total(each.client(params, sent, rows, num_classes))

        state = through(method.rounds[:start], method.params, of_rows)
        state = state if method.received is None or not start else method.received(state, rows)
        for each in method.rounds[start:]:
            state = through((each,), method.params, source, state)
            found.append(state)
        return found

    if start == len(method.rounds):
        return []
    forms = iter(forms_of(look))
    return [Passed(*three) for three in zip(forms, forms, forms, strict=True)]
