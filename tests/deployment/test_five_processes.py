"""Five processes that share a folder: the commands of docs/deployment.md, killed and started again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT, commands, programs

import covfree
from covfree.cli.app import run
from covfree.deployment import Description, Folder

SITES = ("berlin", "oslo", "rome", "wien")
NAMES = ("three", "eight", "zero")
KEY, SERVER_KEY, NEW, SERVE, JOIN, STATUS, EVALUATE = commands("docs/deployment.md")
(DRAW_PHOTOS,) = programs("docs/deployment.md")


def start(command: list[str], folder: Path, *more: str) -> subprocess.Popen:
    # One thread for each of five processes; what one has compiled, the others take.
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    code = "import sys; from covfree.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *command, "--poll", "0.1", *more],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen) -> None:
    for _ in range(6000):
        if path.exists():
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    raise AssertionError(f"{path} did not come")


@pytest.fixture
def started():
    """Processes by name, killed if the test fails before they end."""
    processes: dict[str, subprocess.Popen] = {}
    yield processes
    for process in processes.values():
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_four_sites_and_a_server_by_the_commands_of_the_page(tmp_path, monkeypatch, capsys, started):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("PIL.Image")
    exec(DRAW_PHOTOS, {})
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    assert run(SERVER_KEY) == 0
    assert oct((tmp_path / "server.key").stat().st_mode)[-3:] == "600"
    for site in SITES:
        assert run([*KEY[:-1], f"{site}.key"]) == 0
    (tmp_path / "keys").mkdir()
    assert run([*NEW, "--sites", "nobody"]) == 2
    assert "--sites: expected a folder with" in capsys.readouterr().err
    for name in ("server", *SITES):
        shutil.move(f"{name}.pub", "keys")
    assert run(KEY) == 0  # the private key stays, its public key is written again
    assert Path("berlin.pub").read_text() == Path("keys/berlin.pub").read_text()
    assert run([*NEW, "--max-examples", "100"]) == 0
    assert run(NEW) == 2  # nor a federation
    assert run(STATUS) == 3
    description = Description.load("shared/federation.json")
    folder = Folder("shared")

    # A site with other classes, and one with other weights, are told before they compute.
    other = ["--images", "photos/rome", "--state", "r", "--key", "rome.key", "--out", "r.npz"]
    for words, text in (
        (
            ["--key", "keys/rome.pub"],
            "expected the private key of 'rome' in the description, got its public key",
        ),
        (["--site", "oslo"], "key of 'oslo' in the description, got another"),
        (["--site", "paris"], "site: expected one of berlin, oslo, rome, wien, got 'paris'"),
        (
            ["--images", "nothing"],
            "--images: expected a folder with one folder of images a class, got 'nothing', which does not",
        ),
    ):
        assert run([*JOIN[:3], *other, *words]) == 2
        assert text in capsys.readouterr().err
    assert not Path("r").exists()
    np.savez("r.npz", features=np.ones((4, 1280), np.float32), labels=np.zeros(4, np.int32))
    capsys.readouterr()
    assert run([*JOIN[:3], "--features", "r.npz", *other[2:]]) == 2
    told = capsys.readouterr().err
    assert "r.npz does not say what made its features; covfree extract --spec shared/federation.json" in told
    assert "backbone: expected efficientnet_lite0, got none" in told
    (tmp_path / "other.pth").write_bytes(b"no weights")
    assert run([*JOIN[:3], *other, "--weights", "other.pth"]) == 2
    assert "weights: expected 579344248a93…, got" in capsys.readouterr().err
    assert run(["extract", "--spec", "shared/federation.json", *other[:2], "--weights", "other.pth",
                "--out", "x.npz"]) == 2  # fmt: skip
    assert run([*JOIN[:3], *other, "--identity", "0" * 64]) == 2

    def site(name: str) -> subprocess.Popen:
        words = ["--key", f"{name}.key", "--images", f"photos/{name}", "--state", name]
        return start([*JOIN[:3], *words, "--out", f"{name}-head.npz"], tmp_path)

    started["server"] = start(SERVE, tmp_path)
    wait_for(folder.ask(0), started["server"])
    # One site compiles; the others take what it has compiled.
    started["oslo"] = site("oslo")
    wait_for(folder.answers(0) / "oslo.message", started["oslo"])
    started.update({name: site(name) for name in SITES if name != "oslo"})
    # Killed while the first round is open, and after an answer to it: both go on.
    for name in ("server", "oslo"):
        started[name].send_signal(signal.SIGKILL)
        started[name].communicate()
    started.update(server=start(SERVE, tmp_path), oslo=site("oslo"))
    for name, process in started.items():
        out, _ = process.communicate(timeout=600)
        assert process.returncode == 0, f"{name}: {out}"
    assert run(STATUS) == 0

    heads = {(tmp_path / name).read_bytes() for name in ("head.npz", *(f"{site}-head.npz" for site in SITES))}
    assert len(heads) == 1
    saved = covfree.load_head("head.npz")
    assert saved.class_names == NAMES
    # On photos that no site has used, whose classes are numbered by the names of their folders.
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "cache"))
    capsys.readouterr()
    kept = ["--images", "photos/kept", "--format", "json"]
    assert run([*EVALUATE[:3], *kept, *EVALUATE[5:]]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] > 0.8
    # The same as a simulation of the four sites' features.
    parts = [np.load(tmp_path / name / "features.npz") for name in SITES]
    features, labels = (np.concatenate([part[key] for part in parts]) for key in ("features", "labels"))
    assert len(labels) == 72
    clients = np.repeat(np.arange(4), 18)
    simulated = covfree.rounds.run(
        description.make_algorithm(), features, labels, clients, key=description.key()
    ).result
    np.testing.assert_allclose(saved.head(features), simulated(features), rtol=1e-4, atol=1e-4)
    assert (np.asarray(saved.head(features)).argmax(-1) == labels).mean() > 0.9
