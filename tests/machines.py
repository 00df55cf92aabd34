"""A federation of machines in one process: each has a folder of its own, and they share bytes alone."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from covfree.deployment import Client, Description, Server, load_key, new_key, public_key

CLASSES, DIM = 3, 8
EXTRACTOR = {"backbone": "resnet18", "weights": "81b6" * 16, "preprocessing": {"crop": 224}}
SIZES = {"berlin": 40, "oslo": 64, "rome": 9}


@cache
def examples(site: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(list(SIZES).index(site))
    labels = rng.integers(0, CLASSES, SIZES[site]).astype(np.int32)
    means = 2 * np.eye(CLASSES, DIM)
    return (rng.normal(size=(len(labels), DIM)) + means[labels] + 1).astype(np.float32), labels


class Clock:
    """Seconds since 1970, which pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


class Machines:
    """The machines' keys and folders; a process is a `Server` or `Client` made of them."""

    def __init__(self, folder: Path, algorithm: str = "fedcof", **fields: Any) -> None:
        self.folder, self.now, self.alive = folder, Clock(), dict[str, Any]()
        folder.mkdir(parents=True, exist_ok=True)
        keys = {site: self._key(site) for site in SIZES}
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

    def server(self, **changes: Any) -> Server:
        """A new process of the server; one that ran before is gone."""
        own = dataclasses.replace(self.description, **changes)
        self.kill("server")
        made = Server(own, self.folder / "server", self.key("server"), now=self.now)
        return self.alive.setdefault("server", made)

    def client(self, site: str, **changes: Any) -> Client:
        """A new process of a site; one that ran before is gone."""
        own = dataclasses.replace(self.description, **changes)
        self.kill(site)
        made = Client(own, site, self.folder / site, self.key(site), *examples(site), now=self.now)
        return self.alive.setdefault(site, made)

    def clients(self) -> dict[str, Client]:
        return {site: self.client(site) for site in SIZES}

    def kill(self, name: str) -> None:
        """Let go of what the system lets go of when a process ends."""
        if name in self.alive:
            self.alive.pop(name).__exit__()

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.alive):
            self.kill(name)


def finish(server: Server, clients: dict[str, Client]) -> Any:
    """Run all rounds that are left, without a hitch."""
    while not server.finished:
        asked = server.open()
        for client in clients.values():
            receipt = server.take(client.answer(asked))
            assert receipt.reason is None or receipt.reason.startswith("doubled: the same"), receipt
        server.close()
    return server.result
