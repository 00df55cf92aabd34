"""What the commands say to somebody who gave a wrong option, file or folder."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from covfree.cli.app import run
from covfree.deployment import Description, SecureSums

NAMES = ("blue", "dark", "grey")
SITES = ("berlin", "oslo", "rome")
NEW = ("new", "other", "--sites", "keys", "--key", "server.key", "--like", "own.npz")
JOIN = ("join", "shared", "--key", "oslo.key", "--state", "o", "--out", "o.npz")
SUMS = ("--sums", "bound=1e4", "--fewest", "3")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with keys, a feature file, and a federation in shared."""
    root, before = tmp_path_factory.mktemp("messages"), Path.cwd()
    os.chdir(root)
    for folder in ("keys", "twice", "empty"):
        Path(folder).mkdir()
    for name in (*SITES, "server"):
        assert run(["federation", "key", f"{name}.key"]) == 0
        shutil.move(f"{name}.pub", "keys")
    for name in ("oslo", "paris"):
        shutil.copy("keys/oslo.pub", f"twice/{name}.pub")
    data = {"features": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0]), "class_names": NAMES}
    key = {"backbone": "resnet-tiny", "weights": "0" * 64, "dtype": "float32"}
    np.savez("own.npz", **data, key=json.dumps(key))
    np.savez("bare.npz", **data)
    assert run(["federation", NEW[0], "shared", *NEW[2:]]) == 0
    yield root
    os.chdir(before)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((*NEW, "--sites", "nokeys"), "NAME.pub; got 'nokeys', which does not exist"),
        ((*NEW, "--sites", "own.npz"), "NAME.pub; got 'own.npz', which is no folder"),
        ((*NEW, "--sites", "empty"), "NAME.pub; got 'empty', which has none of a site"),
        ((*NEW, "--sites", "twice"), "and the server, got that of oslo.pub in twice/paris.pub"),
        ((*NEW, "--key", "rome.key"), "got that of the server (--key) in keys/rome.pub"),
        ((*NEW, "--sums", "1e6"), "--sums: expected such as bound=…, got '1e6'"),
        ((*NEW, "--sums", "bound=1:bound=2"), "--sums: expected bound once, got 'bound=1:bound=2'"),
        (
            (*NEW, *SUMS, "--algorithm", "fedcof-student"),
            "--algorithm: expected one whose uploads are sums, such as fedncm, fed3r, ",
        ),
        (
            (*NEW, "--algorithm", "fedcof:shrinkage=0.1, fedcof-student"),
            "to let sites choose, write fedcof:shrinkage=0.1-or-fedcof-student",
        ),
        ((*JOIN, "--features", "own.npz", "--key", "rome.key", "--site", "oslo"),
         "--key: expected the private key of 'oslo' in the description, got another, in rome.key"),
        (("join", "nofolder", *JOIN[2:], "--features", "own.npz"), "nofolder: no federation.json; check"),
        (JOIN, "expected --images or --features, got neither"),
        ((*JOIN, "--features", "own.npz", "--images", "x"), "expected --images or --features, got both"),
        ((*JOIN, "--images", "nophotos"), "got 'nophotos', which does not exist"),
        ((*JOIN, "--images", "own.npz"), "got 'own.npz', a file"),
        (
            (*JOIN, "--features", "bare.npz"),
            "--features: bare.npz does not say what made its features; covfree extract --backbone … "
            "--images … --out … makes a file that fits (backbone: expected resnet-tiny, got none; ",
        ),
    ],
)  # fmt: skip
def test_a_message_says_what_is_wrong_and_what_to_do(made, words, text, capsys):
    capsys.readouterr()
    assert run(["federation", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fedncm", "fed3r", "fedcof", "fedcof-refined"])
def test_methods_that_a_message_names_send_sums(made, name):
    own = Description.load("shared/federation.json")
    fields = {each: getattr(own, each) for each in ("class_names", "dim", "sites", "server")}
    assert Description(name, **fields, fewest=3, sums=SecureSums(bound=1e4)).num_rounds > 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"roundz": 3}, "unknown entry 'roundz'"),
        ({"sums": {"bound": 1, "bond": 2}}, "unknown entry 'bond'"),
        ({"dim": None}, "no entry 'dim'"),
    ],
)
def test_a_description_that_was_changed(made, changes, text, tmp_path):
    fields = json.loads(Path("shared/federation.json").read_bytes()) | changes
    path = tmp_path / "federation.json"
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    with pytest.raises(
        ValueError, match=rf"{text}\); it was changed, or is of another version of covfree: ask"
    ):
        Description.load(path)
