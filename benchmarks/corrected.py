"""A round of `covfree.corrected` beside the two products that it cannot do without.

Run ``python benchmarks/corrected.py [--out FILE]``. Features are random; their number, the classes and the
dimension are those of a federation. The floor is the product of the features with the weights, and of their
transpose with the residuals, each timed in turn with the round in the same run. A round is the clients'
sums, with a linear head, and the server's step with all its pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import finished, from_rest, parser, write

import covfree
from covfree.core.linalg import factorise
from covfree.core.products import product
from covfree.methods.refine.descent import begin_descent, descend
from covfree.statistics.softmax import softmax_sums

SIZES = {
    "Caltech-101, d = 1280": (5_750, 101, 1280),
    "iNaturalist-Users-120K, d = 1280": (54_590, 1_203, 1280),
}
PAIRS = 2  # of four rounds


def measure(number: int, num_classes: int, dim: int, repeats: int) -> dict[str, Any]:
    """Best seconds of the products, the clients' sums and the server's step; medians of their ratios."""
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

    metric = factorise(jnp.eye(dim) + 0.1 * jnp.ones((dim, dim)))
    descent = begin_descent(jnp.zeros((dim + 1, num_classes)), PAIRS)
    forward, backward, step = (jax.jit(each) for each in (product, lambda x, r: product(x.T, r), descend))
    found = sums(features, weight)
    parts: dict[str, Callable[[], Any]] = {
        "X W": lambda: forward(features, weight),
        "Xᵀ R": lambda: backward(features, residual),
        "clients": lambda: sums(features, weight),
        "server": lambda: step(descent, found.loss / number, found.slope / number, metric),
    }
    for each in parts.values():
        finished(each())
    # Each repeat times all parts in turn, so that others at work on the machine slow all alike.
    times = np.array([[from_rest(each)[1] for each in parts.values()] for _ in range(repeats)])
    products, clients = times[:, :2].sum(1), times[:, 2]
    return {
        "examples": number,
        "classes": num_classes,
        "dim": dim,
        "seconds": dict(zip(parts, times.min(0).tolist(), strict=True)),
        "clients_over_products": float(np.median(clients / products)),
        "round_over_products": float(np.median(times[:, 2:].sum(1) / products)),
    }


def main() -> None:
    """Print a line for each size; write JSON if asked."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    arguments = options.parse_args()
    covfree.limit_lapack_threads()
    results = {name: measure(*size, arguments.repeats) for name, size in SIZES.items()}
    for name, found in results.items():
        seconds = ", ".join(f"{part} {value:.3f} s" for part, value in found["seconds"].items())
        print(f"{name}: {seconds}; a round is {found['round_over_products']:.2f} times its two products")
    write(arguments.out, results=results)


if __name__ == "__main__":
    main()
