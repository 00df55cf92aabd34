"""What needs no tuning beside the best in hindsight: the automatic shrinkage, the plain rule, and others.

Run ``python experiments/automatic_choice.py [--features FILE.npz ...] [--seeds 10] [--out FILE.json]``.
Accuracies in percent, means over the seeds. "Best fixed" is the head and the γ of {0.001, 0.003, …, 10} that
are best on the test set, which nobody could have known; a loss is what a rule gives away to it. The small
data sets of scikit-learn have test parts of 59 and 189 examples, so that they are split 30 times. Feature
files cost the most, and are dealt out 3 times. Last come federations that were held out while the rule was
made: other seeds, sizes and clients.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_breast_cancer, load_wine

import covfree
from covfree.data import FeatureSet, load_digits, load_npz
from covfree.data.partitions import iid, inner_dirichlet
from covfree.studies.report import environment

FIXED = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# What the automatic rule is to be better than, the plain one first.
RULES = {
    "t min(1, d/ν)": covfree.pseudo_observations(),
    "0.2 tr/d": covfree.relative(0.2),
    "OAS": covfree.oas(),
    "Ledoit-Wolf": covfree.ledoit_wolf(),
}
SMALL_SET_SEEDS = 30
FILE_SEEDS = 3
# Classes, dimensions, examples a class, distance of the class means.
GAUSSIAN = ((2, 30, 150, 0.35), (5, 50, 100, 0.3), (50, 100, 40, 0.3), (100, 100, 30, 0.33))
HELD_OUT_GAUSSIAN = ((3, 20, 100, 0.5), (10, 60, 60, 0.35), (30, 40, 60, 0.5))
HELD_OUT_SEED = 100


class Federation(NamedTuple):
    """A data set for a seed, and how it is dealt out."""

    name: str
    data: Callable[[int], FeatureSet]
    clients: int
    alpha: float | None  # of the Dirichlet law; None: iid
    shift: float = 0.0  # standard deviation of the clients' offsets, over that of features within classes
    seeds: int | None = None
    first_seed: int = 0


def small_set(loader: Callable, seed: int) -> FeatureSet:
    """A data set of scikit-learn, standardised by the training part; a third of it is the test part."""
    features, labels = loader(return_X_y=True)
    is_test = np.random.default_rng(seed).permutation(len(labels)) < len(labels) // 3
    mean, scale = features[~is_test].mean(0), features[~is_test].std(0)
    features = ((features - mean) / scale).astype(np.float32)
    parts = (features[~is_test], labels[~is_test], features[is_test], labels[is_test])
    return FeatureSet("small", *parts, num_classes=int(labels.max()) + 1)


def gaussian_set(size: tuple[int, int, int, float], balanced: bool, seed: int) -> FeatureSet:
    """Gaussian classes of one covariance, its eigenvalues falling as 1/k; unbalanced: frequencies as 1/c."""
    num_classes, dim, per_class, distance = size
    rng = np.random.default_rng(seed)
    roots = []
    for _ in range(2):
        spectrum = 1 / np.arange(1, dim + 1)
        basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        roots.append(basis * np.sqrt(spectrum * dim / spectrum.sum()))
    # Classes differ half in directions of their own, half in those in which their examples differ.
    directions = (roots[0] + roots[1]).T / np.sqrt(2)
    means = distance * rng.normal(size=(num_classes, dim)) @ directions + rng.normal(size=dim)
    share = np.ones(num_classes) if balanced else 1 / np.arange(1, num_classes + 1)
    # Each class has 4 examples at least.
    counts = 4 + np.ceil((per_class - 4) * num_classes * share / share.sum()).astype(int)
    labels = np.repeat(np.arange(num_classes), counts)
    test_labels = rng.choice(labels, 4000)
    features, test_features = (
        (means[part] + rng.normal(size=(len(part), dim)) @ roots[0].T).astype(np.float32)
        for part in (labels, test_labels)
    )
    return FeatureSet("gaussian", features, labels, test_features, test_labels, num_classes)


def gaussian_federations(
    sizes: tuple, dealt: tuple[tuple[int, float | None, float], ...], first_seed: int = 0
) -> Iterator[Federation]:
    """Gaussian sets of these sizes, balanced and not, for each of (clients, α, shift)."""
    for size in sizes:
        for balanced in (True, False):
            name = f"Gaussian, {size[0]} classes{'' if balanced else ', unbalanced'}"
            data = partial(gaussian_set, size, balanced)
            for clients, alpha, shift in dealt:
                yield Federation(name, data, clients, alpha, shift, first_seed=first_seed)


def federations(files: list[Path]) -> Iterator[Federation]:
    """What the rule was made with."""
    shifts = ((30, 0.5, 0.5), (100, 0.1, 0.5), (30, 0.1, 1.0))
    for clients, alpha, shift in ((100, 0.1, 0), (30, 0.5, 0), (10, None, 0), (300, 0.1, 0), *shifts):
        yield Federation("digits", lambda seed: load_digits(seed=seed), clients, alpha, shift)
    for clients, alpha, shift in ((100, 0.5, 0), (30, 0.1, 0), (10, None, 0), (30, 0.5, 0.5)):
        for name, loader in (("breast cancer", load_breast_cancer), ("wine", load_wine)):
            yield Federation(name, partial(small_set, loader), clients, alpha, shift, SMALL_SET_SEEDS)
    for file in files:
        data = load_npz(file)
        even = ((100, 0.1, 0), (100, None, 0), (30, 0.5, 0), (300, 0.1, 0), (10, None, 0))
        for clients, alpha, shift in (*even, *shifts):
            yield Federation(file.stem, lambda seed, data=data: data, clients, alpha, shift, FILE_SEEDS)
    unshifted = ((10, None, 0.0), (100, 0.1, 0.0))
    weak = ((30, 0.5, 0.2), (300, 0.1, 0.2), (30, 0.5, 0.5))
    yield from gaussian_federations(GAUSSIAN, (*unshifted, *weak, (30, 0.1, 1.0), (300, 0.1, 1.0)))


def held_out(files: list[Path]) -> Iterator[Federation]:
    """What the rule was not made with."""
    first = HELD_OUT_SEED
    for clients, alpha, shift in ((10, 0.1, 2.0), (100, 0.05, 1.0), (250, 0.5, 0)):
        yield Federation(
            "digits", lambda seed: load_digits(seed=seed), clients, alpha, shift, first_seed=first
        )
    for clients, alpha, shift in ((10, 0.5, 0), (30, 0.1, 1.0)):
        for name, loader in (("breast cancer", load_breast_cancer), ("wine", load_wine)):
            yield Federation(name, partial(small_set, loader), clients, alpha, shift, SMALL_SET_SEEDS, first)
    for file in files:
        data = load_npz(file)
        for clients, alpha, shift in ((50, 0.2, 0), (20, 0.1, 0.7)):
            yield Federation(
                file.stem, lambda seed, data=data: data, clients, alpha, shift, FILE_SEEDS, first
            )
    yield from gaussian_federations(GAUSSIAN, ((30, 0.1, 1.0),), first)
    yield from gaussian_federations(
        HELD_OUT_GAUSSIAN, ((20, 0.1, 1.0), (50, 0.1, 0.7), (20, None, 0.3)), first
    )


def shifted(data: FeatureSet, owners: np.ndarray, scale: float, seed: int) -> FeatureSet:
    """Add an offset to each client's features; test examples are from as many clients that never trained."""
    features, clients = np.asarray(data.train_features), owners.max() + 1
    dim = features.shape[1]
    means, _ = covfree.class_means(features, data.train_labels, data.num_classes)
    within = features - np.asarray(means)[data.train_labels]
    scale = scale * np.sqrt(np.square(within, dtype=np.float32).mean())
    rng = np.random.default_rng([1, seed])
    mixing = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    offsets = (scale * rng.normal(size=(2 * clients, dim)) @ mixing).astype(np.float32)
    strangers = clients + rng.integers(0, clients, len(data.test_labels))
    return data._replace(
        train_features=data.train_features + offsets[owners],
        test_features=data.test_features + offsets[strangers],
    )


def padded(rows: covfree.Rows, examples: int) -> covfree.Rows:
    """Rows of small sets brought to one size, a multiple of 1,000, so that they share compiled functions."""
    if examples > 4500:
        return rows
    size = 1000 * -(-examples // 1000)
    return jax.tree.map(lambda x: jnp.pad(x, [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)), rows)


@partial(jax.jit, static_argnames="num_classes")
def accuracies(
    rows: covfree.Rows, features: jax.Array, labels: jax.Array, num_classes: int
) -> dict[str, jax.Array]:
    """Accuracy by head and rule, or by head for all fixed γ."""

    def score(head: covfree.LinearHead) -> jax.Array:
        return covfree.evaluate(head, features, labels)

    found = {}
    for head in ("lda", "ridge"):
        make: Any = partial(covfree.fedcof, head=head)
        totals = covfree.accumulate(make(), rows, num_classes=num_classes)

        def solved(shrinkage: Any, make: Any = make, totals: Any = totals) -> jax.Array:
            return score(covfree.solve_totals(make(shrinkage), *totals))

        found[f"{head} fixed"] = jax.lax.map(solved, jnp.array(FIXED))
        found[f"{head} auto"] = solved("auto")
    for name, rule in RULES.items():
        method = covfree.fedcof(rule)
        found[f"lda {name}"] = score(covfree.solve_rows(method, rows, num_classes=num_classes))
    found["ncm"] = score(covfree.ncm_head(covfree.first_moments(rows, num_classes)))
    return found


def measure(federation: Federation, seeds: int) -> dict:
    """Means over seeds."""
    runs = []
    for seed in range(federation.first_seed, federation.first_seed + (federation.seeds or seeds)):
        data = federation.data(seed)
        labels, clients, alpha = data.train_labels, federation.clients, federation.alpha
        owners = iid(labels, clients, seed=seed)
        if alpha is not None:
            owners = inner_dirichlet(labels, clients, alpha, seed=seed)
        if federation.shift:
            data = shifted(data, owners, federation.shift, seed)
        rows = covfree.summarise(covfree.fedcof(), data.train_features, labels, owners)
        found = accuracies(padded(rows, len(labels)), data.test_features, data.test_labels, data.num_classes)
        runs.append({name: 100 * np.asarray(value) for name, value in found.items()})
    mean = {name: np.mean([run[name] for run in runs], axis=0) for name in runs[0]}
    best = {head: float(mean[f"{head} fixed"].max()) for head in ("lda", "ridge")} | {
        "ncm": float(mean["ncm"])
    }
    gamma = {head: FIXED[int(mean[f"{head} fixed"].argmax())] for head in ("lda", "ridge")}
    winner = max(best, key=best.__getitem__)
    return {
        **{name: getattr(federation, name) for name in ("name", "clients", "alpha", "shift")},
        "seeds": len(runs),
        "held_out": federation.first_seed == HELD_OUT_SEED,
        "best": best,
        "best_gamma": gamma,
        "best_head": winner,
        "accuracy": {name: value.tolist() for name, value in mean.items()},
        "loss": {
            **{f"{head} auto": best[head] - float(mean[f"{head} auto"]) for head in ("lda", "ridge")},
            **{f"lda {name}": best["lda"] - float(mean[f"lda {name}"]) for name in RULES},
            "lda auto to best head": best[winner] - float(mean["lda auto"]),
        },
    }


def line(record: dict) -> str:
    """A row of the table."""
    best, loss, accuracy, gamma = (record[key] for key in ("best", "loss", "accuracy", "best_gamma"))
    winner = record["best_head"]
    alpha = "iid" if record["alpha"] is None else record["alpha"]
    at = f" at {gamma[winner]:g}" if winner in gamma else ""
    cells = [
        record["name"],
        f"{record['clients']}, {alpha}" + (f", shift {record['shift']:g}" if record["shift"] else ""),
        f"{best[winner]:.2f} {winner}{at}",
        f"{best['lda']:.2f} at {gamma['lda']:g}",
        f"{accuracy['lda auto']:.2f}",
        f"{accuracy['ridge auto']:.2f}",
        *(f"{loss[name]:.2f}" for name in ("lda auto", *(f"lda {rule}" for rule in RULES))),
        f"{loss['ridge auto']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def summary(records: list[dict]) -> Iterator[str]:
    """Mean and greatest loss of each rule over groups of federations, as its page shows them."""
    rules = [rule for rule in ("lda auto", *(f"lda {name}" for name in RULES)) if rule in records[0]["loss"]]
    made = [record for record in records if not record["held_out"]]
    groups: dict[str, list[dict]] = {}
    for record in made:
        groups.setdefault(re.sub(r", \d+ classes", "", record["name"]), []).append(record)
    groups["all"] = made
    groups["all, no shift"] = [record for record in made if not record["shift"]]
    groups["all, shift to 0.5"] = [record for record in made if 0 < record["shift"] <= 0.5]
    groups["all, shift above 0.5"] = [record for record in made if record["shift"] > 0.5]
    groups["held out"] = [record for record in records if record["held_out"]]
    yield "| " + " | ".join(["federations", "number", *(rule.removeprefix("lda ") for rule in rules)]) + " |"
    yield "|---" * (2 + len(rules)) + "|"
    for name, group in groups.items():
        if not group:
            continue
        losses = [[record["loss"][rule] for record in group] for rule in rules]
        cells = [f"{np.mean(loss):.2f}, {max(loss):.2f}" for loss in losses]
        yield "| " + " | ".join([name, str(len(group)), *cells]) + " |"


def main() -> None:
    """Print a line a federation and a summary, and write all figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, nargs="*", default=[], help=".npz files as covfree compare")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--only", default="", help="measure only federations whose name holds this")
    arguments = parser.parse_args()
    rules = " | ".join(f"LDA loss, {rule}" for rule in ("auto", *RULES))
    print(
        "| federation | clients, α | best fixed | best fixed, LDA | LDA auto | ridge auto "
        f"| {rules} | ridge loss, auto |"
    )
    print("|---" * (7 + 1 + len(RULES)) + "|")
    records = []
    for federation in chain(federations(arguments.features), held_out(arguments.features)):
        if arguments.only in federation.name:
            records.append(measure(federation, arguments.seeds))
            print(line(records[-1]), flush=True)
    print(*summary(records), sep="\n")
    if arguments.out is not None:
        content = {"seeds": arguments.seeds, "environment": environment(), "results": records}
        arguments.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
