"""Commands that are stopped: with --out what is done stays, and they go on from there."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import covfree

# Few clients, and an α with about as many pairs at every seed, as all tests of `compare` have them.
SMALL = ("compare", "--clients", "6", "--alpha", "2")
FEW = ("--methods", "fedncm,fed3r", "--seeds", 2, "--format", "json")


def without_times(content):
    if isinstance(content, dict):
        return {k: without_times(v) for k, v in content.items() if not k.endswith("_seconds")}
    return [without_times(x) for x in content] if isinstance(content, list) else content


def test_with_one_run_missing_that_one_is_made(compare, tmp_path):
    """Its line was cut short."""
    whole = compare(*FEW, "--out", tmp_path)
    file = tmp_path / "runs.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    resumed = compare(*FEW, "--out", tmp_path, "--resume")
    assert resumed.code == 0
    assert without_times(json.loads(resumed.out)) == without_times(json.loads(whole.out))
    assert [line for line in resumed.err.splitlines() if "run " in line] == [
        "covfree: run 4 of 4: fed3r, seed 1: compiling, then running"
    ]
    again = compare(*FEW, "--out", tmp_path, "--resume")
    assert json.loads(again.out) == json.loads(resumed.out)
    assert "run 4" not in again.err


def test_more_seeds_and_methods_may_be_asked_for(compare, tmp_path):
    compare("--methods", "fedncm", "--seeds", 1, "--out", tmp_path)
    outcome = compare(*FEW, "--out", tmp_path, "--resume")
    assert outcome.code == 0
    assert outcome.err.count(": run ") == 3
    assert f"{tmp_path} holds 4 runs; --resume goes on with them" in compare(*FEW, "--out", tmp_path).err
    alone = compare(*FEW)
    assert without_times(json.loads(outcome.out)) == without_times(json.loads(alone.out))


def test_other_settings_are_an_error_that_names_the_option(untyped, compare, tmp_path):
    one = ("--methods", "fedcof", "--set", "shrinkage=1", "--seeds", 1, "--out", tmp_path)
    assert compare(*one).code == 0
    before = (tmp_path / "runs.jsonl").read_bytes()
    outcome = compare(*one)
    assert outcome.refuses(f"--out: {tmp_path} holds a run; --resume goes on with it, or give another folder")
    for other, text in (
        (("--alpha", 0.5), "--alpha 2.0, got 0.5"),
        (("--alpha", "2,0.5"), "--alpha 2.0, got 2.0,0.5"),
        (("--clients", 7), "--clients 6, got 7"),
        (("--partition", "iid"), "--partition inner_dirichlet, got iid"),
        (("--set", "shrinkage=2"), "--set shrinkage=1, got shrinkage=2"),
        (("--noise", "laplace:1"), "--noise its default, got laplace:1"),
    ):
        outcome = compare(*one, "--resume", *other)
        assert outcome.refuses(f"--resume: {tmp_path} holds a run with {text}")
    kept = tmp_path / "settings.json"
    kept.write_text(kept.read_text().replace(covfree.__version__, "0.0.1"))
    outcome = compare(*one, "--resume")
    assert outcome.refuses(f"holds a run of covfree 0.0.1, got {covfree.__version__}")
    assert (tmp_path / "runs.jsonl").read_bytes() == before
    kept.write_text("{}")
    outcome = compare(*one, "--resume")
    assert outcome.refuses("settings.json: expected the settings of a run")
    (tmp_path / "settings.json").unlink()
    for more in ((), ("--resume",)):
        outcome = compare(*one, *more)
        assert outcome.refuses("runs.jsonl without settings.json")


def test_other_contents_of_a_file_are_an_error(untyped, cli, tmp_path):
    features, labels = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3
    data, out = tmp_path / "mine.npz", tmp_path / "out"
    command = (
        "compare",
        "--dataset",
        data,
        "--clients",
        3,
        "--methods",
        "fedncm",
        "--seeds",
        1,
        "--out",
        out,
    )
    np.savez(data, features=features, labels=labels)
    assert cli(*command).code == 0
    np.savez(data, features=features + 1, labels=labels)
    outcome = cli(*command, "--resume")
    assert outcome.refuses(
        f"--resume: {out} holds runs on other contents of mine ({data}); give another folder"
    )


def test_other_clients_of_a_file_are_other_contents(untyped, cli, tmp_path):
    data = {"features": np.random.default_rng(0).normal(size=(30, 3)), "labels": np.arange(30) % 3}
    command = ("compare", "--dataset", tmp_path / "mine.npz", "--methods", "fedncm", "--seeds", 1)
    command = (*command, "--out", tmp_path / "out")
    np.savez(tmp_path / "mine.npz", **data, clients=np.arange(30) % 4)
    assert cli(*command).code == 0
    np.savez(tmp_path / "mine.npz", **data, clients=np.arange(30) // 10)
    outcome = cli(*command, "--resume")
    assert outcome.refuses("holds runs on other contents of mine")


def stopped(arguments, sent, line) -> tuple[int, str, str]:
    """The command in a process that is sent a signal when it has said a line: code, stdout, stderr."""
    # A shell that starts these tests in the background makes all that they start ignore Ctrl-C.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{code}; from covfree.cli import main; main()", *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XLA_FLAGS": ""},
    ) as process:
        for said in process.stderr:
            if line in said:
                break
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return process.returncode, out, err


# That Ctrl-C ends it in the same way: tests/cli/test_compare_command.py, and below.
@pytest.mark.slow
def test_a_signal_to_compare(compare, tmp_path):
    arguments = (*SMALL, "--methods", "fedncm", "--seeds", 400, "--out", tmp_path, "--format", "json")
    ended, out, err = stopped(arguments, signal.SIGTERM, "run 3 of 400")
    assert (ended, out) == (143, ""), err
    assert err.splitlines()[-1] == "covfree: terminated; the same command with --resume goes on"
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) >= 2
    # It goes on, here with fewer seeds, which are the first.
    few = ("--methods", "fedncm", "--seeds", 3, "--format", "json")
    resumed = compare(*few, "--out", tmp_path, "--resume")
    assert without_times(json.loads(resumed.out)) == without_times(json.loads(compare(*few).out))


@pytest.mark.slow
def test_signals_to_finetune(cli, tmp_path):
    """While the first round is compiled; then while it trains, having gone on."""
    many = ("finetune", "--clients", 6, "--alpha", 2, "--init", "fedncm", "--algorithm", "fedavg")
    many += ("--checkpoint-every", 1, "--out", tmp_path)
    for sent, code, line, word, more in (
        (signal.SIGINT, 130, "round 0/2000", "interrupted", ()),
        (signal.SIGTERM, 143, "round 3/2000", "terminated", ("--resume",)),
    ):
        ended, out, err = stopped((*many, "--rounds", 2000, *more), sent, line)
        assert (ended, out) == (code, "")
        assert err.splitlines()[-1] == f"covfree: {word}; the same command with --resume goes on"
    history = (tmp_path / "fedncm-fedavg-seed0" / "history.jsonl").read_text().splitlines()
    rounds = len(history) + 1
    outcome = cli(*many, "--rounds", rounds, "--resume")
    assert outcome.code == 0, outcome.err
    assert len((tmp_path / "fedncm-fedavg-seed0" / "history.jsonl").read_text().splitlines()) == rounds + 1
