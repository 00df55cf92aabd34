"""What the automatic shrinkage adds to the server's time: rows to head, beside a fixed γ and the floors.

Run ``python benchmarks/automatic_shrinkage.py [--out FILE]``. Rows are random; their number, the classes and
the dimension are those of two public federations and of a small one.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.products import symmetric_product

SIZES = {
    "CIFAR-100, d = 512": (2_870, 100, 512),
    "Cars, d = 1280": (2_634, 196, 1280),
    "iNaturalist-120K, d = 1280": (54_590, 1_203, 1280),
}


def random_rows(num_rows: int, num_classes: int, dim: int) -> covfree.Rows:
    """Class means with some structure: class centres, and noise of falling variance."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, num_rows).astype(np.int32)
    scale = np.linspace(1, 0.1, dim, dtype=np.float32)
    centres = rng.standard_normal((num_classes, dim), np.float32) * scale
    means = centres[labels] + rng.standard_normal((num_rows, dim), np.float32) * scale
    return jax.device_put(covfree.Rows(means, rng.integers(1, 9, num_rows).astype(np.int32), labels))


def median_seconds(function: Callable[[], Any], repeats: int = 5) -> float:
    """Median time of a call, after one that compiles."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Print a line a size, and write all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    product = jax.jit(lambda x: jnp.matmul(x.T, x, precision=jax.lax.Precision.HIGHEST))
    symmetric = jax.jit(symmetric_product)
    results = []
    for name, (num_rows, num_classes, dim) in SIZES.items():
        rows = random_rows(num_rows, num_classes, dim)

        def head(method: covfree.Method, rows: covfree.Rows = rows, classes: int = num_classes) -> Any:
            return covfree.solve_rows(method, rows, num_classes=classes)

        seconds = {
            "XᵀX": median_seconds(lambda rows=rows: product(rows.mean)),
            "XᵀX by halves": median_seconds(lambda rows=rows: symmetric(rows.mean)),
            "fixed γ": median_seconds(lambda head=head: head(covfree.fedcof(shrinkage=0.1))),
            "automatic": median_seconds(lambda head=head: head(covfree.fedcof())),
        }
        results.append(
            {"size": name, "rows": num_rows, "classes": num_classes, "dim": dim, "seconds": seconds}
        )
        added = seconds["automatic"] - seconds["fixed γ"]
        print(f"{name:28}", *(f"{k} {v:.3f} s" for k, v in seconds.items()), f"added {added:.3f} s", sep="  ")
    machine = {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "platform": platform.platform(),
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
