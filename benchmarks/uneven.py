"""What made rounds slow for nothing: a large client, a mesh, NumPy parameters, varying cohorts, checkpoints.

Run ``python benchmarks/uneven.py [--before CHECKOUT] [--out FILE.json]``; CHECKOUT is another checkout of
covfree, measured beside this one, each measurement a process of its own. Milliseconds are the least of the
later rounds of `covfree.rounds.run`, or of later calls.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import apart, parser, second_call, write

RNG = np.random.default_rng(0)


def _rounds(sizes: list[int], dim: int = 16, rounds: int = 12, **options: Any) -> float:
    """Milliseconds of a round of FedAvg on a linear head."""
    import jax

    from covfree import finetune
    from covfree.rounds import run

    clients = np.repeat(np.arange(len(sizes)), sizes)
    features = RNG.normal(size=(len(clients), dim)).astype(np.float32)
    model = finetune.linear_model(finetune.random_head(dim, 3, key=jax.random.key(0)))
    algorithm = finetune.fedavg(model, 0.1)
    labels = RNG.integers(0, 3, len(clients))
    done = run(algorithm, features, labels, clients, key=jax.random.key(0), rounds=rounds, **options)
    return 1e3 * min(record["seconds"] for record in done.history[1:])


def even() -> float:
    """200 clients of 8 examples."""
    return _rounds([8] * 200)


def large() -> float:
    """The same beside a client of 50,000 examples, none of which is drawn."""
    drawn = np.tile(np.arange(200), (12, 1))
    return _rounds([8] * 200 + [50_000], participation=drawn)


def mesh() -> float:
    """Two clients over two devices, of a table of 305 MB."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    devices = jax.make_mesh((2,), ("clients",))
    try:
        from covfree.rounds import Placement  # pyright: ignore[reportMissingImports]

        place: dict[str, Any] = {"place": Placement(mesh=devices)}
    except ImportError:
        place = {"mesh": devices}
    drawn = np.tile(np.arange(2), (12, 1))
    return _rounds([40] * 20 + [73_650], dim=1024, participation=drawn, **place)


def numpy_parameters() -> float:
    """Two clients whose model has 256 MB of frozen parameters, given as NumPy arrays."""
    import jax
    import jax.numpy as jnp

    from covfree import finetune
    from covfree.rounds import run

    def features(trained: Any, frozen: Any, statistics: Any, x: Any, train: bool, key: Any) -> Any:
        return x * frozen[0], statistics

    def scores(trained: Any, frozen: Any, features: Any) -> Any:
        return features @ trained

    def finish(trained: Any, frozen: Any, statistics: Any) -> Any:
        return trained

    frozen = np.ones(2**26, np.float32)
    algorithm = finetune.fedavg(finetune.Model(jnp.zeros((4, 3)), frozen, (), features, scores, finish), 0.1)
    x, y, clients = np.ones((20, 4), np.float32), np.arange(20) % 3, np.arange(20) % 2
    done = run(algorithm, x, y, clients, key=jax.random.key(0), rounds=6)
    return 1e3 * min(record["seconds"] for record in done.history[1:])


def varying() -> float:
    """Functions that are compiled for cohorts of 1 to 12 clients, in 12 rounds."""
    from covfree.rounds import cohort

    drawn = np.where(np.arange(12)[None] <= np.arange(12)[:, None], np.arange(12)[None], -1)
    compiled: Any = cohort.answers
    before = compiled._cache_size()
    _rounds([20] * 12, rounds=12, participation=drawn)
    return float(compiled._cache_size() - before)


def client_accuracy() -> float:
    """`finetune.client_accuracy` of 1,000 clients' own models."""
    import jax

    from covfree import finetune
    from covfree.rounds import run

    clients = np.repeat(np.arange(1000), 10)
    features = RNG.normal(size=(10_000, 16)).astype(np.float32)
    labels = RNG.integers(0, 3, 10_000)
    model = finetune.linear_model(finetune.random_head(16, 3, key=jax.random.key(0)))
    own = run(finetune.local_only(model), features, labels, clients, key=jax.random.key(0), rounds=1).result
    finetune.client_accuracy(own, features, labels, clients)
    times = [
        second_call(lambda: finetune.client_accuracy(own, features, labels, clients))[1] for _ in range(3)
    ]
    return 1e3 * min(times)


def alignment() -> float:
    """`covfree.align`'s maps on 20,000 examples of 400 clients in 64 directions."""
    import covfree

    clients = RNG.permutation(np.arange(20_000) % 400)
    features = RNG.normal(size=(20_000, 64)).astype(np.float32) + (clients % 7)[:, None]
    aligned = covfree.align(features, clients, np.eye(64, dtype=np.float32))
    return 1e3 * min(second_call(lambda: aligned(features, clients))[1] for _ in range(3))


def saving() -> float:
    """Growth of the file that is written at each saving, in bytes for each round that there was before."""
    import jax

    from covfree import finetune
    from covfree.rounds import run

    model = finetune.linear_model(finetune.random_head(4, 3, key=jax.random.key(0)))
    x, y, clients = np.ones((100, 4), np.float32), np.arange(100) % 3, np.arange(100) % 50
    sizes = []
    for rounds in (10, 60):
        with tempfile.TemporaryDirectory() as folder:
            options: Any = {"checkpoint": folder, "each_client": True, "rounds": rounds}
            run(finetune.fedavg(model), x, y, clients, key=jax.random.key(0), **options)
            sizes.append(sum(file.stat().st_size for file in (Path(folder) / str(rounds)).rglob("*")))
    return (sizes[1] - sizes[0]) / 50


TASKS: dict[str, tuple[str, Callable[[], float]]] = {
    "even": ("200 clients of 8 examples, a round, ms", even),
    "large": ("beside a client of 50,000, a round, ms", large),
    "mesh": ("two clients of 305 MB over a mesh, a round, ms", mesh),
    "parameters": ("256 MB of NumPy parameters, a round, ms", numpy_parameters),
    "varying": ("cohorts of 1 to 12 clients, functions compiled", varying),
    "saving": ("bytes written again at each saving, for each earlier round", saving),
    "accuracy": ("accuracy of 1,000 clients' models, ms", client_accuracy),
    "alignment": ("20,000 examples moved by 400 maps, ms", alignment),
}


def measured(task: str, checkout: Path) -> float:
    """What a process of its own measures of a checkout."""
    return float(apart(__file__, "--measure", task, PYTHONPATH=str(checkout)))


def main() -> None:
    """Measure, print a table, and write JSON."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="another checkout")
    options.add_argument("--measure", choices=TASKS, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.measure:
        print(TASKS[arguments.measure][1]())
        return
    checkouts = {"before": arguments.before, "now": Path(__file__).resolve().parents[1]}
    results: dict[str, Any] = {}
    for task, (title, _) in TASKS.items():
        results[task] = {name: measured(task, path) for name, path in checkouts.items() if path is not None}
        print(f"| {title} | {' | '.join(f'{value:.2f}' for value in results[task].values())} |", flush=True)
    write(arguments.out, results=results)


if __name__ == "__main__":
    main()
