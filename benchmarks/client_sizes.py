"""All methods on federations with the very client sizes of public federated splits.

Run ``python benchmarks/client_sizes.py [--data DIR] [--splits NAME …] [--methods NAME …] [--out FILE.json]``.
The sizes come from text files, one number of examples a line. Labels are drawn: each client has an interest
in the classes, of Dirichlet law about a long-tailed share of each, as concentrated as gives the published
number of client-class pairs. Features are those of class Gaussians, as what is measured does not depend on
what they mean. Each run has a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from common import apart, parser, peak_memory, second_call, write

import covfree
from covfree.methods import registry
from covfree.methods.rounds import option

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "client_sizes"


class Split(NamedTuple):
    """A public federated split.

    Attributes:
        title: its name.
        file: the file of its client sizes.
        classes: number of classes.
        pairs: client-class pairs that exist, where that was published.
    """

    title: str
    file: str
    classes: int
    pairs: int | None = None


SPLITS = {
    "users-120k": Split("iNaturalist-Users-120K", "inaturalist_user_120k.txt", 1203, 54_590),
    "geo-100": Split("iNaturalist-Geo-100", "inaturalist_geo_100.txt", 1203),
    "geo-1k": Split("iNaturalist-Geo-1K", "inaturalist_geo_1k.txt", 1203),
    "geo-3k": Split("iNaturalist-Geo-3K", "inaturalist_geo_3k.txt", 1203),
    "landmarks": Split("Landmarks-Users-160K", "gldv2.txt", 2028),
}
# Of a client's Dirichlet law; gives the published pairs of users-120k, and is taken for the other splits too.
CONCENTRATION = 32.5766
# Left out is a method whose totals take more bytes, or whose padding takes more times the examples there are.
MOST_BYTES = 2**31
MOST_PADDING = 16
# Rows of a table that stands for any table: no totals that add up grow with them.
MOST_ROWS = 4096
CHUNK = 4096  # examples drawn at once


def draw_labels(sizes: np.ndarray, classes: int) -> np.ndarray:
    """Classes of all examples, client by client: a Pólya urn, which is a draw from a Dirichlet interest.

    A client's next example is of a class drawn anew, with chance a/(a + i) after i examples, or of the class
    of one of its examples before. Shares of classes fall as 1/√rank.
    """
    rng = np.random.default_rng(0)
    share = 1 / np.sqrt(np.arange(1, classes + 1))
    labels = np.searchsorted(np.cumsum(share / share.sum()), rng.random(sizes.sum())).clip(0, classes - 1)
    chance, place = rng.random((2, sizes.sum()))
    start = 0
    for size in sizes:
        for i in range(1, size):
            if chance[start + i] * (CONCENTRATION + i) >= CONCENTRATION:
                labels[start + i] = labels[start + int(place[start + i] * i)]
        start += size
    return labels.astype(np.int32)


def features_of(labels: np.ndarray, classes: int, dim: int) -> jax.Array:
    """Features of class Gaussians, made in little more memory than they take."""
    rng = np.random.default_rng(1)
    centre = rng.standard_normal((classes, dim), np.float32)
    scale = np.linspace(1.5, 0.5, dim, dtype=np.float32)
    features = np.empty((len(labels), dim), np.float32)
    for start in range(0, len(labels), CHUNK):
        part = features[start : start + CHUNK]
        rng.standard_normal(out=part, dtype=np.float32)
        part *= scale
        part += centre[labels[start : start + CHUNK]]
    return jax.device_put(features)


def too_large(method: covfree.Method, labels: np.ndarray, owners: np.ndarray, classes: int, dim: int) -> str:
    """Why a method cannot be run at this size; empty if it can."""
    if method.summary.name == "Mixtures":
        pairs, largest = method.summary.sizes(labels, owners)
        times = pairs * largest / len(labels)
        if times > MOST_PADDING:
            return (
                f"mixtures of {pairs} client-class pairs are padded to the largest, of {largest} examples: "
                f"{times:.0f} times the work"
            )
        return ""
    dim = dim if method.feature_map is None else method.feature_map.num_features
    number = np.zeros(MOST_ROWS, np.int32)
    rows = covfree.Rows(np.zeros((MOST_ROWS, dim), np.float32), number, number, number)
    if covariance := option(method.summary.make, "covariance"):
        shape = (MOST_ROWS, dim) if covariance == "diagonal" else (MOST_ROWS,)
        rows = replace(rows, covariance=np.zeros(shape, np.float32))
    if method.summary.name == "DirectedMeans":
        rest = None if option(method.summary.make, "centred") else np.zeros(MOST_ROWS, np.float32)
        rows = replace(rows, sketch=np.zeros(MOST_ROWS, np.bool_), covariance=rest)
    totals = jax.eval_shape(partial(covfree.accumulate, num_classes=classes), method, rows)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(totals))
    return f"totals of {size / 1e9:.1f} GB" if size > MOST_BYTES else ""


def measure(name: str, split: Split, arguments: argparse.Namespace) -> dict[str, Any]:
    """One method on one split."""
    sizes = np.loadtxt(arguments.data / split.file, dtype=np.int64)
    labels = draw_labels(sizes, split.classes)
    owners = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    method, dim = registry()[name].make(), arguments.dim
    sent = covfree.sent_bytes(method, labels, owners, dim=dim)
    result: dict[str, Any] = {
        "split": split.title,
        "method": name,
        "clients": len(sizes),
        "examples": len(labels),
        "pairs": covfree.count_rows(labels, owners),
        "published_pairs": split.pairs,
        "statistics_bytes": sent.statistics,
        "count_bytes": sent.counts,
    }
    reason = too_large(method, labels, owners, split.classes, dim)
    if reason:
        return result | {"skipped": reason}
    features, key = features_of(labels, split.classes, dim), jax.random.key(2)
    rows, client_seconds = second_call(lambda: covfree.summarise(method, features, labels, owners, key=key))
    del features
    # As in `covfree compare`: where sums are sent, and no rows, the clients evaluate the phases.
    totals, sums = second_call(lambda: covfree.accumulate(method, rows, num_classes=split.classes))
    _, solve = second_call(lambda: covfree.solve_totals(method, *totals))
    by_server = not method.summary.stays
    return result | {
        "client_seconds": client_seconds + (0 if by_server else sums),
        "server_seconds": solve + (sums if by_server else 0),
        "peak_bytes": peak_memory(),
    }


def line(result: dict[str, Any]) -> str:
    """A run as a line of text."""
    start = f"{result['split']:24} {result['method']:18} {result['statistics_bytes'] / 1e6:12,.1f} MB up"
    if "skipped" in result:
        return f"{start}  skipped: {result['skipped']}"
    return (
        f"{start}  clients {result['client_seconds']:7.2f} s  server {result['server_seconds']:7.2f} s  "
        f"peak {result['peak_bytes'] / 2**30:5.2f} GiB"
    )


def main() -> None:
    """Measure every method on every split, print a line each, and write all of it."""
    covfree.limit_lapack_threads()
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="folder of the client sizes")
    options.add_argument("--splits", nargs="+", choices=list(SPLITS), default=list(SPLITS), metavar="NAME")
    options.add_argument(
        "--methods", nargs="+", choices=list(registry()), default=list(registry()), metavar="NAME"
    )
    options.add_argument("--dim", type=int, default=1280)
    options.add_argument("--here", action="store_true", help="in this process")
    arguments = options.parse_args()
    if not arguments.data.is_dir():
        print("skipped: the folder of client sizes is not there; say where it is with --data")
        return
    results = []
    for split in arguments.splits:
        for name in arguments.methods:
            if arguments.here:
                print(json.dumps(measure(name, SPLITS[split], arguments)))
                continue
            sizes = "--data", str(arguments.data), "--dim", str(arguments.dim)
            results.append(apart(__file__, *sizes, "--splits", split, "--methods", name, "--here"))
            print(line(results[-1]), flush=True)
    write(arguments.out, dim=arguments.dim, concentration=CONCENTRATION, results=results)


if __name__ == "__main__":
    main()
