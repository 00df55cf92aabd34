"""FedRAN with and without what clients' directions leave out.

Run ``python experiments/left_out.py caltech101-efficientnet_lite0.npz clinc150.npz``. Each client's r
directions leave out a part of its Gram matrix, of size c_k (see `covfree.fedran`). Compared on the digits, as
they are and ten times as large, and on files of features: nothing added to the Gram matrix, as in the paper;
Σ c_k² / Σ c_k, as covfree has it; and Σ c_k, what it would be if all clients left out the same directions.
Prints test accuracies in percent, of one seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from data_sets import Data, stored

import covfree
from covfree.data import load_digits
from covfree.data.partitions import inner_dirichlet

CLIENTS, DIRECTIONS = (5, 30, 100), (4, 16)


def data_sets(files: list[Path]) -> Iterator[tuple[str, Data]]:
    """The digits in two units, then what is in the files."""
    digits = load_digits(seed=0)
    for scale in (1, 10):
        parts = (
            scale * np.asarray(digits.train_features),
            digits.train_labels,
            scale * np.asarray(digits.test_features),
            digits.test_labels,
        )
        yield f"digits × {scale}", Data(*parts)
    for file in files:
        yield file.stem, stored(file)


def accuracies(data: Data, clients: np.ndarray, directions: int) -> list[float]:
    """Test accuracies in %: the paper's, covfree's, and with the sum."""
    method = covfree.fedran(directions)
    rows = covfree.summarise(method, data.features, data.labels, clients)
    left_out = np.asarray(rows.covariance)
    nothing = replace(rows, covariance=np.zeros_like(left_out))
    summed = covfree.fedran(directions, 1.0 + float(left_out.sum()))
    found = []
    for each, sent in ((method, nothing), (method, rows), (summed, nothing)):
        head: Any = covfree.solve_rows(each, sent, num_classes=int(data.labels.max()) + 1)
        found.append(100 * float(covfree.evaluate(head, data.test_features, data.test_labels)))
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path, nargs="*", help=".npz files, as covfree extract writes them")
    covfree.limit_lapack_threads()
    print("| data | clients | directions | the paper's | covfree's | sum |\n|---|---|---|---|---|---|")
    for name, data in data_sets(parser.parse_args().features):
        for number in CLIENTS:
            clients = inner_dirichlet(data.labels, number, 0.1, seed=0)
            for directions in DIRECTIONS:
                cells = " | ".join(f"{value:.1f}" for value in accuracies(data, clients, directions))
                print(f"| {name} | {number} | {directions} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
