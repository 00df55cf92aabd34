"""Alignment of clients before a method: where it helps, and where it harms.

Run ``python experiments/alignment.py``. Digits, 8 clients with all classes, each of which sees its images
through a gain and a gamma of its own (``domains``), and 100 clients of few classes and one domain
(``labels``). The subspace is that of the class means that clients sent. Test examples are of the same clients
and get their maps. Prints mean and standard deviation of the accuracy in percent, over 3 seeds.
"""

from __future__ import annotations

import jax
import numpy as np

import covfree
from covfree import alignment
from covfree.data import FeatureSet, load_digits
from covfree.data.partitions import inner_dirichlet

SEEDS, RANK = 3, 32
METHODS = {"fedncm": covfree.fedncm(), "fedcof": covfree.fedcof(), "fed3r": covfree.fed3r()}
STRENGTHS = (0.0, 0.5, 1.0)


def domains(data: FeatureSet, seed: int) -> tuple[np.ndarray, ...]:
    """Features of training and test through their clients' eyes, and the clients of both."""
    rng = np.random.default_rng(seed)
    gamma, gain = rng.uniform(0.3, 3, 8), rng.uniform(0.5, 2, (8, 64))
    owners = [rng.integers(0, 8, len(labels)) for labels in (data.train_labels, data.test_labels)]
    seen = [
        (gain[k] * x ** gamma[k][:, None]).astype(np.float32)
        for k, x in zip(owners, (data.train_features, data.test_features), strict=True)
    ]
    return *seen, *owners


def labels(data: FeatureSet, seed: int) -> tuple[np.ndarray, ...]:
    """Features as they are; clients with few classes each, in training and test."""
    both = np.concatenate([data.train_labels, data.test_labels])
    owners = inner_dirichlet(both, 100, alpha=0.1, seed=seed)
    size = len(data.train_labels)
    train = owners[:size]
    # A test example whose client has nothing to train on goes to one that has.
    test = np.where(np.isin(owners[size:], train), owners[size:], train[0])
    return np.asarray(data.train_features), np.asarray(data.test_features), train, test


def main() -> None:
    """Print a table."""
    print("| federation | method | " + " | ".join(f"strength {t}" for t in STRENGTHS) + " |")
    print("|---|---|" + "---|" * len(STRENGTHS))
    for federation in (domains, labels):
        found = {name: np.zeros((SEEDS, len(STRENGTHS))) for name in METHODS}
        for seed in range(SEEDS):
            data = load_digits(seed=seed)
            train, test, clients, test_clients = federation(data, seed)
            rows = covfree.summarise(covfree.fedncm(), train, data.train_labels, clients)
            basis = alignment.principal_basis(rows, RANK)
            for place, strength in enumerate(STRENGTHS):
                found_maps = covfree.align(train, clients, basis, strength)
                moved, probes = found_maps(train, clients), found_maps(test, test_clients)
                for name, method in METHODS.items():
                    head = covfree.fit(method, moved, data.train_labels, clients, key=jax.random.key(seed))
                    found[name][seed, place] = 100 * covfree.evaluate(head, probes, data.test_labels)
        for name, values in found.items():
            cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(values.mean(0), values.std(0, ddof=1), strict=True)]
            print(f"| {federation.__name__} | {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
