"""A federation of machines in one process: each has a folder of its own, and they share bytes alone.

``python tests/machines.py 50 fedcof-refined 0`` kills the run of an algorithm in each of 50 places;
0 stands for its own number of rounds, and any difference is an error.
"""

import dataclasses
import sys
import threading
from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import covfree.rounds
from covfree.cli.app import run
from covfree.deployment import Client, Description, Folder, Server, load_key, new_key, public_key

CLASSES, DIM = 3, 8
EXTRACTOR = {"backbone": "resnet18", "weights": "81b6" * 16, "preprocessing": {"crop": 224}}
SIZES = {"berlin": 40, "oslo": 64, "rome": 9}
MORE = {**SIZES, "wien": 12, "york": 5}


@cache
def examples(site: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(list(MORE).index(site))
    labels = rng.integers(0, CLASSES, MORE[site]).astype(np.int32)
    means = 2 * np.eye(CLASSES, DIM)
    return (rng.normal(size=(len(labels), DIM)) + means[labels] + 1).astype(np.float32), labels


def padded(site: str) -> tuple[np.ndarray, np.ndarray]:
    """A site's examples and padding: as many rows as any site's, so that all share compiled functions."""
    features, labels = examples(site)
    short = max(MORE.values()) - len(labels)
    return np.pad(features, [(0, short), (0, 0)]), np.pad(labels, (0, short), constant_values=-1)


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_equal(a: Any, b: Any) -> None:
    """To the bit."""
    assert len(leaves(a)) == len(leaves(b)) > 0
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


class Clock:
    """Seconds since 1970, which pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


def draw_keys(*names: str) -> None:
    """Draw key pairs by the command: the private keys are in the working folder, the public ones in keys."""
    Path("keys").mkdir()
    for name in names:
        assert run(["federation", "key", f"{name}.key"]) == 0
        Path(f"{name}.pub").rename(f"keys/{name}.pub")


def start(codes: dict[str, int], name: str, words: Iterable[str]) -> threading.Thread:
    """Run a command in a thread, which puts its exit code in ``codes`` under ``name``."""
    thread = threading.Thread(target=lambda: codes.update({name: run(list(words))}))
    thread.start()
    return thread


class Machines:
    """The machines' keys and folders; a process is a `Server` or `Client` made of them."""

    def __init__(
        self, folder: Path, algorithm: str = "fedcof", sites: Iterable[str] = SIZES, **fields: Any
    ) -> None:
        self.sites, self.folder, self.now, self.alive = tuple(sites), folder, Clock(), dict[str, Any]()
        folder.mkdir(parents=True, exist_ok=True)
        keys = {site: self._key(site) for site in self.sites}
        self.description = Description(
            algorithm,
            ("cat", "cow", "dog"),
            DIM,
            keys,
            self._key("server"),
            **{"extractor": EXTRACTOR, "max_examples": max(SIZES.values()), "max_norm": 100.0, **fields},
        )

    def _key(self, name: str) -> str:
        path = self.folder / f"{name}.key"
        if not path.exists():
            return new_key(path)
        return public_key(load_key(path))

    def key(self, name: str):
        return load_key(self.folder / f"{name}.key")

    def server(self, algorithm: Any = None, **changes: Any) -> Server:
        """A new process of the server; one that ran before is gone."""
        own = dataclasses.replace(self.description, **changes)
        self.kill("server")
        made = Server(own, self.folder / "server", self.key("server"), algorithm=algorithm, now=self.now)
        return self.alive.setdefault("server", made)

    def client(self, site: str, state: str | None = None, **changes: Any) -> Client:
        """A new process of a site; one that ran before, with the same folder for its state, is gone."""
        own, state = dataclasses.replace(self.description, **changes), state or site
        self.kill(state)
        made = Client(own, site, self.folder / state, self.key(site), *padded(site), now=self.now)
        return self.alive.setdefault(state, made)

    def clients(self) -> dict[str, Client]:
        return {site: self.client(site) for site in self.sites}

    def shared(self, path: Path) -> Folder:
        """A shared folder with the description."""
        path.mkdir(exist_ok=True)
        self.description.save(path / "federation.json")
        return Folder(path)

    def kill(self, name: str) -> None:
        """Let go of what the system lets go of when a process ends."""
        if name in self.alive:
            self.alive.pop(name).__exit__()

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.alive):
            self.kill(name)


def simulated(own: Description, sizes: dict[str, int]) -> covfree.rounds.Run:
    """The simulation of a federation whose sites have these sizes."""
    features, labels = (np.concatenate(parts) for parts in zip(*map(examples, sizes), strict=True))
    clients = np.repeat(np.arange(len(sizes)), list(sizes.values()))
    data = own.make_algorithm(), features, labels, clients
    return covfree.rounds.run(*data, key=own.key(), rounds=own.rounds)


def finish(server: Server, clients: dict[str, Client]) -> Any:
    """Run all rounds that are left, without a hitch."""
    while not server.finished:
        asked = server.open()
        for client in clients.values():
            receipt = server.take(client.answer(asked))
            assert receipt.reason is None or receipt.reason.startswith("doubled: the same"), receipt
        server.close()
    return server.result


class Killed(BaseException):
    """What stands for the end of a process: nothing catches it, and no clean-up may count on it."""


class Killer:
    """Ends a process at a given number of lines of the room of deployment and of what writes its files."""

    def __init__(self, at: int | None) -> None:
        self.at, self.lines = at, 0

    def __enter__(self) -> "Killer":
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame, event, arg):
        file = frame.f_code.co_filename
        return self._line if "covfree/deployment" in file or file.endswith("core/atomic.py") else None

    def _line(self, frame, event, arg):
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                raise Killed
        return self._line


def go_on(machines: Machines, log: set[tuple[str, int, bytes]]) -> None:
    """Run to the end by processes that begin anew; any of them may end anywhere in it."""
    server, clients = machines.server(), machines.clients()
    while not server.finished:
        asked = server.open()
        for site, client in clients.items():
            answer = client.answer(asked)
            log.add((site, client.turn, answer))
            receipt = server.take(answer)
            assert receipt.reason is None or receipt.reason.startswith("doubled: the same"), receipt
        server.close()


def check_kills(folder: Path, points: int, *arguments: Any, **fields: Any) -> None:
    """Kill a process in so many places, each in a run of its own: the rest of it gives the same bits."""

    def run(name: str, at: int | None) -> tuple[list[Any], int]:
        log = set[tuple[str, int, bytes]]()
        with Machines(folder / name, *arguments, **fields) as machines:
            with Killer(at) as killer, pytest.raises(Killed) if at is not None else nullcontext():
                go_on(machines, log)
            go_on(machines, log)
            server, own = machines.server(), machines.description
            # A site that begins anew never answers with other bytes, and so with other masks or keys.
            assert len(log) == len(machines.sites) * own.num_rounds * len(own.steps)
            return [server.result, server._state], killer.lines

    # A file that a killed process left half-written stays, as no clean-up runs.
    unlink = Path.unlink
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "unlink", lambda path, **_: None if path.suffix == ".tmp" else unlink(path))
        expected, lines = run("whole", None)
        for at in np.linspace(1, lines - 30, points).astype(int):
            assert_equal(run(str(at), int(at))[0], expected)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        check_kills(Path(temporary), int(sys.argv[1]), sys.argv[2], rounds=int(sys.argv[3]) or None)
    print(f"{sys.argv[2]}: killed in each of {sys.argv[1]} places, the result is the same to the bit")
