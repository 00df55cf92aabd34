"""Numbers and methods that clients choose, beside the automatic rule and the best in hindsight.

Run ``python experiments/selecting.py [--features FILE] [--speech FOLDER] [--texts FOLDER] --out FILE.json``.
Federations are those of ``student.py``: the digits, and the files given, over 100 and 30 clients (Dirichlet
0.1), with and without a shift of each client's features; of speech also the speakers. Clients choose among
six γ of `covfree.fedcof`, and among three heads of its message: on a share of their examples that they kept,
as `covfree.select` does it, or on all examples, with the scores that each would have if the mean of its own
class had been made without it. In the last column the nearest mean is a candidate too. It writes the file as
it goes, goes on where it was stopped, and prints a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from data_sets import Data, gains, kept_runs, options
from student import FEDERATIONS

import covfree
from covfree.statistics.kept import kept_aside

GAMMAS = {
    "automatic": covfree.fedcof(),
    **{f"γ = {factor}t": covfree.fedcof(covfree.relative(factor)) for factor in (0.03, 0.1, 0.3, 1.0, 3.0)},
}
HEADS = {
    "LDA": GAMMAS["automatic"],
    "Student 0.3": covfree.fedcof(head=covfree.student(0.3)),
    "Student 1": covfree.fedcof(head="student"),
}
MORE = {**HEADS, "nearest mean": covfree.fedncm()}
SHARES = (0.1, 0.2)
# Of each candidate: test accuracy in %, by the share that is kept; errors by share, and of "used" examples.
Figures: TypeAlias = dict[str, dict[str, float]]


def measured(data: Data, clients: np.ndarray, seed: int) -> Figures:
    """Of all candidates."""
    classes = int(data.labels.max()) + 1
    kept = {share: np.asarray(kept_aside(data.features, share)) for share in SHARES}
    rows = covfree.summarise(GAMMAS["automatic"], data.features, data.labels, clients)
    moments = covfree.first_moments(rows, classes)
    found: Figures = {}
    for name, method in {**GAMMAS, **MORE}.items():
        own: dict[str, float] = {}
        for share in (0.0, *SHARES):
            labels = np.where(kept[share], -1, data.labels) if share else data.labels
            head: Any = covfree.fit(method, data.features, labels, clients, num_classes=classes)
            tested = head(data.test_features), data.test_labels
            own[f"accuracy {share}"] = 100 * float(covfree.metrics.accuracy(*tested))
            if share:
                aside = np.where(kept[share], data.labels, -1)
                own[f"errors {share}"] = 1 - float(covfree.evaluate(head, data.features, aside))
            elif name in HEADS or name in GAMMAS:
                own["errors used"] = _left_out(method, head, data, rows, moments)
        found[name] = own
    return found


def _left_out(method: Any, head: Any, data: Data, rows: Any, moments: Any) -> float:
    """The share of errors if each example's class had its mean of the other examples; 1 of one example.

    The class's mean moves away from the example, so that its distance to the mean grows by N/(N − 1).
    """
    features, labels, classes = data.features, data.labels, len(moments.count)
    count, mean = np.asarray(moments.count)[labels], np.asarray(moments.mean)[labels]
    grown = np.where(count > 1, count / np.maximum(count - 1, 1), 1)[:, None]
    scores, places = np.array(head(features), float), np.arange(len(labels))
    if isinstance(head, covfree.StudentHead):
        moved = (mean + (features - mean) * grown).astype(np.float32)
        scores[places, labels] = np.asarray(head(moved))[places, labels]
    else:
        state = covfree.accumulate(method, rows, num_classes=classes)
        root = np.linalg.cholesky(np.asarray(method.system(method.params, *state).dense(), float))
        distance = np.square(np.linalg.solve(root, (features - mean).T)).sum(0)
        scores[places, labels] -= 0.5 * distance * (np.square(grown[:, 0]) - 1)
    scores[places[count <= 1], labels[count <= 1]] = -np.inf
    return float((scores.argmax(1) != labels).mean())


def chosen(run: Figures, candidates: dict[str, Any], by: str) -> str:
    """The name of the candidate with the fewest errors, the first of several."""
    return min(candidates, key=lambda name: run[name][f"errors {by}"])


def columns(run: Figures) -> dict[str, float]:
    """Accuracies of a run in %."""
    found = {"automatic": run["LDA"]["accuracy 0.0"], "Student": run["Student 1"]["accuracy 0.0"]}
    for title, candidates in (("γ", GAMMAS), ("head", HEADS)):
        for share in map(str, SHARES):
            best = chosen(run, candidates, share)
            found[f"{title}, {share}"] = run[best][f"accuracy {share}"]
        found[f"{title}, 0.1, of all"] = run[chosen(run, candidates, "0.1")]["accuracy 0.0"]
        found[f"{title}, used"] = run[chosen(run, candidates, "used")]["accuracy 0.0"]
        found[f"{title}, hindsight"] = max(run[name]["accuracy 0.0"] for name in candidates)
    found["and nearest mean, 0.1"] = run[chosen(run, MORE, "0.1")]["accuracy 0.1"]
    return found


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = options(__doc__, seeds=3)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    results = kept_runs(arguments, FEDERATIONS, measured, arguments.out)
    print(gains({name: [columns(run) for run in runs] for name, runs in results.items()}))


if __name__ == "__main__":
    main()
