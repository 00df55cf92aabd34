"""Every method, as it is and under ``vmap``: run in a process of its own, which must come to an end.

``python tests/stress.py 64 384 [--methods fedcof,qda] [--threads 1,8]`` prints a line for each number of
LAPACK's threads, dimension and method once it is through.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.core.types import Rows
from covfree.methods import Method, registry

CLASSES, CLIENTS, EXAMPLES, LANES, TIMES = 3, 20, 240, 3, 2
# Their heads are trained by gradient steps, which dominate; what they factorise has the size of d anyway.
FEW_SAMPLES = {"ccvr": {"num_samples": 60}, "fedpft": {"num_samples": 60}}


def examples(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and clients of one federation."""
    rng = np.random.default_rng(dim)
    labels, clients = rng.integers(0, CLASSES, EXAMPLES), rng.integers(0, CLIENTS, EXAMPLES)
    features = rng.normal(size=(EXAMPLES, dim)) + rng.normal(size=(CLASSES, dim))[labels]
    return features.astype(np.float32), labels, clients


def federation(method: Method, dim: int) -> tuple[Rows, np.ndarray]:
    """Rows of one federation, and some features."""
    features, labels, clients = examples(dim)
    return covfree.summarise(method, features, labels, clients, key=jax.random.key(0)), features[:9]


@partial(jax.jit, static_argnames="over")
def scores(method: Method, rows: Rows, features: jax.Array, over: str) -> jax.Array:
    """Of one federation, of several at once, of one with several strengths of regularisation, or of both."""

    def one(method: Method, rows: Rows) -> jax.Array:
        return covfree.solve_rows(method, rows, num_classes=CLASSES)(features)

    def scaled_rows(factor: jax.Array) -> jax.Array:
        return one(method, replace(rows, mean=rows.mean * factor))

    def scaled(factor: jax.Array, rows_too: bool = True) -> jax.Array:
        # Whole numbers are seeds, the same in all lanes.
        lane = jax.tree.map(lambda leaf: leaf * factor if _is_float(leaf) else leaf, method)
        return one(lane, replace(rows, mean=rows.mean * factor) if rows_too else rows)

    if over == "nothing":
        return one(method, rows)
    lanes = {"rows": scaled_rows, "numbers": partial(scaled, rows_too=False), "both": scaled}[over]
    return jax.vmap(lanes)(1 + jnp.arange(LANES, dtype=jnp.float32))


def ways(method: Method) -> tuple[str, ...]:
    """How it can be called."""
    numbers = any(map(_is_float, jax.tree.leaves(method)))
    return ("nothing", "rows", "numbers") if numbers else ("nothing", "rows")


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def main() -> None:
    """Run them all, or those that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dims", nargs="+", type=int)
    parser.add_argument("--methods", default=",".join(registry()))
    parser.add_argument("--threads", default="", help="by default as many as there are")
    arguments = parser.parse_args()
    for threads in arguments.threads.split(","):
        if threads:
            covfree.limit_lapack_threads(int(threads))
        for dim in arguments.dims:
            for name in arguments.methods.split(","):
                method = registry()[name].make(**FEW_SAMPLES.get(name, {}))
                rows, features = federation(method, dim)
                for over in ways(method):
                    for _ in range(TIMES):
                        scores(method, rows, features, over).block_until_ready()
                print(threads or "all", dim, name, flush=True)


if __name__ == "__main__":
    main()
