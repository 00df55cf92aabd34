"""The clients of a whole federation at once: features, labels and clients to rows, and Fed3R's Gram matrix.

Run ``python benchmarks/client.py [--out FILE]``. The size is that of iNaturalist-Users-120K: 120,293 examples
of 9,275 clients in 54,590 client-class pairs. The unit of the rows is the time of copying the feature matrix,
that of the Gram matrix the bare product XᵀX.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import parser, timed, write

import covfree
from covfree.core.padding import padded_size
from covfree.core.products import product
from covfree.statistics.rows import count_rows

EXAMPLES, CLIENTS, CLASSES, PAIRS, DIM = 120_293, 9_275, 1_203, 54_590, 1280


def federation() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and clients, ordered by client and class."""
    rng = np.random.default_rng(0)
    # Pairs without repetition; each has an example, and chance deals out the others.
    pairs = rng.choice(CLIENTS * CLASSES, PAIRS, replace=False)
    pairs = np.sort(np.concatenate([pairs, rng.choice(pairs, EXAMPLES - PAIRS)]))
    features = rng.standard_normal((EXAMPLES, DIM), np.float32)
    return features, (pairs % CLASSES).astype(np.int32), (pairs // CLASSES).astype(np.int32)


def main() -> None:
    """Print ratios, and write all of it as JSON."""
    arguments = parser(__doc__).parse_args()
    host, labels, clients = federation()
    features = jnp.asarray(host)
    seconds: dict[str, float] = {
        "copy": timed(jax.jit(jnp.copy), features),
        "copy by NumPy": timed(host.copy),
        "XᵀX": timed(jax.jit(lambda x: product(x.T, x)), features),
    }
    num_rows = padded_size(count_rows(labels, clients))
    rows = jax.jit(partial(covfree.client_rows, num_rows=num_rows))
    shuffled = np.random.default_rng(1).permutation(EXAMPLES)
    seconds["counting rows on the host"] = timed(lambda: count_rows(labels, clients))
    for order, index in (("sorted", slice(None)), ("unsorted", shuffled)):
        arrays = features, jnp.asarray(labels[index]), jnp.asarray(clients[index])
        seconds[f"rows, {order}"] = timed(rows, *arrays)

    method = covfree.fed3r()
    examples = covfree.Rows.from_examples(features, jnp.asarray(labels))

    def gram() -> Any:
        return covfree.accumulate(method, examples, num_classes=CLASSES)

    def head() -> Any:
        return covfree.solve_rows(method, examples, num_classes=CLASSES)

    seconds |= {"Gram matrix and class sums": timed(gram), "Fed3R head": timed(head)}
    counting = seconds["counting rows on the host"]
    ratios = {
        f"rows, {order}, to copies": (seconds[f"rows, {order}"] + counting) / seconds["copy"]
        for order in ("sorted", "unsorted")
    }
    ratios |= {
        f"{name} to XᵀX": seconds[name] / seconds["XᵀX"]
        for name in ("Gram matrix and class sums", "Fed3R head")
    }
    for name, value in seconds.items():
        print(f"{name:28} {1e3 * value:8.1f} ms")
    for name, value in ratios.items():
        print(f"{name:40} {value:.2f} ×")
    size = {"examples": EXAMPLES, "clients": CLIENTS, "classes": CLASSES, "pairs": PAIRS, "dim": DIM}
    write(arguments.out, size=size, seconds=seconds, ratios=ratios)


if __name__ == "__main__":
    main()
