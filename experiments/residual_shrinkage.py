"""Rules for the shrinkage of residual directions beside the automatic one, with a float more a client.

Run ``python experiments/residual_shrinkage.py [--features FILE] [--speech FOLDER] [--texts FOLDER]``. The
float is τ_k, the trace of what a client's q directions leave out. All covariances are computed by NumPy in
float64; γ is that of the automatic rule, given degrees of freedom: L of the directions sent, as
`fedcof_residuals` has it, or A of the examples. Columns are A; √(γ_L γ_A); γ_L^s γ_A^(1 − s), s the share of
τ in the trace; γ_A, but at least the mean of τ over directions; γ for which the rows of means predict the
least error; its geometric mean with γ_L; the covariance completed in the shape
that it has given the directions, with A, and with γ from the rows; and the best γ *on the test examples*.
"4 classes" are unions of classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from data_sets import Data, datasets, options, shifted
from residual_directions import GAMMAS, accuracies, merged, shaped

import covfree
from covfree.data.partitions import inner_dirichlet
from covfree.estimators.automatic.predicted import Margins, predicted_error
from covfree.estimators.directed import DirectedMoments, directed_freedom

NUMBERS = 2, 4, 8, 16
RULES = (
    "A",
    "√(L A)",
    "by the rest's share",
    "A, at least the rest",
    "rows",
    "√(L rows)",
    "completed, A",
    "completed, rows",
    "best",
)
SEEDS = {"digits": 3, "speech": 3}  # elsewhere one


def federations(data: Data, seed: int) -> Iterator[tuple[str, Data, np.ndarray]]:
    """Titles, examples and clients."""
    for number, alpha, moved, four in (
        (100, 0.1, False, False),
        (30, 0.1, False, False),
        (10, 0.5, True, False),
        (30, 0.1, True, False),
        (30, 0.1, False, True),
        (100, 0.1, False, True),
    ):
        mine = merged(data, 4) if four else data
        clients = inner_dirichlet(mine.labels, number, alpha, seed=seed)
        title = f"{'4 classes, ' * four}{number} clients, α = {alpha}{', shift' * moved}"
        yield title, shifted(mine, clients, seed) if moved else mine, clients


class Sums(NamedTuple):
    """What the server knows but for the directions, and each client's singular values and vectors."""

    counts: np.ndarray
    mean: np.ndarray
    held: np.ndarray
    moments: covfree.Moments
    seen: np.ndarray
    inside: list[tuple[np.ndarray, np.ndarray, int]]


def sums(data: Data, clients: np.ndarray) -> Sums:
    """Sum over clients."""
    features, labels = data.features.astype(np.float64), data.labels
    classes = int(labels.max()) + 1
    count, mean = np.bincount(labels, minlength=classes), np.zeros((classes, features.shape[1]))
    np.add.at(mean, labels, features)
    mean /= np.maximum(count, 1)[:, None]
    rows, inside = [], []
    for k in np.unique(clients):
        residuals = []
        for c in np.unique(labels[clients == k]):
            mine = features[(clients == k) & (labels == c)]
            rows.append((mine.mean(0), len(mine), c))
            residuals.append(mine - mine.mean(0))
        degrees = sum(map(len, residuals)) - len(residuals)
        if degrees:
            _, size, vectors = np.linalg.svd(np.concatenate(residuals), full_matrices=False)
            inside.append((size[:degrees], vectors[:degrees], degrees))
    means, sizes, label = (np.array(column) for column in zip(*rows, strict=True))
    factor = np.sqrt(sizes)[:, None] * (means - mean[label])
    sent = covfree.Rows(*map(jnp.asarray, (means.astype(np.float32), sizes, label)))
    moments = covfree.first_moments(sent, classes)
    return Sums(count, mean, np.bincount(label, minlength=classes), moments, factor.T @ factor, inside)


def gains(data: Data, known: Sums, number: int) -> np.ndarray:
    """What each rule gains on γ_L, in points."""
    count, dim = known.counts, known.mean.shape[1]
    degrees = np.maximum(count - 1, 0).sum()
    parts = [size[:number, None] * vectors[:number] for size, vectors, _ in known.inside]
    sent = sum((part.T @ part for part in parts), np.zeros((dim, dim)))
    rests = [((size[number:] ** 2).sum(), vectors[:number]) for size, vectors, _ in known.inside]
    rest = float(sum(tau for tau, _ in rests))
    plain = (known.seen + sent) / degrees
    whole = plain + shaped(known.seen, sent, rests, known.held, degrees) / degrees
    examples = sum(hidden for *_, hidden in known.inside)
    directions = sum(min(number, hidden) for *_, hidden in known.inside)

    def automatic(covariance: np.ndarray, freedom: int) -> float:
        of = directed_freedom(DirectedMoments(known.moments, jnp.float32(freedom)))
        of = of.scaled(1 / known.moments.within_degrees)
        matrix, rule = (
            covfree.linalg.Scatter.from_matrix(jnp.asarray(covariance, jnp.float32)),
            covfree.automatic(),
        )
        scale, shift = rule.rule(jnp.zeros(()), matrix, known.moments, of, None)
        return float(shift / scale)

    few, many = automatic(plain, directions), automatic(plain, examples)
    share = rest / (rest + np.trace(plain) * degrees)
    unit = np.trace(plain) / dim
    rules = [
        few,
        many,
        np.sqrt(few * many),
        few**share * many ** (1 - share),
        max(many, rest / dim / degrees),
    ]
    rows = by_rows(known, plain)
    rules += [rows, np.sqrt(few * rows)]
    found = accuracies(data, plain, known.mean, count, [*rules, *(GAMMAS * unit)])
    of_whole = automatic(whole, examples), by_rows(known, whole, excess(known, sent, rest))
    completed = accuracies(data, whole, known.mean, count, of_whole)
    return np.array([*found[1 : len(rules)], *completed, max(found[len(rules) :])]) - found[0]


def excess(known: Sums, sent: np.ndarray, rest: float) -> float:
    """How much larger the scatter of means is than that inside clients, a degree of freedom; 1 at least."""
    between = np.maximum(known.held - 1, 0).sum()
    inside = np.maximum(known.counts - 1, 0).sum() - between
    return max(1.0, np.trace(known.seen) / between / ((np.trace(sent) + rest) / inside))


def by_rows(known: Sums, covariance: np.ndarray, excess: float = 1.0) -> float:
    """γ whose predicted error is least, where the rows of means test the covariance.

    A row x of the scatter S has xᵀHx = T/(1 + T/ν) on average, for H = (Σ̂ + γI)⁻¹, T = tr(HΣ) and ν = N − C.
    So tr(HS) gives T, and aᵀHSHa·(1 + T/ν)² the variance of a margin along a. Where clients differ, by the
    factor ``excess``, ρ, S/ρ has the share 1/ρ in both, and Σ̂ itself the rest.
    """
    count, dim, spread = known.counts.astype(float), len(covariance), known.seen
    degrees, between = np.maximum(count - 1, 0).sum(), np.maximum(known.held - 1, 0).sum()
    values, vectors = np.linalg.eigh(covariance)
    unit = np.trace(covariance) / dim
    values = np.maximum(values, 0) / unit
    inside = vectors.T @ spread @ vectors / unit
    means = (known.mean - count @ known.mean / count.sum()) @ vectors / np.sqrt(unit)
    held = np.flatnonzero(count)
    means, count = means[held], count[held]
    found = []
    for gamma in GAMMAS:
        inverse = 1 / (values + gamma)
        seen, whole = (inverse * np.diagonal(inside)).sum(), (inverse * values).sum()
        own = seen / max(between - seen / degrees, 1e-6 * between)
        trace = own / excess**2 + (1 - 1 / excess) * whole
        bent = means * inverse
        parts = (
            bent @ inside @ bent.T * (1 + own / degrees) ** 2 / between / excess**2
            + (1 - 1 / excess) * (bent * values) @ bent.T
        )
        distance, variance = (
            np.diagonal(m)[:, None] + np.diagonal(m) - 2 * m for m in (bent @ means.T, parts)
        )
        found.append((0.5 * distance - trace / count[:, None], variance * (1 + 1 / count[:, None])))
    prior = count / count.sum()
    mean, variance = (jnp.asarray(np.stack(column), jnp.float32) for column in zip(*found, strict=True))
    odds = jnp.asarray(np.log(prior)[:, None] - np.log(prior), jnp.float32)
    margins = Margins(mean, variance, odds, ~jnp.eye(len(held), dtype=bool), jnp.asarray(prior, jnp.float32))
    error = np.asarray(predicted_error(margins, jnp.asarray(GAMMAS), jnp.ones(1)))[:, 0].astype(float)
    away = (np.log10(GAMMAS) - np.log10(min(1, dim / degrees))) / 0.4
    doubt = degrees * (error - error.min()) + 0.5 * away**2
    belief = np.exp(doubt.min() - doubt)
    return unit * 10 ** float(belief @ np.log10(GAMMAS) / belief.sum())


def main() -> None:
    """Print a row a federation: the mean over q, and the least; then the same over all."""
    arguments = options(__doc__).parse_args()
    covfree.limit_lapack_threads()
    print(f"| | {' | '.join(RULES)} |")
    print("|---" * (1 + len(RULES)) + "|")
    every = []
    for name, load in datasets(arguments).items():
        found: dict[str, list[np.ndarray]] = {}
        for seed in range(SEEDS.get(name, 1)):
            for title, data, clients in federations(load(seed), seed):
                if arguments.only not in f"{name}, {title}":
                    continue
                known = sums(data, clients)
                each = np.array([gains(data, known, number) for number in NUMBERS])
                found.setdefault(title, []).append(each)
        for title, runs in found.items():
            each = np.mean(runs, 0)
            every.append(each)
            print(f"| {name}, {title} | {cells(each)} |", flush=True)
    print(f"| all | {cells(np.concatenate(every))} |")


def cells(each: np.ndarray) -> str:
    """The mean and the least of each column."""
    return " | ".join(
        f"{mean:+.1f} ({least:+.1f})" for mean, least in zip(each.mean(0), each.min(0), strict=True)
    )


if __name__ == "__main__":
    main()
