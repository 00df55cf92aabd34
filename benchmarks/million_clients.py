"""A million clients, simulated cohort by cohort in the memory of one cohort.

Run ``python benchmarks/million_clients.py [--clients K …] [--out FILE.json] [--picture FILE.png]``. Each
client draws its examples from a known population, class Gaussians of one covariance Σ, by a key of its own:
``vmap`` over the clients of a cohort, `covfree.Generated` rows over the cohorts. FedCOF sums class means,
Fed3R the Gram matrix of the examples; the heads are held against those of the population itself, to which
both must come as 1/√K. Each run has a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from common import apart, clocked, parser, peak_memory, write
from jax.tree_util import Partial

import covfree
from covfree.studies.plots import style as figures

KINDS = 3  # classes that a client holds
TEST = 20_000
SHORT = 5.0  # seconds
METHODS = {"fedcof": covfree.fedcof(), "fed3r": covfree.fed3r()}
# What is beside the sums: drawing alone, once.
DRAWING = "drawing"


class Population(NamedTuple):
    """Class Gaussians of equal share: centres μ_c, and Σ, which is diagonal (no method knows that)."""

    centre: jax.Array
    variance: jax.Array


class Cohort(NamedTuple):
    """Clients drawn together, what each holds, and the method that they follow."""

    method: str
    clients: int
    examples: int

    def draw(self, population: Population, key: jax.Array, index: jax.Array) -> tuple[jax.Array, ...]:
        """Features, labels and clients of all examples of a cohort."""
        clients = index * self.clients + jnp.arange(self.clients, dtype=jnp.int32)
        features, labels = jax.vmap(lambda client: self.one(population, jax.random.fold_in(key, client)))(
            clients
        )
        dim = features.shape[-1]
        return features.reshape(-1, dim), labels.reshape(-1), jnp.repeat(clients, self.examples)

    def one(self, population: Population, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A client: its examples are of a few classes, dealt at random."""
        held, dealt, noise = jax.random.split(key, 3)
        classes, dim = population.centre.shape
        kinds = jax.random.choice(held, classes, (KINDS,), replace=False)
        labels = kinds[jax.random.randint(dealt, (self.examples,), 0, KINDS)]
        spread = jax.random.normal(noise, (self.examples, dim)) * jnp.sqrt(population.variance)[None, :]
        return population.centre[labels] + spread, labels

    def rows(self, population: Population, key: jax.Array, index: jax.Array) -> covfree.Rows:
        """What the cohort's clients make of their examples: class means, or the examples themselves."""
        features, labels, clients = self.draw(population, key, index)
        if self.method == "fed3r":
            return covfree.Rows.from_examples(features, labels, clients)
        return covfree.client_rows(features, labels, clients, num_rows=self.clients * KINDS)


def make_population(classes: int, dim: int) -> Population:
    """A spectrum that falls from 1 to 1/100, and centres that LDA tells apart in about five cases of six."""
    variance = jnp.arange(1, dim + 1, dtype=jnp.float32) ** -(math.log(100) / math.log(dim))
    # As far apart in every direction as Σ is wide, so that each counts alike.
    centre = jax.random.normal(jax.random.key(1), (classes, dim)) * jnp.sqrt(variance * 13 / dim)[None, :]
    # Away from 0, as features after a ReLU are.
    return Population(centre + 0.5, variance)


def true_head(method: str, population: Population) -> covfree.LinearHead:
    """The head of the population itself: μ_c, Σ and equal shares; for Fed3R E[ffᵀ] and E[f 1_c]."""
    centre, variance = population
    classes = centre.shape[0]
    ones = jnp.ones(classes, jnp.int32)
    moments = covfree.Moments(ones, ones, centre)
    if method == "fedcof":
        return covfree.lda_head(jnp.diag(variance), moments)
    gram = classes * jnp.diag(variance) + jnp.matmul(centre.T, centre, precision="highest")
    return covfree.ridge_head(gram, moments)


def drawn(cohort: Cohort, population: Population, key: jax.Array, parts: int) -> jax.Array:
    """Something of every cohort, in no more work than drawing it."""

    def add(index: Any, total: jax.Array) -> jax.Array:
        return total + cohort.draw(population, key, index)[0].sum(0)

    return jax.lax.fori_loop(0, parts, add, jnp.zeros(population.centre.shape[1]))


def measure(name: str, clients: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One method, or drawing alone, with so many clients."""
    cohort = Cohort(name, min(arguments.cohort, clients), arguments.examples)
    parts = clients // cohort.clients
    population = make_population(arguments.classes, arguments.dim)
    key = jax.random.key(arguments.seed)
    alone = jax.jit(drawn, static_argnums=0)
    part = Partial(cohort.rows, population, key)

    def run(parts: int) -> Any:
        if name == DRAWING:
            return alone(cohort, population, key, parts)
        return covfree.accumulate(
            METHODS[name], covfree.Generated(part, parts), num_classes=arguments.classes
        )

    _, first = clocked(lambda: run(1))  # compiles
    totals, taken = clocked(lambda: run(parts))
    if taken < SHORT:
        # The best of several runs says more than one that something else may have disturbed.
        taken = min(taken, *(clocked(lambda: run(parts))[1] for _ in range(4)))
    result = {"clients": parts * cohort.clients, "method": name, "seconds": taken, "first_cohort": first}
    if name == DRAWING:
        return result
    jax.block_until_ready(covfree.solve_totals(METHODS[name], *totals))  # compiles
    head, solve = clocked(lambda: covfree.solve_totals(METHODS[name], *totals))
    result |= {"solve_seconds": solve, "clients_per_second": result["clients"] / taken}
    result["peak_bytes"] = peak_memory()
    return result | quality(name, head, population)


def quality(name: str, head: covfree.LinearHead, population: Population) -> dict[str, float]:
    """How far a head is from the population's."""
    key, dealt = jax.random.split(jax.random.key(2))
    classes, dim = population.centre.shape
    labels = jax.random.randint(dealt, (TEST,), 0, classes)
    spread = jax.random.normal(key, (TEST, dim)) * jnp.sqrt(population.variance)[None, :]
    features = population.centre[labels] + spread
    best = true_head(name, population)
    accuracy = float(covfree.evaluate(head, features, labels))
    limit = float(covfree.evaluate(best, features, labels))
    bayes = float(covfree.evaluate(true_head("fedcof", population), features, labels))
    error = float(jnp.linalg.norm(head.weight - best.weight) / jnp.linalg.norm(best.weight))
    return {"weight_error": error, "accuracy": accuracy, "accuracy_of_population": limit, "bayes": bayes}


@figures.style()
def draw_picture(results: list[dict[str, Any]], width: float) -> Any:
    """Seconds and heads' errors against the number of clients, both axes logarithmic."""
    figure = figures.new_figure(width, 2.8)
    left, right = figure.subplots(1, 2)
    titles = {"fedcof": ("FedCOF", figures.BLUE, "o"), "fed3r": ("Fed3R", figures.VERMILLION, "s")}
    for name, (title, colour, marker) in titles.items():
        lines = sorted((line for line in results if line["method"] == name), key=lambda x: x["clients"])
        clients = [line["clients"] for line in lines]
        style = {"color": colour, "marker": marker}
        guide = {"color": colour, "linestyle": ":", "linewidth": 1}
        time, error = ([line[what] for line in lines] for what in ("seconds", "weight_error"))
        left.loglog(clients, time, label=title, **style)
        left.loglog(clients, [time[-1] * k / clients[-1] for k in clients], **guide)
        right.loglog(clients, error, label=title, **style)
        right.loglog(clients, [error[-1] * (clients[-1] / k) ** 0.5 for k in clients], **guide)
    left.set(xlabel="clients K", ylabel="seconds", title="Time (dotted: proportional to K)")
    right.set(xlabel="clients K", ylabel="relative error of the weights", title="Head (dotted: 1/√K)")
    for panel in (left, right):
        panel.xaxis.set_major_formatter(lambda clients, _: f"{clients:,.0f}")
        panel.grid()
    left.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    right.set_yticks([0.01, 0.03, 0.1, 0.3, 1], ["0.01", "0.03", "0.1", "0.3", "1"])
    for panel in (left, right):
        panel.minorticks_off()
    figures.legend_below(figure, left.get_legend_handles_labels()[0])
    return figure


def main() -> None:
    """Measure every number of clients, print a line each, and write what was asked for."""
    covfree.limit_lapack_threads()
    options = parser(__doc__)
    options.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000])
    options.add_argument("--classes", type=int, default=100)
    options.add_argument("--dim", type=int, default=512)
    options.add_argument("--examples", type=int, default=10, help="of each client")
    options.add_argument("--cohort", type=int, default=1000, help="clients drawn together")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--picture", type=Path, help="PNG file to write, with PDF and SVG (needs matplotlib)"
    )
    options.add_argument("--only", choices=[*METHODS, DRAWING], help="one method, in this process")
    arguments = options.parse_args()
    for clients in arguments.clients:
        if clients % min(clients, arguments.cohort):
            options.error(f"--clients: expected multiples of --cohort {arguments.cohort}, got {clients}")
    if arguments.only is not None:
        for clients in arguments.clients:
            print(json.dumps(measure(arguments.only, clients, arguments)))
        return
    names = ("classes", "dim", "examples", "cohort", "seed")
    sizes = {name: getattr(arguments, name) for name in names}
    rest = [str(x) for name, size in sizes.items() for x in (f"--{name}", size)]
    results = []
    for clients in arguments.clients:
        for name in (DRAWING, *METHODS):
            results.append(apart(__file__, *rest, "--clients", str(clients), "--only", name))
            shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in results[-1].items())
            print("  ".join(shown), flush=True)
    write(arguments.out, **sizes, kinds=KINDS, test=TEST, results=results)
    if arguments.picture is not None:
        figures.save_for_pages(lambda width: draw_picture(results, width), arguments.picture)


if __name__ == "__main__":
    main()
