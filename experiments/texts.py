"""CLINC150 as a federation, by Dirichlet's law and by domain, on features of a sentence encoder.

Run ``covfree extract --texts data_full.json --out clinc150.npz``, then ``python experiments/texts.py
clinc150.npz domains.json --out experiments/texts``. Federations: 100 clients, Dirichlet 0.1 and 0.5; ten
clients of which each has all sentences of one of the ten domains, and no other has any of its 15 intents; and
a hundred, ten in each domain, among which the domain's sentences are spread at random.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from compared import compared, head_of_table, row
from data_sets import Data, stored

import covfree
from covfree.data.partitions import inner_dirichlet


def by_dirichlet(data: Data, alpha: float, seed: int) -> tuple[Data, np.ndarray]:
    """A hundred clients."""
    return data, inner_dirichlet(data.labels, 100, alpha, seed=seed)


def by_domain(data: Data, domain: np.ndarray, each: int, seed: int) -> tuple[Data, np.ndarray]:
    """So many clients in each domain, given the domain of each class."""
    shares = np.random.default_rng(seed).permutation(len(data.labels)) % each
    return data, domain[data.labels] * each + shares


def main() -> None:
    """Print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path, help="what covfree extract --texts wrote")
    parser.add_argument("domains", type=Path, help="domains.json of CLINC150")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    data = stored(arguments.features)
    with np.load(arguments.features) as file:
        names = file["class_names"].tolist()
    domains = json.loads(arguments.domains.read_text())
    of_intent = {intent: number for number, intents in enumerate(domains.values()) for intent in intents}
    domain = np.array([of_intent[name] for name in names])
    federations: dict[str, Callable[[int], tuple[Data, np.ndarray]]] = {
        "100 clients, α = 0.1": partial(by_dirichlet, data, 0.1),
        "100 clients, α = 0.5": partial(by_dirichlet, data, 0.5),
        "10 domains, 10 clients each": partial(by_domain, data, domain, 10),
        "10 domains, 1 client each": partial(by_domain, data, domain, 1),
    }
    results = compared(federations.items(), arguments.seeds, arguments.out / "results.json")
    print(head_of_table(""), *(row(name, runs) for name, runs in results.items()), sep="\n")


if __name__ == "__main__":
    main()
