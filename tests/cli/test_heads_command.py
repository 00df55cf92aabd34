"""``covfree fit`` writes a head, ``covfree evaluate`` says what it is worth."""

import csv
import json
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, confusion_matrix

import covfree
from covfree.data import load_digits, load_npz
from covfree.data.partitions import inner_dirichlet

FEW = ("--clients", 6, "--alpha", 2)
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@pytest.fixture
def named(tmp_path):
    """The digits in a file, with names of classes and seven clients, of whom the test part knows six."""
    data, path = load_digits(seed=0), tmp_path / "named.npz"
    is_test = np.arange(1797) >= 1201
    clients = np.resize([f"writer {i}" for i in range(7)], 1797)
    clients[is_test & (clients == "writer 3")] = ""
    np.savez(
        path,
        features=np.concatenate([data.train_features, data.test_features]),
        labels=np.concatenate([data.train_labels, data.test_labels]),
        is_test=is_test,
        clients=clients,
        class_names=WORDS,
    )
    return path


def test_a_head_of_the_digits(cli, tmp_path):
    path, table = tmp_path / "head.npz", tmp_path / "confusion.csv"
    fitted = cli("fit", "--out", path, "--method", "fedcof:shrinkage=0.1", *FEW)
    assert (fitted.code, fitted.out) == (0, "")
    # What Python makes of the same.
    data = load_digits(seed=0)
    owners = inner_dirichlet(data.train_labels, 6, 2.0, seed=0)
    head = covfree.fit(covfree.fedcof(0.1), data.train_features, data.train_labels, owners)
    saved = covfree.load_head(path)
    for ours, theirs in zip(jax.tree.leaves(saved.head), jax.tree.leaves(head), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    predicted = np.asarray(head(data.test_features)).argmax(1)
    right = (predicted == data.test_labels).mean()
    assert (
        f"fedcof:shrinkage=0.1 on digits, 64 features, 10 classes: test accuracy {100 * right:.2f} %"
        in fitted.err
    )

    outcome = cli("evaluate", "--head", path, "--confusion", table, "--format", "json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert content["examples"] == 596
    assert list(content["metrics"]) == ["accuracy", "balanced", "worst_class", "nll", "ece"]
    assert content["metrics"]["accuracy"] == pytest.approx(right)
    balanced = balanced_accuracy_score(data.test_labels, predicted)
    assert content["metrics"]["balanced"] == pytest.approx(balanced)
    counts = confusion_matrix(data.test_labels, predicted)
    with table.open(encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["class", *map(str, range(10))]
    assert [line[0] for line in lines[1:]] == lines[0][1:]
    np.testing.assert_array_equal(np.array([line[1:] for line in lines[1:]], int), counts)
    for label, record in enumerate(content["classes"]):
        assert (record["class"], record["examples"]) == (str(label), counts[label].sum())
        assert record["recall"] == pytest.approx(counts[label, label] / counts[label].sum())
        assert record["precision"] == pytest.approx(counts[label, label] / counts[:, label].sum())


def test_names_and_clients_of_the_data(cli, named, tmp_path):
    path, table = tmp_path / "head.npz", tmp_path / "confusion.csv"
    fitted = cli("fit", "--dataset", named, "--method", "fed3r:ridge=0.1", "--calibrate", "--out", path)
    assert fitted.code == 0, fitted.err
    saved = covfree.load_head(path)
    assert saved.class_names == tuple(WORDS)
    data = load_npz(named)
    predicted = np.asarray(saved.head(data.test_features)).argmax(1)
    right = predicted == data.test_labels
    by_client = [right[data.test_clients == k].mean() for k in range(7) if k != 3]
    recall = [right[data.test_labels == label].mean() for label in range(10)]
    outcome = cli("evaluate", "--dataset", named, "--head", path, "--confusion", table)
    assert outcome.code == 0, outcome.err
    for text in (
        f"worst client, % │ {100 * min(by_client):.2f}",
        f"mean of clients, % │ {100 * np.mean(by_client):.2f}",
        f"worst class ({WORDS[int(np.argmin(recall))]}), % │ {100 * min(recall):.2f}",
    ):
        assert text in " ".join(outcome.out.split())
    assert table.read_text(encoding="utf-8").startswith(f"class,{','.join(WORDS)}\n")
    # A temperature makes probabilities of Fed3R's scores, which are regressions to 0 and 1.
    plain = tmp_path / "plain.npz"
    assert cli("fit", "--dataset", named, "--method", "fed3r:ridge=0.1", "--out", plain).code == 0
    unnamed = cli("evaluate", "--head", plain, "--dataset", "digits", "--all")
    assert unnamed.err.startswith("covfree: the head's classes have names, the data's are numbers: matched")
    assert "matched by number" not in outcome.err
    errors = [
        json.loads(cli("evaluate", "--dataset", named, "--head", each, "--format", "json").out)["metrics"]
        for each in (path, plain)
    ]
    assert errors[0]["accuracy"] == errors[1]["accuracy"]
    assert errors[0]["ece"] < errors[1]["ece"] / 3
    assert errors[0]["nll"] < errors[1]["nll"]


def test_all_examples(cli, named, tmp_path):
    path = tmp_path / "head.npz"
    assert cli("fit", "--dataset", named, "--method", "fedncm", "--out", path).code == 0
    outcome = cli("evaluate", "--dataset", named, "--head", path, "--all", "--format", "csv")
    (record,) = csv.DictReader(outcome.out.splitlines())
    data, head = load_npz(named), covfree.load_head(path).head
    right = [
        np.asarray(head(features)).argmax(1) == labels
        for features, labels in (
            (data.train_features, data.train_labels),
            (data.test_features, data.test_labels),
        )
    ]
    assert float(record["accuracy"]) == pytest.approx(np.concatenate(right).mean())
    # Now writer 3 is there, with training examples alone.
    owners = np.concatenate([data.clients, data.test_clients])
    by_client = [np.concatenate(right)[owners == k].mean() for k in range(7)]
    assert float(record["mean_client"]) == pytest.approx(np.mean(by_client))


@pytest.mark.slow
def test_a_random_map_and_a_quadratic_head(cli, tmp_path):
    # Of safle is what is of deepafl here: a map that is fitted too, under a linear head.
    for method in ("fed3r-random", "qda-means", "deepafl:num_layers=1:width=32:inner=32"):
        path = tmp_path / f"{method[:4]}.npz"
        fitted = cli("fit", "--method", method, "--out", path, *FEW)
        outcome = cli("evaluate", "--head", path, "--format", "json")
        accuracy = json.loads(outcome.out)["metrics"]["accuracy"]
        assert f"test accuracy {100 * accuracy:.2f} %" in fitted.err
        assert accuracy > 0.85
    refused = cli("fit", "--method", "qda-means", "--calibrate", "--out", tmp_path / "a.npz", *FEW)
    assert refused.refuses("--calibrate: expected a method with a linear head, got qda-means")


def test_training_examples_are_no_test(cli, tmp_path):
    """A head knows its split: 76 % on examples that it was fitted to was taken for 32 % on others."""
    rng = np.random.default_rng(0)
    data, path, part = tmp_path / "data.npz", tmp_path / "head.npz", tmp_path / "part.npz"
    features, labels = rng.normal(size=(99, 60)).astype(np.float32), np.arange(99) % 3
    np.savez(data, features=features, labels=labels)
    fitted = cli("fit", "--dataset", data, "--method", "fed3r:ridge=0.001", "--seed", 3, "--out", path, *FEW)
    (share,) = re.findall(r"test accuracy ([\d.]+) %", fitted.err)
    # The head's split is taken without being asked for, or any other is refused.
    for more in ((), ("--seed", 3)):
        outcome = cli("evaluate", "--head", path, "--dataset", data, "--format", "json", *more)
        content = json.loads(outcome.out)
        assert f"{100 * content['metrics']['accuracy']:.2f}" == share
        assert content["config"]["seed"] == 3
    outcome = cli("evaluate", "--head", path, "--dataset", data, "--seed", 0)
    assert outcome.refuses(
        "test examples looked at are among them; it was fitted with the split of --seed 3, got --seed "
        "0: give --seed 3; or give --all"
    )
    assert cli("evaluate", "--head", path, "--dataset", data, "--seed", 0, "--all").code == 0
    np.savez(part, features=features[::-1], labels=labels[::-1])
    refused = cli("evaluate", "--head", path, "--dataset", part).err
    assert "are among them; with --seed 3 it was fitted to other examples, or to these in another" in refused
    # The same numbers in another precision are the same data, and have the same split.
    other = tmp_path / "other.npz"
    for dtype in (np.float64, np.float16):
        np.savez(other, features=features.astype(dtype), labels=labels)
        assert cli("evaluate", "--head", path, "--dataset", other, "--seed", 0).code != 0
        content = json.loads(cli("evaluate", "--head", path, "--dataset", other, "--format", "json").out)
        assert f"{100 * content['metrics']['accuracy']:.2f}" == share
    # An example more or less: the split is another, whatever the seed.
    for kept in (np.arange(98), np.append(np.arange(99), 5)):
        np.savez(other, features=features[kept], labels=labels[kept])
        for more in ((), ("--seed", 3)):
            outcome = cli("evaluate", "--head", path, "--dataset", other, *more)
            assert outcome.refuses(
                f"it was fitted to a part of 99 examples, where {other.stem} has {len(kept)}: if it was made "
                "with a --test-file, give the same one; or give --all"
            )
    # The training part in a file of its own, whatever the order; and as a test file of others.
    train = load_npz(data, seed=3)
    order = rng.permutation(len(train.train_labels))
    np.savez(part, features=train.train_features[order], labels=train.train_labels[order])
    for given in (("--dataset", part), ("--dataset", data, "--test-file", part)):
        outcome = cli("evaluate", "--head", path, *given)
        assert outcome.refuses("was fitted to examples of the test part: ")
    # Features as small, or as large, as float16 knows none are told apart.
    for scale in (1e-9, 1e6):
        np.savez(part, features=features * np.float32(scale), labels=labels)
        fit = ("fit", "--dataset", part, "--method", "fedncm", "--out", path, "--overwrite", *FEW)
        assert cli(*fit).code == 0
        assert "are among them" in cli("evaluate", "--head", path, "--dataset", part, "--seed", 1).err
        np.savez(part, features=(features + 1) * np.float32(scale), labels=labels)
        assert cli("evaluate", "--head", path, "--dataset", part, "--seed", 1).err == ""
    # Other data are others; a head that does not record which examples it was fitted to is told to.
    np.savez(part, features=features + 1, labels=labels)
    assert cli("evaluate", "--head", path, "--dataset", part).err == ""
    covfree.save_head(covfree.load_head(path).head, path)
    told = cli("evaluate", "--head", path, "--dataset", data).err
    assert "does not record which examples it was fitted to: some of these " in told
    assert "test examples may have been trained on; --all uses every example" in told


def test_a_file_that_is_there_is_kept(cli, tmp_path):
    path = tmp_path / "head.npz"
    given = ("fit", "--out", path, *FEW)
    assert cli(*given, "--method", "fedncm").code == 0
    before = path.read_bytes()
    outcome = cli(*given, "--method", "fed3r")
    assert outcome.refuses(f"--out: {path} is there; --overwrite replaces it, or give another file")
    assert path.read_bytes() == before
    replaced = cli(*given, "--method", "fed3r", "--overwrite")
    assert (replaced.code, "no covariance" in replaced.err) == (0, False)
    assert path.read_bytes() != before
    alone = cli("fit", "--out", path, "--clients", "1", "--overwrite")
    assert "FedCOF sees no covariance at one client" in alone.err


@pytest.mark.slow
def test_rounds_of_a_refined_head(cli, tmp_path):
    path, data = tmp_path / "head.npz", load_digits(seed=0)
    fitted = cli("fit", "--method", "fedcof-refined:rounds=1", "--out", path, *FEW)
    assert fitted.code == 0, fitted.err
    owners = inner_dirichlet(data.train_labels, 6, 2.0, seed=0)
    method = covfree.refined(covfree.fedcof(), 1)
    head = covfree.fit(method, data.train_features, data.train_labels, owners)
    np.testing.assert_allclose(covfree.load_head(path).head.weight, head.weight, rtol=1e-4, atol=1e-4)


def test_files_that_are_read_are_not_written(cli, named, tmp_path):
    test, head, link = tmp_path / "test.npz", tmp_path / "head.npz", tmp_path / "link.npz"
    link.symlink_to(named)
    test.write_bytes(named.read_bytes())
    before = named.read_bytes()
    for out in (named, tmp_path / "." / named.name, link, test):
        outcome = cli("fit", "--dataset", named, "--test-file", test, "--out", out)
        assert outcome.refuses("--out: expected another file than those that are read")
        assert named.read_bytes() == test.read_bytes() == before
    # A name with another suffix is a file of features too.
    other = named.rename(tmp_path / "named.csv")
    head.write_bytes(before)
    outcome = cli("evaluate", "--head", head, "--dataset", other, "--confusion", other)
    assert outcome.refuses("--confusion: expected another file than those that are read")
    assert other.read_bytes() == before


def test_names_of_classes_are_text(cli, tmp_path):
    features = np.eye(4, dtype=np.float32)[np.arange(40) % 4]
    data, head = tmp_path / "data.npz", tmp_path / "head.npz"
    for name in ("[/b]", "[red]", ":cat:"):
        np.savez(data, features=features, labels=np.arange(40) % 4, class_names=[name] * 4)
        fit = ("fit", "--dataset", data, "--method", "fedncm", "--out", head, "--overwrite", *FEW)
        assert cli(*fit).code == 0
        outcome = cli("evaluate", "--dataset", data, "--head", head)
        assert (outcome.code, outcome.err) == (0, "")
        assert f"worst class ({name}), %" in outcome.out


@pytest.mark.parametrize("command", ["fit", "compare", "partition"])
def test_clients_without_examples(cli, tmp_path, command):
    path = tmp_path / "nobody.npz"
    np.savez(path, features=np.eye(30, 2), labels=np.arange(30) % 2, clients=np.full(30, -1))
    given = ["--out", tmp_path / "head.npz"] if command == "fit" else []
    outcome = cli(command, "--dataset", path, *given)
    assert outcome.refuses("nobody: clients: expected some with training examples, got none")
    assert list(tmp_path.iterdir()) == [path]


def test_data_that_does_not_fit_the_head(untyped, cli, named, tmp_path):
    path, other = tmp_path / "head.npz", tmp_path / "other.npz"
    small = covfree.LinearHead(np.ones((64, 9), np.float32), np.zeros(9, np.float32))
    names = [*WORDS[:9], "ten"]
    cases = {
        r"head\.npz knows 9 classes, got 10 in digits": (small, None, "digits"),
        r"head\.npz takes 3 features, got 64 in digits": (
            replace(small, weight=np.ones((3, 9), np.float32)),
            None,
            "digits",
        ),
        r"class 9 of .*head\.npz is 'ten', but 'nine' in named": (
            covfree.LinearHead(np.ones((64, 10), np.float32), np.zeros(10, np.float32)),
            names,
            named,
        ),
    }
    for text, (head, given, dataset) in cases.items():
        covfree.save_head(head, path, class_names=given)
        outcome = cli("evaluate", "--head", path, "--dataset", dataset)
        assert outcome.is_one_line, outcome
        assert re.search(f"--head: .*{text}", outcome.err), outcome.err
    # The same names in another order are those of the head.
    features, classes = np.eye(4, dtype=np.float32)[np.arange(40) % 4], np.array(WORDS[:4])
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        labels = np.argsort(order)[np.arange(40) % 4]
        np.savez(other, features=features, labels=labels, class_names=classes[order])
        head = covfree.LinearHead(np.eye(4, dtype=np.float32), np.zeros(4, np.float32))
        covfree.save_head(head, path, class_names=WORDS[:4])
        outcome = cli("evaluate", "--head", path, "--dataset", other, "--all", "--format", "json")
        assert (outcome.code, json.loads(outcome.out)["metrics"]["accuracy"]) == (0, 1.0), outcome
    # A head is measured on one class, too.
    np.savez(other, features=features[::4], labels=np.zeros(10, int), class_names=classes[:1])
    assert cli("evaluate", "--head", path, "--dataset", other, "--all").code == 0
    other.write_text("no head")
    outcome = cli("evaluate", "--head", other)
    assert outcome.refuses("other.npz: expected an .npz file")
