"""How long the default job takes the first time, again, and with a persistent compilation cache.

Run ``python benchmarks/compilation.py [--out FILE]``. The job is `covfree.fit` of FedCOF on the digits,
dealt out to 100 clients; each figure is processor time of a process of its own, without that of the imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from common import parser, write

JOB = """
import json, time
import jax, numpy as np, covfree
from covfree.data import load_digits
data = load_digits()
clients = np.arange(len(data.train_labels)) % 100
spent = {}
def listen(event, duration, **_):
    spent["count"] = spent.get("count", 0) + event.endswith("backend_compile_duration")
jax.monitoring.register_event_duration_secs_listener(listen)
times = []
for _ in range(2):
    start = time.process_time()
    jax.block_until_ready(covfree.fit(covfree.fedcof(), data.train_features, data.train_labels, clients))
    times.append(time.process_time() - start)
names = ("first call", "second call")
print(json.dumps(dict(zip(names, times)) | {"functions": spent["count"]}))
"""


def job(cache: str | None = None) -> dict[str, float]:
    """Seconds of the job in a fresh process."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if cache is not None:
        # By default only what took a second or more to compile is kept.
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    run = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


def main() -> None:
    """Print seconds, and write all of it as JSON."""
    arguments = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = {"no cache": job(), "cache, cold": job(folder), "cache, warm": job(folder)}
    for name, found in results.items():
        print(f"{name:12}", *(f"{key} {value:.3g}" for key, value in found.items()), sep="  ")
    write(arguments.out, seconds=results)


if __name__ == "__main__":
    main()
