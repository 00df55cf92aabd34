"""covfree beside its peers: the clients' and the server's side of FedCOF, and heads on pooled features.

Run ``python benchmarks/peers.py [--out FILE] [--official DIR] [--sizes NAME ...] [--peers NAME ...]``. Four
tasks, random data of the size of three public federations, float32, all cores:

- client: features to class means and counts, all clients.
- server: means and counts to FedCOF's head in the paper's settings (γ = 1, ridge head).
- ridge, lda: pooled features to the heads of Fed3R and of LDA with exact covariances, where scikit-learn's
  ``Ridge`` and ``LinearDiscriminantAnalysis(solver="lsqr")`` are the peers of covfree's simulation.

The peers: *numpy*, the same sums as one product in BLAS, and SciPy's solve; *torch*, written in
``peers_torch.py`` in the structure of the official code; *official*, that code itself where ``--official``
names its folder (it is not part of this repository). A peer that is not installed is left out by name.

Each peer and task runs in a process of its own, from inputs in the peer's own form, made before the clock
starts; its heads are compared with float64 ones, and no time is printed unless all agree: weights within
10⁻³ (relative Frobenius norm; the solves are float32, and ``pinv`` cuts small eigenvalues off) and 99.9% of
the predictions on 2,000 test examples. Seconds are the best of some runs after a first, or of two in
all where the first took more than 10 s and compiled nothing. Memory is the process's peak during the first
run, libraries and input included, and what of it came with the run.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import common
import numpy as np
from peers_data import GAMMA, LDA_SHRINKAGE, RIDGE, SIZES, Size, loader, make

WEIGHT_TOLERANCE = 1e-3
LEAST_AGREEMENT = 0.999
SLOW = 10.0
PEERS = {
    "client": ("covfree", "numpy", "torch", "official"),
    "server": ("covfree", "numpy", "torch", "official"),
    "ridge": ("covfree", "scikit-learn"),
    "lda": ("covfree", "scikit-learn"),
}
# Module and package of those that are named otherwise.
_MODULES = {"official": ("torch", "torch"), "scikit-learn": ("sklearn", "scikit-learn")}
Load = Callable[[str], np.ndarray]
# What runs on the clock, and what reads tables or a weight and bias out of its result.
Prepared = tuple[Callable[[], Any], Callable[[Any], tuple[np.ndarray, np.ndarray]]]


def prepare_covfree(task: str, load: Load, size: Size) -> Prepared:
    """covfree, from arrays that lie on the device."""
    import jax

    import covfree
    from covfree.heads import lda_head

    covfree.limit_lapack_threads()

    def head_of(head: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(head.weight), np.asarray(head.bias)

    paper = covfree.fedcof(shrinkage=GAMMA, head="ridge")
    if task == "server":
        names = ("row_means", "row_counts", "row_labels")
        rows = jax.device_put(covfree.Rows(*(load(name) for name in names)))
        return lambda: covfree.solve_rows(paper, rows, num_classes=size.classes), head_of
    # The clients' ids stay on the host, as pairs are counted there.
    labels, clients = load("labels"), load("clients")
    features = jax.device_put(load("features"))
    if task == "client":

        def tables(rows: covfree.Rows) -> tuple[np.ndarray, np.ndarray]:
            kept = np.asarray(rows.count) > 0
            return np.asarray(rows.mean)[kept], np.asarray(rows.count)[kept]

        return lambda: covfree.summarise(paper, features, labels, clients), tables

    def lda(covariance: Any, moments: covfree.Moments) -> covfree.LinearHead:
        # scikit-learn's covariance is over N, not N − C, and is shrunk as a convex combination.
        share = moments.within_degrees / moments.count.sum()
        return lda_head(covariance.scaled((1 - LDA_SHRINKAGE) * share), moments)

    rule = covfree.relative(LDA_SHRINKAGE / (1 - LDA_SHRINKAGE))
    method = covfree.fed3r(ridge=RIDGE) if task == "ridge" else covfree.fedcof_oracle(rule, lda)
    return lambda: covfree.fit(method, features, labels, clients, num_classes=size.classes), head_of


def prepare_numpy(task: str, load: Load, size: Size) -> Prepared:
    """The same sums in NumPy: sorting and one product."""
    import scipy.linalg

    def client() -> tuple[np.ndarray, np.ndarray]:
        pair = clients.astype(np.int64) * size.classes + labels
        order = np.argsort(pair, kind="stable")
        starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
        counts = np.diff(starts, append=len(pair))
        return np.add.reduceat(features[order], starts) / counts[:, None].astype(np.float32), counts

    def server() -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(labels, kind="stable")
        own, n, x = labels[order], counts[order].astype(np.float32), means[order]
        total = np.bincount(own, n, size.classes).astype(np.float32)
        starts = np.flatnonzero(np.diff(own, prepend=-1))
        sums = np.zeros((size.classes, size.dim), np.float32)
        sums[own[starts]] = np.add.reduceat(x * n[:, None], starts)
        spread = np.maximum(np.bincount(own, minlength=size.classes) - 1, 1).astype(np.float32)
        degrees = np.maximum(total - 1, 0)
        centre = sums / np.maximum(total, 1)[:, None]
        factor = (x - centre[own]) * np.sqrt(n * (degrees / spread)[own])[:, None]
        gram = factor.T @ factor
        gram[np.diag_indices(size.dim)] += np.float32(GAMMA) * degrees.sum()
        grand = sums.sum(0) / np.sqrt(total.sum())
        gram += np.outer(grand, grand)
        weight = scipy.linalg.solve(gram, sums.T, assume_a="pos")
        return weight / np.linalg.norm(weight, axis=0), np.zeros(size.classes, np.float32)

    if task == "client":
        features, labels, clients = load("features"), load("labels"), load("clients")
        return client, lambda result: result
    means, counts, labels = load("row_means"), load("row_counts"), load("row_labels")
    return server, lambda result: result


def prepare_sklearn(task: str, load: Load, size: Size) -> Prepared:
    """scikit-learn on pooled features; a solver without iterations for each."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import Ridge

    features, labels = load("features"), load("labels")
    if task == "lda":
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=LDA_SHRINKAGE)
        return lambda: model.fit(features, labels), lambda result: (result.coef_.T, result.intercept_)
    targets = np.zeros((len(labels), size.classes), np.float32)
    targets[np.arange(len(labels)), labels] = 1
    ridge = Ridge(RIDGE, fit_intercept=False, solver="cholesky")

    def unit(result: Any) -> tuple[np.ndarray, np.ndarray]:
        weight = result.coef_.T
        return weight / np.linalg.norm(weight, axis=0), np.zeros(size.classes)

    return lambda: ridge.fit(features, targets), unit


def prepare(peer: str, task: str, load: Load, size: Size, official: str | None) -> Prepared:
    """What a peer runs for a task."""
    if peer == "covfree":
        return prepare_covfree(task, load, size)
    if peer == "numpy":
        return prepare_numpy(task, load, size)
    if peer == "scikit-learn":
        return prepare_sklearn(task, load, size)
    import peers_torch

    if peer == "torch":
        return (
            peers_torch.torch_client(load)
            if task == "client"
            else peers_torch.torch_server(load, size.classes, GAMMA)
        )
    folder = Path(str(official))
    if task == "client":
        return peers_torch.official_client(load, folder)
    return peers_torch.official_server(load, size.classes, GAMMA, folder)


def work(peer: str, task: str, size: Size, folder: Path, official: str | None) -> dict[str, float]:
    """Run one peer on one task, in this process: how far it is off, seconds, and memory."""
    load = loader(folder)
    run, read = prepare(peer, task, load, size, official)
    common.restart_peak()
    before = common.peak_memory()
    start = time.perf_counter()
    result = common.finished(run())
    first = time.perf_counter() - start
    memory = common.peak_memory()
    found = {"peak_bytes": memory, "added_bytes": memory - before, **_off(task, load, *read(result))}
    del result
    if peer == "covfree":
        found["first_seconds"] = first
    elif first > SLOW:
        start = time.perf_counter()
        run()
        return {**found, "seconds": min(first, time.perf_counter() - start)}
    found["seconds"] = common.timed(run, repeats=5 if first < 2 else 2)
    return found


def _off(task: str, load: Load, first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Relative error, and share of the test examples on which predictions agree."""
    if task == "client":
        means = load("row_means")
        error = np.linalg.norm(first - means) / np.linalg.norm(means)
        return {"error": float(error), "agreement": float(np.mean(second == load("row_counts")))}
    name = "fedcof" if task == "server" else task
    weight, bias, test = load(f"{name}_weight"), load(f"{name}_bias"), load("test")
    same = (test @ first + second).argmax(1) == (test @ weight + bias).argmax(1)
    error = np.linalg.norm(first - weight) / np.linalg.norm(weight)
    return {"error": float(error), "agreement": float(same.mean())}


def _chosen(official: Path | None, wanted: list[str]) -> dict[str, str]:
    """Peers that can run, with the versions of what they need; says which cannot."""
    versions = {}
    for peer in dict.fromkeys(name for names in PEERS.values() for name in names):
        module, package = _MODULES.get(peer, (peer, peer))
        if peer not in wanted:
            continue
        if peer == "official" and official is None:
            print("official: left out, --official names no folder")
        elif importlib.util.find_spec(module) is None:
            print(f"{peer}: left out, {package} is not installed")
        else:
            versions[peer] = f"{package} {metadata.version(package)}"
    return versions


def compare(name: str, peers: dict[str, str], official: Path | None) -> dict[str, Any]:
    """Run all peers on one size; exits where one disagrees, before any of its times is printed."""
    tasks: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        common.apart(__file__, "--make", name, folder)
        for task, names in PEERS.items():
            tasks[task] = {
                peer: common.apart(__file__, "--work", peer, task, name, folder, str(official or ""))
                for peer in names
                if peer in peers
            }
            wrong = [
                f"{name}, {task}, {peer}: error {r['error']:.1e}, agreement {r['agreement']:.2%}"
                for peer, r in tasks[task].items()
                if not (r["error"] <= WEIGHT_TOLERANCE and r["agreement"] >= LEAST_AGREEMENT)
            ]
            if wrong:
                sys.exit("disagreement with float64:\n" + "\n".join(wrong))
    for task, results in tasks.items():
        for peer, r in results.items():
            ratio = f"{r['seconds'] / results['covfree']['seconds']:.1f} ×" if "covfree" in results else ""
            memory = f"peak {r['peak_bytes'] / 2**30:.2f} GiB, added {r['added_bytes'] / 2**30:.2f} GiB"
            print(f"{name:16} {task:6} {peer:12} {r['seconds']:8.3f} s {ratio:>8}  {memory}", flush=True)
    return {"name": name, **SIZES[name]._asdict(), "tasks": tasks}


def main() -> None:
    """Print a line for each size, task and peer, and write all of it as JSON."""
    if sys.argv[1:2] == ["--make"]:
        return make(SIZES[sys.argv[2]], Path(sys.argv[3]))
    if sys.argv[1:2] == ["--work"]:
        peer, task, name, folder, official = sys.argv[2:]
        return print(json.dumps(work(peer, task, SIZES[name], Path(folder), official or None)))
    parser = common.parser(__doc__)
    parser.add_argument("--official", type=Path, help="folder of the official code of FedCOF")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="federations")
    everyone = list(dict.fromkeys(name for names in PEERS.values() for name in names))
    parser.add_argument("--peers", nargs="+", choices=everyone, default=everyone, help="who takes part")
    arguments = parser.parse_args()
    if arguments.official is not None and not (arguments.official / "federate_classes.py").is_file():
        parser.error(f"--official: expected a folder with federate_classes.py, got {arguments.official}")
    peers = _chosen(arguments.official, arguments.peers)
    results = [compare(name, peers, arguments.official) for name in arguments.sizes]
    about = {"peers": peers, "gamma": GAMMA, "ridge": RIDGE, "lda_shrinkage": LDA_SHRINKAGE}
    common.write(arguments.out, **about, sizes=results)


if __name__ == "__main__":
    main()
