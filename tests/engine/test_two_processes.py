"""The script for several hosts, with two real processes that talk over the loopback address."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from pages import programs
from precision import assert_heads_close

import covfree

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SIZES = {"clients": 21, "examples": 9, "classes": 4, "dim": 6}
METHODS = {
    "fedcof": covfree.fedcof(shrinkage=0.1),
    "fedcof-components": covfree.fedcof_components(shrinkage=0.1),
}
# Seconds after which the two have hung; on an idle machine they take a tenth of it.
LIMIT = 150


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(process: int, port: int, folder: Path, log: Path) -> subprocess.Popen:
    options = {"--coordinator": f"127.0.0.1:{port}", "--processes": 2, "--process": process}
    options |= {f"--{name}": size for name, size in SIZES.items()}
    options |= {"--shrinkage": 0.1, "--test": 200, "--heads": folder}
    command = [sys.executable, str(BENCHMARKS / "two_hosts.py"), "--methods", *METHODS]
    two_devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    with log.open("w") as output:
        return subprocess.Popen(
            command + [str(x) for pair in options.items() for x in pair],
            env={**os.environ, **two_devices},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def run_both(folder: Path) -> tuple[bool, list[str]]:
    """Whether both finished well, and what they printed."""
    port = free_port()
    logs = [folder / f"{process}.log" for process in range(2)]
    processes = [start(process, port, folder, log) for process, log in enumerate(logs)]
    deadline = time.monotonic() + LIMIT
    try:
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            # One that failed waits for the other, and that one for what it would have sent.
            if any("Traceback" in log.read_text() for log in logs):
                break
            time.sleep(0.1)
        return all(process.poll() == 0 for process in processes), [log.read_text() for log in logs]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The heads' folder, and what each of the two processes printed."""
    folder = tmp_path_factory.mktemp("heads")
    done, outputs = run_both(folder)
    if not done and "DEADLINE_EXCEEDED" in "".join(outputs):
        # On the CPU the two wait no more than 30 s for one another, which a busy machine may exceed.
        done, outputs = run_both(folder)
    if not done:
        pytest.fail(
            f"the two processes failed or hung (limit {LIMIT} s); they printed:\n" + "\n".join(outputs)
        )
    return folder, outputs


@pytest.fixture(scope="module")
def script():
    """The script as a module, for the federation that it draws."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("two_hosts", BENCHMARKS / "two_hosts.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", METHODS)
def test_two_processes_are_one(finished, script, name, monkeypatch):
    folder, outputs = finished
    method = METHODS[name]
    shares = [script.own_rows(method, process, 2, **SIZES) for process in range(2)]
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *shares)
    head = covfree.solve_rows(method, rows, num_classes=SIZES["classes"])
    with np.load(folder / f"{name}.npz") as file:
        saved = dict(file)
    assert_heads_close((saved["weight"], saved["bias"]), (head.weight, head.bias), 1e-5)

    for process, (share, output) in enumerate(zip(shares, outputs, strict=True)):
        line = re.search(rf"process {process} of 2: {name}: (\d+) rows here, table of (\d+)", output)
        assert line, output
        # Each held its own rows and no others; the table is that of both.
        assert int(line[1]) == len(share.label)
        assert int(line[2]) >= len(rows.label)
    assert "accuracy" in outputs[0]
    assert "accuracy" not in outputs[1]
    # The page's program, of one process that has started.
    _, program = programs("docs/scale.md")
    monkeypatch.setattr(jax.distributed, "initialize", lambda: None)
    names = {"method": method, "num_classes": SIZES["classes"], "my_rows": lambda process, processes: rows}
    exec(program, names)
    assert_heads_close((names["head"].weight, names["head"].bias), (head.weight, head.bias), 1e-5)
