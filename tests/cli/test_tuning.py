"""``covfree finetune --tune``: rates chosen on training clients, never on the test part."""

import json

import jax
import numpy as np
import pytest

from covfree.finetune.registry import Rates
from covfree.studies import Federation
from covfree.studies.curves import LiveTuning
from covfree.studies.progress import progress_bar
from covfree.studies.source import of_file
from covfree.studies.training import Settings, make_start, make_task
from covfree.studies.tuning import set_aside, tune


@pytest.fixture
def features(tmp_path):
    """80 examples of 3 classes on 10 clients; the test part is what is given."""

    def write(test_seed):
        rng, labels = np.random.default_rng(0), np.arange(80) % 3
        points = (rng.normal(size=(80, 5)) + 2 * np.eye(5)[labels]).astype(np.float32)
        is_test = np.arange(80) >= 60
        other = np.random.default_rng(test_seed)
        points[is_test] += other.normal(size=(20, 5)).astype(np.float32)
        path = tmp_path / f"{test_seed}.npz"
        np.savez(path, features=points, labels=labels, clients=np.arange(80) // 3 % 10, is_test=is_test)
        return path

    return write


def test_rates_are_tuned_on_training_clients_that_are_set_aside(cli, features, capsys):
    outcome = cli(
        *("finetune", "--dataset", features(1), "--init", "fedncm", "--algorithm", "fedavg"),
        *("--tune", "--rounds", 2, "--format", "json"),
    )
    assert outcome.code == 0, outcome.err
    (run,) = json.loads(outcome.out)["results"][0]["runs"]
    best = max(each["accuracy"] for each in run["tried"])
    chosen = next(each for each in run["tried"] if each["accuracy"] == best)
    assert (run["client_lr"], run["server_lr"]) == (chosen["client_lr"], chosen["server_lr"])
    text = f"tuned to --client-lr {run['client_lr']:g} --server-lr {run['server_lr']:g}"
    text += ", by the mean accuracy of rounds 1 to 2 on clients set aside"
    assert f"covfree: fedncm → fedavg, seed 0: {text}" in outcome.err
    # Each pair is told as it was tried, as that is no terminal.
    told = [line for line in outcome.err.splitlines() if "tuning" in line]
    assert told == [
        f"fedncm → fedavg, seed 0: tuning {place}/9, --client-lr {each['client_lr']:g} --server-lr "
        f"{each['server_lr']:g}: {100 * each['accuracy']:.2f} %"
        for place, each in enumerate(run["tried"], 1)
    ]
    assert {(each["client_lr"], each["server_lr"]) for each in run["tried"]} == {
        (client, server) for client in (0.01, 0.1, 1.0) for server in (0.1, 1.0, 10.0)
    }

    federation = Federation(10, "inner_dirichlet", 0.1)
    task = make_task(of_file(str(features(1)), None), federation, 0, "head")
    apart = set_aside(task, 0)
    train = {tuple(row) for row in apart.inputs.tolist()}
    held = {tuple(row) for row in apart.test_inputs.tolist()}
    assert len(held) == 12  # two clients of ten
    assert not train & held
    assert train | held == {tuple(row) for row in task.inputs.tolist()}
    assert sorted(set(apart.clients.tolist())) == list(range(8))
    # Another test part changes nothing of what rates are tuned on.
    other = set_aside(make_task(of_file(str(features(2)), None), federation, 0, "head"), 0)
    for ours, theirs in zip(jax.tree.leaves(apart[1:]), jax.tree.leaves(other[1:]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(apart.data.test_labels, other.data.test_labels)
    # What was tried again is the same; and rates so large that nothing is finite.
    start, settings = make_start("fedncm", apart, 0), Settings(2, 0.3)
    rates, tried = tune(apart, start, "fedncm", "fedavg", Rates(0.1, 1.0), settings, 0)
    assert (rates, tried) == (Rates(run["client_lr"], run["server_lr"]), run["tried"])
    said = []
    with pytest.raises(ValueError, match=r"--tune: fedncm, fedavg: every learning rate .* diverged"):
        tune(
            apart,
            start,
            "fedncm",
            "fedavg",
            Rates(3e38, 3e38),
            settings,
            0,
            tell=lambda *now: said.append(now),
        )
    assert [now[:2] for now in said] == [(place, 9) for place in range(1, 10)]
    bar = progress_bar()
    live = LiveTuning(bar, bar.add_task("run: tuning"), "run")
    capsys.readouterr()
    live(*said[-1])
    assert capsys.readouterr().err.endswith(": diverged\n")
    # On a terminal a bar, and no lines.
    bar.disable = False
    live(*said[-1])
    assert capsys.readouterr().err == ""
    assert (bar.tasks[0].completed, bar.tasks[0].total) == (9, 9)
    assert bar.tasks[0].description.startswith("run: tuning, --client-lr ")
