"""``python -m experiments run``, on miniatures of the papers' data in the same formats."""

import json
import re

import numpy as np
import pytest
from scipy.special import logsumexp

import covfree
from covfree.data import FeatureSet, load_npz
from covfree.studies import variants
from experiments.tables import one_shot
from experiments.tables.data import Data, _adapted, leave_out, most_common
from experiments.tables.identities import Identities
from experiments.tables.measures import measure
from experiments.tables.results import Lines

NAME = "squeezenet1_1"
SMALL = ("--set", "seeds=1", "--set", "pixels=40")


def fedncm(data: FeatureSet) -> float:
    """Accuracy of unit class means, in percent, in NumPy."""
    labels = np.unique(data.train_labels)
    features = data.train_features.astype(np.float64)
    means = np.stack([features[data.train_labels == label].mean(0) for label in labels])
    means /= np.linalg.norm(means, axis=1)[:, None]
    found = labels[(data.test_features.astype(np.float64) @ means.T).argmax(1)]
    return 100 * float((found == data.test_labels).mean())


@pytest.mark.slow
def test_a_table_with_data_of_tfds(experiments, data_dir, weights, cache, tmp_path):
    """The paper's own table, from the images on; then again, when there is nothing left to do."""
    command = (
        *("run", "fedcof-table3", "--data-dir", data_dir, "--weights", f"{NAME}={weights}"),
        *("--only", "cifar-100,squeezenet", *SMALL, "--set", "clients=6", "--set", "alpha=2"),
        *("--out", tmp_path / "out"),
    )
    done = experiments(*command)
    assert done.code == 0, done.err
    assert "4 runs made, 0 were there" in done.err
    # Accuracies of four methods, and their bytes, which need no data.
    lines = done.out.splitlines()
    assert len(lines) == 8
    (file,) = cache.glob("cifar100-*.npz")
    accuracy = fedncm(load_npz(file))
    assert lines[0] == f"CIFAR-100, accuracy in % | FedNCM | SqueezeNet: 41.5±0.1; {accuracy:.1f} " + (
        f"{accuracy - 41.5:+.1f}".replace("-", "−")
    )
    assert lines[4] == "CIFAR-100, MB from all clients | FedNCM | SqueezeNet: 5.9; 5.9 ="
    again = experiments(*command)
    assert "0 runs made, 4 were there" in again.err
    assert again.out == done.out

    # Results of the same name but of other weights, images, clients or split would be mixed up.
    sources = tmp_path / "out" / "sources.jsonl"
    source = json.loads(sources.read_text(encoding="utf-8"))
    for key in ("weights", "images", "labels", "clients", "test part"):
        sources.write_text(json.dumps({**source, key: "other"}) + "\n", encoding="utf-8")
        mixed = experiments(*command)
        assert mixed.code == 2
        assert f"with {key} other, got" in mixed.err


@pytest.mark.slow
def test_a_table_with_a_folder_of_domains(experiments, data_dir, weights, cache, tmp_path):
    """One domain is left out: all its pictures are the test, and no other."""
    done = experiments(
        *("run", "fedcgs-table2", "--data-dir", data_dir, "--weights", f"{NAME}={weights}"),
        *("--only", "pacs,photo", *SMALL, "--set", f"backbone={NAME}", "--out", tmp_path / "out"),
    )
    assert done.code == 0, done.err
    assert "2 runs made" in done.err
    runs = [json.loads(line) for line in (tmp_path / "out" / "runs.jsonl").read_text().splitlines()]
    # Three domains, each spread over five clients.
    assert {run["clients"] for run in runs} == {15}
    assert {run["dataset"] for run in runs} == {
        f"PACS, {NAME}, pixels=40, target=photo, clients_per_domain=5"
    }


@pytest.mark.parametrize("names", [("art_painting", "cartoon", "sketch"), (*"ab", "photo")])
def test_other_domains_than_the_papers_are_an_error(drawn, names):
    """A folder more or fewer would be trained on, or not, without a word."""
    settings = {"target": "photo", "clients_per_domain": 5}
    adapt = _adapted(settings, ["art_painting", "cartoon", "photo", "sketch"])
    with pytest.raises(ValueError, match=f"expected the domains .*, sketch, got {', '.join(names)}$"):
        adapt(drawn._replace(client_names=names), 0)


DIGITS = ("--set", "data=digits", "--set", "seeds=2", "--set", "clients=12", "--set", "alpha=1")


@pytest.mark.slow
def test_a_difference_and_noise_on_counts(experiments, tmp_path):
    """Of data that are at hand, in place of the paper's."""
    done = experiments("run", "fedcof-figures", "--only", "means 1 to 2", *DIGITS, "--out", tmp_path)
    assert "4 runs made" in done.err
    runs = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    one, two = (
        np.mean([run["accuracy"] for run in runs if run["method"].endswith(f"num_subsets={n}")])
        for n in (1, 2)
    )
    assert f"| Means 1 to 2 | CIFAR-100: 2.6; {100 * (two - one):.1f} " in done.out.replace("−", "-")
    noisy = experiments("run", "fedcof-figures", "--only", "gaussian,epsilon=0.1", *DIGITS, "--out", tmp_path)
    assert "2 runs made" in noisy.err
    runs = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()][4:]
    assert {run["method"].partition(", ")[2] for run in runs} == {"noise=gaussian:0.1"}
    # Pairs whose noisy count is no longer above 0 are not sent.
    assert noisy.out.startswith("Figure 6: noisy counts")
    assert float(noisy.out.partition("plot; ")[2].partition("±")[0]) == pytest.approx(
        100 * np.mean([run["accuracy"] for run in runs]), abs=0.006
    )


def test_networks_that_are_not_finite_have_diverged(monkeypatch, tmp_path):
    images = FeatureSet("tiny", np.zeros((4, 2)), np.arange(4), np.zeros((4, 2)), np.arange(4), 4)
    monkeypatch.setattr(one_shot, "applied", lambda network, logits, inputs: logits)
    for spoilt in (0.0, np.nan):
        made = one_shot._Trained(None, None, np.full((2, 4, 4), spoilt), np.ones(2), images)
        monkeypatch.setattr(one_shot, "_trained", lambda *_, made=made: made)
        own = {"clients": 2, "partition": "iid", "alpha": 1, "epochs": 1, "batch_size": 1, "client_lr": 1.0}
        record = one_shot.run({**own, "algorithm": "ensemble"}, None, 0, tmp_path)
        assert record == {"value": 25.0, "diverged": 1 if np.isnan(spoilt) else None}


def test_runs_of_another_version_are_refused(experiments, tmp_path):
    """And how many examples a partition leaves out is said."""
    partition = ("--set", "partition=pathological", "--set", "alpha=1", "--set", "clients=5")
    command = (*("run", "digits", "--only", "fedncm,alpha=0.1", "--set", "seeds=1"), *partition)
    command = (*command, "--out", tmp_path)
    first = experiments(*command)
    assert first.code == 0
    assert re.search(r"fedncm, seed 0: 0\.\d+; on no client: \d{3} examples, \d classes", first.err)
    file = tmp_path / "runs.jsonl"
    file.write_text(re.sub('"fingerprint": "[0-9a-f]+"', '"fingerprint": "0"', file.read_text()))
    done = experiments(*command)
    assert done.code == 2
    assert (
        f"{file}: holds runs of fedncm as it was in another version of covfree; delete the file" in done.err
    )
    file.unlink()
    assert experiments(*command).code == 0


@pytest.mark.slow
def test_training_goes_on_and_is_kept(experiments, tmp_path):
    command = (
        *("run", "digits", "--only", "linear probing,fedcof,round=5", "--set", "seeds=1"),
        *("--set", "rounds=5", "--set", "clients=4", "--out", tmp_path),
    )
    done = experiments(*command)
    assert done.code == 0, done.err
    (record,) = [json.loads(line) for line in (tmp_path / "trained.jsonl").read_text().splitlines()]
    assert [number for number, _ in record["history"]] == [0, 1, 2, 3, 4, 5]
    assert f"round=5: –; {100 * record['history'][-1][1]:.2f}" in done.out
    assert list((tmp_path / "work").iterdir()) == []
    assert "0 runs made, 1 were there" in experiments(*command).err
    # No such round: that is said, and nothing is made up.
    later = experiments("run", "digits", "--only", "fedcof,round=20", *command[4:])
    assert later.code == 0
    assert later.out == ""


def test_what_is_not_at_hand_is_said(experiments, tmp_path):
    done = experiments("run", "fedcgs-table2", "--only", "pacs", "--out", tmp_path / "out")
    assert done.code == 0
    # What lacks, and where it is looked for; averages are cells too.
    assert (
        "not run: 10 cells: no weights of resnet18 (expected --weights resnet18=FILE or "
        "resnet18=timm/resnet18.tv_in1k@COMMIT of the Hugging Face hub); images of PACS are looked for as "
        "pacs.npz or the folder pacs below --data-dir\n"
    ) in done.err
    assert not (tmp_path / "out").exists()
    done = experiments("run", "fedcof-table4", "--only", "cifar100,accuracy", "--data-dir", tmp_path)
    assert "not run: 4 cells: no weights of vit_b_32" in done.err
    assert f"{tmp_path}/cifar100.npz, or {tmp_path}/cifar100, or cifar100 of TensorFlow Datasets" in done.err
    done = experiments("run", "fed3r-figures", "--only", "plots")
    assert "not run: 10 cells: printed as a plot alone" in done.err
    for arguments, message in {
        ("run", "absent"): "absent: expected the path of a TOML file, or one of fedcof-table1",
        ("run", "digits", "--only", "mnist"): "--only: expected words that are of some cell of digits",
        ("run", "digits", "--set", "seeds"): "--set: expected NAME=VALUE, got 'seeds'",
        ("run", "digits", "--set", "data=mnist"): "data: expected one of CIFAR-10, ",
        (
            "run",
            "digits",
            "--set",
            "cleints=3",
        ): "cleints: expected a setting that the chosen cells depend on: ",
        # The digits are features, whatever else is said of images.
        (
            "run",
            "digits",
            "--set",
            "pixels=32",
        ): "pixels: expected a setting that the chosen cells depend on: ",
        ("run", "fedcof-table5", "--set", "data=digits", "--set", "pixels=40"): "pixels: expected a setting ",
        # A setting of counted cells, of other rows, of another kind; and cells that are counted alone.
        ("run", "fedcof-table3", "--set", "pairs=5"): "pairs: expected a setting ",
        ("run", "fedcof-table3", "--only", "Fed3R", "--set", "shrinkage=5"): "shrinkage: expected a setting ",
        ("run", "fedcof-table3", "--set", "epochs=5"): "epochs: expected a setting ",
        ("run", "fedcof-table3", "--only", "MB", "--set", "clients=10"): "what is counted is of the printed",
        ("run", "fed3r-table7", "--set", "sampled=10"): "what is counted is of the printed numbers",
        ("run", "digits", "--set", "seeds=0"): "seeds: expected an integer of at least 1, got 0",
        ("run", "digits", "--set", "seeds=1.5"): "seeds: expected an integer of at least 1, got 1.5",
        ("run", "fedcgs-table4", "--only", "–"): "--only: expected words with a letter or a digit, got '–'",
    }.items():
        outcome = experiments(*arguments)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert message in outcome.err


def test_status(experiments):
    done = experiments("status")
    assert done.code == 0
    assert re.search(r"^fedcof-table3 +120 +60 +0 +60$", done.out, re.MULTILINE)
    assert re.search(r"^digits +34 +0 +34 +0$", done.out, re.MULTILINE)


@pytest.fixture
def drawn() -> FeatureSet:
    """Three domains of five classes, of sizes 2, 9, 4, 9, 6 in the training part of each domain."""
    rng = np.random.default_rng(0)
    labels = np.tile(np.repeat(np.arange(5), [2, 9, 4, 9, 6]), 3).astype(np.int32)
    domains = np.repeat(np.arange(3), 30).astype(np.int32)
    features = (rng.normal(size=(90, 6)) + 3 * np.eye(5, 6)[labels]).astype(np.float32)
    names = ("a", "b", "c", "d", "e")
    test = slice(None, None, 2)
    return FeatureSet(
        "drawn", features, labels, features[test] + 1, labels[test], 5, domains, True, domains[test], names
    )._replace(client_names=("clip", "photo", "sketch"))


def test_most_common_classes(drawn):
    data = most_common(drawn, 3)
    assert (data.num_classes, data.class_names) == (3, ("b", "d", "e"))
    assert np.bincount(data.train_labels).tolist() == [27, 27, 18]
    kept = np.isin(drawn.train_labels, (1, 3, 4))
    np.testing.assert_array_equal(data.train_features, drawn.train_features[kept])
    np.testing.assert_array_equal(data.clients, drawn.clients[kept])
    assert len(data.test_labels) == len(data.test_clients) == np.isin(drawn.test_labels, (1, 3, 4)).sum()


def test_leaving_a_domain_out(drawn):
    data = leave_out(drawn, "photo", 5, seed=0)
    # Its training and test examples are the test, and the others' train.
    assert len(data.test_labels) == 30 + 15
    assert len(data.train_labels) == 2 * (30 + 15)
    sizes = np.bincount(data.clients, minlength=15)
    assert sizes.tolist() == [9] * 5 + [0] * 5 + [9] * 5
    assert not np.array_equal(leave_out(drawn, "photo", 5, seed=1).clients, data.clients)
    # By name, whatever other domains there are.
    more = drawn._replace(client_names=("art", "clip", "photo"))
    np.testing.assert_array_equal(leave_out(more, "clip", 5, seed=0).test_labels, data.test_labels)
    with pytest.raises(ValueError, match="target: expected one of clip, photo, sketch, got 'Photo'"):
        leave_out(drawn, "Photo", 5, seed=0)


def test_measures(drawn):
    """Against NumPy, from other formulas."""
    data = drawn._replace(clients=None)
    settings = {"clients": 6, "partition": "inner_dirichlet", "alpha": 1, "method": "fedncm"}

    def measured(name, **changes):
        return measure({**settings, "measure": name, **changes}, data, 0)

    features, labels = data.train_features.astype(np.float64), data.train_labels
    within = sum((np.sum(labels == c) - 1) * np.cov(features[labels == c], rowvar=False) for c in range(5))
    assert measured("condition_within") == pytest.approx(np.linalg.cond(within), rel=1e-8)
    between = (len(labels) - 1) * np.cov(features, rowvar=False) - within
    # Rank 4, of five classes.
    values = np.linalg.eigvalsh(between)[-4:]
    assert measured("condition_between") == pytest.approx(values[-1] / values[0], rel=1e-6)
    own = data._replace(test_features=data.train_features, test_labels=labels)
    assert measured("train_accuracy") == pytest.approx(fedncm(own), abs=1e-4)
    head = covfree.fit(covfree.fedncm(), data.train_features, data.train_labels, np.zeros(90, int))
    scores, right = np.asarray(head(data.train_features), float), (np.arange(90), data.train_labels)
    tried = np.geomspace(1e-3, 10, 400)
    losses = [(logsumexp(scores / t, 1) - scores[right] / t).mean() for t in tried]
    assert measured("temperature") == pytest.approx(tried[np.argmin(losses)], rel=0.03)
    assert measured("mean_distance", clients=1, partition="iid") == 0
    assert 0 < measured("mean_distance") < 1e-5
    assert 0 < measured("covariance_distance") < 1e-4
    assert measured("examples_per_client") == 15
    assert measured("pairs") == 5 * measured("clients_per_class")
    shape = ("clients", "classes", "train_examples", "test_examples")
    assert [measured(name) for name in shape] == [6, 5, 90, 45]
    with pytest.raises(ValueError, match=r"^measure: expected one of train_accuracy, "):
        measured("speed")


def test_the_published_oracle(drawn):
    """FedCOF's eq. 8 with the true class covariances, in NumPy."""
    (made,) = variants(["fedcof-oracle:shrinkage=0.5:head=ridge"]).values()
    features, labels = drawn.train_features.astype(np.float64), drawn.train_labels
    gram = 90 * np.outer(features.mean(0), features.mean(0))
    for c in range(5):
        own = features[labels == c]
        gram += (len(own) - 1) * (np.cov(own, rowvar=False) + 0.5 * np.eye(6))
    weight = np.linalg.solve(gram, features.T @ np.eye(5)[labels])
    head = covfree.fit(made.method, drawn.train_features, labels, drawn.clients)
    np.testing.assert_allclose(head.weight, weight / np.linalg.norm(weight, axis=0), rtol=1e-4, atol=1e-5)


def test_two_commands_keep_each_others_sources(tmp_path):
    """Each has read the file before the other adds its data."""
    one, other = Identities(tmp_path / "sources.jsonl"), Identities(tmp_path / "sources.jsonl")
    first, second, third = (Data(name, lambda seed: 1 / 0) for name in "abc")
    for identities, data in ((one, first), (other, second), (one, third), (other, first)):
        identities.check(data)
    lines = [json.loads(line) for line in (tmp_path / "sources.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["a", "b", "c"]


def test_a_line_that_was_cut_short_is_written_anew(tmp_path):
    path = tmp_path / "lines.jsonl"
    first, second = ({"settings": {"a": n}, "seed": 0, "value": "γ"} for n in (1, 2))
    Lines(path).add(first)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"settings": {"a": 2}, "se')
    lines = Lines(path)
    assert lines.find({"a": 2}, 0) is None
    lines.add(second)
    assert Lines(path).records == [first, second]
