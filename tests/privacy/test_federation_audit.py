"""The audit of a federation: what is known to leak is found, and noise hides it."""

import numpy as np
import pytest

from covfree.privacy import audit
from covfree.studies.plots import roc
from covfree.studies.plots.style import save_all

DIM, CLASSES, CLIENTS = 24, 4, 40
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, CLASSES, 6000)
# Each client has two of the classes.
OWNERS = (RNG.integers(0, CLIENTS // 2, 6000) * 2 + LABELS // 2) % CLIENTS
FEATURES = RNG.normal(size=(6000, DIM)) + 4 * np.eye(CLASSES, DIM)[LABELS]


def found(**changes):
    options = {"epsilon": 1.0, "delta": 1e-5, "clip": 12.0, "random_bytes": np.random.default_rng(1).bytes}
    return audit(FEATURES, LABELS, OWNERS, **options | changes)


@pytest.mark.slow
def test_attacks_find_members_until_sums_or_noise_hide_them(tmp_path):
    result = found()
    client, group, whole, local, central = result.findings
    # A client's class has about 25 examples: the closed form gives Φ(√(24/25/2)) = 0.76.
    assert client.auc == pytest.approx(0.76, abs=0.04)
    assert client.auc > group.auc > whole.auc - 0.03
    assert client.named > 0.3
    assert abs(local.auc - 0.5) < 0.08
    assert abs(central.auc - 0.5) < 0.12  # few candidates
    assert client.presence == 1.0
    # A class of 25 examples stands out of noise that hides one.
    assert 0.7 < local.presence < 1
    assert whole.difference < 1e-5
    assert central.difference > 1
    assert np.isnan(client.difference)
    assert np.isnan(whole.presence)
    assert client.single == 0
    assert str(result).count("\n") == 6
    paths = save_all(roc.draw("A title", result.findings), tmp_path / "picture.png")
    assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.slow
def test_more_epsilon_hides_less():
    clear = found(epsilon=2000.0).findings
    assert clear[3].auc > 0.7
    assert clear[3].presence > 0.99


def test_attacks_find_as_much_far_from_zero():
    options = {"epsilon": 1e9, "delta": 1e-5}
    far = audit(1e-5 * FEATURES + 1e3, LABELS, OWNERS, clip=6e3, **options)
    assert far.findings[0].auc == pytest.approx(0.76, abs=0.04)
    with pytest.raises(ValueError, match="seed: expected an integer of at least 0, got -1"):
        audit(FEATURES, LABELS, OWNERS, clip=1.0, seed=-1, **options)


def test_examples_alone_in_their_class_are_counted():
    owners = np.arange(6000)
    result = audit(FEATURES, LABELS, owners, epsilon=1.0, delta=1e-5, clip=12.0)
    assert result.findings[0].single == 1.0
    assert result.findings[0].auc > 0.99
    tried = len(result.findings[0].members), len(result.findings[0].others)
    assert f"| each client's sums | 300; {tried[0]:,}, {tried[1]:,} | 1.000" in str(result)


def test_what_is_too_little_to_attack_is_said():
    """Shares of few members, groups that are the whole federation, one client."""
    few = audit(FEATURES[:45], LABELS[:45], OWNERS[:45] % 3, epsilon=1.0, delta=1e-5, clip=12.0)
    assert [each.name for each in few.findings if "groups" in each.name] == []
    assert "| the sum of all clients | 3; 13, 15 | too few | too few | " in str(few)
    with pytest.raises(ValueError, match="clients: expected at least 2 with examples, got 1"):
        audit(FEATURES, LABELS, OWNERS * 0, epsilon=1.0, delta=1e-5, clip=12.0)
    with pytest.raises(ValueError, match="features: expected more than 12 examples of 4 classes, got 9"):
        audit(FEATURES[:9], LABELS[:9] * 0 + 3, OWNERS[:9], epsilon=1.0, delta=1e-5, clip=1.0)


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_a_picture(tmp_path, capsys):
    from covfree.cli import app

    assert app.run(["audit", "--clients", "20", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "the sum of all, central noise" in text
    kept = (tmp_path / "out" / "audit.md").read_text()
    assert kept.startswith(
        "digits: 20 clients with a third of its examples; seed 0. The noise hides one example: ε = 1"
    )
    assert text.startswith(kept)
    assert {each.name for each in (tmp_path / "out").iterdir()} == {
        "audit.md",
        "audit.png",
        "audit.pdf",
        "audit.svg",
    }
    assert app.run(["audit", "--epsilon", "-1"]) == 2
    assert "--epsilon: expected" in capsys.readouterr().err
    assert app.run(["audit", "--clients", "1"]) == 2
    assert "--clients: expected at least 2" in capsys.readouterr().err
