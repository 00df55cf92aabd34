"""Fed3R and FedAvg on the head, by clients of a round, with and without replacement (Fed3R, Figure 3).

Run ``python experiments/sampling_rates.py --dataset FEATURES --out FOLDER``. With replacement a client may be
drawn again, and then has nothing new to send; without, each is drawn once, and the curve ends when all came.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covfree import fed3r
from covfree.data import load
from covfree.finetune.registry import Rates
from covfree.rounds import participation
from covfree.studies import Federation
from covfree.studies.arrivals import arrivals
from covfree.studies.plots import style as figures
from covfree.studies.result import Record
from covfree.studies.task import Task, clients_of
from covfree.studies.training import Training
from covfree.studies.tuning import run_training

STYLES: dict[str, Any] = {"Fed3R": "-", "Fed3R, with replacement": "--", "FedAvg on the head": ":"}


def by_arrival(task: Task, per_round: int, rounds: int, every: int, replacement: bool) -> np.ndarray:
    """Return rounds and accuracies of Fed3R, ``[2, measured]``."""
    number = int(task.clients.max()) + 1
    rounds = rounds if replacement else min(rounds, -(-number // per_round))
    drawn = participation(number, per_round, rounds, seed=task.seed, replacement=replacement)
    came = arrivals(
        *(fed3r(0.01), task.data, task.clients, drawn),
        seed=task.seed,
        measured=lambda each: each == 1 or each % every == 0,
    )
    return _curve([record for record, _ in came])


def trained(task: Task, per_round: int, options: argparse.Namespace) -> np.ndarray:
    """Return rounds and accuracies of FedAvg from a random head, ``[2, measured]``."""
    training = Training(
        *("random", "fedavg", Rates(options.client_lr, 1.0)),
        rounds=options.rounds,
        participation=per_round,
        every=options.every,
        weight_decay=options.weight_decay,
        options={"epochs": options.epochs, "batch_size": options.batch_size},
    )
    return _curve(run_training(training, task).history)


def _curve(records: Sequence[Record]) -> np.ndarray:
    return np.array([[each["round"], 100 * each["accuracy"]] for each in records if "accuracy" in each]).T


def draw(curves: dict[tuple[str, int], np.ndarray], title: str) -> Any:
    """Draw curves by their kind and clients of a round."""
    from matplotlib.lines import Line2D

    rates = list(dict.fromkeys(rate for _, rate in curves))
    colours = dict(zip(rates, figures.COLOURS, strict=False))
    figure = figures.new_figure(figures.PAGE, 3.0)
    figures.set_title(figure, title)
    axes = figure.subplots()
    for (kind, rate), (rounds, accuracy) in curves.items():
        axes.plot(rounds, accuracy, linestyle=STYLES[kind], color=colours[rate])
    axes.set(xlabel="rounds", ylabel="test accuracy, %", xlim=(0, None))
    axes.grid()
    lines = [
        Line2D([], [], color=figures.GREY, linestyle=style, label=kind) for kind, style in STYLES.items()
    ]
    lines += [Line2D([], [], color=colours[rate], label=f"{rate} clients a round") for rate in rates]
    figures.legend_below(figure, lines)
    return figure


def main() -> None:
    """Run all, and draw the picture into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument(
        "--participation", default="10,50,100", help="clients of a round, with commas between"
    )
    for name, value in {"rounds": 1500, "every": 20, "epochs": 5, "batch-size": 50, "clients": 100}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"alpha": 0.1, "client-lr": 0.1, "weight-decay": 4e-5}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    data = load(options.dataset, seed=0)
    clients = clients_of(data, Federation(options.clients, "inner_dirichlet", options.alpha), 0)
    task = Task(data, clients, 0, data.train_features, data.test_features)
    curves: dict[tuple[str, int], np.ndarray] = {}
    for rate in map(int, options.participation.split(",")):
        given = rate, options.rounds, options.every
        curves["Fed3R", rate] = by_arrival(task, *given, replacement=False)
        curves["Fed3R, with replacement", rate] = by_arrival(task, *given, replacement=True)
        curves["FedAvg on the head", rate] = trained(task, rate, options)
        for kind in STYLES:
            print(f"{kind}, {rate} clients a round: {curves[kind, rate][1, -1]:.2f} %")
    options.out.mkdir(parents=True, exist_ok=True)
    with figures.style():
        picture = draw(curves, f"{data.name}: {int(task.clients.max()) + 1} clients")
        figures.save_all(picture, options.out / "sampling_rates")


if __name__ == "__main__":
    main()
