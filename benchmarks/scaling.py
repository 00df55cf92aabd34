"""One table of rows over 1, 2, 4, … devices: the same totals, and how long they take.

Run ``python benchmarks/scaling.py [--out FILE]``. On GPUs or TPUs it takes all that there are. On a CPU the
host is split into ``--host-devices``, which share its cores: that tests the code, and shows no speed-up. Over
several hosts: ``two_hosts.py``.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import parser, timed, write
from jax.sharding import Mesh

import covfree

METHODS = {
    "fedncm": covfree.fedncm(),
    "fedcof": covfree.fedcof(),
    "fed3r": covfree.fed3r(),
    "fedcof-components": covfree.fedcof_components(),
}


def make_rows(clients: int, rows_each: int, classes: int, dim: int) -> covfree.Rows:
    """Two rows of each of a client's classes, with class centres and noise of falling variance."""
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(0, classes, clients * rows_each // 2), 2).astype(np.int32)
    scale = np.linspace(1, 0.1, dim, dtype=np.float32)
    features = rng.standard_normal((len(labels), dim), np.float32)
    features += rng.standard_normal((classes, dim), np.float32)[labels]
    owners = np.repeat(np.arange(clients, dtype=np.int32), rows_each)
    counts = rng.integers(1, 9, len(labels)).astype(np.int32)
    return covfree.Rows(features * scale, counts, labels, owners)


def difference(totals: Any, expected: Any) -> float:
    """Largest relative difference of an array's norm, over all arrays of the totals."""
    pairs = zip(jax.tree.leaves(totals), jax.tree.leaves(expected), strict=True)
    return max(
        float(np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-30))
        for one, other in ((np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs)
    )


def main() -> None:
    """Print a line for each method and number of devices, and write all of it."""
    covfree.limit_lapack_threads()
    options = parser(__doc__)
    options.add_argument("--clients", type=int, default=12_500)
    options.add_argument("--rows", type=int, default=8, help="of each client, an even number")
    options.add_argument("--classes", type=int, default=100)
    options.add_argument("--dim", type=int, default=512)
    options.add_argument(
        "--host-devices", type=int, default=2, help="parts of the host, where there is no other"
    )
    arguments = options.parse_args()
    split = f"--xla_force_host_platform_device_count={arguments.host_devices}"
    # Read when jax first asks for its devices, which is below.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {split}".strip()
    devices = jax.devices()
    rows = make_rows(arguments.clients, arguments.rows, arguments.classes, arguments.dim)
    numbers = [2**k for k in range(len(devices).bit_length()) if 2**k < len(devices)] + [len(devices)]
    results = []
    for name, method in METHODS.items():
        expected = covfree.accumulate(method, jax.tree.map(jnp.asarray, rows), num_classes=arguments.classes)
        for number in numbers:
            mesh = Mesh(np.array(devices[:number]), ("rows",))
            table = covfree.shard_rows(rows, mesh, whole_clients=method.whole_clients)
            run = partial(covfree.accumulate, method, table, num_classes=arguments.classes, mesh=mesh)
            result = {
                "method": name,
                "devices": number,
                "seconds": timed(run),
                "difference": difference(run(), expected),
            }
            results.append(result)
            print(
                f"{name:20} {number:3} devices  {result['seconds']:8.4f} s  "
                f"totals differ by {result['difference']:.1e} from those of one array",
                flush=True,
            )
    sizes = {name: getattr(arguments, name) for name in ("clients", "rows", "classes", "dim")}
    write(arguments.out, **sizes, results=results)


if __name__ == "__main__":
    main()
