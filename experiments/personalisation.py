"""A model of each client's own, from a random and from FedCOF's head: local training and what beats it.

Run ``python experiments/personalisation.py --features FILE.npz [--clients 20] [--seeds 3] [--epochs 50]
[--methods afl …] [--out FILE.json]``. `dominant_classes` deals all examples, 20 % of them uniformly, and a
quarter of each client's are its test part. A model is an adapter and a head on frozen features. Every method
has the same epochs over a client's examples: in that many rounds of one epoch, all clients taking part, or
without a break where nothing comes back. FedAvg-FT takes the last fifth of them at home. Figures are the mean
of the clients' test accuracies, in percent, and the mean of the fifth of the clients with the lowest.

Learning rates and strengths are chosen on a quarter of the clients' training examples, on a seed that the
table does not have, for each method and start, with a fifth of the epochs.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import covfree
from covfree import finetune
from covfree.data import load_npz
from covfree.data.partitions import dominant_classes
from covfree.studies.personal import TITLES, Part, Personalisation, PersonalStart
from covfree.studies.report import environment

UNIFORM_SHARE = 0.2
RATES = (0.01, 0.03, 0.1)
STRENGTHS = (0.0001, 0.001, 0.01)
TUNING_SEED = 100
STRENGTHENED = ("fedproto", "fedcgs")
# FedAvg-FT takes this part of the epochs at home.
_AT_HOME = 5
# A ridge in closed form has neither start nor rate.
TRAINED = tuple(name for name in TITLES if name != "afl")
METHODS = ("head, untrained", "head, own classes", *TRAINED, "afl")


class Federation(NamedTuple):
    """What all methods of a seed share."""

    train: Part
    test: Part
    num_classes: int
    start: finetune.Model
    prototypes: finetune.Prototypes
    seed: int


def starts(train: Part, test: Part, num_classes: int, seed: int) -> dict[str, Federation]:
    """The federation with each start."""
    keys = jax.random.split(jax.random.key(seed), 2)
    dim = train.features.shape[1]
    cof: Any = covfree.fit(covfree.fedcof(), *train, num_classes=num_classes)
    cof = covfree.with_temperature(cof, covfree.calibrate_temperature(cof, train.features, train.labels))
    heads = {"random": finetune.random_head(dim, num_classes, key=keys[0]), "fedcof": cof}
    prototypes = finetune.Prototypes(*covfree.class_means(train.features, train.labels, num_classes))
    return {
        name: Federation(
            train, test, num_classes, finetune.adapter_model(head, key=keys[1]), prototypes, seed
        )
        for name, head in heads.items()
    }


def trained(federation: Federation, method: str, epochs: int, rate: float, strength: float) -> np.ndarray:
    """Accuracy of each client; NaN if training diverged."""
    home = epochs // _AT_HOME
    settings = Personalisation(
        rounds=epochs - home if method == "fedavg-ft" else epochs,
        epochs=epochs,
        home=home,
        strength=strength,
        rate=rate,
        momentum=0.0,
        weight_decay=0.0,
        batch_size=32,
    )
    start = PersonalStart(federation.start, finetune.adapter_model, federation.prototypes)
    key = jax.random.key(federation.seed)
    done = settings.trained(method, start, federation.train, federation.test, key)
    return done.accuracy if done.diverged is None else np.full_like(done.accuracy, np.nan)


def untrained(federation: Federation, method: str) -> np.ndarray:
    """Accuracy of each client with the start."""
    train, classes = federation.train, federation.num_classes
    known = finetune.client_classes(train.labels, train.clients, num_classes=classes)
    own = known if method == "head, own classes" else None
    return finetune.client_accuracy(federation.start, *federation.test, own_classes=own)


def tuned(federation: Federation, method: str, epochs: int) -> dict[str, float]:
    """The rate and strength with the best accuracy."""
    strengths = STRENGTHS if method in STRENGTHENED else (0.0,)
    found = {
        (rate, strength): trained(federation, method, epochs, rate, strength).mean()
        for rate, strength in product(RATES, strengths)
    }
    rate, strength = max(found, key=lambda pair: np.nan_to_num(found[pair], nan=-1.0))
    return {"rate": rate, "strength": strength}


def main() -> None:
    """Print a table, and write all figures as JSON."""
    covfree.limit_lapack_threads()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, required=True, help=".npz file as covfree compare takes it")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--shards", type=int, default=5, help="shards of dominant classes of a client")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    data = load_npz(arguments.features)
    features = np.concatenate([data.train_features, data.test_features]).astype(np.float32)
    labels = np.concatenate([data.train_labels, data.test_labels])

    def federations(seed: int, tuning: bool = False) -> dict[str, Federation]:
        # Not the generator of the partition, whose uniform part would then be the test part.
        rng = np.random.default_rng([1, seed])
        shards = arguments.shards
        clients = dominant_classes(
            labels, arguments.clients, UNIFORM_SHARE, num_shards_per_partition=shards, seed=seed
        )
        train, test = Part(features, labels, clients).split(0.25, rng)
        if tuning:
            train, test = train.split(0.25, rng)
        return starts(train, test, data.num_classes, seed)

    chosen = {
        start: {
            method: tuned(federation, method, arguments.epochs // 5)
            for method in arguments.methods
            if method in TRAINED
        }
        for start, federation in federations(TUNING_SEED, tuning=True).items()
    }
    print(json.dumps(chosen), flush=True)
    records = []
    for seed in range(arguments.seeds):
        for start, federation in federations(seed).items():
            for method in arguments.methods:
                if method in TRAINED or method == "afl":
                    how = chosen[start].get(method, {"rate": 0.0, "strength": 0.0})
                    accuracy = trained(federation, method, arguments.epochs, **how)
                else:
                    accuracy = untrained(federation, method)
                records.append(
                    {"seed": seed, "start": start, "method": method, "accuracy": accuracy.tolist()}
                )
                print(seed, start, method, round(100 * float(accuracy.mean()), 2), flush=True)

    def cell(start: str, method: str) -> str:
        which = (start, method)
        runs = np.array([r["accuracy"] for r in records if (r["start"], r["method"]) == which])
        low = np.sort(runs, 1)[:, : max(1, runs.shape[1] // 5)].mean()
        spread = runs.mean(1).std(ddof=1) if len(runs) > 1 else 0.0
        return f"{100 * runs.mean():.2f} ± {100 * spread:.2f} | {100 * low:.1f}"

    print("\n| | random | lowest fifth | FedCOF | lowest fifth |\n|---|---|---|---|---|")
    for method in arguments.methods:
        print(f"| {method} | {' | '.join(map(partial(cell, method=method), ('random', 'fedcof')))} |")
    if arguments.out is not None:
        settings = {"clients": arguments.clients, "shards": arguments.shards, "epochs": arguments.epochs}
        content = {"settings": settings, "chosen": chosen, "environment": environment(), "results": records}
        arguments.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
