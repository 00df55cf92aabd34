"""Measure how long computations take, without their compilation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import jax

T = TypeVar("T")

# A first call of at least this many seconds, without compilation, is not repeated: other overhead is only
# milliseconds.
_LONG = 0.5
_compiled: list[tuple[float, float]] = []


def _listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event.startswith("/jax/core/compile/"):
        now = time.perf_counter()
        _compiled.append((now - duration_secs, now))


jax.monitoring.register_event_duration_secs_listener(_listen)


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """Call a function; return its result, and its seconds without compilation.

    The seconds that jax reports for tracing, lowering and compilation are subtracted. If the call compiled
    and took less than half a second otherwise, the function is called again, and the second call is timed.
    """
    result, seconds, compiling = _call(function)
    if compiling and seconds < _LONG:
        result, seconds, _ = _call(function)
    return result, seconds


def _call(function: Callable[[], T]) -> tuple[T, float, float]:
    """Call a function; return its result, its seconds without compilation, and the compilation's seconds."""
    _compiled.clear()
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    seconds = time.perf_counter() - start
    compiling = _covered(_compiled)
    return result, max(0.0, seconds - compiling), compiling


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the seconds that the spans (begin, end) cover together; they overlap, as compilations nest."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total
