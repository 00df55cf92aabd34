"""Names of classes as a prior: what they are worth beside few examples (GDA-CLIP, on texts).

Run ``python experiments/class_names.py clinc150.npz names.npz``: the sentences, and the names of their
classes as texts of the same labels, both from ``covfree extract --texts``. Prints test accuracy in %, mean
and standard deviation over 3 seeds (of examples and partition), with n examples of each class over 20
clients, Dirichlet 0.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from data_sets import Data, stored

import covfree
from covfree.data.partitions import inner_dirichlet

EXAMPLES, STRENGTHS, SEEDS = (1, 2, 5, 20, 100), (1.0, 10.0), 3
METHOD = covfree.fedcof(covfree.empirical_bayes(), head=covfree.gda_head)


def prior_of(file: Path, class_names: list[str]) -> np.ndarray:
    """The feature of each class's name, in the order of the classes."""
    with np.load(file) as names:
        if names["class_names"].tolist() != class_names:
            raise SystemExit(f"{file}: expected the classes of the sentences")
        return names["features"][np.argsort(names["labels"])].astype(np.float32)


def accuracies(data: Data, prior: np.ndarray, examples: int, seed: int) -> Iterator[float]:
    """Test accuracy in % without the prior, and with each strength of the examples beside it."""
    rng = np.random.default_rng(seed)
    of_class = (np.flatnonzero(data.labels == label) for label in range(len(prior)))
    kept = np.concatenate([rng.permutation(own)[:examples] for own in of_class])
    features, labels = data.features[kept], data.labels[kept]
    clients = inner_dirichlet(labels, 20, 0.1, seed=seed)
    head: Any = covfree.fit(METHOD, features, labels, clients, num_classes=len(prior))
    heads = [head, *(covfree.with_prior_means(head, prior, strength) for strength in STRENGTHS)]
    return (100 * float(covfree.evaluate(each, data.test_features, data.test_labels)) for each in heads)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("names", type=Path)
    arguments = parser.parse_args()
    covfree.limit_lapack_threads()
    with np.load(arguments.sentences) as file:
        prior = prior_of(arguments.names, file["class_names"].tolist())
    data = stored(arguments.sentences)
    alone = 100 * np.mean((data.test_features @ prior.T).argmax(1) == data.test_labels)
    print(f"names alone: {alone:.1f} %\n")
    print(f"| examples | without names | {' | '.join(f'strength {each:g}' for each in STRENGTHS)} |")
    print(f"|{'---|' * (2 + len(STRENGTHS))}")
    for examples in EXAMPLES:
        found = np.array([list(accuracies(data, prior, examples, seed)) for seed in range(SEEDS)])
        cells = zip(found.mean(0), found.std(0, ddof=1), strict=True)
        print(f"| {examples} | {' | '.join(f'{mean:.1f} ± {spread:.1f}' for mean, spread in cells)} |")


if __name__ == "__main__":
    main()
