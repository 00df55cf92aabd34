"""A closed-form head corrected by softmax regression in rounds, beside training and all data in one place.

Run ``python experiments/corrected.py [--features FILE] [--speech FOLDER] [--texts FOLDER] --out FOLDER``.
It writes ``results.json`` as it goes and goes on where it was stopped. Federations are the digits and the
files given, over 100 clients (Caltech-101 also over 10), α = 0.1, with and without a shift of each client's
features. Ways are the corrections of FedCOF's head, of a Student head and of a refined one; refinement alone;
FedAvg, FedAdam and SCAFFOLD from FedCOF's head, at each seed the best of three rates *on the test
examples*, in their favour; and logistic regression on all examples in one place, its penalty by
cross-validation at the first seed. Bytes are those of all clients, both ways.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from data_sets import Data
from refinement import CLIENT_RATE, Federation, add_data_options, datasets

import covfree
from covfree import finetune, rounds
from covfree.engine.examples import over_examples, over_rows
from covfree.engine.totals import How, through
from covfree.heads.metrics import measure
from covfree.studies.pooled import PENALTIES, pooled_head

STEPS = 4  # rounds of gradients
RATES = {"FedAvg": (1.0, 4.0, 16.0), "FedAdam": (0.001, 0.003, 0.01), "SCAFFOLD": (1.0, 4.0, 16.0)}
# Rounds after the first message, bytes both ways, accuracy in %, negative log-likelihood, calibration error.
Point: TypeAlias = tuple[int, int, float, float, float]
# Of each federation its seeds, of each the points of each way.
Results: TypeAlias = dict[str, list[dict[str, list[Point]]]]
FEDERATIONS = [Federation(number, 0.1, moved) for moved in (False, True) for number in (100, 10)]


def point(number: int, size: int, head: Any, data: Data) -> Point:
    """Measure a head on the test examples."""
    scores = jnp.asarray(head(data.test_features))
    found = measure(scores, data.test_labels, ("accuracy", "nll", "ece"))
    return number, size, 100 * found["accuracy"], found["nll"], found["ece"]


def curve(method: Any, data: Data, clients: np.ndarray, classes: int) -> list[Point]:
    """Points of a method after its message and after each round over examples."""
    train, how = (data.features, data.labels, clients), How(classes, method.whole_clients)
    first, dim = method.rounds_over_rows, data.features.shape[1]
    down = covfree.received_bytes(method, data.labels, clients, dim=dim)
    sent = covfree.sent_bytes(method, data.labels, clients, dim=dim).total
    own = covfree.sent_bytes(covfree.fedcof(), data.labels, clients, dim=dim).total
    state = through(method.rounds[:first], method.params, over_rows(method, *train, how, None))
    source = over_examples(method, *train, how)
    found = [point(0, own, covfree.solve_totals(method, *state), data)]
    later = method.rounds[first:]
    for number, each in enumerate(later):
        state = through((each,), method.params, source, state)
        # Rounds differ little in size; the whole is spread evenly over them.
        size = own + (sent + down - own) * (number + 1) // len(later)
        found.append(point(number + 1, size, covfree.solve_totals(method, *state), data))
    return found


class Pooled:
    """Logistic regression on all examples of a federation's seeds; the penalty is that of the first seed."""

    def __init__(self) -> None:
        self._features, self._head, self._penalties = None, None, PENALTIES

    def head(self, data: Data, classes: int) -> Any:
        """The head; that of the last call if the examples are the same."""
        if self._features is not data.features:
            train = data.features, data.labels, classes
            self._head, penalty = pooled_head(*train, penalties=self._penalties)
            self._penalties = (penalty,)
            self._features = data.features
        return self._head


def measured(
    found: dict[str, list[Point]], data: Data, clients: np.ndarray, seed: int, training: int, pooled: Pooled
) -> dict[str, list[Point]]:
    """Points of each way; those that were found are not measured again."""
    classes = int(data.labels.max()) + 1
    starts = {
        "FedCOF": covfree.fedcof(),
        "Student": covfree.fedcof(head="student"),
        "refined once": covfree.refined(covfree.fedcof(), 1),
    }
    methods = {f"{name}, corrected": covfree.corrected(start, STEPS) for name, start in starts.items()}
    methods["refined"] = covfree.refined(covfree.fedcof(), 4)
    for name, method in methods.items():
        if name not in found:
            found[name] = curve(method, data, clients, classes)
    if "pooled" not in found:
        found["pooled"] = [point(0, data.features.size * 4, pooled.head(data, classes), data)]
    if training and not set(RATES) <= set(found):
        found |= trained(data, clients, seed, training, found["FedCOF, corrected"][0])
    return found


def trained(data: Data, clients: np.ndarray, seed: int, number: int, start: Point) -> dict[str, list[Point]]:
    """Points of federated training over so many rounds from FedCOF's head, whose point is given."""
    train, found = (data.features, data.labels, clients), {}
    head: Any = covfree.fit(covfree.fedcof(), *train)
    head = covfree.with_temperature(head, covfree.calibrate_temperature(head, *train[:2]))
    unit = float(np.square(data.features).sum(1).mean())
    makers = {"FedAvg": finetune.fedavg, "FedAdam": finetune.fedadam, "SCAFFOLD": finetune.scaffold}
    for name, make in makers.items():
        runs = []
        for rate in RATES[name]:
            options: Any = {"client": rate / unit}
            if name == "FedAdam":
                options = {"client": CLIENT_RATE / unit, "server_lr": rate}
            points, size = [start], start[1]

            def evaluate(head: Any, points: Any = points) -> dict[str, float]:
                points.append(point(len(points), 0, head, data))
                return {}

            run = rounds.run(
                make(finetune.linear_model(head), **options),
                *train,
                key=jax.random.key(seed),
                rounds=number,
                evaluate=evaluate,
            )
            # The first evaluation is of the start, calibrated.
            del points[1]
            for index, record in enumerate(run.history):
                size += int(record["bytes_up"] + record["bytes_down"])
                points[index + 1] = (index + 1, size, *points[index + 1][2:])
            runs.append(points)
        # The best at the end, in their favour.
        found[name] = max(runs, key=lambda points: points[-1][2])
    return found


def table(results: Results, figure: int = 2) -> str:
    """Means over seeds in Markdown; a figure is an index of a point."""
    starts, numbers = ("FedCOF", "Student"), (0, 2, 3, 4, 5)
    ways = [(f"{name}, {n}", f"{name}, corrected", n) for name in starts for n in numbers]
    ways += [("refined once, 5", "refined once, corrected", 5), ("refined, 4", "refined", 4)]
    ways += [("pooled", "pooled", 0)]
    ways += [(f"{name}, {n}", name, n) for name in RATES for n in (5,)]
    lines = [f"| | seeds | {' | '.join(title for title, *_ in ways)} |", "|---" * (len(ways) + 2) + "|"]
    for name, runs in results.items():
        cells = []
        for _, way, index in ways:
            values = [run[way][index][figure] for run in runs if way in run]
            digits = 1 if figure == 2 else 3
            cells.append(f"{np.mean(values):.{digits}f}" if values else "–")
        lines.append(f"| {name} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bounds(results: Results) -> str:
    """The largest loss from the second round to the fifth, and the mean beside pooled, at round five."""
    lines = []
    for start in ("FedCOF", "Student"):
        way, means, lost = f"{start}, corrected", [], []
        for name, runs in results.items():
            lost += [(run[way][0][2] - min(p[2] for p in run[way][2:6]), name) for run in runs]
            each = [np.mean([run[key][index][2] for run in runs]) for key, index in ((way, 5), ("pooled", 0))]
            means.append(each)
        own, pooled = np.mean(means, 0)
        worst = max(lost)
        lines.append(
            f"{start}: mean {own:.2f}, pooled {pooled:.2f}; largest loss {worst[0]:.2f} ({worst[1]})"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all federations and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_data_options(parser)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the name of the federations to run")
    parser.add_argument("--training", type=int, default=5, help="rounds of training; 0 for none")
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "results.json"
    results: Results = json.loads(file.read_text()) if file.exists() else {}
    for name, load in datasets(arguments).items():
        for place in FEDERATIONS:
            title = f"{name}, {place.title}"
            if arguments.only not in title or (place.number == 10 and name != "Caltech-101"):
                continue
            runs, pooled = results.setdefault(title, []), Pooled()
            for seed in range(arguments.seeds):
                data, clients = place.spread(load(seed), seed)
                training = 0 if place.moved or place.number != 100 else arguments.training
                runs.extend([{}] * (len(runs) == seed))
                runs[seed] = measured(dict(runs[seed]), data, clients, seed, training, pooled)
                ends = {way: round(points[-1][2], 1) for way, points in runs[seed].items()}
                print(f"{title}, seed {seed}: {ends}", file=sys.stderr, flush=True)
                file.write_text(json.dumps(results) + "\n")
    done = {name: runs for name, runs in results.items() if runs}
    print(table(done), table(done, 3), table(done, 4), bounds(done), sep="\n\n")


if __name__ == "__main__":
    main()
