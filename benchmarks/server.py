"""The server, from rows in memory to a head, beside the floors: fixed and automatic shrinkage, Student heads.

Run ``python benchmarks/server.py [--out FILE]``. Rows are random; their number, the classes and the
dimension are those of three federations. The floor is the product XᵀX of the rows, one Cholesky factorisation
of its size and one triangular solve for the classes, each timed by itself in the same run. The last line is a
federation of few rows in many dimensions: the dual system against the primal one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import finished, parser, peak_memory, restart_peak, timed, write

import covfree
from covfree.core.products import product, symmetric_product

SIZES = {
    "CIFAR-100, d = 512": (2_870, 100, 512),
    "Cars, d = 1280": (2_634, 196, 1280),
    "iNaturalist-Users-120K, d = 1280": (54_590, 1_203, 1280),
}
DUAL = (300, 10, 10_000)
EXAMPLES = 1024  # whose scores are timed
METHODS = {
    "ridge, fixed γ": covfree.fedcof(1.0, head="ridge"),
    "LDA, fixed γ": covfree.fedcof(0.1),
    "LDA, automatic γ": covfree.fedcof(),
    "Student, automatic γ": covfree.fedcof(head="student"),
    "Student, 16 directions a class": covfree.fedcof(head=covfree.student(rank=16)),
}


def random_rows(num_rows: int, num_classes: int, dim: int) -> covfree.Rows:
    """Class means with some structure: class centres, and noise of falling variance."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, num_rows).astype(np.int32)
    scale = np.linspace(1, 0.1, dim, dtype=np.float32)
    centres = rng.standard_normal((num_classes, dim), np.float32) * scale
    means = centres[labels] + rng.standard_normal((num_rows, dim), np.float32) * scale
    return jax.device_put(covfree.Rows(means, rng.integers(1, 9, num_rows).astype(np.int32), labels))


def measure(num_rows: int, num_classes: int, dim: int) -> dict[str, Any]:
    """Seconds of the floors and of each method; MB that the process grows by while it solves."""
    rows = random_rows(num_rows, num_classes, dim)
    gram = symmetric_product(jnp.asarray(rows.mean)) + jnp.eye(dim)
    right = covfree.first_moments(rows, num_classes).total.T
    cholesky = jax.jit(lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False))
    triangular = jax.jit(lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True, lower=True))
    seconds = {
        "XᵀX": timed(jax.jit(lambda x: product(x.T, x)), rows.mean, repeats=9),
        "XᵀX by its upper triangle": timed(jax.jit(symmetric_product), rows.mean, repeats=9),
        "Cholesky": timed(cholesky, gram, repeats=9),
        "triangular solve": timed(triangular, cholesky(gram), right, repeats=9),
    }
    floor = sum(seconds[part] for part in ("XᵀX", "Cholesky", "triangular solve"))

    @jax.jit
    def together(x: jax.Array, b: jax.Array) -> jax.Array:
        return triangular(cholesky(product(x.T, x) + jnp.eye(dim)), b)

    seconds["the three in one call"] = timed(together, rows.mean, right, repeats=9)
    memory = {}
    for name, method in METHODS.items():
        seconds[name] = timed(
            lambda m=method: covfree.solve_rows(m, rows, num_classes=num_classes), repeats=9
        )
        restart_peak()
        before = peak_memory()
        finished(covfree.solve_rows(method, rows, num_classes=num_classes))
        memory[name] = (peak_memory() - before) / 1e6
    flops = {"XᵀX": 2 * num_rows * dim**2, "Cholesky": dim**3 / 3, "triangular solve": dim**2 * num_classes}
    student = covfree.solve_rows(METHODS["Student, automatic γ"], rows, num_classes=num_classes)
    few = jnp.asarray(rows.mean)[:EXAMPLES]
    seconds["product of examples and rows"] = timed(jax.jit(lambda x, y: product(x, y.T)), few, rows.mean)
    seconds["Student scores"] = timed(jax.jit(lambda head, x: head(x)), student, few)
    flops["product of examples and rows"] = 2 * EXAMPLES * num_rows * dim
    # Beside the product with the rows one triangular solve and one product with the class means.
    flops["Student scores"] = EXAMPLES * (2 * num_rows * dim + dim**2 + 2 * num_classes * dim)
    return {
        "rows": num_rows,
        "classes": num_classes,
        "dim": dim,
        "seconds": seconds,
        "floor": floor,
        "ratio": {name: seconds[name] / floor for name in METHODS},
        "GFLOP/s": {part: flops[part] / seconds[part] / 1e9 for part in flops},
        "memory beside the rows, MB": memory,
    }


def measure_dual() -> dict[str, Any]:
    """Seconds by the system of the size of the rows, and by that of the size of the features; they agree."""
    num_rows, num_classes, dim = DUAL
    rows, method = random_rows(*DUAL), covfree.fedcof(0.1)

    @jax.jit
    def primal(rows: covfree.Rows) -> Any:
        moments, spread = covfree.accumulate(method, rows, num_classes=num_classes)
        full = covfree.linalg.Scatter.from_matrix(spread.scatter.dense())
        return covfree.solve_totals(method, moments, spread._replace(scatter=full))

    def dual(rows: covfree.Rows) -> Any:
        return covfree.solve_rows(method, rows, num_classes=num_classes)

    heads = primal(rows), dual(rows)
    difference = jnp.abs(heads[0].weight - heads[1].weight).max() / jnp.abs(heads[0].weight).max()
    if not difference < 1e-3:
        raise SystemExit(f"the dual and the primal head differ by {difference:.1e}")
    seconds = {"primal": timed(primal, rows, repeats=2), "dual": timed(dual, rows)}
    size = {"rows": num_rows, "classes": num_classes, "dim": dim}
    return size | {"seconds": seconds, "difference": float(difference)}


def main() -> None:
    """Print a line a size, and write all of it as JSON."""
    covfree.limit_lapack_threads()
    arguments = parser(__doc__).parse_args()
    results = {}
    for name, size in SIZES.items():
        results[name] = found = measure(*size)
        times = ", ".join(f"{key} {1e3 * value:.1f}" for key, value in found["seconds"].items())
        ratios = ", ".join(f"{key} {value:.2f}" for key, value in found["ratio"].items())
        memory = max(found["memory beside the rows, MB"].values(), default=float("nan"))
        print(
            f"{name}\n  ms: {times}\n  × floor: {ratios}\n  memory beside the rows: {memory:.0f} MB",
            flush=True,
        )
    dual = measure_dual()
    ratio = dual["seconds"]["primal"] / dual["seconds"]["dual"]
    own = dual["seconds"]["dual"]
    print(f"{DUAL[0]} rows in d = {DUAL[2]}: dual {own:.3f} s, {ratio:.0f} × faster than primal")
    write(arguments.out, server=results, dual=dual)


if __name__ == "__main__":
    main()
