"""Bad arguments: one line on stderr that names what is wrong, exit code 2, nothing on stdout."""

import json
import re

import numpy as np
import pytest
import typer.main

import covfree
from covfree.cli.app import app
from covfree.data.partitions import PARTITIONERS
from covfree.finetune import registry as algorithms
from covfree.methods import registry

# Arguments of `compare` and what the line must say: the option, what came, what was expected.
BAD = {
    "unknown method": (["--methods", "fedncm,fedavg"], "'fedavg'; expected some of fedncm, fed3r"),
    "wrong case": (["--methods", "FedNCM"], "'FedNCM'; expected some of fedncm"),
    "method twice": (["--methods", "fedncm,fed3r,fedncm"], "--methods: expected different names"),
    "method twice, by its numbers": (
        ["--methods", "fedcof:shrinkage=1,fedcof:shrinkage=1"],
        "--methods: expected different names, got fedcof:shrinkage=1 twice",
    ),
    "number of a method that is none": (
        ["--methods", "fedncm:ridge=1"],
        "--methods: fedncm takes no number, got ridge; methods that take it: fed3r",
    ),
    "shrinkage by its letter in tables": (
        ["--methods", "fedcof:gamma=1"],
        "got gamma; methods that take it: afl; did you mean shrinkage?",
    ),
    "number of a method without a value": (["--methods", "fedcof:ridge"], "--methods: expected a number"),
    "bad number of a method": (
        ["--methods", "fed3r:ridge=-1"],
        "fed3r:ridge=-1: ridge: .*at least 0",
    ),
    "bad head": (["--methods", "fedcof", "--set", "head=svm"], "--set: head: expected .*'svm'"),
    "bad noise": (["--methods", "fedcof", "--noise", "cauchy:1"], "--noise: .*cauchy"),
    "noise on matrices": (
        ["--methods", "fed3r", "--noise", "laplace:1"],
        "--noise: fed3r: expected a",
    ),
    "alpha twice": (["--alpha", "0.1,0.5,0.1"], "--alpha: expected different values, got '0.1,0.5,0.1'"),
    "no alpha": (["--alpha", ","], "--alpha: expected a number, or several with commas between, got ','"),
    "one of several clients": (["--clients", "10,1202"], "--clients: expected at most .*1201, got 1202"),
    "negative seed": (["--seeds", "3,-1"], "--seeds: expected at least 0, got -1"),
    "data twice": (["--dataset", "digits,digits"], "--dataset: expected different data sets, got digits"),
    "resume without out": (["--resume"], "--resume: expected --out beside it"),
    "a near name": (["--metric", "nll"], r"--metric.*--metrics"),
    "no method": (["--methods", " , "], "--methods: expected names of methods, got none"),
    "all and one of them": (
        ["--methods", "all,fedcof"],
        "--methods: expected different names, got fedcof twice",
    ),
    "one number by two names": (
        ["--methods", "fedcof:shrinkage=1,fedcof:shrinkage=1.0"],
        "--methods: expected different methods, .* fedcof:shrinkage=1.0, which are the same",
    ),
    "noise without a number": (
        ["--methods", "fedncm", "--noise", "uniform"],
        "covfree: --noise: expected a law and a number",
    ),
    "one of several alphas": (["--alpha", "0.1,x"], "--alpha: expected a number, .*got 'x'"),
    "a partition that has no default": (
        ["--partition", "shards"],
        "shards of a client; give --alpha, whose default",
    ),
    "unknown dataset": (["--dataset", "mnist"], r"--dataset: expected 'digits', the path .* got 'mnist'"),
    "near a dataset": (["--dataset", "digit"], "got 'digit'; did you mean digits"),
    "near a number": (["--set", "shrinkag=1"], "takes it; expected some of bias, .*; did you mean shrinkage"),
    "a near number of another method": (["--set", "gama=1"], "takes it; expected some of [^;?]*$"),
    "near a metric": (["--metrics", "acuracy"], "got 'acuracy'; did you mean accuracy"),
    "near a backbone": (
        ["--images", "photos", "--backbone", "efficientnet-lite"],
        "squeezenet1-1, .*got 'efficientnet-lite'; did you mean efficientnet-lite0",
    ),
    "images as a dataset": (
        ["--dataset", "femnist"],
        "--dataset: femnist is .*; give --images femnist --backbone efficientnet-lite0",
    ),
    "missing file": (["--dataset", "absent.npz"], r"--dataset: absent\.npz: no such file"),
    "backbone without images": (["--backbone", "resnet18"], "--backbone: expected --images beside it"),
    "weights without images": (["--weights", "w.pth"], "--weights: expected --images beside it"),
    "images without backbone": (["--images", "photos"], "--images: .* --backbone beside it, such as"),
    "test file with digits": (
        ["--test-file", "test.npz", "--dataset", "digits"],
        "--test-file: expected none with --dataset digits",
    ),
    "test file alone": (["--test-file", "test.npz"], "--test-file: expected --dataset beside it, the file"),
    "shrinkage that is a word": (["--set", "shrinkage=much"], "--set: shrinkage: .*auto.*much"),
    "shrinkage that is empty": (["--set", "shrinkage="], "--set: expected a value of shrinkage"),
    "negative shrinkage": (["--set", "shrinkage=-1"], r"--set: shrinkage.*at least 0, got -1"),
    "shrinkage nan": (["--set", "shrinkage=nan"], "shrinkage.*finite.*got nan"),
    "a number twice": (["--set", "shrinkage=1:shrinkage=2"], "--set: expected shrinkage once"),
    "a value twice": (["--set", "shrinkage=1,1.0"], "--set: expected different values"),
    "no number": (["--set", "shrinkage"], "--set: expected numbers such as shrinkage=auto,0.1"),
    "ridge that is a word": (["--methods", "fed3r", "--set", "ridge=much"], "--set: ridge"),
    "no subsets": (["--set", "num_subsets=0"], "--set: num_subsets: .*at least 1, got 0"),
    "seeds 0": (["--seeds", "0"], "--seeds: expected at least 1, got 0"),
    "negative seeds": (["--seeds=-3"], "--seeds: expected at least 1, got -3"),
    "a seed that no key holds": (["--seeds", "4294967296,"], r"--seeds: expected numbers below 2\^32, got 4"),
    "seeds that are a word": (["--seeds", "five"], "--seeds"),
    "half a seed": (["--seeds", "1.5"], "--seeds"),
    "clients 0": (["--clients", "0"], "clients.*at least 1, got 0"),
    "negative clients": (["--clients=-2"], "clients.*at least 1, got -2"),
    "more clients than examples": (["--clients", "1202"], "clients.*at most .*1201, got 1202"),
    "alpha 0": (["--alpha", "0"], "alpha.*expected a finite number above 0, got 0"),
    "negative alpha": (["--alpha=-0.5"], r"--alpha: expected a finite number .*, got -0\.5"),
    "alpha nan": (["--alpha", "nan"], "alpha: expected a finite number .*got nan"),
    "infinite alpha": (["--alpha", "inf"], "alpha: expected a finite number .*got inf"),
    "alpha that is a word": (["--alpha", "low"], "--alpha"),
    "less than a shard": (
        ["--partition", "shards", "--alpha", "0.1"],
        r"--alpha 0\.1: expected a whole number, got 0\.1 for --alpha, the shards of a client",
    ),
    "classes that are no integer": (["--partition", "pathological", "--alpha", "2.7"], r"alpha.*2\.7"),
    "more classes than there are": (["--partition", "pathological", "--alpha", "11"], "alpha.*10, got 11"),
    "unknown partition": (["--partition", "random"], "--partition: expected one of inner_dirichlet"),
    "unknown format": (
        ["--format", "xml"],
        "covfree: --format: expected one of table, markdown, json, csv, latex, got 'xml'",
    ),
    "near a format": (["--format", "latx"], "got 'latx'; did you mean latex"),
    "unknown option": (["--sedes", "3"], "--sedes"),
    "option without a value": (["--seeds"], "--seeds"),
    "an argument too many": (["digits"], "digits"),
    "a number that no method takes": (
        ["--methods", "fedncm", "--set", "ridge=1"],
        "--set: ridge: fedncm does not take it; methods that take it: fed3r",
    ),
    "another": (
        ["--methods", "fed3r", "--set", "shrinkage=1"],
        "set: shrinkage: .* it: .*fedcof, .*fedcof-oracle",
    ),
    "a third": (
        ["--methods", "fed3r,fedncm", "--set", "num_subsets=2"],
        "--set: num_subsets: .*expected some of .*; methods that take it: fedcof",
    ),
}


@pytest.mark.parametrize(("arguments", "text"), BAD.values(), ids=BAD)
def test_compare(untyped, cli, arguments, text):
    outcome = cli("compare", "--clients", 6, "--seeds", 1, *arguments)
    assert outcome.is_one_line, outcome
    assert re.search(text, outcome.err), outcome.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["bogus"], "'bogus'"),
        (["--bogus"], "--bogus"),
        (["partition", "--dataset", "mnist"], "--dataset: expected 'digits'"),
        (["partition", "--dataset", "absent.npz"], r"--dataset: absent\.npz: no such file"),
        (["partition", "--partition", "random"], "--partition: expected one of"),
        (["partition", "--clients", "0"], "clients.*at least 1, got 0"),
        (["partition", "--alpha", "0"], "alpha.*expected a finite number above 0, got 0"),
        (["partition", "--seed=-1"], "seed.*-1"),
        (["partition", "--seed", "x"], "--seed: expected a whole number, got 'x'$"),
        (["partition", "--alpha", "0.1,0.5"], "--alpha: expected a number, got '0.1,0.5'$"),
        (["partition", "--clients", "9", "--out", "a.png"], "--out: expected a folder, got 'a.png'$"),
        (["compare", "--out", "res.csv"], "--out: expected a folder, got 'res.csv'; a table .*; --report"),
        (["partition", "--methods", "fedncm"], "--methods"),
        (["extract", "--backbone", "resnet18", "--out", "a.npz"], "--images"),
        (["extract", "--images", "photos", "--out", "a.npz"], "--backbone"),
        (["extract", "--images", "photos", "--backbone", "resnet18"], "--out"),
        (["backbones", "resnet18"], "resnet18"),
        (["fit"], "--out"),
        (["fit", "--out", "head.txt"], r"--out: expected a file that ends in \.npz, got 'head\.txt'"),
        (
            ["fit", "--out", "absent/head.npz"],
            "--out: expected a file in a folder that is there",
        ),
        (
            ["fit", "--out", "a.npz", "--method", "fedavg"],
            "--method: unknown method 'fedavg'; expected some of fedncm",
        ),
        (
            ["fit", "--out", "a.npz", "--method", "fedncm:ridge=1"],
            "--method: fedncm takes no number, got ridge",
        ),
        (["fit", "--out", "a.npz", "--method", "fedcof:shrinkage=much"], "--method: fedcof:shrinkage=much: "),
        (["fit", "--out", "a.npz", "--method", "fedncm,fedcof"], "--method: expected one method, got 2"),
        (["diagnose", "--method", "fedncm,fedcof"], "--method: expected one method, got 2"),
        (["fit", "--out", "a.npz", "--seed=-1"], "--seed: expected at least 0, got -1"),
        (["evaluate"], "--head"),
        (["evaluate", "--head", "absent.npz"], r"absent\.npz: no such file"),
        (["evaluate", "--head", "a.npz", "--confusion", "a.txt"], r"--confusion: expected .* ends in \.csv"),
    ],
)
def test_partition_and_the_app(untyped, cli, arguments, text):
    outcome = cli(*arguments)
    assert outcome.is_one_line, outcome
    assert re.search(text, outcome.err), outcome.err


@pytest.mark.parametrize("command", ["compare", "partition"])
def test_what_is_wrong_with_a_file_is_said_in_one_line(untyped, cli, command, tmp_path):
    features, labels = np.ones((6, 2)), np.arange(6) % 2
    features[3, 1] = np.nan
    np.savez(tmp_path / "nan.npz", features=features, labels=labels)
    np.savez(tmp_path / "bare.npz", features=features)
    (tmp_path / "text.npz").write_text("no zip")
    (tmp_path / "empty.npz").write_text("")
    for name, text in {
        "nan": r"nan\.npz: features: row 3 \(class 1\) holds nan at position 1",
        "bare": r"bare\.npz: expected arrays features and labels",
        "text": r"text\.npz: expected an \.npz file of plain arrays, got a file that begins b'no'",
        "empty": r"empty\.npz: expected an \.npz file",
    }.items():
        outcome = cli(command, "--dataset", tmp_path / f"{name}.npz")
        assert outcome.is_one_line, outcome
        assert re.search(text, outcome.err), outcome.err


def test_a_bad_argument_makes_no_folder(untyped, cli, tmp_path):
    for arguments in (["--methods", "fedavg"], ["--seeds", "0"], ["--alpha", "0"], ["--clients", "0"]):
        assert cli("compare", "--out", tmp_path / "out", *arguments).code == 2
        assert not (tmp_path / "out").exists()


# Help


def plain(text: str) -> str:
    """Without frames and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─|+]", " ", text).split())


WORDS = {
    "compare": (*PARTITIONERS, *registry(), "auto", "features (n × d), labels (n)"),
    "partition": (*PARTITIONERS, "features (n × d), labels (n)"),
    "finetune": (*algorithms(), "covfree finetune --init random,fedncm,fedcof --algorithm fedavg,fedadam"),
    "extract": ("efficientnet-lite0", "tfds:NAME", "owner/name@commit", "skip", "[text, label]"),
}


@pytest.mark.parametrize(("name", "words"), WORDS.items(), ids=WORDS)
def test_help_teaches_every_option(cli, monkeypatch, name, words):
    monkeypatch.setenv("COLUMNS", "110")
    outcome = cli(name, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    text = plain(outcome.out)
    for option in typer.main.get_command(app).commands[name].params:
        assert option.opts[0] in text
    for word in (*words, f"covfree {name} --"):  # the last is an example's
        assert word in text


def test_help_of_the_app(cli):
    outcome = cli("--help")
    assert outcome.code == 0
    assert outcome.err == ""
    for word in (
        "compare",
        "fit",
        "evaluate",
        "partition",
        "extract",
        "backbones",
        "--version",
        "covfree compare --dataset digits",
    ):
        assert word in plain(outcome.out)


def test_the_version(cli):
    outcome = cli("--version")
    assert outcome == (0, f"covfree {covfree.__version__}\n", "")


def test_no_argument_shows_the_help(cli):
    """No empty line of error beside it."""
    outcome = cli()
    assert "compare" in outcome.out
    assert outcome.err == ""


def test_classes_that_nobody_trains_on_are_told(cli, tmp_path):
    """A test file whose labels count from 1 where those to train on count from 0."""
    features, labels = np.eye(12, 4, dtype=np.float32), np.arange(12) % 3
    train, test, single = (tmp_path / f"{name}.npz" for name in ("train", "test", "single"))
    np.savez(train, features=features, labels=labels)
    np.savez(test, features=features, labels=labels + 1)
    np.savez(single, features=features, labels=np.zeros(12, int))
    named = tmp_path / "named.npz"
    np.savez(named, features=features, labels=labels, class_names=["ash", "elm", "fir", "yew"])
    options = ("--clients", 2, "--alpha", 1, "--seeds", 1, "--methods", "fedncm")
    told = cli("compare", "--dataset", train, "--test-file", test, *options)
    assert told.code == 0
    assert "4 of 12 test examples are of classes with no training examples, such as 3" in told.err
    told = cli("compare", "--dataset", named, "--test-file", test, *options)
    assert "no training examples, such as yew; no method" in told.err
    assert "from zero" not in told.err
    np.savez(train, features=features + 150, labels=labels)
    told = cli("compare", "--dataset", train, *options)
    assert (
        "train: the features' mean lies 551 times their spread from zero, where fed3r, afl, fedncm"
        in told.err
    )
    np.savez(train, features=features + 15, labels=labels)
    assert (
        "55 times their spread from zero, where fed3r, afl may fail"
        in cli("compare", "--dataset", train, *options).err
    )
    told = cli("partition", "--dataset", train)
    assert told.err.endswith("of examples, 9, got 100; give --clients, whose default is 100\n")
    refused = cli("compare", "--dataset", single, *options)
    assert refused.code == 2
    assert "single: expected examples of two classes or more to train on, got 1" in refused.err


@pytest.fixture
def own(tmp_path):
    """Data with clients of its own."""
    rng, labels = np.random.default_rng(0), np.arange(40) % 2
    content = {"features": rng.normal(size=(40, 3)), "labels": labels, "clients": np.arange(40) % 4}
    np.savez(tmp_path / "own.npz", **content)
    return tmp_path / "own.npz"


@pytest.mark.parametrize("command", ["compare", "diagnose", "finetune", "fit", "partition"])
def test_a_partition_of_data_with_clients_is_refused(cli, own, tmp_path, command):
    """As it would change nothing."""
    out = ("--out", tmp_path / "head.npz") if command == "fit" else ()
    for name, value in {"clients": 100, "alpha": 0.1, "partition": "iid"}.items():
        outcome = cli(command, "--dataset", own, *out, f"--{name}", value)
        assert outcome.is_one_line, outcome
        assert outcome.err == f"covfree: --{name}: expected none, as own has clients of its own\n"


def test_beside_other_data_it_is_of_those(cli, own):
    """The title says of which data the clients are drawn, and settings of one data set name no partition."""
    few = ("--methods", "fedncm", "--seeds", 1)
    outcome = cli("compare", "--dataset", f"digits,{own}", "--clients", 6, "--alpha", 2, *few)
    assert outcome.code == 0, outcome.err
    title = outcome.out.splitlines()[0]
    assert title.startswith("digits and own, clients of its own in own, 6 clients, inner_dirichlet, alpha 2")
    outcome = cli("compare", "--dataset", own, *few, "--format", "json")
    config = json.loads(outcome.out)["config"]
    assert {name: config[name] for name in ("clients", "partition", "alpha")} == {
        "clients": None,
        "partition": None,
        "alpha": None,
    }
