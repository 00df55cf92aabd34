"""``covfree partition``: prints and draws how examples are spread."""

import numpy as np
import pytest
from PIL import Image

from covfree.data import load_digits
from covfree.data.partitions import PARTITIONERS, inner_dirichlet, partition_statistics
from covfree.studies.plots import style as figures


def test_prints_the_statistics(cli):
    outcome = cli("partition", "--clients", 8, "--alpha", 0.3, "--seed", 2)
    assert outcome.code == 0
    assert outcome.err == ""
    labels = load_digits(seed=2).train_labels
    clients = inner_dirichlet(labels, 8, 0.3, seed=2)
    assert outcome.out.rstrip("\n") == str(partition_statistics(labels, clients, 10))
    pairs = {(k, y) for k, y in zip(clients.tolist(), labels.tolist(), strict=True)}
    assert f"client-class pairs: {len(pairs)} " in outcome.out
    assert "1,201 examples, 10 classes, 8 clients" in outcome.out


def test_the_seed_draws_it(cli):
    first, again, other = (cli("partition", "--clients", 8, "--seed", seed).out for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("partition", PARTITIONERS)
def test_every_partition(cli, partition):
    number = 2 if partition in ("shards", "pathological") else 0.5
    outcome = cli("partition", "--partition", partition, "--alpha", number, "--clients", 5)
    assert outcome.code == 0
    assert "5 clients" in outcome.out


def test_draws(cli, tmp_path):
    outcome = cli("partition", "--clients", 8, "--out", tmp_path / "new" / "folder")
    assert outcome.code == 0
    path = tmp_path / "new" / "folder" / "partition.png"
    assert str(path) in outcome.err
    with Image.open(path) as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) > 200
    assert b"%PDF" in path.with_suffix(".pdf").read_bytes()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--clients", 8), ["digits, inner_dirichlet, α = 0.1, seed 3", "1,201 examples on 8 clients"]),
        (("--partition", "iid", "--clients", 2), ["digits, iid, seed 3", "1,201 examples on 2 clients"]),
        (("--partition", "iid", "--clients", 1), ["1,201 examples on 1 client ("]),
        (
            ("--partition", "pathological", "--alpha", 2, "--clients", 3),
            ["pathological, classes per client = 2, seed 3", "on 3 clients", "on no client: 606 examples"],
        ),
    ],
)
def test_the_picture_says_what_it_is_of(cli, monkeypatch, tmp_path, given, words):
    monkeypatch.setattr(figures, "FORMATS", ("svg",))
    assert cli("partition", *given, "--seed", 3, "--out", tmp_path).code == 0
    text = (tmp_path / "partition.svg").read_text(encoding="utf-8")
    assert [word for word in words if word not in text] == []


def test_own_clients(cli, tmp_path):
    clients = np.array(["b", "a", "c"])[np.arange(30) % 3]
    np.savez(tmp_path / "mine.npz", features=np.ones((30, 2)), labels=np.arange(30) // 15, clients=clients)
    outcome = cli("partition", "--dataset", tmp_path / "mine.npz")
    assert "20 examples, 2 classes, 3 clients" in outcome.out
