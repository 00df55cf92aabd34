"""``--out``: a folder is one command's; what it holds is not overwritten by another."""

from itertools import permutations

import pytest

SMALL = ("--clients", 6, "--alpha", 2)
COMMANDS = {
    "compare": ("compare", *SMALL, "--methods", "fedncm", "--seeds", 1),
    "finetune": ("finetune", *SMALL, "--init", "fedncm", "--algorithm", "fedavg", "--rounds", 1),
    "partition": ("partition", *SMALL),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each command."""
    from covfree.cli.app import run

    path = tmp_path_factory.mktemp("folders")
    for name, arguments in COMMANDS.items():
        assert run([*map(str, arguments), "--out", str(path / name)]) == 0
    return path


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("first", "second"), [*permutations(COMMANDS, 2)])
def test_another_command_is_refused(cli, folders, first, second):
    out = folders / first
    before = contents(out)
    outcome = cli(*COMMANDS[second], "--out", out)
    assert outcome.refuses(f"--out: {out} holds files of covfree {first}, such as ")
    assert f"give covfree {second} a folder of its own" in outcome.err
    assert contents(out) == before


def test_results_alone_are_another_commands_too(cli, folders, tmp_path):
    """As they are kept beside papers, without the runs."""
    for name in ("results.json", "accuracy_vs_bytes.png"):
        (tmp_path / name).write_bytes((folders / "compare" / name).read_bytes())
    outcome = cli(*COMMANDS["finetune"], "--out", tmp_path)
    assert outcome.refuses("holds files of covfree compare")


def test_other_runs_of_the_same_command(cli, folders):
    """Pictures are drawn again; results of other runs are not overwritten."""
    assert cli(*COMMANDS["partition"], "--out", folders / "partition").code == 0
    before = contents(folders / "finetune")
    outcome = cli(*COMMANDS["finetune"], "--init", "fed3r", "--out", folders / "finetune")
    assert outcome.refuses(f"--out: {folders / 'finetune'} holds runs; --resume goes on with them")
    assert contents(folders / "finetune") == before
