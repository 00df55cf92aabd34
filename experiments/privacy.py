"""Accuracy under differential privacy, by ε, kind of noise, and what is hidden.

Run ``python experiments/privacy.py [--features FILE] --out FILE.json [--seeds N] [--large] [--only TEXT]``.
The file has features, labels and is_test. Training examples are drawn from a Gaussian model of its training
features, with class means and one covariance, after a public projection to 256, as many as a federation
needs; test examples are the real ones. It writes the file as it goes, goes on where it was stopped, draws a
picture beside it, and prints two tables: of the model, and of whole sets with every method.

``--projections`` with ``--features`` prints accuracy by the number of features after a public projection.
``python experiments/privacy.py --audit RUNS`` bounds the ε of mechanisms from below, and prints a table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from data_sets import Data, digits, stored
from matplotlib.figure import Figure

import covfree
from covfree.privacy import audit_epsilon, private, public_projection
from covfree.studies.plots import style as figures

EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-6
# Name, clients, examples of each, and how it is made private; a client weighs a tenth of its examples.
FEDERATIONS: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("central, K = 1,000, n = 100", 1000, 100, {}),
    ("distributed, K = 1,000, n = 100", 1000, 100, {"noise": "distributed", "honest": 1000}),
    ("central, K = 100, n = 500", 100, 500, {}),
    ("client level, K = 100, n = 500", 100, 500, {"unit": "client", "weight": 50.0}),
    ("client level, K = 1,000, n = 100", 1000, 100, {"unit": "client", "weight": 10.0}),
    ("local, K = 1,000, n = 100", 1000, 100, {"noise": "local"}),
)
# Again with a public centre and without, both on the model of nine tenths of the training examples: the tenth
# that is left out is the public part, from which the centre and the clip come.
CENTRED = FEDERATIONS[4:]
LARGE = ("client level, K = 10,000, n = 50", 10_000, 50, {"unit": "client", "weight": 5.0})
METHODS: dict[str, Callable[[], Any]] = {
    "FedNCM": covfree.fedncm,
    "FedCOF": covfree.fedcof,
    "Fed3R": covfree.fed3r,
    "FedCGS": covfree.fedcgs,
}


def model(data: Data, clients: int, each: int, rng: np.random.Generator) -> tuple[Data, np.ndarray]:
    """Draw a federation, Dirichlet 0.1, from a Gaussian model of the training features; and its clients."""
    x, y = data.features.astype(np.float64), data.labels
    classes = int(y.max()) + 1
    means = np.stack([x[y == c].mean(0) for c in range(classes)])
    residual = x - means[y]
    root = np.linalg.cholesky(residual.T @ residual / (len(x) - classes) + 1e-9 * np.eye(x.shape[1]))
    shares = rng.dirichlet(np.full(classes, 0.1), clients)
    labels = np.concatenate([rng.choice(classes, each, p=share) for share in shares])
    drawn = np.empty((len(labels), x.shape[1]), np.float32)
    for part in np.array_split(np.arange(len(labels)), max(1, len(labels) // 50_000)):
        drawn[part] = means[labels[part]] + rng.normal(size=(len(part), x.shape[1])) @ root.T
    return data._replace(features=drawn, labels=labels), np.repeat(np.arange(clients), each)


def accuracy(head: Any, data: Data) -> float:
    """In %."""
    return 100 * float((np.asarray(head(data.test_features)).argmax(-1) == data.test_labels).mean())


def projected(data: Data, number: int) -> Data:
    """Both parts after a public projection."""
    chosen = public_projection(number)
    x, test = np.asarray(chosen(data.features)), np.asarray(chosen(data.test_features))
    return data._replace(features=x, test_features=test)


def public_part(data: Data) -> tuple[Data, np.ndarray]:
    """Without every tenth training example; and the features of these."""
    public = np.arange(len(data.labels)) % 10 == 0
    return data._replace(features=data.features[~public], labels=data.labels[~public]), data.features[public]


def clip_of(data: Data) -> float:
    """The median norm, taken as public: it would come from other data of the same backbone."""
    return float(np.median(np.linalg.norm(data.features, axis=1)))


def row(data: Data, clients: np.ndarray, epsilon: float | None, names: list[str], how: dict) -> list[float]:
    """Accuracy of methods on one federation, private unless ε is None."""
    found = []
    for name in names:
        if epsilon is None:
            # The exact covariance, of which the second moment tells: FedCOF's oracle.
            method = covfree.fedcof_oracle() if name == "FedCOF" else METHODS[name]()
            centre = how.get("centre", np.float32(0))
            head: Any = covfree.fit(method, data.features - centre, data.labels, clients)
            found.append(accuracy(head, data._replace(test_features=data.test_features - centre)))
        else:
            number = int(data.labels.max()) + 1
            made = private(METHODS[name](), epsilon=epsilon, delta=DELTA, **{"clip": clip_of(data), **how})
            head = made.fit(data.features, data.labels, clients, num_classes=number)
            found.append(accuracy(head, data))
    return found


def sets(features: Path | None) -> Iterator[tuple[str, Callable[[], Data]]]:
    """Whole sets, real and drawn, which the second table is of."""
    yield "digits, 1,201 examples of 64", lambda: digits(0)
    rng = np.random.default_rng(0)
    centres, labels = rng.normal(size=(5, 20)), rng.integers(0, 5, 20_000)
    spread = np.geomspace(0.05, 8, 20) ** 0.5
    for shift in (0.0, 3.0):
        x = (centres[labels] + shift + spread * rng.normal(size=(20_000, 20))).astype(np.float32)
        half = Data(x[:10_000], labels[:10_000], x[10_000:], labels[10_000:])
        yield f"Gaussians, 10,000 examples of 20, mean {shift:.0f}", lambda half=half: half
    if features is not None:
        yield "Caltech-101, 5,818 examples of 128", lambda: projected(stored(features), 128)
        of_model = projected(stored(features), 128)
        yield (
            "Caltech-101's model, 20,000 examples of 128",
            lambda: model(of_model, 200, 100, np.random.default_rng(0))[0],
        )


def table(results: dict[str, dict[str, list[list[float]]]], names: list[str], kept: Callable) -> str:
    """In Markdown: means over seeds; of five and more, their standard errors too."""

    def cell(values: np.ndarray) -> str:
        mean = f"{values.mean():.1f}"
        return f"{mean} ± {values.std(ddof=1) / len(values) ** 0.5:.1f}" if len(values) >= 5 else mean

    lines = [f"| | ε | {' | '.join(names)} |", f"|---|---{'|---' * len(names)}|"]
    for name, by_epsilon in results.items():
        if not kept(name):
            continue
        for epsilon, runs in by_epsilon.items():
            lines.append(f"| {name} | {epsilon} | {' | '.join(map(cell, np.array(runs).T))} |")
    return "\n".join(lines)


def picture(results: dict[str, dict[str, list[list[float]]]], path: Path) -> None:
    """Draw accuracy by ε, whole and above 86 %: one colour a federation, solid FedCOF, dashed FedNCM."""
    left_out = ("centre", "examples of")
    chosen = {name: runs for name, runs in results.items() if not any(each in name for each in left_out)}

    def draw(width: float) -> Figure:
        wide = width == figures.PAGE
        figure = figures.new_figure(width, 3.6 if wide else 6.2)
        figures.set_title(figure, "Caltech-101's model, K clients of n examples; solid FedCOF, dashed FedNCM")
        halves = figure.subplots(*((1, 2) if wide else (2, 1)))
        for axes, limits in zip(halves, ((0, 100), (86, 93)), strict=True):
            for (name, runs), colour in zip(chosen.items(), figures.palette(len(chosen)), strict=True):
                means = np.array([np.mean(runs[str(epsilon)], axis=0) for epsilon in EPSILONS])
                axes.plot(EPSILONS, means[:, 1], color=colour, marker="o", label=name)
                axes.plot(EPSILONS, means[:, 0], color=colour, linestyle="--")
            without = np.mean(results[FEDERATIONS[0][0]]["none"], axis=0)
            axes.axhline(without[1], color="grey", label="no noise")
            axes.axhline(without[0], color="grey", linestyle="--")
            axes.set(xscale="log", xlabel="ε", ylabel="accuracy in %", ylim=limits)
            axes.set_title("all" if limits[0] == 0 else f"above {limits[0]} %")
            axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
            axes.minorticks_off()
        figures.legend_below(figure, halves[0].get_legend_handles_labels()[0])
        return figure

    with figures.style():
        figures.save_for_pages(draw, path)


def projections(features: Path) -> str:
    """In Markdown: accuracy by the number of features after a public projection; None is all 1,280."""
    lines = ["| Examples | features | FedNCM, ε = 1 / 4 | FedCOF, ε = 1 / 4 |", "|---|---|---|---|"]
    for clients, numbers in ((200, (64, 128, 256, 512, None)), (1000, (256, None))):
        data, owners = model(stored(features), clients, 100, np.random.default_rng(0))
        for number in numbers:
            how = {"projection": number}
            found = [row(data, owners, epsilon, ["FedNCM", "FedCOF"], how) for epsilon in (1.0, 4.0)]
            cells = (" / ".join(f"{each[place]:.1f}" for each in found) for place in (0, 1))
            lines.append(f"| {len(owners):,} | {number or data.features.shape[1]:,} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def audits(runs: int) -> str:
    """In Markdown: the lower bound on ε of so many runs of a mechanism, with 99 % confidence."""
    lines = ["| Noise | claimed ε | lower bound |", "|---|---|---|"]
    for noise in ("central", "local"):
        for epsilon in (1.0, 4.0):
            made = private(covfree.fedncm(), epsilon=epsilon, delta=1e-3, clip=1.0, noise=noise)
            found = audit_epsilon(made, runs=runs, confidence=0.99)
            lines.append(f"| {noise} | {found.claimed:.2f} | {found.lower:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, help=".npz file with features, labels and is_test")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--large", action="store_true", help="also 10,000 clients: 3 minutes, 3 GB")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--audit", type=int, help="runs of an audit of ε, instead of all else")
    parser.add_argument("--projections", action="store_true", help="by projection, instead of all else")
    parser.add_argument("--out", type=Path, default=Path("privacy.json"), help="JSON file")
    arguments = parser.parse_args()
    if arguments.audit:
        print(audits(arguments.audit))
        return
    if arguments.projections:
        print(projections(arguments.features))
        return
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}

    def add(name: str, seed: int, data: Data, clients: np.ndarray, names: list[str], how: dict) -> None:
        for epsilon in (None, *EPSILONS):
            runs = results.setdefault(name, {}).setdefault(str(epsilon or "none"), [])
            if len(runs) <= seed:
                runs.append(row(data, clients, epsilon, names, how))
                arguments.out.write_text(json.dumps(results) + "\n")

    for seed in range(arguments.seeds):
        for name, make in sets(arguments.features):
            if arguments.only in name:
                data = make()
                add(name, seed, data, np.arange(len(data.labels)) % 100, list(METHODS), {})
        if arguments.features is not None:
            real = projected(stored(arguments.features), 256)
            more = (LARGE,) if arguments.large and not seed else ()
            for name, clients, each, how in (*FEDERATIONS, *more):
                if arguments.only in name:
                    data, owners = model(real, clients, each, np.random.default_rng(seed))
                    add(name, seed, data, owners, ["FedNCM", "FedCOF"], how)
            private_part, public = public_part(real)
            for name, clients, each, how in CENTRED:
                for kind, centre in (("no centre", 0 * public[0]), ("public centre", public.mean(0))):
                    if arguments.only in f"{name}, {kind}":
                        data, owners = model(private_part, clients, each, np.random.default_rng(seed))
                        clip = float(np.median(np.linalg.norm(public - centre, axis=1)))
                        add(
                            f"{name}, {kind}",
                            seed,
                            data,
                            owners,
                            ["FedNCM", "FedCOF"],
                            {**how, "centre": centre, "clip": clip},
                        )
    if all(name in results for name, *_ in FEDERATIONS):
        picture(results, arguments.out)
    print(table(results, ["FedNCM", "FedCOF"], lambda name: "K =" in name))
    print(table(results, list(METHODS), lambda name: "K =" not in name))


if __name__ == "__main__":
    main()
