"""The command line, ``covfree``, with one function per command."""

from __future__ import annotations

import gc
import importlib.util
import io
import os
import sys
from importlib.metadata import version
from typing import Any

_NEEDED = ("typer", "rich", "sklearn", "matplotlib", "jinja2", "optax")
_QUICK = {"xla_cpu_use_fusion_emitters": "false", "xla_cpu_parallel_codegen_split_count": "1"}


def main(command: Any = None) -> None:
    """Run the command line, or another typer command; needs the ``cli`` extra."""
    missing = [name for name in _NEEDED if not importlib.util.find_spec(name)]
    if missing:
        from covfree.core.optional import how_to_get

        sys.exit(f"covfree: the command line needs {', '.join(missing)}: {how_to_get('cli')}")
    for stream in (sys.stdout, sys.stderr):
        # Write a question mark if the terminal's encoding lacks a character such as γ or ±.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    from covfree.cli.interrupts import handle_signals

    handle_signals()
    # Tracing makes many long-lived small objects, which the garbage collector would scan again and again.
    gc.set_threshold(50_000, 20, 50)
    _compile_quickly()
    from covfree.cli.app import run
    from covfree.core.threads import limit_lapack_threads

    # Other programs may be running on the machine.
    limit_lapack_threads()
    sys.exit(run(sys.argv[1:], *([] if command is None else [command])))


def _compile_quickly() -> None:
    """Choose XLA's older emitters of fused loops on CPUs, which halve compile time for equally fast code.

    LLVM also gets one module instead of many small ones. XLA reads ``XLA_FLAGS`` when jax first computes, and
    aborts on an unknown flag, so the flags are set only for releases of jax that are known to have them.
    """
    major, minor, *_ = (int(part) for part in version("jaxlib").split(".")[:2])
    if not (0, 6) <= (major, minor) < (0, 11):
        return
    given = os.environ.get("XLA_FLAGS", "")
    for flag, value in _QUICK.items():
        if flag not in given:
            given = f"{given} --{flag}={value}".strip()
    os.environ["XLA_FLAGS"] = given
