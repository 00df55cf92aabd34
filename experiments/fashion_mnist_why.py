"""Why some orders on Fashion-MNIST differ from those in print: `fashion_mnist.py`, one thing changed.

Run ``python experiments/fashion_mnist_why.py [--data-dir FOLDER] [--out FOLDER]``. Clients differ in size,
and so in how many steps an epoch takes; each change takes away one way in which that may matter. It writes
``why.json`` as it goes, a record for each change and α, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from baselines.cnn import cnn_model
from baselines.idx import fashion_mnist
from baselines.local_training import LEARNING_RATE, MOMENTUM
from baselines.study import ROUND_BATCH, Federation, Seed
from baselines.ways import ROUNDS
from fashion_mnist import REDUCED, cpu_seconds, read, write
from jax.tree_util import Partial

import covfree
from covfree import finetune, rounds
from covfree.finetune.local import as_optimiser
from covfree.finetune.optimisers import reach

# Steps of a client on average: 10,000 images of 10 clients in batches of 64.
STEPS = 16
# Smaller clients take two to four steps in an epoch.
FEWEST = 250
LONG = 30

# What makes an algorithm of a model; see `Federation.in_rounds`.
Make = Callable[..., Any]


def alike(make: Make) -> Make:
    """All clients take the same number of steps, whatever their size."""
    return lambda model, *, epochs, batch_size: make(model, steps=STEPS, batch_size=batch_size)


@dataclass(frozen=True)
class _Still:
    """A model's features as in evaluation, in training too; compared by value."""

    features: Callable[..., Any]

    def __call__(
        self, trained: Any, frozen: Any, statistics: Any, inputs: Any, train: bool, key: Any
    ) -> tuple[Any, Any]:
        return self.features(trained, frozen, statistics, inputs, False, key)


def still(make: Make) -> Make:
    """Batch norms keep the start's running statistics."""
    return lambda model, **options: make(replace(model, features=_Still(model.features)), **options)


def without_small(on: Federation) -> Federation:
    """The federation without its clients of fewer than 250 images."""
    sizes = np.bincount(on.clients)
    kept = sizes[on.clients] >= FEWEST
    fewer = copy.copy(on)
    fewer.shared = copy.copy(on.shared)
    fewer.shared.train = on.shared.train[kept]
    fewer.clients = np.unique(on.clients[kept], return_inverse=True)[1]
    return fewer


def scratch(make: Make, on: Federation, number: int | None = None) -> dict[str, Any]:
    """Train from scratch."""
    return on.in_rounds(make, on.shared.start, number or on.options.rounds)._asdict()


def tuned(make: Make, on: Federation, fewer: bool = False) -> dict[str, Any]:
    """Train from the backbone and FedCOF's head, which come of all clients."""
    start = on.tuning_start
    return (without_small(on) if fewer else on).in_rounds(make, start, on.options.tuning_rounds)._asdict()


def shares(changes: Any, on: Federation) -> dict[str, Any]:
    """How much of a sum over clients is each client's.

    Args:
        changes: v_i, leaves with an axis of clients in front.
        on: the federation, for the clients' sizes.

    Returns: Of each client ``images``; ``norm``, ‖v_i‖; ``share``, ⟨v_i, Σv⟩ / ‖Σv‖². Shares add up to 1.
    """
    count = on.options.clients
    each = np.concatenate([np.asarray(leaf).reshape(count, -1) for leaf in jax.tree.leaves(changes)], 1)
    total = each.sum(0)
    return {
        "images": np.bincount(on.clients, minlength=count).tolist(),
        "norm": np.linalg.norm(each, axis=1).round(4).tolist(),
        "share": (each @ total / (total @ total)).round(4).tolist(),
    }


def _one_round(algorithm: Any, on: Federation) -> Any:
    train = on.shared.train
    key = on.shared.key("rounds")
    return rounds.run(algorithm, train.images, train.labels, on.clients, key=key, rounds=1)


def controls(on: Federation) -> Any:
    """SCAFFOLD's c_i after one round from scratch, by client; c is their mean."""
    model = cnn_model(on.shared.cnn, on.shared.start)
    algorithm = SCAFFOLD(model, epochs=on.options.round_epochs, batch_size=ROUND_BATCH)
    return _one_round(algorithm, on).memory


def normalised(on: Federation) -> Any:
    """FedNova's n_i (x − y_i)/‖a_i‖₁ in the first round from the backbone, by client."""
    model = cnn_model(on.shared.cnn, on.tuning_start)
    descent = Partial(optax.sgd, LEARNING_RATE, momentum=MOMENTUM)
    epochs = on.options.round_epochs
    algorithm = finetune.local_only(model, descent, epochs=epochs, batch_size=ROUND_BATCH)
    own = _one_round(algorithm, on).result.own.trained
    sizes = np.bincount(on.clients, minlength=on.options.clients)
    steps = epochs * -(-sizes // ROUND_BATCH)
    weight = sizes / [float(reach(as_optimiser("client", descent), count)) / LEARNING_RATE for count in steps]
    return jax.tree.map(lambda x, y: np.einsum("c,c...->c...", weight, x[None] - y), model.trained, own)


def nova(rate: float, momentum: float) -> Make:
    """FedNova whose clients descend otherwise."""
    return partial(finetune.fednova, client=Partial(optax.sgd, rate, momentum=momentum))


class Change(NamedTuple):
    """A line of the table.

    Attributes:
        title: what was changed.
        alphas: of the federations.
        measure: on one of them.
    """

    title: str
    alphas: tuple[float, ...]
    measure: Callable[[Federation], dict[str, Any]]


EQUAL, SCAFFOLD, NOVA = (ROUNDS[name][1] for name in ("fedavg-uniform", "scaffold", "fednova"))
SKEWED, BOTH = (0.05,), (0.05, 0.1)
CHANGES = [
    Change("controls after a round: SCAFFOLD", SKEWED, lambda on: shares(controls(on), on)),
    Change("16 steps each: SCAFFOLD", SKEWED, lambda on: scratch(alike(SCAFFOLD), on)),
    Change("16 steps each: FedAvg, equal weights", SKEWED, lambda on: scratch(alike(EQUAL), on)),
    Change("without small clients: SCAFFOLD", SKEWED, lambda on: scratch(SCAFFOLD, without_small(on))),
    Change(
        "without small clients: FedAvg, equal weights", SKEWED, lambda on: scratch(EQUAL, without_small(on))
    ),
    Change("30 rounds: SCAFFOLD", SKEWED, lambda on: scratch(SCAFFOLD, on, LONG)),
    Change("30 rounds: FedAvg, equal weights", SKEWED, lambda on: scratch(EQUAL, on, LONG)),
    Change("tuned: FedNova, first step", BOTH, lambda on: shares(normalised(on), on)),
    Change("tuned: FedNova, norms still", BOTH, lambda on: tuned(still(NOVA), on)),
    Change("tuned: FedNova, without small clients", BOTH, lambda on: tuned(NOVA, on, fewer=True)),
    Change("tuned: FedNova, rate 0.001", BOTH, lambda on: tuned(nova(LEARNING_RATE / 10, MOMENTUM), on)),
    # A step as long as momentum's are in the end, so that ‖a_i‖₁ is the number of steps.
    Change(
        "tuned: FedNova, rate 0.1 without momentum",
        BOTH,
        lambda on: tuned(nova(LEARNING_RATE / (1 - MOMENTUM), 0.0), on),
    ),
    Change("tuned: FedNova, 16 steps each", BOTH, lambda on: tuned(alike(NOVA), on)),
]


def shown(record: dict[str, Any]) -> str:
    """A record in a line."""
    if "accuracy" in record:
        return f"{100 * np.mean(record['accuracy']):.2f} %"
    clients = sorted(zip(record["images"], record["norm"], record["share"], strict=True))
    return ", ".join(f"{images} images {norm:g} ({100 * share:.0f} %)" for images, norm, share in clients)


def measure(arguments: argparse.Namespace, records: list[dict[str, Any]]) -> Iterator[None]:
    """Add what is not yet there to the records, one at a time."""
    done = {(record["alpha"], record["change"]) for record in records}
    shared = Seed(REDUCED, *fashion_mnist(arguments.data_dir), seed=0)
    federations = {alpha: Federation(shared, alpha) for alpha in BOTH}
    for change in CHANGES:
        for alpha in change.alphas:
            if (alpha, change.title) in done:
                continue
            began, used = time.perf_counter(), cpu_seconds()
            record: dict[str, Any] = {"alpha": alpha, "change": change.title}
            record |= change.measure(federations[alpha])
            record |= {
                "seconds": round(time.perf_counter() - began, 1),
                "cpu_seconds": round(cpu_seconds() - used, 1),
            }
            records.append(record)
            print(f"α {alpha}, {change.title}: {shown(record)}", flush=True)
            yield


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the four IDX files")
    parser.add_argument(
        "--out", type=Path, default=Path("experiments/fashion-mnist"), help="folder of the results"
    )
    arguments = parser.parse_args(argv)
    covfree.limit_lapack_threads()
    file = arguments.out / "why.json"
    records = read(file, asdict(REDUCED))
    for _ in measure(arguments, records):
        write(file, asdict(REDUCED), records)


if __name__ == "__main__":
    main()
