"""Processor time of `covfree compare` the first time, again, and on data of another size.

Run ``python benchmarks/second_run.py [--out FILE]``. Four methods on made data; each run is a process of its
own, with one cache folder for all of them. Data of similar size share nearly all compiled functions, because
tables are padded to few sizes; larger data share those that do not depend on the number of rows.

With ``--dataset FILE --methods all``, another job instead: these methods on the file's features, with nothing
kept, the first time, and again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from common import parser, write
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
    options = parser(__doc__)
    options.add_argument("--dataset", type=Path, help="features, instead of made data")
    options.add_argument("--methods", default=METHODS)
    arguments = options.parse_args()
    results = {}
    runs = [("nothing kept", "first", "false"), ("first run", "first", "true"), ("again", "first", "true")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.dataset is not None:
            (folder / "first.npz").symlink_to(arguments.dataset.resolve())
        else:
            for file, size in (("first", 3_000), ("similar", 3_050), ("larger", 3_400)):
                made(folder / f"{file}.npz", size)
            runs += [("data of similar size", "similar", "true"), ("larger data", "larger", "true")]
            runs += [("these again", "larger", "true")]
        for run, data, cache in runs:
            results[run] = spent(
                folder,
                *(sys.executable, "-c", "from covfree.cli import main; main()", "compare", "--seeds", "1"),
                *("--methods", arguments.methods, "--dataset", f"{data}.npz", "--out", run.replace(" ", "-")),
                COVFREE_CACHE=str(folder / "cache"),
                JAX_ENABLE_COMPILATION_CACHE=cache,
            )
            print(f"{run:20}", *(f"{key} {value:.3g}" for key, value in results[run].items()), sep="  ")
    write(arguments.out, methods=arguments.methods, seconds=results)


if __name__ == "__main__":
    main()
