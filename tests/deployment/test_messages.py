"""What the commands say to somebody who gave a wrong option, file or folder."""

import json
import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from machines import SIZES, draw_keys

from covfree.cli.app import run
from covfree.deployment import Description, SecureSums

NAMES = ("blue", "dark", "grey")
NEW = "new other --sites keys --key server.key --like own.npz"
SUMS = f"{NEW} --fewest 3 --sums"
PRIVATE = f"{NEW} --fewest 3 --algorithm fedcof --private"
NOISED = f"{PRIVATE} epsilon=8:delta=1e-6:clip=9"
JOIN = "join shared --key oslo.key --state o --out o.npz"
# What each command of the table below begins with.
WORDS = {"new": NEW, "sums": SUMS, "private": PRIVATE, "noised": NOISED, "join": JOIN}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with keys, feature files, and a federation in shared."""
    root, before = tmp_path_factory.mktemp("messages"), Path.cwd()
    os.chdir(root)
    draw_keys(*SIZES, "server")
    for folder in ("twice", "empty"):
        Path(folder).mkdir()
    for name in ("oslo", "paris"):
        shutil.copy("keys/oslo.pub", f"twice/{name}.pub")
    data = {"features": np.eye(4, dtype=np.float32), "labels": np.array([0, 1, 2, 0])}
    key = {"backbone": "resnet-tiny", "weights": "0" * 64, "dtype": "float32"}
    np.savez("own.npz", **data, class_names=NAMES, key=json.dumps(key))
    np.savez("bare.npz", **data, class_names=NAMES)
    np.savez("short.npz", **data | {"labels": np.array([0, 1])}, class_names=NAMES)
    np.savez("nameless.npz", **data)
    np.savez(
        "nan.npz", **data | {"features": np.full((4, 4), np.nan)}, class_names=NAMES, key=json.dumps(key)
    )
    Path("classes.txt").write_text("\n".join(NAMES))
    Path("others.txt").write_text("blue\ngrey\ndark")
    assert run(["federation", *NEW.replace("other", "shared").split()]) == 0
    yield root
    os.chdir(before)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("new --sites nokeys", "NAME.pub; got 'nokeys', which does not exist"),
        ("new --sites own.npz", "NAME.pub; got 'own.npz', which is no folder"),
        ("new --sites empty", "NAME.pub; got 'empty', which has none of a site"),
        ("new --sites twice", "and the server, got that of oslo.pub in twice/paris.pub"),
        ("new --key rome.key", "got that of the server (--key) in keys/rome.pub"),
        ("new --like nameless.npz", "expected an array class_names in nameless.npz (covfree extract writes"),
        ("new --class-names others.txt", "expected those in own.npz, got others in others.txt"),
        ("new --algorithm fednecm", "--algorithm: expected one of fedncm, "),
        ("new --algorithm fedcof-or-fednecm", "got 'fednecm'; did you mean fedncm?"),
        ("new --algorithm fedadam-or-fedcof", "got 'fedadam-or-fedcof'"),
        ("new --algorithm fedadam", "--rounds: expected a number for 'fedadam', got None"),
        (
            "new --algorithm 'fedcof:shrinkage=0.1, fedcof-student'",
            "to let sites choose, write fedcof:shrinkage=0.1-or-fedcof-student",
        ),
        ("sums 1e6", "--sums: expected such as bound=…, got '1e6'"),
        ("sums bound=1:bound=2", "--sums: expected bound once, got 'bound=1:bound=2'"),
        ("sums bound=large", "--sums: bound: expected a number, got 'large'"),
        ("sums bound=1e4:held=2", "--sums: expected names among bound, neighbours, threshold, holders"),
        ("sums holders=3", "--sums: bound: expected the largest absolute value of a number"),
        (
            "sums bound=1e4:holders=9 --algorithm fedcof",
            "--sums: holders: expected at most the number of sites, 3, got 9",
        ),
        (
            "sums bound=1e4 --algorithm fedcof-student",
            "--algorithm: expected one whose uploads are sums, such as fedncm, fed3r, ",
        ),
        ("private epsilon=8:delta=1e-6", "--private: expected clip beside epsilon, delta"),
        ("private delta=1e-6", "--private: expected epsilon, clip beside delta"),
        ("private epsilon=one:delta=1e-6:clip=9", "--private: epsilon: expected a number, got 'one'"),
        (
            "private epsilon=-1:delta=1e-6:clip=9",
            "--private: epsilon: expected a finite number above 0, got -1",
        ),
        ("private epsilon=1:delta=1e-6:clip=five", "--private: clip: expected a number, got 'five'"),
        (
            "private epsilon=8:delta=1e-6:clip=9:unit=client",
            "--private: weight: expected the most that a client weighs",
        ),
        (
            "private epsilon=8:delta=1e-6:clip=9:projection=2.5",
            "--private: projection: expected an integer of at least 1, got 2.5",
        ),
        (
            "private epsilon=8:delta=1e-6:clip=9:honest=two",
            "--private: honest: expected an integer of at least 1, got 'two'",
        ),
        (
            "private epsilon=8:delta=1e-6:clip=9:honest=4",
            "--private: honest: expected at most fewest = 3",
        ),
        (
            "private epsilon=8:delta=1e-6:clip=9 --fewest 1",
            "--fewest: expected at least 2 with private, as that many sites share the noise, got 1",
        ),
        (
            "private epsilon=8:delta=1e-6:clip=9 --algorithm fedcof-refined",
            "--algorithm: expected one whose head is a function of class sums",
        ),
        (
            "private epsilon=1e300:delta=1e-6:clip=9",
            "--private: epsilon: expected a sum of ρ whose ε is finite",
        ),
        ("noised --sums bound=-1", "--sums: bound: expected a finite number above 0, got -1"),
        ("noised --sums bound=nan", "--sums: bound: expected a finite number above 0, got nan"),
        ("noised --sums holders=3", "--sums: holders: expected None with private"),
        ("noised --sums neighbours=1", "--sums: neighbours: expected None with"),
        ("sums bound=1e4:holders=1", "--sums: holders: expected at least 3 clients, got 1"),
        ("new --deadline -1", "--deadline: expected a number above 0, got -1.0"),
        ("status nofolder", "nofolder: no federation.json; check the path, or wait for covfree federation"),
        ("join --features own.npz --key rome.key --site oslo",
         "--key: expected the private key of 'oslo' in the description, got another, in rome.key"),
        ("join --features own.npz --state shared", "--state: expected a folder that nobody else can read"),
        (
            "serve shared --key server.key --state shared/s --out o.npz",
            "--state: expected a folder that nobody else can read, got shared/s in shared",
        ),
        (f"{JOIN.replace('shared', 'nofolder')} --features own.npz", "nofolder: no federation.json; check"),
        ("join", "expected --images or --features, got neither"),
        ("join --features own.npz --images x", "expected --images or --features, got both"),
        ("join --features short.npz", "--features: short.npz: expected labels [4], as features, got [2]"),
        ("join --features nan.npz", "--features: nan.npz: features: row 0 (class 0) holds nan at position 0"),
        ("join --features nix.npz", "--features: nix.npz: no such file"),
        ("join --images nophotos", "--images: expected a folder with one folder of images a class, got"),
        ("join --images own.npz", "got 'own.npz', a file"),
        (
            "join --features bare.npz",
            "--features: bare.npz does not say what made its features; covfree extract --backbone … "
            "--images … --out … makes a file that fits (backbone: expected resnet-tiny, got none; ",
        ),
    ],
)  # fmt: skip
def test_a_message_says_what_is_wrong_and_what_to_do(made, words, text, capsys):
    capsys.readouterr()
    first, space, rest = words.partition(" ")
    if "nofolder" not in words:
        words = f"{WORDS.get(first, first)}{space}{rest}"
    assert run(["federation", *shlex.split(words)]) == 2
    assert text in capsys.readouterr().err
    assert not Path("other").exists()


def test_sites_are_told_what_hides_their_uploads(made, capsys):
    # Class names may stand beside a file without them.
    new = f"{PRIVATE} epsilon=8:delta=1e-6:clip=9 --like nameless.npz --class-names classes.txt"
    assert run(["federation", *new.replace("other", "hidden").split()]) == 0
    join = JOIN.replace("shared", "hidden") + " --features nameless.npz --wait 0 --only-sums"
    assert run(["federation", *join.split()]) == 3
    told = "knows its own: from it with ε = 10.15); this federation's masks hide single uploads if fewer "
    assert [told in text for text in capsys.readouterr().err.splitlines() if "ε = " in text] == [True, True]
    assert run(["federation", "status", "hidden"]) == 3
    shown = capsys.readouterr().out
    assert "uploads: hidden in secure sums\nnoise: ε = 8, δ = 1e-06: hides" in shown
    assert told in shown


@pytest.mark.parametrize("name", ["fedncm", "fed3r", "fedcof", "fedcof-refined"])
def test_methods_that_a_message_names_send_sums(made, name):
    own = Description.load("shared/federation.json")
    fields = {each: getattr(own, each) for each in ("class_names", "dim", "sites", "server")}
    assert Description(name, **fields, fewest=3, sums=SecureSums(bound=1e4)).num_rounds > 0
