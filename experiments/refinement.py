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

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from data_sets import Data, Federation, kept_runs, markdown, options

import covfree
from covfree import finetune, rounds

ROUNDS = 4
# Of clients over the mean squared norm of features, which bounds the curvature; of FedAdam's server.
RATES = {"FedAvg": (1.0, 4.0, 16.0), "FedAdam": (0.001, 0.003, 0.01), "SCAFFOLD": (1.0, 4.0, 16.0)}
MAKERS = {"FedAvg": finetune.fedavg, "FedAdam": finetune.fedadam, "SCAFFOLD": finetune.scaffold}
CLIENT_RATE = 4.0


# Rounds, bytes both ways, accuracy in %; perhaps more figures.
Point: TypeAlias = tuple[Any, ...]
# By federation: of each seed the points of each way.
Results: TypeAlias = Mapping[str, Sequence[Mapping[str, Sequence[Point]]]]


FEDERATIONS = [
    Federation(number, alpha, moved)
    for alpha, moved in ((0.1, False), (0.5, True), (0.1, True))
    for number in (10, 30, 100)
]
# Columns of the table: title, way, and the place of its point.
WAYS = [
    ("FedCOF", "FedCOF", 0),
    *((f"+{number} round{'s' * (number > 1)}", "refined", number) for number in (1, 2, 3)),
    ("exact", "exact covariance", 0),
    ("Fed3R", "Fed3R", 0),
    ("components", "components", 0),
    ("8 directions", "directions", 1),
    ("FedAvg", "FedAvg", -1),
    ("FedAdam", "FedAdam", -1),
]


def measured(data: Data, clients: np.ndarray, seed: int, *, training: int) -> dict[str, list[Point]]:
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
    if training:
        train_by = partial(trained, data, clients, seed, training, found["FedCOF"][0])
        found |= train_by(("FedAvg", "FedAdam"), lambda head: {"accuracy": accuracy(head)})
    return found


def trained(
    data: Data,
    clients: np.ndarray,
    seed: int,
    number: int,
    start: Point,
    names: Sequence[str],
    measure: Callable[[Any], dict[str, float]],
) -> dict[str, list[Point]]:
    """Points of federated training over so many rounds from FedCOF's head, whose point is ``start``.

    ``measure`` gives the figures of a head, the accuracy first.
    """
    train, found = (data.features, data.labels, clients), {}
    head: Any = covfree.fit(covfree.fedcof(), *train)
    head = covfree.with_temperature(head, covfree.calibrate_temperature(head, *train[:2]))
    unit = float(np.square(data.features).sum(1).mean())
    figures = list(measure(head))
    for name in names:
        runs = []
        for rate in RATES[name]:
            own: Any = {"client": rate / unit}
            if name == "FedAdam":
                own = {"client": CLIENT_RATE / unit, "server_lr": rate}
            run = rounds.run(
                MAKERS[name](finetune.linear_model(head), **own),
                *train,
                key=jax.random.key(seed),
                rounds=number,
                evaluate=measure,
            )
            sent = start[1] + np.cumsum([r["bytes_up"] + r["bytes_down"] for r in run.history])
            runs.append(
                [
                    (start[0] + 1 + r["round"], int(b), *(r[figure] for figure in figures))
                    for r, b in zip(run.history, sent, strict=True)
                ]
            )
        # The best at the end, in their favour; a rate that diverges is not.
        found[name] = [start, *max(runs, key=lambda points: points[-1][2])]
    return found


def table(results: Results, ways: Sequence[tuple[str, str, int]] = WAYS, figure: int = 2) -> str:
    """Means of a figure in Markdown; a way has a title, its name, and the place of its point."""
    rows = {}
    for name, runs in results.items():
        found = [[run[way][place][figure] for run in runs if way in run] for _, way, place in ways]
        digits = 1 if figure == 2 else 3
        rows[name] = [str(len(runs)), *(f"{np.mean(each):.{digits}f}" if each else "–" for each in found)]
    return markdown(["seeds", *(title for title, *_ in ways)], rows)


def main() -> None:
    """Measure all federations, print a table, write JSON."""
    parser = options(__doc__, seeds=5)
    parser.add_argument("--training", type=int, default=20, help="rounds of FedAvg and FedAdam; 0 for none")
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    arguments.out.mkdir(parents=True, exist_ok=True)
    measure = partial(measured, training=arguments.training)
    print(table(kept_runs(arguments, FEDERATIONS, measure, arguments.out / "results.json")))


if __name__ == "__main__":
    main()
