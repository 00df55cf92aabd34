"""Sums of 200 Parquet shards on a Dask cluster of two processes, beside serial NumPy: CPU seconds and memory.

    python benchmarks/cluster.py --out benchmarks/cluster.json

Each shard holds 500 examples of 1280 float32 features of 100 classes. Serial NumPy reads a shard, adds its
Gram matrix, class sums and counts up, and keeps nothing else. The cluster does the same by
`covfree.distributed.total`, for Fed3R. CPU seconds are those of all processes: workers, scheduler, caller.
Both run in turns, after a first run on which nothing is measured.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np

CLASSES = 100


def write(folder: Path, shards: int, rows: int, dim: int) -> list[Path]:
    """Write the shards."""
    import pyarrow
    from pyarrow import parquet

    rng, paths = np.random.default_rng(0), []
    centres = rng.normal(size=(CLASSES, dim)).astype(np.float32)
    for number in range(shards):
        labels = rng.integers(0, CLASSES, rows)
        features = centres[labels] + rng.standard_normal((rows, dim), np.float32)
        column = pyarrow.FixedSizeListArray.from_arrays(features.ravel(), dim)
        clients = rng.integers(0, 1000, rows)
        table = pyarrow.table({"features": column, "labels": labels, "clients": clients})
        paths.append(folder / f"{number:04d}.parquet")
        parquet.write_table(table, paths[-1], compression="none")
    return paths


def serial(paths: list[Path], dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gram matrix, class sums and counts by NumPy, one shard after the other."""
    from pyarrow import parquet

    gram, sums = np.zeros((dim, dim), np.float32), np.zeros((CLASSES, dim), np.float32)
    counts = np.zeros(CLASSES, np.int64)
    for path in paths:
        table = parquet.ParquetFile(path).read()
        features = table.column("features").combine_chunks().flatten().to_numpy().reshape(-1, dim)
        labels = table.column("labels").to_numpy()
        gram += features.T @ features
        sums += np.eye(CLASSES, dtype=np.float32)[labels].T @ features
        counts += np.bincount(labels, minlength=CLASSES)
    return gram, sums, counts


def seconds() -> float:
    """CPU seconds of this process."""
    return time.process_time()


def peak() -> int:
    """Peak memory of this process, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Measure, and print or write the figures."""
    parser = common.parser(__doc__)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    import distributed

    import covfree

    method = covfree.fed3r()
    runs: dict[str, list[dict[str, float]]] = {"numpy": [], "dask": []}
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), options.shards, options.rows, options.dim)
        workers = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
        with distributed.LocalCluster(**workers) as cluster, distributed.Client(cluster) as client:

            def on_each(function: Callable[[], float]) -> list[float]:
                found: Any = client.run(function)
                return list(found.values())

            def spent() -> float:
                return seconds() + sum(on_each(seconds))

            covfree.distributed.total(method, paths[:8], num_classes=CLASSES, client=client)
            gram, sums, counts = serial(paths[:8], options.dim)
            total: Any = None
            start_memory = max(on_each(peak))
            for _ in range(options.repeats):
                before, wall = seconds(), time.perf_counter()
                gram, sums, counts = serial(paths, options.dim)
                runs["numpy"].append({"cpu": seconds() - before, "wall": time.perf_counter() - wall})
                before, wall = spent(), time.perf_counter()
                total = covfree.distributed.total(method, paths, num_classes=CLASSES, client=client)
                runs["dask"].append({"cpu": spent() - before, "wall": time.perf_counter() - wall})
            more = max(on_each(peak)) - start_memory
    rows = total.rows
    assert rows is not None
    assert total.pooled is not None
    found = total.pooled + (rows.mean * rows.count[:, None]).T @ rows.mean
    assert rows.count.tolist() == counts.tolist()
    np.testing.assert_allclose(found, gram, rtol=1e-3, atol=1e-3 * np.abs(gram).max())
    np.testing.assert_allclose(rows.mean * rows.count[:, None], sums, rtol=1e-3, atol=1e-2)
    median = {
        name: {key: float(np.median([r[key] for r in own])) for key in own[0]} for name, own in runs.items()
    }
    figures = {
        "shards": options.shards,
        "rows": options.rows,
        "dim": options.dim,
        "runs": runs,
        "cpu_ratio": median["dask"]["cpu"] / median["numpy"]["cpu"],
        "more_memory_mib": more / 1024,
        "shard_mib": options.rows * options.dim * 4 / 2**20,
        "gram_mib": options.dim**2 * 8 / 2**20,
        "load": os.getloadavg()[0],
    }
    for name, own in median.items():
        print(f"{name}: {own['cpu']:.2f} CPU-s, {own['wall']:.2f} s wall")
    print(f"ratio {figures['cpu_ratio']:.2f}; a worker's peak grew by {figures['more_memory_mib']:.0f} MiB")
    common.write(options.out, **figures)


if __name__ == "__main__":
    main()
