"""What training starts from, and closed-form stages between its rounds, on the features that it moved."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from tiny_networks import LEVELS, VIT

import covfree
import covfree.finetune as ft
from covfree.backbones import backbone
from covfree.cli.training_options import starts_of
from covfree.core.keys import derive
from covfree.data import FeatureSet
from covfree.finetune.registry import Rates
from covfree.rounds import run
from covfree.studies.history import History
from covfree.studies.progress import Listener
from covfree.studies.task import Network, Task
from covfree.studies.train import train
from covfree.studies.training import Training

pytestmark = pytest.mark.slow

SEED, CLIENTS = 3, np.repeat(np.arange(3), [5, 4, 6]).astype(np.int32)


@pytest.fixture(scope="module")
def task():
    """Three clients' images of three classes, and a small transformer."""
    network = backbone(VIT)
    rng = np.random.default_rng(0)
    labels = np.arange(len(CLIENTS)) % 3
    images = rng.integers(0, 90, (len(CLIENTS), 16, 16, 3)) + 70 * labels[:, None, None, None]
    images, params = images.astype(np.uint8), network.init(jax.random.key(1))
    of = Network(network, params, LEVELS)
    features = np.asarray(of.features(images))
    data = FeatureSet("small", features, labels, features, labels, 3)
    return Task(data, CLIENTS, SEED, images, images, of)


def test_training_goes_on_from_the_head_on_moved_features(task, tmp_path):
    """Rounds 2 and 4 of five are stages; written out by runs of their own, and stopped and resumed."""
    training = Training(
        "fedncm",
        "fedavg",
        Rates(0.05, 1.0),
        5,
        1.0,
        "all",
        options={"batch_size": 4},
        restart=2,
        temperature=0.5,
    )
    whole = train(training, task)
    assert [record["round"] for record in whole.history] == [0, 1, 2, 3, 4, 5]
    params, key = task.network.params, jax.random.key(SEED)
    for number, record in enumerate(whole.history[::2]):
        network = task.network._replace(params=params)
        features = np.asarray(network.features(task.inputs))
        head = covfree.fit(covfree.fedncm(), features, task.data.train_labels, CLIENTS)
        assert record["accuracy"] == covfree.evaluate(head, features, task.data.test_labels)
        model = ft.network_model(network.backbone, params, head, preprocessing=LEVELS)
        model = ft.at_temperature(model, 0.5)
        algorithm = ft.fedavg(model, 0.05, 1.0, batch_size=4)
        own = derive(key, f"stretch {number}") if number else key
        done = run(algorithm, task.inputs, task.data.train_labels, CLIENTS, key=own, rounds=1)
        after = whole.history[2 * number + 1]
        assert after["accuracy"] == task.accuracy(done.result)
        assert after["loss"] == pytest.approx(done.history[0]["loss"], rel=1e-5)
        size = 4 * sum(leaf.size for leaf in jax.tree.leaves(model.trained))
        # Means go up in a stage, and the network comes down, to all three clients.
        pairs = len(set(zip(CLIENTS.tolist(), task.data.train_labels.tolist(), strict=True)))
        assert record["bytes_up"] == 4 * 16 * pairs
        assert record["bytes_down"] == (3 * size if number else 0)
        params = done.result.feature_map.params
    assert whole.accuracy == whole.history[-1]["accuracy"]

    def some(rounds):
        told = History("", rounds, tmp_path / "history.jsonl", Listener())
        return train(replace(training, rounds=rounds), task, tmp_path, told)

    for rounds in (1, 4, 5):
        ended = some(rounds)
        assert [without_seconds(x) for x in ended.history] == [
            without_seconds(x) for x in whole.history[: rounds + 1]
        ]
        assert len((tmp_path / "history.jsonl").read_text().splitlines()) == rounds + 1
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == ["2", "start.npz"]
    with pytest.raises(ValueError, match=r"--rounds: expected at least 4, .* got 3"):
        some(3)


def test_a_start_has_numbers_of_its_own(task, tmp_path):
    """Here a head on mapped features, which stay while the head is trained; and a method of a file."""
    name = "fed3r-random:num_features=40:sigma=3.0"
    of_features = replace(task, inputs=task.data.train_features, test_inputs=task.data.test_features)
    of_features = replace(of_features, network=None, starts={})
    training = Training(name, "fedavg", Rates(0.1, 1.0), 1, 1.0, temperature="none")
    run = train(training, of_features, tmp_path)
    features, labels = task.data.train_features, task.data.train_labels
    start = covfree.fit(covfree.methods.fed3r_random(0.01, 40, 3.0), features, labels, CLIENTS)
    assert run.history[0]["accuracy"] == covfree.evaluate(start, features, labels)
    trained = covfree.load_head(tmp_path / "head.npz").head
    np.testing.assert_array_equal(trained.feature_map(features), start.feature_map(features))
    assert np.abs(trained.head.weight - start.head.weight).max() > 0
    assert run.accuracy == covfree.evaluate(trained, features, labels)
    assert run.history[1]["bytes_down"] == 3 * 4 * (40 * 3 + 3 + 1)
    with pytest.raises(ValueError, match="a head on a network's own features, got fed3r-random"):
        train(replace(training, train="all"), task)
    (tmp_path / "mine.py").write_text("import covfree\n\ndef mine(ridge=2.0): return covfree.fed3r(ridge)\n")
    own = f"{tmp_path}/mine.py:mine:ridge=0.5"
    assert starts_of(f"random,{own}")[own].method.params == 0.5
    folder = replace(training, init=own).folder(tmp_path, 0)
    assert folder.parent == tmp_path


def test_prompts_are_trained_beside_a_fixed_network(task, tmp_path):
    training = Training(
        "fedncm", "pfpt", Rates(0.5, 1.0), 1, 1.0, "prompts", temperature=0.5, prompts=3, top=2
    )
    ended = train(training, task, tmp_path)
    network, params, _ = task.network
    features = task.data.train_features, task.data.train_labels
    head = covfree.with_temperature(covfree.fit(covfree.fedncm(), *features, CLIENTS), 0.5)
    prompts = ft.random_prompts(network, 3, key=derive(jax.random.key(SEED), "prompts"))
    model = ft.prompt_model(network, params, head, prompts, top=2, preprocessing=LEVELS)
    done = run(
        ft.pfpt(model, 0.5), task.inputs, task.data.train_labels, CLIENTS, key=jax.random.key(SEED), rounds=1
    )
    scores = jax.jit(lambda model, images: model(images))(done.result, task.inputs)
    right = np.asarray(scores).argmax(1) == task.data.train_labels
    assert ended.accuracy == pytest.approx(right.mean())
    assert ended.history[1]["loss"] == pytest.approx(done.history[0]["loss"], rel=1e-5)
    assert ended.history[1]["bytes_up"] == done.history[0]["bytes_up"]
    with np.load(tmp_path / "prompts.npz") as file:
        kept = np.asarray(done.result.frozen["kept"])
        np.testing.assert_allclose(file["prompts"], done.result.trained["prompts"][kept], atol=1e-5)
        np.testing.assert_allclose(file["weight"], done.result.trained["head"].weight, atol=1e-5)


def without_seconds(record):
    return {name: value for name, value in record.items() if name != "seconds"}
