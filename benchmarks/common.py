"""What the scripts share: options, processes, the machine in words, timing, peak memory, the file of results.

A script run as ``python benchmarks/x.py`` imports it as ``common``. jax is imported where it is used, so that
a peer measured in a process of its own does not pay for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of a script's options, with ``--out``."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--out", type=Path, help="JSON file to write")
    return made


def apart(*command: str, python: str = sys.executable, **environment: str) -> Any:
    """What a process of its own prints last, as JSON; the command begins with a script or ``-c``."""
    run = [python, *command]
    done = subprocess.run(run, stdout=subprocess.PIPE, text=True, env=os.environ | environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)[-80:]}: failed with exit status {done.returncode}")
    return json.loads((done.stdout.splitlines() or ["null"])[-1])


def machine() -> dict[str, Any]:
    """Processor, cores, memory, device and versions; nothing that tells where files lie."""
    from covfree.studies.report import environment

    return {
        **environment(),
        "jaxlib": metadata.version("jaxlib"),
        "processor": _processor(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def finished(result: T) -> T:
    """Wait for what jax computes in the background; what others return is there already."""
    jax = sys.modules.get("jax")
    return result if jax is None else jax.block_until_ready(result)


def clocked(function: Callable[[], T]) -> tuple[T, float]:
    """Result and wall seconds of a call."""
    start = time.perf_counter()
    return finished(function()), time.perf_counter() - start


def second_call(function: Callable[[], T]) -> tuple[T, float]:
    """Result and wall seconds of a second call; the first compiles."""
    finished(function())
    return clocked(function)


# Threads of a linear algebra library spin for up to 0.1 s after a factorisation, and take the cores from the
# next call's products: an effect of repeating a call, not of the call.
_PAUSE = 0.15


def timed(function: Callable[..., Any], *args: Any, repeats: int = 5) -> float:
    """Best wall seconds of a call, after one that compiles and warms up; each from rest."""
    finished(function(*args))
    return min(from_rest(lambda: function(*args))[1] for _ in range(repeats))


def from_rest(function: Callable[[], T]) -> tuple[T, float]:
    """Result and wall seconds of a call after a pause."""
    time.sleep(_PAUSE)
    return clocked(function)


def peak_memory() -> int:
    """Most bytes that this process has held: on the accelerator where jax uses one, else resident."""
    jax = sys.modules.get("jax")
    if jax is not None and jax.default_backend() != "cpu":
        statistics = jax.devices()[0].memory_stats() or {}
        if "peak_bytes_in_use" in statistics:
            return int(statistics["peak_bytes_in_use"])
    if _STATUS.exists():
        # On Linux `ru_maxrss` starts at that of the process that started this one.
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def restart_peak() -> None:
    """Let `peak_memory` forget what this process held before, where Linux can."""
    with contextlib.suppress(OSError):
        _FORGET.write_text("5")


def write(path: Path | None, **results: Any) -> None:
    """Write results as JSON, after what machine they are of; nothing without a path."""
    if path is not None:
        text = json.dumps({"machine": machine(), **results}, indent=2, ensure_ascii=False)
        path.write_text(f"{text}\n", encoding="utf-8")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
