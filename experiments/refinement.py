"""Refinement beside other ways from class means to the exact head: accuracy by rounds and by bytes.

Run ``python experiments/refinement.py [--features FILE] [--speech FOLDER] [--texts FOLDER] --out FOLDER``.
It writes ``results.json`` as it goes and goes on where it was stopped. Federations are the
digits, and the files given, over 10, 30 and 100 clients, with and without a shift of each client's
features; of speech also the speakers. Ways are FedCOF and its refinement, residual directions,
variance components, Fed3R, the exact covariance, and FedAvg and FedAdam from FedCOF's head: all clients in
each round, the best of three rates *on the test examples*, in their favour. Bytes are those of all clients,
both ways.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import numpy as np
from data_sets import Data, digits, shifted, speech, stored, texts

import covfree
from covfree import finetune, rounds
from covfree.data.partitions import inner_dirichlet

ROUNDS = 4
# Of clients over the mean squared norm of features, which bounds the curvature; of FedAdam's server.
RATES = {"FedAvg": (1.0, 4.0, 16.0), "FedAdam": (0.001, 0.003, 0.01)}
CLIENT_RATE = 4.0


# Rounds, bytes both ways, accuracy in %.
Point: TypeAlias = tuple[int, int, float]
# By federation: of each seed the points of each way.
Results: TypeAlias = dict[str, list[dict[str, list[Point]]]]


class Federation(NamedTuple):
    """How a data set is spread: over so many clients by Dirichlet's law, or as its own clients are (None)."""

    number: int | None
    alpha: float = 0.1
    moved: bool = False

    @property
    def title(self) -> str:
        """What tables call it."""
        if self.number is None:
            return "its own clients"
        return f"{self.number} clients, α = {self.alpha}{', shift' * self.moved}"

    def spread(self, data: Data, seed: int) -> tuple[Data, np.ndarray]:
        """Examples, and the client of each to train on."""
        if self.number is None:
            return data, cast(np.ndarray, data.clients)
        clients = inner_dirichlet(data.labels, self.number, self.alpha, seed=seed)
        return (shifted(data, clients, seed) if self.moved else data), clients


FEDERATIONS = [
    Federation(number, alpha, moved)
    for alpha, moved in ((0.1, False), (0.5, True), (0.1, True))
    for number in (10, 30, 100)
]


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `datasets` reads."""
    parser.add_argument("--features", type=Path, help=".npz file with features, labels and is_test")
    parser.add_argument("--speech", type=Path, help="folder of recordings digit_speaker_index.wav")
    parser.add_argument("--texts", type=Path, help="folder with data_full.json of CLINC150")
    parser.add_argument("--sentences", type=Path, help="the same through all-MiniLM-L6-v2: covfree extract's")


def datasets(arguments: argparse.Namespace) -> dict[str, Callable[[int], Data]]:
    """Each data set, given a seed of its split."""
    found: dict[str, Callable[[int], Data]] = {"digits": digits}
    if arguments.features is not None:
        found["Caltech-101"] = cache(lambda seed: stored(arguments.features))
    if arguments.speech is not None:
        found["speech"] = cache(lambda seed: speech(arguments.speech))
    if arguments.texts is not None:
        found["texts"] = cache(lambda seed: texts(arguments.texts))
    if arguments.sentences is not None:
        found["sentences"] = cache(lambda seed: stored(arguments.sentences))
    return found


def kept_runs(
    arguments: argparse.Namespace,
    federations: list[Federation],
    measure: Callable[[Data, np.ndarray], Any],
) -> dict[str, list[Any]]:
    """Measure what ``arguments.out``, a JSON file, lacks, and write it there as it goes.

    Clients that a data set brings along are a federation of one seed.
    """
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name, make in datasets(arguments).items():
        for seed in range(arguments.seeds):
            data = make(seed)
            own = [Federation(None)] if data.clients is not None and seed == 0 else []
            for federation in (*federations, *own):
                runs = results.setdefault(f"{name}, {federation.title}", [])
                if len(runs) <= seed:
                    runs.append(measure(*federation.spread(data, seed)))
                    arguments.out.write_text(json.dumps(results) + "\n")
                    print(name, federation.title, seed, file=sys.stderr, flush=True)
        # Of so many compiled functions a process has no room for all.
        jax.clear_caches()
    return results


def measured(data: Data, clients: np.ndarray, seed: int, training: int) -> dict[str, list[Point]]:
    """Of each way its points: rounds, bytes both ways, accuracy in %."""
    train, dim, key = (data.features, data.labels, clients), data.features.shape[1], jax.random.key(seed)
    found: dict[str, list[Point]] = {}

    def accuracy(head: Any) -> float:
        return 100 * float(covfree.evaluate(head, data.test_features, data.test_labels))

    def spent(method: Any) -> int:
        up = covfree.sent_bytes(method, data.labels, clients, dim=dim).total
        return up + covfree.received_bytes(method, data.labels, clients, dim=dim)

    def point(method: Any) -> Point:
        return 1, spent(method), accuracy(covfree.fit(method, *train, key=key))

    fedcof = covfree.fedcof()
    refined = covfree.refined(fedcof, ROUNDS)
    run = rounds.run(
        rounds.as_algorithm(refined, num_classes=int(data.labels.max()) + 1),
        *train,
        key=key,
        evaluate=lambda head: {"accuracy": accuracy(head)},
    )
    each = [fedcof, *(covfree.refined(fedcof, number) for number in range(1, ROUNDS + 1))]
    found["refined"] = [
        (1 + number, spent(method), record["accuracy"])
        for number, (method, record) in enumerate(zip(each, run.history, strict=True))
    ]
    found["FedCOF"] = found["refined"][:1]
    found["components"] = [point(covfree.fedcof_components())]
    found["directions"] = [point(covfree.fedcof_residuals(number)) for number in (1, 8)]
    found["Fed3R"] = [point(covfree.fed3r())]
    found["exact covariance"] = [point(covfree.fedcof_oracle())]
    return found | (trained(data, clients, seed, training, found["FedCOF"][0]) if training else {})


def trained(data: Data, clients: np.ndarray, seed: int, number: int, start: Point) -> dict[str, list[Point]]:
    """Points of FedAvg and FedAdam over so many rounds from FedCOF's head, whose point is given."""
    train, found = (data.features, data.labels, clients), {}
    head: Any = covfree.fit(covfree.fedcof(), *train)
    head = covfree.with_temperature(head, covfree.calibrate_temperature(head, *train[:2]))
    unit = float(np.square(data.features).sum(1).mean())
    for name, make in (("FedAvg", finetune.fedavg), ("FedAdam", finetune.fedadam)):
        runs = []
        for rate in RATES[name]:
            options: Any = {"client": rate / unit}
            if name == "FedAdam":
                options = {"client": CLIENT_RATE / unit, "server_lr": rate}
            run = rounds.run(
                make(finetune.linear_model(head), **options),
                *train,
                key=jax.random.key(seed),
                rounds=number,
                evaluate=lambda head: {
                    "accuracy": 100 * float(covfree.evaluate(head, data.test_features, data.test_labels))
                },
            )
            sent = start[1] + np.cumsum([r["bytes_up"] + r["bytes_down"] for r in run.history])
            runs.append(
                [(2 + r["round"], int(b), r["accuracy"]) for r, b in zip(run.history, sent, strict=True)]
            )
        # The best at the end, in their favour; a rate that diverges is not.
        found[name] = [start, *max(runs, key=lambda points: points[-1][2])]
    return found


def table(results: Results) -> str:
    """Mean accuracies in Markdown, of federations that all ways were run on."""
    ways = [
        ("FedCOF", "FedCOF", 0),
        *((f"+{number} round{'s' * (number > 1)}", "refined", number) for number in (1, 2, 3)),
        ("exact", "exact covariance", 0),
        ("Fed3R", "Fed3R", 0),
        ("components", "components", 0),
        ("8 directions", "directions", 1),
        ("FedAvg", "FedAvg", -1),
        ("FedAdam", "FedAdam", -1),
    ]
    lines = [f"| | seeds | {' | '.join(title for title, *_ in ways)} |", "|---" * (len(ways) + 2) + "|"]
    for name, runs in results.items():
        cells = [
            f"{np.mean([run[way][index][2] for run in runs]):.1f}" if way in runs[0] else "–"
            for _, way, index in ways
        ]
        lines.append(f"| {name} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all federations, print a table, write JSON and pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_data_options(parser)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the name of the federations to run")
    parser.add_argument("--training", type=int, default=20, help="rounds of FedAvg and FedAdam; 0 for none")
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and the pictures")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "results.json"
    results: Results = json.loads(file.read_text()) if file.exists() else {}
    for name, load in datasets(arguments).items():
        for federation in [*FEDERATIONS, *([Federation(None)] if load(0).clients is not None else [])]:
            if arguments.only not in f"{name}, {federation.title}":
                continue
            runs = results.setdefault(f"{name}, {federation.title}", [])
            for seed in range(len(runs), arguments.seeds if federation.number else 1):
                runs.append(measured(*federation.spread(load(seed), seed), seed, arguments.training))
                ends = {way: round(points[-1][2], 2) for way, points in runs[-1].items()}
                print(f"{name}, {federation.title}, seed {seed}: {ends}", file=sys.stderr, flush=True)
                file.write_text(json.dumps(results) + "\n")
            # Of so many compiled functions a process has no room for all.
            jax.clear_caches()
    print(table({name: runs for name, runs in results.items() if runs}))


if __name__ == "__main__":
    main()
