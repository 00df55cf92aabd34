"""``covfree rounds``: prints and draws who takes part in which round."""

import re

import jax
import numpy as np
import pytest

import covfree.rounds
from covfree.data import load_digits
from covfree.federation import inner_dirichlet, schedule, schedule_statistics
from covfree.finetune import linear_model, random_head, registry
from covfree.keys import participation_seed


def test_prints_the_statistics(cli):
    outcome = cli("rounds", "--clients", 8, "--alpha", 0.3, "--seed", 2, "--rounds", 20, "--dropout", 0.5)
    assert (outcome.code, outcome.err) == (0, "")
    labels = load_digits(seed=2).train_labels
    clients = inner_dirichlet(labels, 8, 0.3, seed=2)
    plan = schedule(8, 0.1, 20, seed=participation_seed(jax.random.key(2)), dropout=0.5)
    assert outcome.out.rstrip("\n") == schedule_statistics(plan, labels, clients).as_table()


def test_each_client_once(cli):
    outcome = cli("rounds", "--clients", 12, "--rounds", 4, "--participation", 3, "--once")
    assert "times drawn: 1 to 1" in outcome.out
    assert "clients never seen: 0" in outcome.out


def test_own_clients_are_those_that_are_drawn(cli, tmp_path):
    clients = np.array(["b", "a", "c"])[np.arange(30) % 3]
    np.savez(tmp_path / "mine.npz", features=np.ones((30, 2)), labels=np.arange(30) // 15, clients=clients)
    outcome = cli("rounds", "--dataset", tmp_path / "mine.npz", "--participation", 1.0, "--rounds", 1)
    assert "1 rounds; 20 examples, 2 classes, 3 clients" in outcome.out
    assert "a b c\n" in outcome.out


def test_the_draw_is_that_of_training(cli):
    """SCAFFOLD's clients remember something from the first round on in which they are drawn."""
    labels = load_digits(seed=1).train_labels
    clients = inner_dirichlet(labels, 8, 0.3, seed=1)
    features = np.zeros((len(labels), 2), np.float32)
    head = random_head(2, 10, key=jax.random.key(0))
    algorithm = registry()["scaffold"].make(linear_model(head), 1.0, 1.0, batch_size=512)
    few = {"rounds": 1, "participation": 3}
    ended = covfree.rounds.run(algorithm, features, labels, clients, key=jax.random.key(1), **few)
    moved = [np.abs(leaf).reshape(8, -1).sum(1) for leaf in jax.tree.leaves(ended.memory)]
    outcome = cli("rounds", "--clients", 8, "--alpha", 0.3, "--seed", 1, "--rounds", 1, "--participation", 3)
    line = next(line for line in outcome.out.splitlines() if line.startswith("      1 "))
    assert [int(word) for word in line.split("%")[-1].split()] == np.flatnonzero(sum(moved)).tolist()


def test_draws(cli, tmp_path):
    options = ("--once", "--dropout", 0.25, "--late", 0.5)
    outcome = cli("rounds", "--clients", 8, "--rounds", 5, *options, "--out", tmp_path / "new")
    assert outcome.code == 0
    assert "wrote" in outcome.err
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "rounds.pdf",
        "rounds.png",
        "rounds.svg",
    ]
    picture = (tmp_path / "new" / "rounds.svg").read_text(encoding="utf-8")
    assert "participation 0.1, each client once, dropout 0.25, late 0.5, seed 0" in picture


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rounds", "0"], "--rounds: expected at least 1, got 0"),
        (["--dropout", "1.5"], r"--dropout: expected a probability in \[0, 1\], got 1\.5"),
        (["--late=-1"], r"--late: expected a probability in \[0, 1\], got -1"),
        (["--participation", "9"], "--participation: expected a share .* up to 8, got '9'"),
        (["--seed=-1"], "--seed: expected at least 0"),
        (["--clients", "0"], "clients.*at least 1, got 0"),
    ],
)
def test_bad_arguments(untyped, cli, arguments, text, tmp_path):
    outcome = cli("rounds", "--clients", 8, "--out", tmp_path / "out", *arguments)
    assert outcome.is_one_line, outcome
    assert re.search(text, outcome.err), outcome.err
    assert not (tmp_path / "out").exists()
