"""Bias, variance and mean squared error of the covariance estimators, measured beside their theory.

Run ``python benchmarks/estimator_variance.py [--out FILE.json] [--picture FILE.png] [--draws N]``. The exit
status is 1 if a measured mean or variance lies more than 5 standard errors from theory, so it is a check too.

What is drawn and estimated, and what is to be expected, is derived in ``variance_theory.py``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import common
import jax
import jax.numpy as jnp
import numpy as np
from variance_picture import figures, picture
from variance_theory import CLASSES, Estimator, Federation, Setting, make_federation, theory

import covfree
from covfree.core.products import symmetric_product
from covfree.estimators.components import component_factor, component_moments

BOUND = 5.0
ESTIMATORS = (
    Estimator("eq. 5"),
    Estimator("pooled"),
    Estimator("eq. 5", 4),
    Estimator("components", 2),
    Estimator("components", 4),
    Estimator("exact"),
)
NUMBERS = (
    *(Estimator("eq. 5", number) for number in (1, 2, 4, 8)),
    *(Estimator("components", number) for number in (2, 4, 8)),
    Estimator("exact"),
)


PANELS: dict[str, tuple[float, ...]] = {
    "clients": (5, 10, 20, 40, 80),
    "examples": (15, 30, 60, 120, 240),
    "dim": (2, 8, 16, 32, 64),
    "alpha": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "shift": (0.0, 0.03, 0.1, 0.3, 1.0),
}


# A bound for all, so that federations of one size share a compiled function.
MOST_CLIENTS = int(max(PANELS["clients"]))


def estimate(
    estimator: Estimator, features: jax.Array, owners: tuple[jax.Array, ...], key: jax.Array
) -> jax.Array:
    """Σ̂ by the library, of one draw."""
    kind, number = estimator
    labels, clients = owners
    pairs = MOST_CLIENTS * CLASSES
    if kind == "exact":
        rows = covfree.Rows.from_examples(features, labels)
    else:
        rows = covfree.client_rows(
            features,
            labels,
            clients,
            num_rows=min(pairs * number, len(labels)),
            num_subsets=number,
            key=key,
        )
    moments = covfree.first_moments(rows, CLASSES)
    if kind == "components":
        factor = component_factor(rows, component_moments(rows, CLASSES))
    else:
        weighting = "pooled" if kind == "pooled" else "per_class"
        factor = covfree.within_factor(rows, moments, weighting=weighting)
    return symmetric_product(factor) / moments.within_degrees


class Draws(NamedTuple):
    """Of each estimator and draw: ‖Σ̂ − EΣ̂‖², ⟨Σ̂ − EΣ̂, direction⟩; and the mean of Σ̂ − EΣ̂ over draws."""

    square: Any
    along: Any
    mean: Any


@partial(jax.jit, static_argnames="estimators")
def draw(
    estimators: tuple[Estimator, ...],
    keys: jax.Array,
    owners: tuple[jax.Array, ...],
    centres: jax.Array,
    root: jax.Array,
    expected: jax.Array,
    directions: jax.Array,
) -> Draws:
    """Draw features for each key, and estimate."""

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        of_features, of_estimate = jax.random.split(key)
        noise = jax.random.normal(of_features, centres.shape)
        features = centres + jnp.matmul(noise, root.T, precision="highest")
        away = jnp.stack([estimate(e, features, owners, of_estimate) for e in estimators]) - expected
        along = jnp.einsum("eij,vij->ev", away, directions, precision="highest")
        return jnp.square(away).sum((1, 2)), along, away

    square, along, away = jax.vmap(one)(keys)
    return Draws(square, along, away.mean(0))


def study(
    setting: Setting,
    estimators: tuple[Estimator, ...] = ESTIMATORS,
    *,
    draws: int,
    seed: int = 0,
    expected: Callable[[Estimator, Federation], tuple[np.ndarray, float]] = theory,
) -> dict[str, Any]:
    """Measured and predicted errors of each estimator on one federation.

    Args:
        setting: of the federation.
        estimators: to be measured, all on the same draws.
        draws: how many; rounded up to whole batches.
        seed: of the draws.
        expected: mean and variance to compare with.
    """
    federation = make_federation(setting)
    owners = (jnp.asarray(federation.labels), jnp.asarray(federation.clients))
    predicted = [expected(estimator, federation) for estimator in estimators]
    # Where a wrong mean would show: as a multiple of I, of Σ, or of what clients shift.
    directions = np.stack([np.eye(setting.dim), federation.covariance, federation.spreads.sum(0)])
    batch = max(1, min(draws, 2**21 // (setting.clients * setting.examples * setting.dim)))
    keys = jax.random.split(jax.random.key(seed), (-(-draws // batch), batch))
    fixed = [
        jnp.asarray(x, jnp.float32)
        for x in (
            federation.means[federation.clients, federation.labels],
            np.linalg.cholesky(federation.covariance),
            np.stack([mean for mean, _ in predicted]),
            directions,
        )
    ]
    batches = [jax.tree.map(np.float64, draw(estimators, some, owners, *fixed)) for some in keys]
    square = np.concatenate([some.square for some in batches])
    along = np.concatenate([some.along for some in batches])
    off = np.mean([some.mean for some in batches], axis=0)
    target, size = federation.target, float(np.sum(federation.target**2))
    results = {}
    for e, (estimator, (mean, variance)) in enumerate(zip(estimators, predicted, strict=True)):
        measured = (square[:, e].mean() - np.sum(off[e] ** 2)) * len(square) / (len(square) - 1)
        # What the mean over draws is off by chance is taken out, so that no bias is seen where none is.
        bias = np.sum((mean + off[e] - target) ** 2) - measured / len(square)
        results[estimator.name] = {
            "measured": _errors(bias / size, measured / size),
            "theory": _errors(float(np.sum((mean - target) ** 2)) / size, variance / size),
            "z_mean": max((_z(along[:, e, v], 0.0) for v in range(along.shape[2])), key=abs),
            "z_variance": _z(square[:, e], variance),
        }
    eq_22 = max(_eq_22(federation, estimator.number) for estimator in estimators)
    effective = float(np.trace(federation.covariance) ** 2 / np.sum(federation.covariance**2))
    return {
        **asdict(setting),
        "effective_rank": effective,
        "draws": len(square),
        "eq_22": eq_22,
        "results": results,
    }


def _errors(bias: float, variance: float) -> dict[str, float]:
    return {"squared_bias": float(bias), "variance": float(variance), "error": float(bias + variance)}


def _eq_22(federation: Federation, number: int) -> float:
    """How far `covfree.shift_bias` is from D_c/ν_c, over the largest of them."""
    own, ours = [], []
    for c, spread in enumerate(federation.spreads):
        counts = federation.counts[:, c]
        seen = np.where(counts > 0, np.clip(counts // 2, 1, number), 0).sum() - 1
        ours.append(spread / max(seen, 1))
        means = federation.means[:, c].astype(np.float32)
        own.append(np.asarray(covfree.shift_bias(means, counts.astype(np.int32), num_subsets=number)))
    return float(np.abs(np.stack(own) - ours).max() / max(np.abs(ours).max(), 1e-6))


def _z(values: np.ndarray, expected: float) -> float:
    """Standard errors between a mean and what it should be."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float((values.mean() - expected) / error) if error > 0 else 0.0


def contradictions(points: Sequence[dict[str, Any]]) -> list[str]:
    """Measured values beyond the bound."""
    found = []
    for point in points:
        where = ", ".join(f"{name} {point[name]:g}" for name in PANELS)
        if not point["eq_22"] <= 1e-4:
            found.append(f"covfree.shift_bias at {where}: off by {point['eq_22']:.1e}")
        for name, result in point["results"].items():
            for z in ("z_mean", "z_variance"):
                if not abs(result[z]) <= BOUND:
                    found.append(f"{name} at {where}: {z} {result[z]:.1f}")
    return found


def main() -> None:
    """Run all panels, print the worst of each, write, and fail where theory is contradicted."""
    covfree.limit_lapack_threads()
    parser = common.parser(__doc__)
    parser.add_argument("--picture", type=Path, help="PNG file to write, with PDF and SVG (needs matplotlib)")
    parser.add_argument("--draws", type=int, default=800, help="draws of each federation")
    arguments = parser.parse_args()
    start = time.perf_counter()
    panels: dict[str, list[dict[str, Any]]] = {}
    for variable, values in PANELS.items():
        points = [study(replace(Setting(), **{variable: x}), draws=arguments.draws) for x in values]
        panels[variable] = points
        print(f"{variable:9}", *_line(points), sep="  ", flush=True)
    numbers = study(Setting(), NUMBERS, draws=arguments.draws)
    print(f"{'numbers':9}", *_line([numbers]), sep="  ")
    found = contradictions([*(point for points in panels.values() for point in points), numbers])
    seconds = time.perf_counter() - start
    common.write(arguments.out, seconds=seconds, panels=panels, numbers=numbers)
    if arguments.picture is not None:
        draw = partial(picture, panels, ESTIMATORS, numbers, NUMBERS)
        figures.save_for_pages(draw, arguments.picture)
    print(f"{seconds:.0f} s", *found, sep="\n")
    sys.exit(1 if found else 0)


def _line(points: list[dict[str, Any]]) -> list[str]:
    results = [result for point in points for result in point["results"].values()]
    ratio = max(abs(r["measured"]["error"] / r["theory"]["error"] - 1) for r in results)
    worst = max(abs(r[z]) for r in results for z in ("z_mean", "z_variance"))
    return [f"{len(results)} values", f"largest |z| {worst:.1f}", f"error off theory by at most {ratio:.1%}"]


if __name__ == "__main__":
    main()
