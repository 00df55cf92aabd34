"""One federation over several hosts: each makes the rows of its own clients, and only totals are exchanged.

The same command on each of P hosts, with GPUs or without; hosts that a cluster's scheduler has started
(Slurm, Open MPI, Kubernetes, Cloud TPU) find each other without the three options:

    python benchmarks/two_hosts.py --coordinator HOST0:1234 --processes P --process 0     # on the first
    python benchmarks/two_hosts.py --coordinator HOST0:1234 --processes P --process 1     # on the second, …

On one host without a scheduler, ``--processes 1`` runs it all in one process. Process 0 prints accuracy and
seconds. Features are drawn from class Gaussians, a client by its number: the federation does not depend on P.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from common import parser, second_call, write
from jax.sharding import Mesh

import covfree

TEST = -1


def draw(
    client: int, *, examples: int, classes: int, dim: int, kinds: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a client, which holds a few kinds of classes; of all classes for ``TEST``."""
    centres = np.random.default_rng(0).standard_normal((classes, dim), np.float32) / np.sqrt(dim / 16)
    rng = np.random.default_rng([1, client - TEST])
    held = np.arange(classes) if client == TEST else rng.choice(classes, min(kinds, classes), replace=False)
    labels = rng.choice(held, examples).astype(np.int32)
    scale = np.linspace(1.5, 0.5, dim, dtype=np.float32)
    return centres[labels] + scale * rng.standard_normal((examples, dim), np.float32), labels


def own_rows(
    method: covfree.Method, process: int, processes: int, *, clients: int, **sizes: Any
) -> covfree.Rows:
    """The rows of this process's share of the clients, on the host, without padding."""
    share = np.arange(clients)[process::processes]
    drawn = [draw(client, **sizes) for client in share]
    owners = np.repeat(share, sizes["examples"]).astype(np.int32)
    features, labels = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    key = jax.random.fold_in(jax.random.key(0), process)
    rows = jax.tree.map(np.asarray, covfree.summarise(method, features, labels, owners, key=key))
    return jax.tree.map(lambda x: x[rows.count > 0], rows)


def run(name: str, arguments: argparse.Namespace) -> tuple[dict[str, Any], covfree.LinearHead]:
    """One method on all hosts: figures of this process, and the head, which all hosts have."""
    entry = covfree.methods.registry()[name]
    given = {} if arguments.shrinkage is None else {"shrinkage": arguments.shrinkage}
    method = entry.make(**{k: v for k, v in given.items() if k in entry.accepts})
    process, processes = jax.process_index(), jax.process_count()
    sizes = {"examples": arguments.examples, "classes": arguments.classes, "dim": arguments.dim}
    rows = own_rows(method, process, processes, clients=arguments.clients, **sizes)
    # From here on as on one host.
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    table = covfree.shard_rows(rows, mesh, whole_clients=method.whole_clients)
    totals, sum_seconds = second_call(
        lambda: covfree.accumulate(method, table, num_classes=arguments.classes, mesh=mesh)
    )
    head, solve_seconds = second_call(lambda: covfree.solve_totals(method, *totals))
    shards = cast(jax.Array, table.count).addressable_shards
    here = sum(int((np.asarray(shard.data) > 0).sum()) for shard in shards)
    print(f"process {process} of {processes}: {name}: {here} rows here, table of {table.count.shape[0]}")
    features, labels = draw(TEST, **{**sizes, "examples": arguments.test})
    # The head as this host's own, to be used without the others.
    head = jax.tree.map(lambda x: jax.numpy.asarray(np.asarray(x)), head)
    figures = {
        "method": name,
        "accuracy": float(covfree.evaluate(head, features, labels)),
        "sum_seconds": sum_seconds,
        "solve_seconds": solve_seconds,
    }
    return figures, head


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--coordinator", help="address and port of process 0, e.g. 10.0.0.1:1234")
    options.add_argument("--processes", type=int, help="how many processes there are in all")
    options.add_argument("--process", type=int, help="the number of this one, from 0")
    options.add_argument("--methods", nargs="+", default=["fedcof", "fed3r", "fedcof-components"])
    options.add_argument("--shrinkage", type=float, help="γ; automatic by default")
    options.add_argument("--clients", type=int, default=2000)
    options.add_argument("--examples", type=int, default=50, help="of each client")
    options.add_argument("--classes", type=int, default=100)
    options.add_argument("--dim", type=int, default=512)
    options.add_argument("--test", type=int, default=10_000, help="test examples")
    options.add_argument("--heads", type=Path, help="folder in which process 0 saves the heads, NumPy's .npz")
    return options.parse_args(arguments)


def main() -> None:
    """Join the other processes, run the methods, print what process 0 found."""
    covfree.limit_lapack_threads()
    arguments = parse()
    if arguments.processes != 1:
        # How hosts without accelerators talk to one another; the default of newer versions of jax.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    results = []
    for name in arguments.methods:
        figures, head = run(name, arguments)
        results.append(figures)
        if jax.process_index() == 0:
            print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else str(v) for k, v in figures.items()))
            if arguments.heads is not None:
                np.savez(arguments.heads / f"{name}.npz", weight=head.weight, bias=head.bias)
    if jax.process_index() == 0:
        sizes = {name: getattr(arguments, name) for name in ("clients", "examples", "classes", "dim")}
        layout = {"processes": jax.process_count(), "devices": jax.device_count()}
        write(arguments.out, **layout, **sizes, results=results)


if __name__ == "__main__":
    main()
