"""A round of `covfree.corrected` beside the two products that it cannot do without.

Run ``python benchmarks/corrected.py [--out FILE]``. Features are random; their number, the classes and the
dimension are those of a federation. The floor is the product of the features with the weights, and of their
transpose with the residuals, each timed by itself in the same run. A round is the clients' sums, with a
linear head, and the server's step with all its pairs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import machine, timed, write

import covfree
from covfree.core.linalg import factorise
from covfree.core.products import product
from covfree.methods.refine.descent import begin_descent, descend
from covfree.statistics.softmax import softmax_sums

SIZES = {
    "Caltech-101, d = 1280": (5_750, 101, 1280),
    "iNaturalist-Users-120K, d = 1280": (54_590, 1_203, 1280),
}
PAIRS = 3


def measure(number: int, num_classes: int, dim: int, repeats: int) -> dict[str, Any]:
    """Seconds of the products, of the clients' sums and of the server's step, the best of some repeats."""
    rng = np.random.default_rng(0)
    labels = jnp.asarray(rng.integers(0, num_classes, number), jnp.int32)
    features = jax.device_put(rng.standard_normal((number, dim), np.float32))
    weight = jax.device_put(0.1 * rng.standard_normal((dim, num_classes), np.float32))
    residual = jax.device_put(rng.standard_normal((number, num_classes), np.float32))
    counts = jnp.ones(number)

    @jax.jit
    def sums(features: jax.Array, weight: jax.Array) -> Any:
        head = covfree.LinearHead(weight, jnp.zeros(num_classes))
        return softmax_sums(lambda x, z: head(z), features, labels, counts, jnp.zeros(dim), num_classes)

    seconds = {
        "X W": timed(jax.jit(product), features, weight, repeats=repeats),
        "Xᵀ R": timed(jax.jit(lambda x, r: product(x.T, r)), features, residual, repeats=repeats),
        "clients": timed(sums, features, weight, repeats=repeats),
    }
    found = sums(features, weight)
    metric = factorise(jnp.eye(dim) + 0.1 * jnp.ones((dim, dim)))
    descent = begin_descent(jnp.zeros((dim + 1, num_classes)), PAIRS)
    step = jax.jit(descend)
    seconds["server"] = timed(
        step, descent, found.loss / number, found.slope / number, metric, repeats=repeats
    )
    floor = seconds["X W"] + seconds["Xᵀ R"]
    return {
        "examples": number,
        "classes": num_classes,
        "dim": dim,
        "seconds": seconds,
        "clients_over_products": seconds["clients"] / floor,
        "round_over_products": (seconds["clients"] + seconds["server"]) / floor,
    }


def main() -> None:
    """Print a line for each size; write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    results = {name: measure(*size, arguments.repeats) for name, size in SIZES.items()}
    for name, found in results.items():
        seconds = ", ".join(f"{part} {value:.3f} s" for part, value in found["seconds"].items())
        print(f"{name}: {seconds}; a round is {found['round_over_products']:.2f} times its two products")
    if arguments.out is not None:
        write(arguments.out, {"machine": machine(), "results": results})


if __name__ == "__main__":
    main()
