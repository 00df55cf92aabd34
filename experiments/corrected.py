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

import json
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from data_sets import Data, Federation, datasets, options
from refinement import RATES, Point, Results, table, trained

import covfree
from covfree.engine.examples import over_examples, over_rows
from covfree.engine.totals import How, through
from covfree.heads.metrics import measure
from covfree.studies.pooled import PENALTIES, pooled_head

STEPS = 4  # rounds of gradients
# Columns of the tables: title, way, and the place of its point.
WAYS = [
    *((f"{name}, {n}", f"{name}, corrected", n) for name in ("FedCOF", "Student") for n in (0, 2, 3, 4, 5)),
    *(
        ("refined once, 5", "refined once, corrected", 5),
        ("refined, 4", "refined", 4),
        ("pooled", "pooled", 0),
    ),
    *((f"{name}, 5", name, 5) for name in RATES),
]
FEDERATIONS = [Federation(number, 0.1, moved) for moved in (False, True) for number in (100, 10)]


def figures(head: Any, data: Data) -> dict[str, float]:
    """Accuracy in %, negative log-likelihood and calibration error on the test examples."""
    scores = jnp.asarray(head(data.test_features))
    found = measure(scores, data.test_labels, ("accuracy", "nll", "ece"))
    return {**found, "accuracy": 100 * found["accuracy"]}


def point(number: int, size: int, head: Any, data: Data) -> Point:
    """Rounds after the first message, bytes both ways, and a head's figures."""
    return number, size, *figures(head, data).values()


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
        start = found["FedCOF, corrected"][0]
        found |= trained(data, clients, seed, training, start, list(RATES), lambda head: figures(head, data))
    return found


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
    parser = options(__doc__, seeds=5)
    parser.add_argument("--training", type=int, default=5, help="rounds of training; 0 for none")
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
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
    print(*(table(done, WAYS, figure) for figure in (2, 3, 4)), bounds(done), sep="\n\n")


if __name__ == "__main__":
    main()
