"""What a loop over clients of one's own costs: clients of many sizes, and classes that many clients hold.

Run ``python benchmarks/first_steps.py [--before DIR] [--out FILE]``. Each line is run in a process of its
own, once cold and five times warm, without the time of the imports. With ``--before``, the folder of another
version of covfree, it is run there too. Seconds of CPU are given beside those of the wall, which on a shared
machine depend on the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import apart, parser, write

JOB = """
import json, sys, time
import jax, numpy as np, covfree
rng = np.random.default_rng(0)
dim, classes = 64, 10
sizes = rng.choice(rng.choice(np.arange(5, 400), 32, replace=False), 75)
clients = [(rng.normal(size=(n, dim)).astype("f"), rng.integers(0, classes, n)) for n in sizes]
rows = [(rng.normal(size=(k, dim)).astype("f"), rng.integers(1, 9, k)) for k in (10, 13, 20, 47, 100, 300)]
batch = rng.normal(size=(20, 100, dim)).astype("f"), rng.integers(0, classes, (20, 100))
method = covfree.fedcof()
jobs = {
    "class_means, 75 clients": lambda: [covfree.class_means(x, y, classes) for x, y in clients],
    "client_message, 75 clients": lambda: [
        covfree.client_message(method, x, y, num_classes=classes).rows.mean for x, y in clients
    ],
    "estimate_covariance, six K": lambda: [covfree.estimate_covariance(x, n) for x, n in rows],
    "vmap(class_means), estimate_covariance, class_means of 75 clients": lambda: (
        jax.vmap(lambda x, y: covfree.class_means(x, y, classes))(*batch),
        covfree.estimate_covariance(*rows[0]),
        [covfree.class_means(x, y, classes) for x, y in clients],
    ),
}
if len(sys.argv) == 1:
    print(json.dumps(list(jobs)))
    raise SystemExit
job, times = jobs[sys.argv[1]], []
for _ in range(6):
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(job())
    times.append((time.perf_counter() - wall, time.process_time() - cpu))
warm = [min(column) for column in zip(*times[1:])]
print(json.dumps({"cold": times[0][0], "cold_cpu": times[0][1], "warm": warm[0], "warm_cpu": warm[1]}))
"""


def run(folder: Path, *arguments: str) -> Any:
    """What the job prints, with the covfree of a folder."""
    return apart("-P", "-c", JOB, *arguments, PYTHONPATH=str(folder), OPENBLAS_NUM_THREADS="1")


def main() -> None:
    """Measure each line, print it, and write all of it."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="folder of another version of covfree")
    arguments = options.parse_args()
    here, results = Path(__file__).resolve().parents[1], []
    for name in run(here):
        result = {"job": name, "now": run(here, name)}
        if arguments.before is not None:
            result["before"] = run(arguments.before, name)
        results.append(result)
        for when in ("before", "now"):
            if when in result:
                found = result[when]
                print(
                    f"{name:66} {when:6}  cold {found['cold']:6.2f} s ({found['cold_cpu']:6.2f} of CPU)"
                    f"  warm {1000 * found['warm']:7.2f} ms",
                    flush=True,
                )
    write(arguments.out, results=results)


if __name__ == "__main__":
    main()
