"""Read a large table of rows part by part, ahead of time, and add up what a round computes from each part."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from covfree.core.compiling import jit
from covfree.core.sums import Compensated, fold_parts
from covfree.core.types import Rows
from covfree.engine.totals import How
from covfree.methods.rounds import dense

# How many parts are read ahead.
_AHEAD = 2

Result = TypeVar("Result")


@partial(jit, static_argnums=(0, 5), donate_argnums=3)
def add_part(client: Any, params: Any, sent: Any, running: Compensated, rows: Rows, how: How) -> Compensated:
    """Add what clients compute from one part of the rows to ``running``, the round's sum so far.

    Return the new sum. ``running`` cannot be used afterwards: its buffers are donated. ``client`` is the
    round's client function (`Round.client`), and ``sent`` is the server's broadcast.
    """

    def add(running: Compensated, rows: Rows) -> Compensated:
        return running.plus(dense(client(params, sent, rows, how.num_classes)))

    # Add small pieces, which stay in the processor's cache, unless a client's rows must stay together.
    return add(running, rows) if how.whole else fold_parts(add, running, rows)


def ahead(read: Callable[[int], Result], indices: range) -> Generator[Result, None, None]:
    """Yield ``read(index)`` for each index; a thread reads ahead until the iterator ends."""
    waiting: deque[Future[Result]] = deque()
    reader = ThreadPoolExecutor(1, "covfree-reader")
    try:
        for index in indices:
            waiting.append(reader.submit(read, index))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        reader.shutdown(cancel_futures=True)
