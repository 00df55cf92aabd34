"""How a busy machine slows the server down, with all of OpenBLAS's threads and with one.

Run ``python benchmarks/busy.py [--out FILE]``. From rows to head at d = 1280 (2,634 rows of 196 classes), and
Cholesky and ``eigh`` by themselves: medians, idle and beside one busy process for each core. Two processes
that share a core fairly take twice as long, so a ratio of 2 is what there is to be had.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from common import apart, clocked, cores, finished, parser, write

SIZE = (2_634, 196, 1280)
# Calls that are timed, at most; no more are begun after so many seconds.
REPEATS, SECONDS = 15, 8.0
THREADS = {"OpenBLAS's own number of threads": None, "one thread": 1}


def median_seconds(function: Callable[[], Any]) -> float:
    """Of several calls, after one that compiles."""
    finished(function())
    times, begun = [], time.monotonic()
    while len(times) < REPEATS and time.monotonic() - begun < SECONDS:
        times.append(clocked(function)[1])
    return statistics.median(times)


def measure(threads: int | None) -> dict[str, float]:
    """Seconds of each call in this process."""
    import jax
    import jax.numpy as jnp
    from server import METHODS, random_rows

    import covfree
    from covfree.core.products import symmetric_product

    if threads is not None:
        covfree.limit_lapack_threads(threads)
    _, num_classes, dim = SIZE
    rows = random_rows(*SIZE)
    matrix = symmetric_product(jnp.asarray(rows.mean)) + jnp.eye(dim)
    calls: dict[str, Callable[[], Any]] = {
        f"rows to head, {name}": lambda method=method: covfree.solve_rows(
            method, rows, num_classes=num_classes
        )
        for name, method in METHODS.items()
    }
    calls["Cholesky"] = lambda: jnp.linalg.cholesky(matrix)
    calls["eigh"] = lambda: jnp.linalg.eigh(matrix)
    jax.block_until_ready(matrix)
    return {name: median_seconds(call) for name, call in calls.items()}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but count."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    """Print a line a call, and write all of it as JSON."""
    options = parser(__doc__)
    options.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.measure is not None:
        print(json.dumps(measure(arguments.measure or None)))
        return
    results: dict[str, Any] = {}
    for name, threads in THREADS.items():
        # In processes of their own, as a library takes its number of threads when it is loaded.
        own = __file__, "--measure", str(threads or 0)
        idle = apart(*own)
        with busy(cores()):
            shared = apart(*own)
        results[name] = {
            call: {"idle": alone, "busy": shared[call], "ratio": shared[call] / alone}
            for call, alone in idle.items()
        }
        print(name)
        for call, found in results[name].items():
            print(
                f"  {call}: {1e3 * found['idle']:.1f} ms idle, {1e3 * found['busy']:.1f} ms busy, "
                f"ratio {found['ratio']:.1f}",
                flush=True,
            )
    write(arguments.out, busy=results)


if __name__ == "__main__":
    main()
