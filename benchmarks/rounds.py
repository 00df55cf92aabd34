"""Rounds of FedAvg beside a plain PyTorch loop over clients, and how they grow with the clients.

Run ``python benchmarks/rounds.py [--torch PYTHON] [--out FILE.json]``; PYTHON is an interpreter with torch.
Every measurement is a process of its own, peers one after the other and again, best of both. A round is that
of all clients, one epoch in batches of 32; compilation is told apart. The floor is the products alone: scores
of all examples by one product, and the gradient by another. The CNN is of Flax's own layers, measured on all
cores and on one. "Over devices" has a CPU device for each core, and the clients spread over them. × are
multiples of the time of a round. Growth: 60 examples of 64 features a client, by FedAvg, and by SCAFFOLD,
whose clients remember on the host; memory is what the process grows by.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from common import apart, clocked, cores, parser, peak_memory, second_call, write

EXAMPLES, BATCH = 60, 32
GROWTH = (10, 100, 1_000, 10_000)


class Size(NamedTuple):
    """Of a federation, and how it is trained."""

    clients: int
    shape: tuple[int, ...]
    classes: int
    rate: float
    rounds: int


SIZES = {
    "linear": Size(100, (1280,), 101, 0.1, 10),
    "cnn": Size(20, (28, 28, 1), 10, 0.05, 10),
    **{f"fedavg {number}": Size(number, (64,), 10, 0.1, 3) for number in GROWTH},
    **{f"scaffold {number}": Size(number, (64,), 10, 0.1, 3) for number in GROWTH},
}


def examples(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian classes, a client's one after the other's."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, size.classes, size.clients * EXAMPLES)
    means = rng.normal(size=(size.classes, *size.shape)).astype(np.float32)
    noise = rng.normal(size=(len(labels), *size.shape)).astype(np.float32)
    return means[labels] * (0.1 if len(size.shape) == 1 else 0.5) + noise, labels


def cnn(key: Any) -> Any:
    """Two convolutions and two dense layers of plain Flax, as a covfree model."""
    import jax
    from flax import linen as nn

    from covfree.finetune import Model

    class Features(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for width in (16, 32):
                x = nn.max_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
            return nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))

    body, head = Features(), nn.Dense(10)
    image, hidden = np.zeros((1, 28, 28, 1), np.float32), np.zeros((1, 64), np.float32)
    first, second = jax.random.split(key)
    trained = {"body": jax.jit(body.init)(first, image), "head": head.init(second, hidden)}

    def features(trained: Any, frozen: Any, statistics: Any, x: Any, train: bool, key: Any) -> Any:
        return body.apply(trained["body"], x), statistics

    def scores(trained: Any, frozen: Any, features: Any) -> Any:
        return head.apply(trained["head"], features)

    def finish(trained: Any, frozen: Any, statistics: Any) -> Any:
        return trained

    return Model(trained, (), (), features, scores, finish)


def by_covfree(task: str, devices: int = 1) -> dict[str, Any]:
    """Seconds of each round, accuracy on the training examples, time to import, memory."""
    started = time.perf_counter()
    import jax

    if devices > 1:
        jax.config.update("jax_num_cpu_devices", devices)

    import covfree
    from covfree import finetune, rounds

    imported = time.perf_counter() - started
    covfree.limit_lapack_threads()
    size, key = SIZES[task], jax.random.key(0)
    features, labels = examples(size)
    clients = np.repeat(np.arange(size.clients), EXAMPLES)
    if task == "cnn":
        model = cnn(key)
    else:
        model = finetune.linear_model(finetune.random_head(size.shape[0], size.classes, key=key))
    make = finetune.scaffold if task.startswith("scaffold") else finetune.fedavg
    place: Any = "host" if task.startswith("scaffold") else "device"
    before = peak_memory()
    done, whole = clocked(
        lambda: rounds.run(
            make(model, size.rate, batch_size=BATCH),
            features,
            labels,
            clients,
            key=key,
            rounds=size.rounds,
            place=rounds.Placement(
                memory=place, mesh=jax.make_mesh((devices,), ("clients",)) if devices > 1 else None
            ),
        )
    )
    memory = peak_memory() - before
    last = done.result if task != "cnn" else finetune.Model(
        done.result, (), (), model.features, model.scores, model.finish
    )  # fmt: skip
    floor = None
    if task == "linear":
        products = jax.jit(lambda x, w: x.T @ (x @ w))
        x, w = jax.device_put(features), done.result.weight
        floor = min(second_call(lambda: products(x, w))[1] for _ in range(5))
    right = np.asarray(jax.jit(lambda x: last(x).argmax(1))(features)) == labels
    seconds = [record["seconds"] for record in done.history]
    return {
        "seconds": seconds,
        "import": imported,
        "first_round": whole - sum(seconds[1:]),
        "memory": memory,
        "data": features.nbytes,
        "floor": floor,
        "accuracy": float(right.mean()),
    }


def by_torch(task: str) -> dict[str, Any]:
    """Likewise, of the loop in PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]
    from rounds_torch import fedavg

    torch.set_num_threads(cores())
    size = SIZES[task]
    result = fedavg(task, *examples(size), EXAMPLES, size.rounds, size.rate, BATCH)
    return {**result, "torch": torch.__version__}


PEERS = {"covfree": by_covfree, "sharded": lambda task: by_covfree(task, cores()), "torch": by_torch}


def measured(task: str, peer: str, python: str, number: int | None = None) -> dict[str, Any]:
    """What a process of its own measures, on so many cores; None for all."""
    own = "--measure", task, "--peer", peer, "--cores", str(number or cores())
    found = apart(__file__, *own, python=python)
    # The first compiles.
    return {**found, "round": float(np.median(found["seconds"][1:]))}


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the fastest rounds."""
    return min(runs, key=lambda run: run["round"])


def table(peers: Mapping[str, Any], growth: Mapping[str, Any]) -> str:
    """All of it in Markdown."""
    lines = [
        "| | a round | over devices | PyTorch | products alone | import, first round | accuracy, theirs |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, found in peers.items():
        ours, theirs = found["covfree"], found.get("torch")
        sharded = f"{found['sharded']['round'] * 1e3:.0f} ms" if "sharded" in found else ""
        other = f"{theirs['round'] / ours['round']:.1f} ×" if theirs else ""
        accuracy = f"{ours['accuracy']:.3f}" + (f", {theirs['accuracy']:.3f}" if theirs else "")
        floor = "" if ours["floor"] is None else f"{ours['floor'] * 1e3:.0f} ms"
        started = f"{ours['import']:.1f} s, {ours['first_round']:.1f} s"
        row = (f"{ours['round'] * 1e3:.0f} ms", sharded, other, floor, started, accuracy)
        lines.append(f"| {task} | {' | '.join(row)} |")
    lines += [
        "",
        "| clients | FedAvg, a client | memory | SCAFFOLD, a client | memory |",
        "|---|---|---|---|---|",
    ]
    for number in GROWTH:
        cells = []
        for name in ("fedavg", "scaffold"):
            found = growth[f"{name} {number}"]
            cells += [f"{found['round'] / number * 1e6:.0f} µs", f"{found['memory'] / 2**20:.0f} MiB"]
        lines.append(f"| {number:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print tables, and write JSON."""
    options = parser(__doc__)
    options.add_argument("--torch", help="an interpreter with torch; none: without that peer")
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--measure", choices=SIZES, help=argparse.SUPPRESS)
    options.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    options.add_argument("--cores", type=int, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.measure:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
        print(json.dumps(PEERS[arguments.peer](arguments.measure)))
        return
    pythons = {"covfree": sys.executable, "sharded": sys.executable}
    if arguments.torch:
        pythons["torch"] = arguments.torch
    peers: dict[str, Any] = {}
    for task, number in (("linear", None), ("cnn", None), ("cnn", 1)):
        own = {name: python for name, python in pythons.items() if (name, number) != ("sharded", 1)}
        runs: dict[str, list[dict[str, Any]]] = {peer: [] for peer in own}
        for _ in range(arguments.repeats):
            for peer, python in own.items():
                runs[peer].append(measured(task, peer, python, number))
        name = task if number is None else f"{task}, one core"
        peers[name] = {peer: best(found) for peer, found in runs.items()}
    growth = {
        f"{name} {number}": measured(f"{name} {number}", "covfree", sys.executable)
        for name in ("fedavg", "scaffold")
        for number in GROWTH
    }
    print(table(peers, growth))
    write(arguments.out, peers=peers, growth=growth)


if __name__ == "__main__":
    main()
