"""``covfree finetune --tune``: rates chosen on training clients, never on the test part."""

import json
from dataclasses import replace

import numpy as np
import pytest

from covfree.finetune.registry import Rates
from covfree.studies import Federation
from covfree.studies.progress import Listener, Progress
from covfree.studies.source import of_file
from covfree.studies.task import clients_of, task_of
from covfree.studies.training import Training
from covfree.studies.tuning import set_aside, tuned

pytestmark = pytest.mark.slow


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

    def task(test_seed):
        data = of_file(str(features(test_seed)), None)(0)
        clients = clients_of(data, Federation(10, "inner_dirichlet", 0.1), 0)
        return task_of(data, clients, 0, data.train_features)

    whole = task(1)
    apart = set_aside(whole)
    train = {tuple(row) for row in apart.inputs.tolist()}
    held = {tuple(row) for row in apart.test_inputs.tolist()}
    assert len(held) == 12  # two clients of ten
    assert not train & held
    assert train | held == {tuple(row) for row in whole.inputs.tolist()}
    assert sorted(set(apart.clients.tolist())) == list(range(8))
    # Another test part changes nothing of what rates are tuned on.
    other = set_aside(task(2))
    for name in ("clients", "inputs", "test_inputs"):
        np.testing.assert_array_equal(getattr(apart, name), getattr(other, name))
    np.testing.assert_array_equal(apart.data.test_labels, other.data.test_labels)
    # What was tried again is the same; and rates so large that nothing is finite.
    training = Training("fedncm", "fedavg", Rates(0.1, 1.0), rounds=2, participation=0.3)
    rates, tried = tuned(training, whole, Listener())
    assert (rates, tried) == (Rates(run["client_lr"], run["server_lr"]), run["tried"])
    said = []

    class Told(Listener):
        def step(self, text, done, total, line=""):
            # Rounds have no line here.
            if "tuning" in line:
                said.append((text, done, total, line))

    with pytest.raises(ValueError, match=r"--tune: fedncm, fedavg: every learning rate .* diverged"):
        tuned(replace(training, rates=Rates(3e37, 3e37)), whole, Told())
    assert [now[1:3] for now in said] == [(place, 9) for place in range(1, 10)]
    capsys.readouterr()
    progress = Progress()
    progress.step(*said[-1])
    assert capsys.readouterr().err.endswith(": diverged\n")
    # On a terminal a bar, and no lines.
    progress.bar.disable = False
    progress.step(*said[-1])
    assert capsys.readouterr().err == ""
    (shown,) = progress.bar.tasks
    assert (shown.completed, shown.total) == (9, 9)
    assert shown.description.startswith("fedncm → fedavg, seed 0: tuning, --client-lr ")
