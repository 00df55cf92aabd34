"""``covfree personalise``: what its functions give, kept and gone on with; divergence; bad arguments."""

import json
import re

import jax
import numpy as np
import optax
import pytest

from covfree import finetune, rounds
from covfree.data import load_npz
from covfree.studies.personal import Personalisation
from covfree.studies.task import Task

SETTINGS = ("--rounds", 2, "--epochs", 3, "--home", 1, "--rank", 2, "--batch-size", 8, "--client-lr", 0.1)


@pytest.fixture
def own(tmp_path):
    """A file that says whose its test examples are; the last client has no examples to train on."""
    rng = np.random.default_rng(0)
    labels, clients = np.arange(96) % 3, np.repeat(np.arange(4), 24)
    is_test = np.arange(96) % 4 == 0
    is_test[72:] = True
    features = (rng.normal(size=(96, 5)) + 2 * np.eye(3, 5)[labels]).astype(np.float32)
    arrays = {"features": features, "labels": labels, "clients": clients, "is_test": is_test}
    np.savez(tmp_path / "own.npz", **arrays)
    return tmp_path / "own.npz"


@pytest.mark.slow
def test_runs_are_those_of_the_algorithms_and_are_not_repeated(cli, own, tmp_path):
    arguments = ("personalise", "--dataset", own, *SETTINGS, "--seeds", 1, "--out", tmp_path / "out")
    first = cli(*arguments, "--methods", "local,fedavg-ft", "--format", "json")
    assert first.code == 0
    runs = {run["method"]: run for run in json.loads(first.out)["runs"]}
    data, how = load_npz(own), Personalisation(rank=2)
    task = Task(data, data.clients.astype(np.int32), 0, data.train_features, data.test_features)
    model = how.start(task).model
    train = data.train_features, data.train_labels, task.clients
    client = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.1, momentum=0.5))
    key, size = jax.random.key(0), {"batch_size": 8}
    home = finetune.local_only(model, client, epochs=3, **size)
    models = rounds.run(home, *train, key=key, rounds=1).result
    test = data.test_features, data.test_labels, np.where(data.test_clients < 3, data.test_clients, -1)
    np.testing.assert_allclose(runs["local"]["accuracy"], finetune.client_accuracy(models, *test))
    shared = rounds.run(finetune.fedavg(model, client, **size), *train, key=key, rounds=2)
    again = finetune.local_only(finetune.adapter_model(shared.result), client, epochs=1, **size)
    models = rounds.run(again, *train, key=key, rounds=1).result
    np.testing.assert_allclose(runs["fedavg-ft"]["accuracy"], finetune.client_accuracy(models, *test))
    assert runs["fedavg-ft"]["bytes_up"] == sum(each["bytes_up"] for each in shared.history)
    more = cli(*arguments, "--methods", "local,fedcgs,fedproto,oll,afl", "--format", "json", "--resume")
    assert more.code == 0
    assert "local, seed 0" not in more.err
    assert json.loads(more.out)["runs"][0] == runs["local"]
    assert [record["method"] for record in json.loads(more.out)["results"]] == [
        "local",
        "fedcgs",
        "fedproto",
        "oll",
        "afl",
    ]
    closed = json.loads(more.out)["results"][4]
    # Of each of 3 clients a Gram matrix and three class means and counts; a head goes back.
    assert closed["bytes_down"] == 3 * 4 * (15 + 3)
    assert closed["bytes_up"] == 3 * 4 * (25 + 3 * 5 + 2 * 3)
    assert json.loads(more.out)["results"][1]["bytes_up"] == 0
    other = cli(*arguments, "--strength", 1, "--resume")
    assert (other.code, "--strength 0.01, got 1" in other.err) == (2, True)
    assert "holds files of covfree personalise" in cli("compare", "--out", tmp_path / "out").err


def test_a_run_that_diverges_is_marked(cli, own):
    arrays = dict(np.load(own))
    del arrays["clients"], arrays["is_test"]
    np.savez(own, **arrays)
    done = cli(
        "personalise",
        "--dataset",
        own,
        "--methods",
        "local",
        "--epochs",
        2,
        "--client-lr",
        1e30,
        "--seeds",
        1,
    )
    assert done.code == 1
    assert done.out.startswith("own, 20 clients, dominant_classes, ")
    assert (
        "Local training (diverged)" in " ".join(done.out.split()).replace(" │", "")
        or "(diverged)" in done.out
    )
    assert "local, seed 0: diverged in round 1" in done.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--methods", "ditto"), "--methods: expected some of local, fedavg, .*, got 'ditto'"),
        (("--init", "qda"), "--init: expected some of random, .*, got 'qda'"),
        (("--client-lr", 0), "--client-lr: expected a finite number above 0, got 0"),
        (("--test-share", 1), r"--test-share: expected a number in \(0, 1\), got 1"),
        (
            ("--test-share", 0.001),
            "--test-share: expected test examples at .*, got 0.001, which leaves none",
        ),
        (("--norms", "batch"), "--norms: expected --images beside it"),
        (("--rounds", 0), "--rounds: expected at least 1, got 0"),
        (("--partition", "fair"), "--partition: expected one of .*, got 'fair'"),
        (("--clients", 4000), "--partition dominant_classes: num_partitions: .*got 4000"),
    ],
)
def test_bad_arguments_are_named(cli, arguments, error):
    done = cli("personalise", *arguments)
    assert done.code == 2
    assert re.search(error, done.err), done.err
