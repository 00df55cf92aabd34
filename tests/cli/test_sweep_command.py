"""``covfree compare`` with several values of an option: every combination, in one table."""

import csv
import io
import itertools
import json
from contextlib import redirect_stdout

import numpy as np
import pytest

import covfree
from covfree.cli.app import run as command
from covfree.data import load_digits
from covfree.data.partitions import inner_dirichlet, pathological
from covfree.studies import Result, Run, Table, report
from covfree.studies.table import show

SMALL = ("compare", "--clients", 6, "--alpha", 2)
SWEEP = ("--alpha", "1,4", "--methods", "fedncm,fedcof", "--set", "shrinkage=0.1,1", "--seeds", 2)


def content(outcome):
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def key(record):
    return record["alpha"], record["method"]


@pytest.fixture(scope="module")
def swept():
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert command([*map(str, (*SMALL, *SWEEP)), "--format", "json"]) == 0
    return json.loads(printed.getvalue())


def test_every_combination_is_that_of_its_own_command(compare, swept):
    names = ["fedncm", "fedcof:shrinkage=0.1", "fedcof:shrinkage=1"]
    assert [key(record) for record in swept["results"]] == [(a, name) for a in (1.0, 4.0) for name in names]
    assert swept["config"]["alpha"] == [1.0, 4.0]
    assert swept["config"]["set"] == "shrinkage=0.1,1"
    for record in swept["results"]:
        assert (record["dataset"], record["partition"], record["clients"]) == ("digits", "inner_dirichlet", 6)
    for alpha, gamma in ((1.0, 0.1), (4.0, 1)):
        one = content(
            compare(
                *("--alpha", alpha, "--methods", "fedcof", "--set", f"shrinkage={gamma}", "--seeds", 2),
                *("--format", "json"),
            )
        )
        (alone,) = one["results"]
        assert "alpha" not in alone
        (found,) = (r for r in swept["results"] if key(r) == (alpha, f"fedcof:shrinkage={gamma}"))
        for figure in ("accuracy_mean", "accuracy_sd", "bytes_up", "title"):
            assert found[figure] == alone[figure]


def test_tables_in_every_format(compare, swept, tmp_path):
    means = {
        (r["title"], r["alpha"]): (100 * r["accuracy_mean"], 100 * r["accuracy_sd"]) for r in swept["results"]
    }
    titles = list(dict.fromkeys(title for title, _ in means))
    best = {
        a: max((mean, title) for (title, alpha), (mean, _) in means.items() if alpha == a)[1] for a in (1, 4)
    }
    # One command makes the runs; the others show them.
    outputs = {
        form: compare(*SWEEP, "--out", tmp_path, "--resume", "--format", form)
        for form in ("markdown", "latex", "csv", "table")
    }
    assert "run 1" in outputs["markdown"].err
    assert "run 1" not in outputs["table"].err
    above, _, header, _, *lines = outputs["markdown"].out.splitlines()
    assert above == "digits, 6 clients, inner_dirichlet, 2 seeds, test accuracy in %"
    assert header == "| method | alpha 1 | alpha 4 |"
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == titles
    for title, line in zip(titles, lines, strict=True):
        for alpha in (1.0, 4.0):
            mean, deviation = means[title, alpha]
            cell = f"{mean:.2f} ± {deviation:.2f}"
            assert (f"| **{cell}** |" if title == best[alpha] else f"| {cell} |") in line
    latex = outputs["latex"].out
    assert latex.count(r"\textbf{") == 2
    assert latex.startswith(
        f"% {above}\n% \\usepackage{{booktabs}} brings the rules\n% ± is one standard deviation over seeds\n"
        "\\begin{tabular}{lrr}\n\\toprule\n"
        "method & $\\alpha=1$ & $\\alpha=4$ \\\\\n\\midrule\n"
    )
    records = list(csv.DictReader(io.StringIO(outputs["csv"].out)))
    assert [(float(r["alpha"]), r["method"]) for r in records] == [key(r) for r in swept["results"]]
    table = outputs["table"].out
    assert table.startswith("digits, 6 clients, inner_dirichlet, 2 seeds, test accuracy in %")
    assert table.count("*") == 3  # and once below, where it is explained
    # A picture is of one federation.
    pictures = [f"accuracy_vs_alpha.{suffix}" for suffix in ("pdf", "png", "svg")]
    names = [*pictures, "results.json", "runs.jsonl", "settings.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_wide_table_comes_in_blocks_that_fit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    places = itertools.product(("iid", "shards"), (50, 100), (1, 2))
    names = tuple(f"{partition}, {clients} clients, alpha {alpha}" for partition, clients, alpha in places)
    lines = [
        (method, *(f"{row}{column}.25 ± 0.50" for column in range(8)))
        for row, method in enumerate(("FedNCM", "FedCOF (LDA)"))
    ]
    best = frozenset({(0, 3), (1, 7)})
    show("table", "digits", Table(("method", *names), tuple(lines), best, broken=names), [], "")
    title, *shown, signs = capsys.readouterr().out.rstrip().splitlines()
    assert title == "digits"
    assert max(map(len, shown)) <= 80
    assert signs == "*: the best of its column; ±: one standard deviation over seeds."
    found = {}
    for block in "\n".join(shown).split("\n\n"):
        head, body = block.split("━\n")
        *above, rule = head.splitlines()
        assert set(rule) == {"━", "╇"}
        cells = [[cell.strip() for cell in line.split("┃")] for line in above]
        heads = [" ".join(filter(None, parts)) for parts in zip(*cells, strict=True)]
        for line in body.splitlines():
            method, *values = (cell.strip() for cell in line.split("│"))
            found |= {(method, name): value for name, value in zip(heads[1:], values, strict=True)}
    # Every cell once, under its own name.
    assert found == {
        (line[0], name): f"{text}*" if (row, column) in {(0, 3), (1, 7)} else text
        for row, line in enumerate(lines)
        for column, (name, text) in enumerate(zip(names, line[1:], strict=True), start=1)
    }


def test_a_table_of_one_federation_fits_in_one_block(capsys, monkeypatch):
    """The names of methods are broken, figures are not."""
    monkeypatch.setenv("COLUMNS", "80")
    runs = (
        Run("fedcof", seed, share, covfree.SentBytes(48_800, 8), 0, 3, 9, 76_900, 0.0168, 0.0837)
        for seed, share in enumerate((0.939155, 0.950045))
    )
    made = report.table([Result("fedcof", "FedCOF (LDA, automatic γ)", tuple(runs))])
    line = (
        "FedCOF (LDA, automatic γ)",
        "94.46 ± 0.77",
        "48.8 kB",
        "16.3 kB",
        "76.9 k",
        "16.8 ms",
        "83.7 ms",
    )
    assert made.lines == (line,)
    show("table", "digits", made, [], "")
    _, *shown = capsys.readouterr().out.rstrip().splitlines()
    assert max(map(len, shown)) <= 80
    first, second = ([cell.strip() for cell in each.split("│")] for each in shown[-3:-1])
    assert first[1:] == list(line[1:])
    assert f"{first[0]} {second[0]}" == line[0]


def test_a_file_says_the_same(cli, compare, tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'methods = ["fedncm", "fedcof:shrinkage=0.1", "fedcof:shrinkage=1"]\n'
        "alpha = [1, 4.0]\nseeds = [1]\nclients = 6\n"
    )
    found = content(cli("compare", "--config", file, "--format", "json"))
    given = ("--alpha", "1,4", "--methods", "fedncm,fedcof", "--set", "shrinkage=0.1,1", "--seeds", "1,")
    asked = content(compare(*given, "--format", "json"))
    for one, other in zip(found["results"], asked["results"], strict=True):
        assert [run["seed"] for run in one["runs"]] == [1]
        assert (key(one), one["accuracy_mean"]) == (key(other), other["accuracy_mean"])
    # The command line wins.
    assert (
        content(cli("compare", "--config", file, "--alpha", 4, "--format", "json"))["config"]["alpha"] == 4.0
    )


def test_several_data_sets(compare, cli, tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    features = (rng.normal(size=(60, 5)) + 3 * np.eye(3, 5)[labels]).astype(np.float32)
    np.savez(tmp_path / "mine.npz", features=features, labels=labels)
    np.savez(tmp_path / "own.npz", features=features, labels=labels, clients=np.arange(60) % 4)
    both = ("--dataset", f"digits,{tmp_path / 'mine.npz'}", "--methods", "fedncm", "--seeds", 1)
    found = content(compare(*both, "--format", "json"))
    assert [record["dataset"] for record in found["results"]] == ["digits", "mine"]
    header = compare(*both, "--format", "markdown").out.splitlines()[2]
    assert header == "| method | digits | mine |"
    outcome = compare("--dataset", f"digits,{tmp_path / 'own.npz'}", "--alpha", "1,2")
    assert outcome.refuses("--dataset: own has clients of its own; expected one value of --clients")
    assert "--alpha for the other data sets, got 2 combinations" in outcome.err


def test_what_is_on_no_client_is_said(compare, cli, tmp_path):
    """2 clients of 2 classes each: more than half of the examples are nobody's."""
    some = ("--partition", "pathological", "--clients", 2, "--methods", "fedncm", "--seeds", 2)
    lost = []
    for seed in (0, 1):
        labels = load_digits(seed=seed).train_labels
        with pytest.warns(UserWarning, match="on no client"):
            owners = pathological(labels, 2, 2, seed=seed)
        lost.append(((owners < 0).sum(), 10 - len(set(labels[owners >= 0].tolist()))))
    assert min(lost) > (500, 4)
    (record,) = content(compare(*some, "--alpha", 2, "--format", "json"))["results"]
    assert [(run["left_out"]["examples"], run["left_out"]["classes"]) for run in record["runs"]] == lost
    (first, _), (second, _) = sorted(lost)
    span = f"{first}–{second} examples" if first < second else f"{first} examples"
    title = compare(*some, "--alpha", 2).out.splitlines()[0]
    assert f"2 seeds, {span} and " in title
    assert title.rstrip().endswith("classes on no client")
    for form in ("markdown", "latex"):
        shown = compare(*some, "--alpha", 2, "--format", form).out.splitlines()[0]
        assert shown.removeprefix("% ") == title
    outcome = compare(*some, "--alpha", 2, "--format", "csv")
    assert f"covfree: digits: {span} and " in outcome.err
    assert "on no client" not in outcome.out
    fitted = ("--partition", "pathological", "--clients", 2, "--alpha", 2, "--method", "fedncm")
    fitted += ("--out", tmp_path / "head.npz")
    assert f"covfree: digits: {lost[0][0]} examples and {lost[0][1]} classes" in cli("fit", *fitted).err
    table = compare(*some, "--alpha", "2,10").out
    assert f"alpha 2: {span} and " in table
    assert "alpha 10:" not in table
    # Where everything is held, nothing is said.
    whole = compare(*some, "--alpha", 10, "--format", "json")
    assert "left_out" not in whole.out


def test_other_figures(compare, cli, tmp_path):
    """Those of `covfree.metrics`, from the head that `fit` makes, as columns and in JSON and CSV."""
    asked = ("--methods", "fedcof:shrinkage=0.1", "--seeds", 2, "--metrics", "balanced,nll")
    (record,) = content(compare(*asked, "--format", "json"))["results"]
    expected = []
    for seed in (0, 1):
        data = load_digits(seed=seed)
        owners = inner_dirichlet(data.train_labels, 6, 2.0, seed=seed)
        head = covfree.fit(covfree.fedcof(0.1), data.train_features, data.train_labels, owners)
        scores = np.asarray(head(data.test_features), np.float64)
        scores -= scores.max(1, keepdims=True)
        likely = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        recalls = [(scores.argmax(1) == c)[data.test_labels == c].mean() for c in range(10)]
        nll = -likely[np.arange(len(scores)), data.test_labels].mean()
        expected.append((np.mean(recalls), nll))
        run = record["runs"][seed]
        assert (run["balanced"], run["nll"]) == pytest.approx(expected[-1], rel=1e-3)
    assert record["nll_mean"] == pytest.approx(np.mean(expected, axis=0)[1], rel=1e-3)
    assert record["balanced_sd"] == pytest.approx(np.std(expected, axis=0, ddof=1)[0], abs=1e-3)
    *_, header, _, line = compare(*asked, "--format", "markdown").out.splitlines()
    assert header.startswith("| method | accuracy, % | balanced, % | nll, nats | bytes up |")
    assert f"| {record['nll_mean']:.3f} ± {record['nll_sd']:.3f} |" in line
    outcome = compare(*asked[:-1], "worst_client")
    assert outcome.refuses("--metrics: worst_client: expected data that names each test example's client")
    outcome = compare(*asked[:-1], "auc")
    assert outcome.refuses("--metrics: expected some of accuracy, balanced")
    # Of data with clients on both sides, the worst client's share too.
    rng = np.random.default_rng(0)
    labels, clients, is_test = np.arange(90) % 3, np.arange(90) % 4, np.arange(90) >= 60
    features = (rng.normal(size=(90, 5)) + np.eye(3, 5)[labels]).astype(np.float32)
    own = {"features": features, "labels": labels, "clients": clients, "is_test": is_test}
    np.savez(tmp_path / "own.npz", **own)
    some = ("--dataset", tmp_path / "own.npz", "--methods", "fedncm", "--seeds", 1, "--format", "json")
    (record,) = content(cli("compare", *some, "--metrics", "worst_client"))["results"]
    mean = np.stack([features[~is_test & (labels == c)].mean(0) for c in range(3)])
    away = ((features[is_test][:, None] - mean[None]) ** 2).sum(-1)
    right = away.argmin(1) == labels[is_test]
    assert record["worst_client_mean"] == min(right[clients[is_test] == k].mean() for k in range(4))
