"""Memory of a features file that is larger than one wants to hold: opened, fitted, evaluated.

Run ``python benchmarks/features_file.py [--gib 4] [--folder FOLDER] [--out FILE.json]``. It writes a file of
Gaussian classes, measures each step in a process of its own, and removes the file. Anonymous memory is what a
process holds itself; pages of the mapped file, which the system takes back when it needs them, are not in it.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from common import apart, parser, write

DIM, CLASSES, CLIENTS = 1280, 100, 100
STEPS = ("import", "load_npz", "fedcof", "fed3r")
# Seconds from one look at the memory to the next.
_EVERY = 0.02


def make(path: Path, gib: float) -> int:
    """Write the file, a block at a time; returns its number of examples."""
    rng = np.random.default_rng(0)
    number = int(gib * 2**30) // (4 * DIM)
    labels = rng.integers(0, CLASSES, number).astype(np.int32)
    centres = 0.15 * rng.normal(size=(CLASSES, DIM)).astype(np.float32)
    noise = rng.normal(size=(2**14, DIM)).astype(np.float32)
    header: Any = {"descr": "<f4", "fortran_order": False, "shape": (number, DIM)}
    with ZipFile(path, "w") as archive:
        with archive.open("features.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            for start in range(0, number, 2**13):
                own = labels[start : start + 2**13]
                block = noise[rng.integers(0, len(noise), len(own))] + centres[own]
                member.write(block.tobytes())
        with archive.open("labels.npy", "w") as member:
            np.lib.format.write_array(member, labels)
    return number


def anonymous() -> int:
    """Bytes that this process holds itself."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def measure(step: str, path: Path) -> dict[str, Any]:
    """Seconds, the most anonymous memory, and the accuracy."""
    import jax

    import covfree
    from covfree.data import load_npz

    most, ended = anonymous(), threading.Event()

    def look() -> None:
        nonlocal most
        while not ended.wait(_EVERY):
            most = max(most, anonymous())

    watcher = threading.Thread(target=look)
    watcher.start()
    started, accuracy = time.perf_counter(), None
    if step != "import":
        data = load_npz(path)
        if step != "load_npz":
            clients = np.random.default_rng(1).integers(0, CLIENTS, len(data.train_labels))
            method = {"fedcof": covfree.fedcof, "fed3r": covfree.fed3r}[step]()
            given = data.train_features, data.train_labels, clients
            head = covfree.fit(method, *given, num_classes=CLASSES, key=jax.random.key(0))
            accuracy = float(covfree.evaluate(head, data.test_features, data.test_labels))
    seconds = time.perf_counter() - started
    ended.set()
    watcher.join()
    return {"anonymous": most, "seconds": seconds, "accuracy": accuracy}


def main() -> None:
    """Measure, print a table, and write JSON."""
    options = parser(__doc__)
    options.add_argument("--gib", type=float, default=4.0)
    options.add_argument("--folder", type=Path, help="where the file is written; by default the system's own")
    options.add_argument("--measure", choices=STEPS, help=argparse.SUPPRESS)
    options.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.path)))
        return
    steps = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "features.npz"
        number = make(path, arguments.gib)
        for step in STEPS:
            steps[step] = apart(__file__, "--measure", step, "--path", str(path))
    print("| | anonymous memory | time | accuracy |\n|---|---|---|---|")
    for step, found in steps.items():
        accuracy = "" if found["accuracy"] is None else f"{found['accuracy']:.3f}"
        print(f"| {step} | {found['anonymous'] / 2**30:.2f} GiB | {found['seconds']:.0f} s | {accuracy} |")
    write(arguments.out, examples=number, gib=arguments.gib, steps=steps)


if __name__ == "__main__":
    main()
