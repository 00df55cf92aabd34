"""A federation of machines: seconds and bytes of a round, with 3 to 10,000 sites.

Run ``python benchmarks/deployment.py [--out FILE.json]``. Server and sites are objects of one process, one
after the other, on folders of their own. They exchange signed bytes, and all that they write is synced to the
disk. Sites have 100 examples of 20 classes and 512 features, and train a head by FedAdam; the third round is
measured, in which nothing is compiled. 10,000 sites send means of 4 classes of 64 features once.

Then the same rounds in processes over a shared folder, one for the server and one for each site, as the
commands run them. 30 sites live at once; 300 do not fit into memory. Of 300 each process starts, answers the
round, and is killed to make room for the next, so that the round has 300 starts in it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from common import parser, write

from covfree.deployment import Client, Description, Folder, Server, join, load_key, new_key, serve
from covfree.deployment.envelope import seal, unseal
from covfree.deployment.steps import Steps

SITES = (3, 30, 300)
MANY = 10_000
# Processes of sites at once, and seconds between two looks into the folder.
PLACES, POLL = 30, 0.1


def description(
    folder: Path, sites: int, algorithm: str, classes: int, dim: int, rounds: int | None = None
) -> Description:
    """A federation whose keys lie in the folder."""
    keys = {f"s{i:05d}": new_key(folder / f"s{i:05d}.key") for i in range(sites)}
    names = tuple(f"class {c}" for c in range(classes))
    server = new_key(folder / "server.key")
    return Description(algorithm, names, dim, keys, server, rounds=rounds, max_examples=100, max_norm=1000.0)


def examples(number: int, classes: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """A site's 100 examples."""
    rng = np.random.default_rng(number)
    labels = rng.integers(0, classes, 100).astype(np.int32)
    return (rng.normal(size=(100, dim)) + 2 * np.eye(classes, dim)[labels]).astype(np.float32), labels


class Watch:
    """Seconds by the name of what took them: of the wall's clock, and of this process."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Any, *arguments: Any) -> Any:
        """Do the work, and add its seconds to the name's."""
        start, own = time.perf_counter(), time.process_time()
        result = work(*arguments)
        for which, passed in (
            (name, time.perf_counter() - start),
            (f"{name}, CPU", time.process_time() - own),
        ):
            self.seconds[which] = self.seconds.get(which, 0) + passed
        return result


def rounds(sites: int) -> dict[str, Any]:
    """The last of three rounds, in which nothing is compiled."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        own = description(folder, sites, "fedadam", 20, 512, rounds=3)
        server = stack.enter_context(Server(own, folder / "server", load_key(folder / "server.key")))
        clients = [
            stack.enter_context(
                Client(own, name, folder / name, load_key(folder / f"{name}.key"), *examples(i, 20, 512))
            )
            for i, name in enumerate(own.sites)
        ]
        watch = Watch()
        while not server.finished:
            watch = Watch()
            asked = watch("open", server.open)
            for client in clients:
                answer = watch("answer, all sites", client.answer, asked)
                receipt = watch("take, all sites", server.take, answer)
                if receipt.reason is not None:
                    raise RuntimeError(receipt.reason)
            watch("close", server.close)
        last = server.history[-1]
        return {"sites": sites, **watch.seconds, "up": last["bytes_up"], "down": last["bytes_down"]}


def take_part(folder: Path, name: str) -> None:
    """A site's process: join the federation until it ends, or somebody kills it."""
    shared = Folder(folder / "shared")
    own, key = shared.description, load_key(folder / f"{name}.key")
    with Client(own, name, folder / name, key, *examples(list(own.sites).index(name), 20, 512)) as client:
        join(client, shared, poll=POLL, say=lambda _: None)


class Processes:
    """Processes of sites, as many at once as there are places; the next starts where one has answered."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.waiting, self.alive = folder, names, dict[str, subprocess.Popen[bytes]]()
        while self.waiting and len(self.alive) < PLACES:
            self._start()

    def _start(self) -> None:
        name = self.waiting.pop(0)
        command = [sys.executable, __file__, "--folder", str(self.folder), "--site", name]
        # One thread each; what one has compiled, the others take.
        more = {
            "OPENBLAS_NUM_THREADS": "1",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        self.alive[name] = subprocess.Popen(command, env={**os.environ, **more})

    def answered(self, name: str) -> None:
        """Kill a site that has answered if another waits for its place."""
        if self.waiting:
            process = self.alive.pop(name)
            process.kill()
            process.wait()
            self._start()

    def end(self) -> None:
        """Wait for those that were not killed."""
        if codes := [code for process in self.alive.values() if (code := process.wait())]:
            raise RuntimeError(f"processes ended with {codes}")


def processes(sites: int) -> dict[str, Any]:
    """The last round between processes that share a folder: one for the server and one for each site."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, times, load = Path(temporary), dict[str, float](), os.getloadavg()[0]
        (folder / "shared").mkdir()
        # Where places are changed, every round has all starts in it, so that one is like all.
        last = 3 if sites <= PLACES else 1
        own = description(folder, sites, "fedadam", 20, 512, rounds=last)
        own.save(folder / "shared" / "federation.json")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with Server(own, folder / "server", load_key(folder / "server.key")) as server:
            server.open()  # The server compiles before the clock runs.
            started = Processes(folder, list(own.sites))

            def say(text: str) -> None:
                if text.startswith(f"round {last} of {last}"):
                    which = "opened" if "is open" in text else "closed"
                    times[which], times[f"{which}, CPU"] = time.perf_counter(), time.process_time()
                elif text.startswith("site "):
                    if len(server.taken) == sites:
                        times["all answered"] = time.perf_counter()
                    started.answered(text.split()[1])

            serve(server, Folder(folder / "shared"), lambda head: b"head", poll=POLL, say=say)
            started.end()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = server.history[-1]
        return {
            "sites": sites,
            "at once": min(sites, PLACES),
            "rounds": last,
            "round": times["closed"] - times["opened"],
            "until all answered": times["all answered"] - times["opened"],
            "server, CPU": times["closed, CPU"] - times["opened, CPU"],
            "sites, CPU of all rounds": sum(after[:2]) - sum(before[:2]),
            "up": done["bytes_up"],
            "down": done["bytes_down"],
            "load": load,
        }


def many() -> dict[str, Any]:
    """One round of many small messages, and a server that is killed before it closes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, watch = Path(temporary), Watch()
        own = description(folder, MANY, "fedcof:shrinkage=1.0", 4, 64)
        steps = Steps(own.make_algorithm(), MANY, own.key(), own.example, own.max_examples)
        state, memory = steps.start()
        with Server(own, folder / "server", load_key(folder / "server.key")) as server:
            asked = unseal(server.open(), {"server": own.server}).about
            about = {**asked, "kind": "answer", "uses": own.agreed, "examples": 100}
            # All sites have the same examples, as only the server is measured here.
            upload, _ = steps.upload(0, 0, steps.broadcast(state), memory, *examples(0, 4, 64))
            answers = [
                seal(load_key(folder / f"{name}.key"), {**about, "sender": name}, upload)
                for name in own.sites
            ]
            for answer in answers:
                watch("take, all sites", server.take, answer)
            if len(server.taken) != MANY:
                raise RuntimeError(f"{len(server.taken)} of {MANY} answers were taken")
        again = watch("start again", Server, own, folder / "server", load_key(folder / "server.key"))
        with again:
            watch("close", again.close)
            jax.block_until_ready(again.result)
        return {"sites": MANY, **watch.seconds, "up": sum(map(len, answers))}


def main() -> None:
    """Measure, print, and write the file."""
    options = parser(__doc__)
    options.add_argument("--folder", type=Path, help="of a process that is started for a site")
    options.add_argument("--site", help="its name")
    options.add_argument("--processes", type=int, help="measure this number of sites in processes alone")
    chosen = options.parse_args()
    if chosen.folder is not None:
        return take_part(chosen.folder, chosen.site)
    runs = []
    alone = (*(partial(rounds, n) for n in SITES), many, *(partial(processes, n) for n in SITES))
    for run in alone if chosen.processes is None else (partial(processes, chosen.processes),):
        runs.append(run())
        print({name: round(value, 4) for name, value in runs[-1].items()}, flush=True)
    write(chosen.out, runs=runs)


if __name__ == "__main__":
    main()
