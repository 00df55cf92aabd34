"""Learning rates of FedAvg that clients choose, beside a fixed one and the best in hindsight.

Run ``python experiments/selecting_rates.py [--features FILE] [--speech FOLDER] [--texts FOLDER] --out OUT``.
Federations are those of ``student.py``. FedAvg trains FedCOF's head, whose scores are divided by the
temperature that fits the training examples best, for 10 rounds with all clients, an epoch in each, at one of
five rates, in units of 1 over the features' mean squared norm. With `covfree.finetune.select` clients choose
on a tenth of their examples, which neither the start nor the training has. It writes the file as it goes,
goes on where it was stopped, and prints a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from data_sets import Data, gains, kept_runs, options
from student import FEDERATIONS

import covfree
from covfree import finetune, rounds

RATES = 0.1, 1.0, 3.0, 10.0, 30.0  # in units of 1 over the features' mean squared norm
COLUMNS = "FedCOF", *(f"rate {rate:g}" for rate in RATES), "chosen", "chosen, of all", "hindsight"


def measured(data: Data, clients: np.ndarray, seed: int) -> dict[str, float]:
    """Test accuracies in %."""
    train = data.features, data.labels, clients
    kept = np.asarray(covfree.kept_aside(data.features, 0.1))
    norm = float(np.square(data.features).sum(1).mean())

    def start(labels: np.ndarray) -> tuple[Any, list[Any]]:
        head: Any = covfree.fit(covfree.fedcof(), data.features, labels, clients)
        head = covfree.with_temperature(head, covfree.calibrate_temperature(head, data.features, labels))
        model = finetune.linear_model(head)
        return head, [finetune.fedavg(model, rate / norm) for rate in RATES]

    def accuracy(head: Any) -> float:
        return 100 * float(covfree.evaluate(head, data.test_features, data.test_labels))

    def run(algorithm: Any) -> Any:
        return rounds.run(algorithm, *train, key=jax.random.key(0), rounds=10)

    head, algorithms = start(data.labels)
    whole = [accuracy(run(each).result) for each in algorithms]
    # The start of the choice has not seen the examples that are kept.
    chosen = run(finetune.select(start(np.where(kept, -1, data.labels))[1]))
    of_all = whole[int(chosen.history[-1]["taken"])]
    figures = accuracy(head), *whole, accuracy(chosen.result), of_all, max(whole)
    return dict(zip(COLUMNS, figures, strict=True))


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = options(__doc__, seeds=3)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    print(gains(kept_runs(arguments, FEDERATIONS, measured, arguments.out)))


if __name__ == "__main__":
    main()
