"""Rounds of FedAdam on a head over Flower: seconds of a round by the number of sites.

Run ``python benchmarks/flower.py [--sites 3 30] [--out FILE.json]`` in an environment with flwr 1.42. The
processes are real: a SuperLink, a SuperNode for each site, and what Flower starts for each answer, with TLS
and authentication on the loopback address. Sites have 100 examples of 20 classes and 512 features. Of three
rounds the last two find their code compiled. Memory is the most that the machine uses beyond what it used
before.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import parser, write
from deployment import description, examples

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from flower_nodes import Flower  # pyright: ignore[reportMissingImports]

CLOSED = re.compile(r"closed after ([\d.]+) s with (\d+) sites, ([\d,]+) bytes up, ([\d,]+) down")


class Memory(threading.Thread):
    """The machine's used memory, looked at every second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before, self.most, self.ended = self.used(), 0.0, threading.Event()
        self.start()

    def used(self) -> float:
        """GB that processes hold."""
        found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(found[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
        return (total - free) * 1024 / 1e9

    def run(self) -> None:
        """Look until it has ended."""
        while not self.ended.wait(1):
            self.most = max(self.most, self.used() - self.before)


def run(sites: int) -> dict[str, Any]:
    """Three rounds."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, memory = Path(temporary), Memory()
        own = description(folder, sites, "fedadam", 20, 512, rounds=3)
        own.save(folder / "federation.json")
        for i, name in enumerate(own.sites):
            features, labels = examples(i, 20, 512)
            np.savez(folder / f"{name}.npz", features=features, labels=labels)
        start = time.perf_counter()
        with Flower(folder, {name: {"features": f"{folder}/{name}.npz"} for name in own.sites}) as flower:
            started = time.perf_counter()
            process = flower.run("run")
            flower.wait_for(folder / "head.npz")
            process.wait()  # so that its log has the last round
        memory.ended.set()
        rounds = CLOSED.findall((folder / "run.log").read_text())
    if [int(taken) for _, taken, *_ in rounds] != 3 * [sites]:
        raise RuntimeError(f"rounds closed with {rounds}, expected three of {sites} sites")
    return {
        "sites": sites,
        "start": started - start,
        "rounds": [float(seconds) for seconds, *_ in rounds],
        "up": int(rounds[-1][2].replace(",", "")),
        "down": int(rounds[-1][3].replace(",", "")),
        "memory, GB": memory.most,
    }


def main() -> None:
    """Measure, print, and write the file."""
    options = parser(__doc__)
    options.add_argument("--sites", type=int, nargs="+", default=[3, 30])
    chosen, runs = options.parse_args(), []
    for sites in chosen.sites:
        runs.append(run(sites))
        print(runs[-1], flush=True)
    write(chosen.out, runs=runs)


if __name__ == "__main__":
    main()
