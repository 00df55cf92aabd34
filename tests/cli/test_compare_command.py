"""``covfree compare``: what it computes and how it shows it."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout

import numpy as np
import oracle
import pytest
from PIL import Image

import covfree
from covfree.cli.app import run as command
from covfree.cli.options import method_names
from covfree.data import load_digits
from covfree.data.partitions import inner_dirichlet
from covfree.methods import registry
from covfree.studies import Result, Run, Study, Table, study, table
from covfree.studies.report import records as records_of

# A method of each kind of message; that every method runs is told by tests/methods.
PICTURES = [f"accuracy_vs_bytes.{suffix}" for suffix in ("pdf", "png", "svg")]
FILES = [*PICTURES, "results.json", "runs.jsonl", "settings.json"]
ALL = "fedncm,fed3r,fedcof,fedcof-oracle,naive-bayes"
DIM, CLASSES = 64, 10

RECORD = {
    "method",
    "title",
    "seeds",
    "accuracy_mean",
    "accuracy_sd",
    "bytes_up",
    "bytes_up_with_counts",
    "bytes_down",
    "bytes_up_per_client",
    "client_flops",
    "client_seconds",
    "server_seconds",
}
RUN = {
    "seed",
    "accuracy",
    "bytes_up",
    "bytes_up_with_counts",
    "bytes_down",
    "clients",
    "rows",
    "client_flops",
    "client_seconds",
    "server_seconds",
}


def digits(seed: int):
    """The digits and the clients that `compare` must make of them."""
    data = load_digits(seed=seed)
    return data, inner_dirichlet(data.train_labels, 6, 2.0, seed=seed)


def pairs(labels, clients) -> int:
    return len(set(zip(labels.tolist(), clients.tolist(), strict=True)))


def without_times(content):
    """The same without what differs from run to run, and without titles, which show the options given."""
    if isinstance(content, dict):
        return {
            k: without_times(v) for k, v in content.items() if k != "title" and not k.endswith("_seconds")
        }
    return [without_times(x) for x in content] if isinstance(content, list) else content


def results(outcome) -> dict[str, dict]:
    assert outcome.code == 0, outcome.err
    return {record["method"]: record for record in json.loads(outcome.out)["results"]}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with the runs of a method of each kind, with two seeds."""
    folder = tmp_path_factory.mktemp("runs") / "new" / "folder"
    small = f"compare --clients 6 --alpha 2 --methods {ALL} --seeds 2 --format json --out".split()
    with redirect_stdout(io.StringIO()):
        assert command([*small, str(folder)]) == 0
    return folder


@pytest.fixture
def everything(kept):
    """The JSON of these runs."""
    return json.loads((kept / "results.json").read_text(encoding="utf-8"))


@pytest.fixture
def again(compare, kept):
    """Shows these runs, without making them again."""
    return lambda *arguments: compare("--methods", ALL, "--seeds", 2, "--out", kept, "--resume", *arguments)


def test_json_has_everything(everything):
    content = everything
    assert set(content) == {"config", "environment", "results"}
    assert content["config"] == {
        "dataset": "digits",
        "test_file": None,
        "methods": ALL.split(","),
        "clients": 6,
        "partition": "inner_dirichlet",
        "alpha": 2.0,
        "seeds": 2,
        "noise": None,
    }
    assert content["environment"]["covfree"] == covfree.__version__
    assert {"jax", "numpy", "python", "device", "platform"} <= set(content["environment"])
    assert [record["method"] for record in content["results"]] == ALL.split(",")
    for record in content["results"]:
        assert set(record) == RECORD | {"runs"}
        assert record["title"] == registry()[record["method"]].title
        assert record["seeds"] == len(record["runs"]) == 2
        assert [run["seed"] for run in record["runs"]] == [0, 1]
        for run in record["runs"]:
            assert set(run) == RUN
            assert 0.5 < run["accuracy"] <= 1
            assert run["clients"] == 6
            assert run["client_seconds"] > 0
            assert run["server_seconds"] > 0
        values = [run["accuracy"] for run in record["runs"]]
        assert record["accuracy_mean"] == pytest.approx(np.mean(values))
        assert record["accuracy_sd"] == pytest.approx(np.std(values, ddof=1))
        for figure in ("bytes_up", "bytes_up_with_counts"):
            assert record[figure] == pytest.approx(np.mean([run[figure] for run in record["runs"]]))
        for figure in ("client_seconds", "server_seconds"):
            assert record[figure] == pytest.approx(np.median([run[figure] for run in record["runs"]]))
        assert record["bytes_up_per_client"] == pytest.approx(record["bytes_up"] / 6)


def test_one_slow_run_does_not_make_a_method_slow():
    runs = (
        Run(
            "fedncm",
            seed,
            0.5,
            covfree.SentBytes(8, 4),
            0,
            1,
            1,
            1,
            client_seconds=time,
            server_seconds=2 * time,
        )
        for seed, time in enumerate((0.003, 7.0, 0.001))
    )
    (record,) = records_of([Result("fedncm", "FedNCM", tuple(runs))])
    assert (record["client_seconds"], record["server_seconds"]) == (0.003, 0.006)


def test_bytes_are_those_of_the_formulas(everything):
    """M counted here from the digits and the partition of each seed."""
    found = {record["method"]: record for record in everything["results"]}
    for seed in (0, 1):
        data, clients = digits(seed)
        m = pairs(data.train_labels, clients)
        means = 4 * m * DIM
        matrices = {None: 0, **dict.fromkeys(("gram", "solution"), 6), **dict.fromkeys(("each", "sum"), m)}
        for name, record in found.items():
            run, summary = record["runs"][seed], registry()[name].make().summary
            size = means + 4 * matrices[summary.matrices] * DIM**2
            # Naive Bayes sends a variance beside each mean.
            size *= 2 if name == "naive-bayes" else 1
            assert run["bytes_up"] == size
            assert run["bytes_up_with_counts"] == size + 8 * m
            assert run["rows"] == (len(data.train_labels) if summary.stays else m)


def test_accuracies_are_those_of_the_papers_formulas(compare):
    """In float64 with loops; two of 596 test examples may fall the other way in float32."""
    found = results(compare("--methods", "fedncm,fed3r,fedcof-paper", "--seeds", 1, "--format", "json"))
    data, clients = digits(0)
    rows = oracle.client_rows(data.train_features, data.train_labels, clients)
    count, _, mean = oracle.moments(rows, CLASSES)
    gram = oracle.gram(data.train_features, data.train_labels, CLASSES)[0]
    heads = {
        "fedncm": oracle.ncm_head(count, mean),
        "fed3r": oracle.ridge_head(gram, count, mean, ridge=1.0),
        "fedcof-paper": oracle.from_rows(
            rows, CLASSES, lambda s: oracle.diagonal_loading(s, 1.0), "per_class", "ridge"
        ),
    }
    for name, (weight, bias) in heads.items():
        predicted = (data.test_features.astype(np.float64) @ weight + bias).argmax(1)
        expected = (predicted == data.test_labels).mean()
        assert abs(found[name]["accuracy_mean"] - expected) <= 2.5 / len(data.test_labels), name


def test_a_run_is_repeatable_and_its_parts_independent(compare):
    """The same figures again, with other methods beside it or fewer seeds."""
    both = results(compare("--methods", "fedncm,fed3r", "--seeds", 2, "--format", "json"))
    again = results(compare("--methods", "fed3r,fedncm", "--seeds", 2, "--format", "json"))
    alone = results(compare("--methods", "fed3r", "--seeds", 1, "--format", "json"))
    assert without_times(both) == without_times(again)
    assert list(again) == ["fed3r", "fedncm"]
    assert without_times(alone["fed3r"]["runs"]) == without_times(both["fed3r"]["runs"][:1])


def test_one_seed_has_no_deviation(compare):
    arguments = ("--methods", "fedncm", "--seeds", 1)
    assert results(compare(*arguments, "--format", "json"))["fedncm"]["accuracy_sd"] is None
    (record,) = csv.DictReader(io.StringIO(compare(*arguments, "--format", "csv").out))
    assert record["accuracy_sd"] == ""
    table = compare(*arguments)
    assert "±" not in table.out
    assert "1 seed" in table.out
    assert "1 seeds" not in table.out


def test_csv_holds_the_figures_of_json(again, everything):
    outcome = again("--format", "csv")
    table = csv.DictReader(io.StringIO(outcome.out))
    assert set(table.fieldnames) == RECORD
    for record, expected in zip(table, everything["results"], strict=True):
        assert record["method"] == expected["method"]
        assert record["title"] == expected["title"]
        for figure in ("seeds", "accuracy_mean", "accuracy_sd", "bytes_up", "bytes_up_with_counts"):
            assert float(record[figure]) == pytest.approx(expected[figure])


def test_the_table(again, everything, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    outcome = again()
    assert outcome.code == 0
    title, above, header, _, *lines = (line.rstrip() for line in outcome.out.splitlines())
    assert title == "digits: 1201 train, 596 test, 6 clients, inner_dirichlet 2, 2 seeds"
    for column in ("method", "accuracy, %", "up", "client", "time"):
        assert column in header
    assert above.split() == ["┃", "┃", "bytes", "┃", "per", "┃", "client", "┃", "client", "┃", "server"]
    assert "FLOPs" in header
    found = everything["results"]
    lines, below = [line for line in lines if "│" in line], [line for line in lines if "│" not in line]
    assert len(lines) == len(found)
    said = " ".join(below)
    signs, _, said = said.partition(". ")
    assert signs == "*: the best of its column; ±: one standard deviation over seeds"
    assert said.startswith("On the command line fedcof is FedCOF (LDA, automatic γ); ")
    assert "Fed3R" not in said  # which is called fed3r
    for line, record in zip(lines, found, strict=True):
        assert line.startswith(record["title"])
        mean, deviation = 100 * record["accuracy_mean"], 100 * record["accuracy_sd"]
        assert f"{mean:.2f} ± {deviation:.2f}" in line
        unit, size = ("MB", 1e6) if record["bytes_up"] >= 1e6 else ("kB", 1e3)
        places = 1 if record["bytes_up"] / size < 99.95 else 0
        assert f"{record['bytes_up'] / size:.{places}f} {unit}" in line


def test_the_table_in_markdown(compare):
    outcome = compare("--methods", "fedncm,fed3r", "--seeds", 2, "--format", "markdown")
    title, _, header, rule, *lines = outcome.out.splitlines()
    assert title == "digits: 1201 train, 596 test, 6 clients, inner_dirichlet 2, 2 seeds"
    assert header.startswith("| method | accuracy, % | bytes up | per client | client FLOPs |")
    assert set(rule) == {"|", "-", " "}
    assert [line.split(" | ")[0] for line in lines] == ["| FedNCM", "| Fed3R"]
    assert outcome.out.count("**") == 2  # about the best accuracy
    assert all(line.count("|") == header.count("|") for line in (rule, *lines))


def test_all_data_in_one_place(compare):
    outcome = compare("--methods", "fedncm", "--pooled", "--seeds", "1", "--format", "json")
    found = results(outcome)
    assert found["pooled"]["accuracy_mean"] > found["fedncm"]["accuracy_mean"] + 0.02
    examples = len(load_digits(seed=0).train_labels)
    assert found["pooled"]["bytes_up"] == 4 * examples * DIM
    assert json.loads(outcome.out)["config"]["methods"] == ["fedncm"]


def test_all_methods_by_one_word():
    assert method_names("all") == [*registry()]
    assert method_names(" fedncm, fed3r ,") == ["fedncm", "fed3r"]
    assert method_names("all,stsa-e:ridge=1") == [*method_names("all"), "stsa-e:ridge=1"]


def test_a_method_that_fails_does_not_end_the_table(compare, monkeypatch):
    """It is named, and the exit code says that something failed; where all fail, there is no table."""

    def failing(*_, **__):
        raise ValueError("no covariance of these")

    true = study.run_method
    monkeypatch.setattr(
        study,
        "run_method",
        lambda name, *args, **more: (failing if name == "fedcof" else true)(name, *args, **more),
    )
    outcome = compare("--methods", "fedcof,fedncm", "--seeds", 1, "--format", "json")
    assert outcome.code == 1
    assert [record["method"] for record in json.loads(outcome.out)["results"]] == ["fedncm"]
    assert (
        "covfree: fedcof, seed 0: failed, and is left out: no covariance of these (test_comp" in outcome.err
    )
    outcome = compare("--methods", "fedcof", "--seeds", 1)
    assert (outcome.code, outcome.out) == (2, "")
    assert "covfree: fedcof: no covariance of these (test_compare_command.py, line " in outcome.err


def test_help_is_two_screens(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert len(cli("compare", "--help").out.splitlines()) <= 50


def test_noise_on_the_counts(compare):
    arguments = ("--methods", "fedcof", "--seeds", 1, "--format", "json")
    runs = [compare(*arguments, *more) for more in ((), ("--noise", "laplace:0.05"))]
    plain, noisy = (results(each)["fedcof"] for each in runs)
    said = "counts have noise, laplace:0.05, which is not differential privacy"
    assert [said in each.err for each in runs] == [False, True]
    # Means whose noisy count is 0 are not sent.
    assert noisy["bytes_up"] < plain["bytes_up"]


@pytest.mark.parametrize("terminal", [False, True])
def test_figures_are_never_cut(capsys, monkeypatch, terminal):
    """Whether the output is a pipe or a terminal, however narrow."""
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    names, line = ("method", *(f"figure {n}, %" for n in range(6))), ("FedCOF (shrinkage=0.1)",)
    line += tuple(f"9{n}.00 ± 0.1{n}" for n in range(6))
    for width in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        table.show("table", "title " * 20, Table(names, (line,)), [], "")
        text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert "title " * 20 in text
        assert all(cell in text for cell in (*names, *line))


def test_nothing_but_the_result_is_printed(compare):
    """What is no terminal gets no progress bar: stdout can be piped; stderr has a line a run."""
    outcome = compare("--methods", "fedncm,fed3r", "--seeds", 2, "--format", "json")
    json.loads(outcome.out)
    assert outcome.err.splitlines() == [
        "covfree: run 1 of 4: fedncm, seed 0: compiling, then running",
        "covfree: run 2 of 4: fed3r, seed 0: compiling, then running",
        "covfree: run 3 of 4: fedncm, seed 1",
        "covfree: run 4 of 4: fed3r, seed 1",
    ]


# Files


@pytest.mark.usefixtures("pictures")
def test_out_holds_the_results_and_a_picture(again, kept):
    folder, outcome = kept, again("--format", "json")
    assert outcome.code == 0
    assert sorted(path.name for path in folder.iterdir()) == FILES
    written = (folder / "results.json").read_text(encoding="utf-8")
    assert json.loads(written) == json.loads(outcome.out)
    assert str(folder / "results.json") in outcome.err
    assert str(folder / "accuracy_vs_bytes.png") in outcome.err
    with Image.open(folder / "accuracy_vs_bytes.png") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) > 300
        colours = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
    assert len(colours) > 20  # something is drawn


def test_out_may_exist_and_its_files_are_replaced(compare, tmp_path):
    (tmp_path / "results.json").write_text("old")
    (tmp_path / "mine.txt").write_text("kept")
    outcome = compare("--methods", "fedncm", "--seeds", 1, "--out", tmp_path)
    assert outcome.code == 0
    assert json.loads((tmp_path / "results.json").read_text())["config"]["seeds"] == 1
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_out_that_is_a_file_is_an_error_before_any_work(compare, tmp_path):
    (tmp_path / "taken").write_text("")
    for out in (tmp_path / "taken", tmp_path / "taken" / "below"):
        outcome = compare("--methods", "fedncm", "--seeds", 1, "--out", out)
        assert outcome.code in (1, 2)
        assert outcome.out == ""
        assert outcome.err.startswith("covfree: ")
        assert outcome.err.count("\n") == 1
        assert str(out) in outcome.err


# The user's own features


@pytest.fixture
def features(tmp_path):
    """60 examples of 3 classes on 4 clients with names, a third of them the test part."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    arrays = {
        "features": (rng.normal(size=(60, 5)) + 3 * np.eye(5)[labels]).astype(np.float16),
        "labels": labels,
        "clients": np.array(["oslo", "rome", "bonn", "york"])[np.arange(60) // 3 % 4],
        "is_test": np.arange(60) >= 40,
    }

    def write(name="mine.npz", **others):
        np.savez(tmp_path / name, **{k: v for k, v in {**arrays, **others}.items() if v is not None})
        return tmp_path / name

    return write


def test_own_clients(cli, features):
    """The file's clients and split hold, whatever the seed."""
    path = features()
    arguments = ("--dataset", path, "--methods", "fedncm,fed3r", "--seeds", 2, "--format", "json")
    outcome = cli("compare", *arguments)
    found = results(outcome)
    assert json.loads(outcome.out)["config"]["dataset"] == str(path)
    with np.load(path) as file:
        train = ~file["is_test"]
        m = pairs(file["labels"][train], file["clients"][train])
    assert found["fedncm"]["bytes_up"] == 4 * m * 5
    assert found["fed3r"]["bytes_up"] == 4 * (m * 5 + 4 * 25)
    for record in found.values():
        assert [run["clients"] for run in record["runs"]] == [4, 4]
        assert record["accuracy_sd"] == 0
        assert record["accuracy_mean"] > 0.8
    assert "4 clients of its own" in cli("compare", *arguments[:-2]).out


def test_more_clients_than_examples_do_not_matter_with_own_clients(cli, features):
    """The default of 100 clients is no error for a file of 40 examples that names its own."""
    assert cli("compare", "--dataset", features(), "--methods", "fedncm", "--seeds", 1).code == 0


def test_a_separate_test_file(cli, features):
    """The same examples as a file with is_test and as two files give the same figures."""
    path = features()
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    is_test = arrays["is_test"]
    train = features(
        "train.npz", **{k: v[~is_test] for k, v in arrays.items() if k != "is_test"}, is_test=None
    )
    test = features(
        "test.npz", **{k: arrays[k][is_test] for k in ("features", "labels")}, clients=None, is_test=None
    )
    arguments = ("--methods", "fedncm,fed3r", "--seeds", 1, "--format", "json")
    together = results(cli("compare", "--dataset", path, *arguments))
    outcome = cli("compare", "--dataset", train, "--test-file", test, *arguments)
    assert without_times(results(outcome)) == without_times(together)
    assert json.loads(outcome.out)["config"]["test_file"] == str(test)


def test_a_file_without_clients_is_partitioned(cli, features):
    path = features(clients=None, is_test=None)
    arguments = ("--methods", "fedncm", "--clients", 7, "--seeds", 2, "--format", "json")
    for run in results(cli("compare", "--dataset", path, *arguments))["fedncm"]["runs"]:
        assert run["clients"] == 7


# Numbers


def test_shrinkage_auto_is_the_default(compare):
    arguments = ("--methods", "fedcof", "--seeds", 1, "--format", "json")
    given, default = compare(*arguments, "--set", "shrinkage=auto"), compare(*arguments)
    assert without_times(results(given)) == without_times(results(default))
    assert json.loads(given.out)["config"]["set"] == "shrinkage=auto"
    assert "set" not in json.loads(default.out)["config"]


def test_a_number_for_shrinkage_is_gamma(compare):
    """FedCOF's head by the papers' formulas, at the γ that was given; FedNCM takes none."""
    arguments = ("--methods", "fedcof,fedncm", "--seeds", 1, "--format", "json", "--set")
    small, share, large = (results(compare(*arguments, f"shrinkage={gamma}")) for gamma in (0.01, "10%", 3))
    data, clients = digits(0)
    rows = oracle.client_rows(data.train_features, data.train_labels, clients)
    for found, gamma in ((small, 0.01), (large, 3)):
        assert found["fedcof"]["title"] == f"FedCOF (shrinkage={gamma})"
        assert found["fedncm"]["title"] == "FedNCM"
        weight, bias = oracle.from_rows(
            rows, CLASSES, lambda s, gamma=gamma: oracle.diagonal_loading(s, gamma), "per_class", "lda"
        )
        predicted = (data.test_features.astype(np.float64) @ weight + bias).argmax(1)
        expected = (predicted == data.test_labels).mean()
        assert abs(found["fedcof"]["accuracy_mean"] - expected) <= 2.5 / len(data.test_labels)
    assert small["fedcof"]["accuracy_mean"] != large["fedcof"]["accuracy_mean"]
    head = covfree.fit(
        covfree.fedcof(covfree.relative(0.1)),
        data.train_features,
        data.train_labels,
        clients,
        num_classes=CLASSES,
    )
    accuracy = covfree.evaluate(head, data.test_features, data.test_labels)
    assert abs(share["fedcof"]["accuracy_mean"] - accuracy) <= 0.5 / len(data.test_labels)
    assert share["fedcof"]["title"] == "FedCOF (shrinkage=10%)"
    assert small["fedncm"]["accuracy_mean"] == large["fedncm"]["accuracy_mean"]


def test_ridge_is_for_fed3r_alone(compare):
    arguments = ("--methods", "fed3r,fedncm", "--seeds", 1, "--format", "json")
    default, one, heavy = (
        results(compare(*arguments, *more)) for more in ((), ("--set", "ridge=1"), ("--set", "ridge=1e6"))
    )
    assert without_times(default) == without_times(one)
    assert heavy["fed3r"]["accuracy_mean"] != one["fed3r"]["accuracy_mean"]
    assert heavy["fedncm"]["accuracy_mean"] == one["fedncm"]["accuracy_mean"]


def test_num_subsets_sends_more_means(compare):
    arguments = ("--methods", "fedcof", "--seeds", 1, "--format", "json")
    arguments += ("--set", "num_subsets=3:shrinkage=1")
    record = results(compare(*arguments))["fedcof"]
    data, clients = digits(0)
    sizes = np.unique(np.stack([clients, data.train_labels]), axis=1, return_counts=True)[1]
    m = sum(min(3, max(size // 2, 1)) for size in sizes.tolist())
    assert record["bytes_up"] == 4 * m * DIM
    assert record["runs"][0]["rows"] == m


# That there are the others: tests/cli/test_partition_command.py.
@pytest.mark.parametrize("partition", ["iid", "shards"])
def test_partitions(compare, partition):
    arguments = ("--partition", partition, "--alpha", 3, "--methods", "fedncm", "--seeds", 1)
    record = results(compare(*arguments, "--format", "json"))["fedncm"]
    assert 0 < record["accuracy_mean"] <= 1
    assert 1 <= record["runs"][0]["clients"] <= 6


@pytest.mark.parametrize("alpha", ["1e-300", "1e300"])
def test_extreme_alphas(compare, alpha):
    record = results(compare("--alpha", alpha, "--methods", "fedncm", "--seeds", 1, "--format", "json"))[
        "fedncm"
    ]
    m = record["runs"][0]["rows"]
    # One class a client as far as the equal sizes allow; or every class on nearly every client.
    assert m <= 2 * CLASSES + 6 if alpha == "1e-300" else m > 0.9 * 6 * CLASSES


def test_one_client(compare):
    """No class has a second row: nothing but shrinkage is left of FedCOF's covariance."""
    arguments = ("--methods", "fedncm,fedcof", "--seeds", 1, "--clients", 1, "--format", "json")
    for record in results(compare(*arguments)).values():
        assert record["bytes_up"] == 4 * CLASSES * DIM
        assert record["accuracy_mean"] > 0.85


def test_one_example_a_client(compare):
    """All examples are sent, and FedNCM's head is the same however they are spread."""
    arguments = ("--methods", "fedncm", "--seeds", 1, "--format", "json", "--clients")
    found, few = (results(compare(*arguments, clients))["fedncm"] for clients in (1201, 6))
    assert found["bytes_up"] == 4 * 1201 * DIM
    assert found["accuracy_mean"] == pytest.approx(few["accuracy_mean"], abs=1.5 / 596)


# Interrupts and processes


def test_interrupting(compare, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "runs", interrupted)
    outcome = compare("--methods", "fedncm", "--seeds", 1)
    assert outcome.code == 130
    assert outcome.out == ""
    assert outcome.err.strip() == "covfree: interrupted"


@pytest.mark.parametrize("error", [TypeError, KeyError, RuntimeError])
def test_a_bug_shows_where_it_is(compare, monkeypatch, error):
    def broken(*_, **__):
        raise error("broken")

    monkeypatch.setattr(Study, "runs", broken)
    with pytest.raises(error, match="broken"):
        compare("--methods", "fedncm", "--seeds", 1)


def process(*arguments, **variables) -> subprocess.CompletedProcess:
    """The console script, as its entry point starts it, in a process of its own."""
    words = [sys.executable, "-c", "from covfree.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, "XLA_FLAGS": "", **variables}
    return subprocess.run(
        words, capture_output=True, text=True, encoding="utf-8", timeout=120, env=environment
    )


@pytest.mark.slow
def test_the_console_script():
    """That it reports a bad argument: tests/cli/test_extract_command.py."""
    done = process("compare", "--methods", "fedncm", "--clients", 6, "--seeds", 1, "--format", "csv")
    assert done.returncode == 0, done.stderr
    (record,) = csv.DictReader(io.StringIO(done.stdout))
    assert record["title"] == "FedNCM"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_clients_choose(cli, tmp_path):
    """By errors on examples that they kept: beside all methods, or of some by name."""
    small = ["compare", "--clients", "6", "--alpha", "2", "--seeds", "1", "--format", "json", "--methods"]
    numbers = "--set", "shrinkage=0.001,1000"
    outcome = cli(*small, "fedncm,fedcof", *numbers, "--select", "--out", str(tmp_path / "runs"))
    found = results(outcome)
    own = [name for name in found if "-or-" not in name]
    # As asked for: `--set` would not reach methods of which one is chosen by name.
    asked = json.loads(outcome.out)["config"]
    assert (asked["methods"], asked["select"]) == (own, True)
    assert own == ["fedncm", "fedcof:shrinkage=0.001", "fedcof:shrinkage=1000"]
    chosen = found["-or-".join(own)]
    assert chosen["title"] == f"Clients' choice: {', '.join(own)}"
    best = max(found[name]["accuracy_mean"] for name in own)
    assert chosen["accuracy_mean"] == pytest.approx(best, abs=0.02)
    assert chosen["accuracy_mean"] > min(found[name]["accuracy_mean"] for name in own) + 0.02
    # Six clients' counts of three heads, and their numbers of examples.
    assert chosen["bytes_up"] == found["fedncm"]["bytes_up"] + 6 * 4 * 4
    (run,) = chosen["runs"]
    assert found[run["taken"]]["accuracy_mean"] == pytest.approx(best, abs=0.02)
    names = "--methods", "fedncm,fedcof", *numbers, "--select", "--out", str(tmp_path / "runs"), "--resume"
    shown = " ".join(cli(*small[:-3], *names).out.split())
    counts = ", ".join(f"{name} {int(name == run['taken'])}" for name in own)
    assert f"How often clients took each method, of 1: {counts}." in shown
    (same,) = results(cli(*small, "fedncm-or-fedcof", *numbers)).values()
    assert (same["method"], same["accuracy_mean"]) == (chosen["method"], chosen["accuracy_mean"])
    head = tmp_path / "head.npz"
    fitted = cli("fit", *small[1:5], "--method", "fedncm-or-fedcof", "--out", head)
    assert "covfree: clients took fedcof\n" in fitted.err
    outcome = cli(*small, "fedncm,fed3r", "--select")
    assert outcome.code == 2
    assert (
        "--methods: fedncm-or-fed3r: candidates: expected methods whose clients send the same" in outcome.err
    )
