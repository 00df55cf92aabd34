"""Processor time of `covfree compare` the first time, again, and on data of another size.

Run ``python benchmarks/second_run.py [--out FILE]``. Four methods on made data; each run is a process of its
own, with one cache folder for all of them. Data of similar size share nearly all compiled functions, because
tables are padded to few sizes; larger data share those that do not depend on the number of rows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import machine, write
from demo import spent

METHODS = "fedncm,fed3r,fedcof,fedcof-student"


def made(file: Path, n: int, d: int = 64, num_classes: int = 10) -> None:
    """Write Gaussian classes to a file."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, n)
    features = rng.normal(size=(num_classes, d))[labels] + rng.normal(size=(n, d))
    np.savez(file, features=features.astype(np.float32), labels=labels, is_test=rng.random(n) < 0.2)


def main() -> None:
    """Print seconds, and write all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made(folder / "first.npz", 3_000)
        made(folder / "similar.npz", 3_050)
        made(folder / "larger.npz", 3_400)
        for run, data, cache in (
            ("nothing kept", "first", "false"),
            ("first run", "first", "true"),
            ("again", "first", "true"),
            ("data of similar size", "similar", "true"),
            ("larger data", "larger", "true"),
            ("these again", "larger", "true"),
        ):
            results[run] = spent(
                folder,
                *(sys.executable, "-c", "from covfree.cli import main; main()", "compare", "--seeds", "1"),
                *("--methods", METHODS, "--dataset", f"{data}.npz", "--out", run.replace(" ", "-")),
                COVFREE_CACHE=str(folder / "cache"),
                JAX_ENABLE_COMPILATION_CACHE=cache,
            )
            print(f"{run:20}", *(f"{key} {value:.3g}" for key, value in results[run].items()), sep="  ")
    if arguments.out is not None:
        write(arguments.out, {"machine": machine(), "seconds": results})


if __name__ == "__main__":
    main()
