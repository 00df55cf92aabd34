"""What trains on images, by ``python -m experiments run``: on miniatures of the data, with small networks."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_networks import LEVELS, RESNET

from covfree.backbones import backbone
from covfree.rounds.simulation import Simulation
from experiments.tables import one_shot, prompts
from experiments.tables.data import Found

from baselines import ensemble  # isort: skip, found by the import above
from baselines.cnn import Pretrained, applied  # isort: skip

pytestmark = pytest.mark.slow


@pytest.fixture
def run(experiments, data_dir, small_networks, tmp_path):
    """Runs the cells that are meant with data and weights, and settings in place of the paper's."""

    def call(table, only, weights=True, **settings):
        settings = {"seeds": 1, "batch_size": 8, "epochs": 1, **settings}
        # None is a setting of other cells.
        chosen = [f"{name}={value}" for name, value in settings.items() if value is not None]
        given = [word for each in chosen for word in ("--set", each)]
        given += small_networks if weights else []
        done = experiments(
            "run", table, "--data-dir", data_dir, "--only", only, "--out", tmp_path / "out", *given
        )
        assert done.code == 0, done.err
        assert "not run" not in done.err
        return done

    return call


def records(tmp_path, kind):
    return [json.loads(line) for line in (tmp_path / "out" / f"{kind}.jsonl").read_text().splitlines()]


def shown(line: str) -> float:
    """Our number in a line of the command."""
    return float(line.partition("; ")[2].split()[0].partition("±")[0])


def test_prompt_tuning(run, tmp_path):
    settings = {"clients": 4, "alpha": 2, "participation": 2, "rounds": 2, "pool": 3, "top": 2}
    done = run("fedcof-table4", "cifar100,accuracy,pfpt", backbone="vit_tiny", **settings)
    assert "1 runs made, 0 were there" in done.err
    (record,) = records(tmp_path, "prompts")
    assert record["settings"]["algorithm"] == "pfpt"
    # Of 16 test images.
    assert record["value"] % 6.25 == 0
    assert record["diverged"] is None
    assert list((tmp_path / "out" / "work").iterdir()) == []
    again = run("fedcof-table4", "cifar100,accuracy,pfpt", backbone="vit_tiny", **settings)
    assert "0 runs made, 1 were there" in again.err
    assert again.out == done.out


def test_training_that_was_stopped_goes_on(run, experiments, tmp_path, monkeypatch):
    settings = {"backbone": "vit_tiny", "clients": 4, "alpha": 2, "participation": 2, "pool": 3, "top": 2}
    true, true_round, made = prompts.accuracy, Simulation.round, []
    monkeypatch.setattr(Simulation, "round", lambda *args: made.append(1) or true_round(*args))
    monkeypatch.setattr(prompts, "accuracy", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("fedcof-table4", "cifar100,accuracy,fedprox-pt", rounds=2, **settings)
    (folder,) = (tmp_path / "out" / "work").iterdir()
    assert (folder / "checkpoint").is_dir()
    monkeypatch.setattr(prompts, "accuracy", true)
    assert len(made) == 2
    done = run("fedcof-table4", "cifar100,accuracy,fedprox-pt", rounds=2, **settings)
    assert "1 runs made" in done.err
    # Both rounds were in the checkpoint.
    assert len(made) == 2


def test_distillation_and_its_average(run, tmp_path):
    settings = {"distillation_epochs": 1, "generator_steps": 1, "generator_width": 2, "clients_per_domain": 1}
    done = run("fedcgs-table6", "pacs,co-boosting", backbone="vit_tiny", **settings)
    assert "4 runs made" in done.err
    made = records(tmp_path, "one-shot")
    assert {record["settings"]["algorithm"] for record in made} == {"co-boosting"}
    (average,) = (shown(line) for line in done.out.splitlines() if " | Average: " in line)
    assert average == pytest.approx(np.mean([record["value"] for record in made]), abs=0.006)


def test_one_shot_methods_share_the_clients_networks(run, tmp_path, monkeypatch):
    calls = []
    true = one_shot.train_clients
    monkeypatch.setattr(
        one_shot, "train_clients", lambda *args, **more: calls.append(1) or true(*args, **more)
    )
    table = tmp_path / "own.toml"
    table.write_text(
        'title = "T"\nsource = "S"\n[defaults]\nkind = "one-shot"\ndata = "PACS"\nbackbone = "resnet_tiny"\n'
        'clients = 1\npartition = "iid"\nalpha = 1\nclient_lr = 0.01\ndistillation_epochs = 1\n'
        'generator_steps = 1\ngenerator_width = 2\ntarget = "sketch"\nclients_per_domain = 1\n'
        '[names]\nFedAvg = { algorithm = "fedavg" }\nEnsemble = { algorithm = "ensemble" }\nOurs = {}\n'
        '[[grids]]\ntitle = "G"\ncolumns = ["Ours"]\nrows = { FedAvg = ["1"], Ensemble = ["–"] }\n'
    )
    run(table, "")
    assert len(calls) == 1
    values = [record["value"] for record in records(tmp_path, "one-shot")]
    # Of 15 test images.
    right = np.array(values) * 15 / 100
    np.testing.assert_allclose(right, right.round(), atol=1e-9)
    assert len(right) == 2


@pytest.mark.parametrize("more", [{}, {"weights": "random"}])
def test_images_are_those_of_the_features(data_dir, small_networks, more):
    """Also where a domain is left out and who gets which image depends on the seed."""
    weights = dict(pair.split("=", 1) for pair in small_networks[1::2])
    settings = {"data": "PACS", "backbone": "vit_tiny", "target": "cartoon", "clients_per_domain": 2, **more}
    data = Found(data_dir, weights).data(settings)
    features, images = data.load(1), data.pixels(1)
    network = data.network(1)
    for part in ("train", "test"):
        made = network.features(getattr(images, f"{part}_features"))
        np.testing.assert_allclose(made, getattr(features, f"{part}_features"), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(getattr(images, f"{part}_labels"), getattr(features, f"{part}_labels"))
    np.testing.assert_array_equal(images.clients, features.clients)
    # Features of other images differ by more than that.
    assert np.abs(np.diff(features.train_features, axis=0)).max(1).min() > 1e-3


def test_distances_from_a_backbones_norms():
    """What DENSE compares, against the outputs of the convolutions that lead to the norms."""
    network = backbone(RESNET)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.uniform(0.1, 0.6, leaf.shape).astype(np.float32), network.shapes)
    whole = Pretrained(network, LEVELS, 4)
    variables = whole.variables_of(params, jax.random.key(0))
    images = rng.integers(0, 256, (5, 16, 16, 3), np.uint8)
    members = jax.tree.map(lambda leaf: leaf[None], variables)
    logits, distance = ensemble.outputs(whole, members, images / np.float32(255))
    normalised = jnp.asarray((images.astype(np.float32) - 127) / 64)
    features, kept = network.module.apply(
        params, normalised, capture_intermediates=True, mutable="intermediates"
    )
    expected = 0.0
    for norm, convolution in {
        "bn1": "conv1",
        "layer1.0.bn1": "layer1.0.conv1",
        "layer1.0.bn2": "layer1.0.conv2",
    }.items():
        (entered,) = kept["intermediates"][convolution]["__call__"]
        running = params["batch_stats"][norm]
        expected += np.linalg.norm(entered.mean((0, 1, 2)) - running["mean"])
        expected += np.linalg.norm(entered.var((0, 1, 2)) - running["var"])
    assert set(params["batch_stats"]) == {"bn1", "layer1.0.bn1", "layer1.0.bn2"}
    np.testing.assert_allclose(distance, [expected], rtol=1e-4)
    head = variables["params"]["head"]
    np.testing.assert_allclose(
        logits[0], features @ head["kernel"] + head["bias"][None], rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(
        applied(whole, variables, images, batch_size=4), logits[0], rtol=1e-4, atol=1e-4
    )


def test_personalisation(run, tmp_path):
    settings = {"backbone": "vit_tiny", "pixels": 16, "clients": 3, "epochs": 2}
    # The others are `covfree personalise`'s, whose test runs them.
    for row in ("FedProto", "FedCGS"):
        done = run("fedcgs-table3", f"cifar100,{row}", **settings)
        assert done.out.split(" | ")[1] == row
    values = {record["settings"]["algorithm"]: record["value"] for record in records(tmp_path, "personal")}
    assert set(values) == {"fedproto", "fedcgs"}
    assert all(0 <= value <= 100 for value in values.values())
    run("fedcgs-table3", "cifar100,local", **settings, client_lr=1e30)
    assert records(tmp_path, "personal")[-1]["diverged"] == 1


def test_training_from_scratch_needs_no_weights(run, tmp_path):
    settings = {"backbone": "resnet_tiny", "clients": 4, "alpha": 2, "participation": 2, "rounds": 1}
    run("fedcof-table12", "cifar100,fedavg,accuracy,from scratch", weights=False, **settings)
    (made,) = records(tmp_path, "trained")
    assert made["settings"]["weights"] == "random"
    assert [number for number, _ in made["history"]] == [0, 1]
    (source,) = records(tmp_path, "sources")
    assert source["weights"] == "random"


def test_a_head_refitted_on_trained_features(run, tmp_path):
    settings = {"backbone": "resnet_tiny", "rounds": 1, "participation": 2, "client_lr": 0.01}
    done = run("fed3r-table3", "landmarks,fedavg,ft_feat", **settings)
    # Two columns, of one run.
    assert "1 runs made, 1 were there" in done.err
    (record,) = records(tmp_path, "trained")
    softmax, refitted = (shown(line) for line in done.out.splitlines())
    assert softmax == pytest.approx(100 * record["history"][-1][1], abs=0.06)
    assert refitted == pytest.approx(record["refitted"], abs=0.06)


def test_accuracy_as_clients_arrive(run, tmp_path):
    settings = {
        "backbone": "resnet_tiny",
        "participation": 2,
        "method": "fed3r",
        "reaches": 101,
        "rounds": 12,
    }
    closed_form = {"batch_size": None, "epochs": None}
    settings |= closed_form
    run("fed3r-costs", "rf10k,rounds", **settings)
    (record,) = records(tmp_path, "arrivals")
    assert [number for number, _ in record["history"]] == list(range(1, 13))
    whole = run("fed3r-table1", "landmarks,rf10k", backbone="resnet_tiny", method="fed3r", **closed_form)
    # With a pair of six clients in each of twelve rounds all have come.
    assert shown(whole.out) == pytest.approx(100 * record["history"][-1][1], abs=0.06)
    reached = run("fed3r-costs", "rf10k,rounds", **{**settings, "reaches": 0})
    assert shown(reached.out) == 1
