"""``covfree finetune``: what it computes, keeps, goes on from, and says of bad input."""

import json
import math
import re
import shutil
import sys
from dataclasses import replace

import drawn
import jax
import numpy as np
import optax
import oracle
import pytest
from PIL import Image

import covfree
from covfree.core.keys import participation_seed
from covfree.data import load_digits
from covfree.data.partitions import inner_dirichlet
from covfree.finetune import at_temperature, fedadam, fedavg, linear_model, random_head, registry
from covfree.finetune.registry import Rates
from covfree.methods import registry as methods_of_one_round
from covfree.rounds import participation
from covfree.studies import Run, summarise
from covfree.studies.plots import style as figures
from covfree.studies.plots.curve import draw
from covfree.studies.task import Task
from covfree.studies.train import train
from covfree.studies.training import Training

# Few clients of the digits, always the same, so that all runs share compiled functions.
SMALL = ("finetune", "--clients", 6, "--alpha", 2, "--participation", "1.0", "--format", "json")
SIZE = 64 * 10 + 10


@pytest.fixture
def finetune(cli):
    """Runs ``finetune`` on few clients of the digits; what is given comes last and wins."""
    return lambda *arguments: cli(*SMALL, *arguments)


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def without_seconds(records):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def descent(weight, bias, features, labels, learning_rate):
    """A step of gradient descent on the mean cross-entropy, in float64."""
    scores = features @ weight + bias
    chance = np.exp(scores - scores.max(1, keepdims=True))
    chance /= chance.sum(1, keepdims=True)
    error = (chance - np.eye(10)[labels]) / len(labels)
    return weight - learning_rate * features.T @ error, bias - learning_rate * error.sum(0)


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_rounds_are_those_of_gradient_descent(finetune, tmp_path):
    """All clients with one step each: FedAvg is descent on all examples, written out here."""
    outcome = finetune(
        *("--init", "random,fedncm", "--algorithm", "fedavg", "--client-lr", 0.5, "--batch-size", 512),
        *("--rounds", 3, "--out", tmp_path),
    )
    assert outcome.code == 0, outcome.err
    data = load_digits(seed=0)
    x, y = data.train_features.astype(np.float64), data.train_labels
    owners = inner_dirichlet(y, 6, 2.0, seed=0)
    tests = data.test_features.astype(np.float64), data.test_labels
    count, _, mean = oracle.moments(oracle.client_rows(x, y, owners), 10)
    ncm = oracle.ncm_head(count, mean)
    drawn = random_head(64, 10, key=jax.random.key(0))
    weight, bias = np.asarray(drawn.weight, np.float64), np.asarray(drawn.bias, np.float64)
    pairs = len(set(zip(y.tolist(), owners.tolist(), strict=True)))
    for init, uploaded in (("random", 0), ("fedncm", 4 * pairs * 64)):
        lines = history(tmp_path / f"{init}-fedavg-seed0")
        assert [line["round"] for line in lines] == [0, 1, 2, 3]
        assert [line["bytes_up"] for line in lines] == [uploaded, *[6 * 4 * (SIZE + 1)] * 3]
        assert [line["bytes_down"] for line in lines] == [0, *[6 * 4 * (SIZE + 1)] * 3]
        assert [line["clients"] for line in lines] == [6 if uploaded else 0, 6, 6, 6]
        assert all(line["steps"] == 1 for line in lines[1:])
        # A random start is there at once.
        assert [line["seconds"] > 0 for line in lines] == [uploaded > 0, True, True, True]
    expected = []
    for _ in range(4):
        expected.append(((tests[0] @ weight + bias).argmax(1) == tests[1]).mean())
        weight, bias = descent(weight, bias, x, y, 0.5)
    found = [line["accuracy"] for line in history(tmp_path / "random-fedavg-seed0")]
    np.testing.assert_allclose(found, expected, atol=2.5 / len(tests[1]))
    assert expected[3] > expected[0] + 0.05
    start = ((tests[0] @ ncm[0] + ncm[1]).argmax(1) == tests[1]).mean()
    found = [line["accuracy"] for line in history(tmp_path / "fedncm-fedavg-seed0")]
    assert abs(found[0] - start) <= 2.5 / len(tests[1])

    # The trained head is there to be used.
    head = covfree.load_head(tmp_path / "fedncm-fedavg-seed0" / "head.npz").head
    assert float(covfree.evaluate(head, *tests)) == pytest.approx(found[-1])

    # What is printed and written is what the histories say.
    content = json.loads(outcome.out)
    assert json.loads((tmp_path / "results.json").read_text()) == content
    assert content["config"]["init"] == ["random", "fedncm"]
    assert content["config"]["participation"] == 1.0
    for record in content["results"]:
        lines = history(tmp_path / f"{record['init']}-fedavg-seed0")
        (run,) = record["runs"]
        accuracies = [line["accuracy"] for line in lines]
        assert record["start_accuracy_mean"] == run["start_accuracy"] == accuracies[0]
        assert record["last_accuracy_mean"] == run["last_accuracy"] == accuracies[-1]
        assert record["best_accuracy_mean"] == max(accuracies)
        assert accuracies.index(max(accuracies)) == run["best_round"]
        assert (run["client_lr"], run["server_lr"], run["tried"]) == (0.5, 1.0, None)
        for name in ("bytes_up", "bytes_down", "seconds"):
            assert record[name] == run[name] == pytest.approx(sum(line[name] for line in lines))
    # A line on stderr for each round, as that is no terminal.
    lines = outcome.err.splitlines()
    assert len(lines) == 9
    assert re.fullmatch(
        r"random → fedavg, seed 0: round 3/3, \d+\.\d\d %, \d+\.\d s, 46\.9 kB up, 46\.9 kB down", lines[3]
    )
    files = f"{tmp_path / 'results.json'} and {tmp_path / 'accuracy.png'}"
    assert lines[8] == f"covfree: wrote {files} (also as PDF and SVG)"
    assert {f"accuracy.{suffix}" for suffix in ("png", "pdf", "svg")} <= {p.name for p in tmp_path.iterdir()}
    with Image.open(tmp_path / "accuracy.png") as picture:
        assert min(picture.size) > 500
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 20


@pytest.mark.slow
def test_the_papers_settings_of_clients_and_servers(finetune, tmp_path):
    """Momentum and weight decay of clients, numbers of a server's Adam, and the temperature of a head."""
    common = ("--init", "fedncm", "--client-lr", 0.5, "--rounds", 2, "--batch-size", 512)
    (tmp_path / "mine.py").write_text("import optax\n\ndef rms(rate):\n    return optax.rmsprop(rate / 10)\n")
    own = ("--client-optimiser", f"{tmp_path}/mine.py:rms")
    data = load_digits(seed=0)
    owners = inner_dirichlet(data.train_labels, 6, 2.0, seed=0)
    start = covfree.fit(covfree.fedncm(), data.train_features, data.train_labels, owners)
    for number, (given, algorithm, temperature) in enumerate(
        (
            (
                ("--algorithm", "fedavg", "--weight-decay", 0.1, "--momentum", 0.5, "--temperature", "none"),
                lambda model: fedavg(
                    model,
                    optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.5, momentum=0.5)),
                    epochs=2,
                    batch_size=512,
                ),
                1.0,
            ),
            (
                (
                    "--algorithm",
                    "fedadam-torch:weight_decay=0.3:eps=0.1",
                    "--server-lr",
                    0.1,
                    "--temperature",
                    0.5,
                ),
                lambda model: fedavg(
                    model,
                    0.5,
                    optax.chain(optax.add_decayed_weights(0.3), optax.adam(0.1, eps=0.1)),
                    epochs=2,
                    batch_size=512,
                ),
                0.5,
            ),
            (
                ("--algorithm", "fedadam:tau=0.1:b2=0.5", "--server-lr", 0.1, "--temperature", 0.1, *own),
                lambda model: fedadam(
                    model, optax.rmsprop(0.05), 0.1, tau=0.1, b2=0.5, epochs=2, batch_size=512
                ),
                0.1,
            ),
        )
    ):
        outcome = finetune(*common, "--epochs", 2, *given, "--out", tmp_path / str(number))
        assert outcome.code == 0, outcome.err
        model = linear_model(replace(start, present=np.ones(10, np.float32)))
        model = at_temperature(model, temperature)
        expected = covfree.rounds.run(
            algorithm(model), data.train_features, data.train_labels, owners, key=jax.random.key(0), rounds=2
        ).result
        (folder,) = (path for path in (tmp_path / str(number)).iterdir() if path.is_dir())
        found = covfree.load_head(folder / "head.npz").head
        np.testing.assert_allclose(found.weight, expected.weight, atol=1e-4)
    (record,) = json.loads(outcome.out)["results"]
    assert record["algorithm"] == "fedadam:tau=0.1:b2=0.5"


@pytest.mark.slow
def test_a_closed_form_stage_of_several_rounds(finetune):
    """Clients come once each; what they sent, the head and the training are those of one round in the end.

    Operations are added up example by example: E passes forward and back through a head alone, and of means
    and of sums of products once.
    """
    data = load_digits(seed=0)
    owners = inner_dirichlet(data.train_labels, 6, 2.0, seed=0).astype(np.int32)
    task, size = Task(data, owners, 0, data.train_features, data.test_features), np.bincount(owners)
    drawn = participation(6, 4, 2, seed=participation_seed(jax.random.key(0)))
    trained = [float(3 * size[who].sum() * (1000 + 3 * 2 * 64 * 10)) for who in drawn]
    given = {"options": {"epochs": 3, "batch_size": 512}, "extractor_flops": 1000}
    runs = {}
    for init, each in (("random", 0), ("fedncm", 64), ("fed3r", 64 + 2 * 64**2)):
        training = Training(init, "fedavg", Rates(0.1, 1.0), 2, 4, **given)
        made = [train(replace(training, start_rounds=n), task) for n in ("once", "all", 1)]
        runs[init], (once, stage, part) = made[1], (run.history for run in made)
        assert [line["round"] for line in once] == [0, 1, 2]
        assert [line["flops"] for line in once] == [size.sum() * (each + 1000 * bool(each)), *trained]
        if init == "random":
            assert without_seconds(stage) == without_seconds(part) == without_seconds(once)
            continue
        assert [(line["round"], line["clients"]) for line in stage] == [(-1, 4), (0, 2), (1, 4), (2, 4)]
        for name in ("bytes_up", "bytes_down", "flops"):
            assert sum(line[name] for line in stage) == sum(line[name] for line in once)
        for ours, theirs in zip(stage[1:], once, strict=True):
            assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=2.5 / len(data.test_labels))
        # One round of four clients has the head of these four.
        assert [line["round"] for line in part] == [0, 1, 2]
        assert part[0]["flops"] == stage[0]["flops"] < once[0]["flops"]
        assert part[0]["accuracy"] == pytest.approx(stage[0]["accuracy"])
        assert part[0]["accuracy"] != pytest.approx(once[0]["accuracy"])
    outcome = finetune(
        *("--init", "random,fedncm,fed3r", "--algorithm", "fedavg", "--batch-size", 512, "--epochs", 3),
        *("--participation", 4, "--rounds", 2, "--extractor-flops", 1000, "--start-rounds", "all"),
    )
    for record in json.loads(outcome.out)["results"]:
        (run,), direct = record["runs"], runs[record["init"]]
        assert run["start_rounds"] == (0 if record["init"] == "random" else 2)
        assert run["rounds"] == 2
        assert record["start_accuracy_mean"] == direct.history[-3]["accuracy"]
        assert record["last_accuracy_mean"] == direct.accuracy
        assert record["client_flops"] == direct.client_flops == sum(x["flops"] for x in direct.history)


@pytest.mark.slow
def test_interrupted_and_resumed_it_is_the_same_run(finetune, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    given = ("--init", "fedncm", "--algorithm", "fedavg", "--batch-size", 512)
    assert finetune(*given, "--rounds", 5, "--out", whole).code == 0
    assert finetune(*given, "--rounds", 3, "--out", cut, "--checkpoint-every", 2).code == 0
    name = "fedncm-fedavg-seed0"
    # What was written after the last checkpoint, when the process died.
    with (cut / name / "history.jsonl").open("a") as file:
        file.write('{"round": 4, "accur')
    outcome = finetune(*given, "--rounds", 5, "--out", cut, "--resume")
    assert outcome.code == 0, outcome.err
    # Where it goes on is said, and what is new.
    assert [line.split(", ")[1] for line in outcome.err.splitlines()[:-1]] == [
        "seed 0: round 3/5",
        "seed 0: round 4/5",
        "seed 0: round 5/5",
    ]
    assert without_seconds(history(cut / name)) == without_seconds(history(whole / name))
    again = finetune(*given, "--rounds", 5, "--out", cut, "--resume")
    ours, theirs = (json.loads(each.out)["results"][0]["runs"] for each in (again, outcome))
    assert without_seconds(ours) == without_seconds(theirs)

    outcome = finetune(*given, "--rounds", 5, "--out", cut)
    assert outcome.refuses(f"--out: {cut / name} holds a run; --resume goes on with it")
    for other, text in (
        (("--batch-size", 16), "holds a run with --batch-size 512, got 16"),
        (("--client-lr", 0.2), "holds a run with --client-lr its default, got 0.2"),
    ):
        outcome = finetune(*given, "--rounds", 5, "--out", cut, "--resume", *other)
        assert outcome.is_one_line
        assert text in outcome.err
    # The checkpoint of another algorithm, moved by hand.
    shutil.copytree(cut / name, cut / "fedncm-fedavgm-seed0")
    outcome = finetune(*given, "--algorithm", "fedavgm", "--rounds", 5, "--out", cut, "--resume")
    assert outcome.refuses("holds a run with --algorithm fedavg, got fedavgm")
    (cut / "fedncm-fedavgm-seed0" / "settings.json").unlink()
    outcome = finetune(*given, "--algorithm", "fedavgm", "--rounds", 5, "--out", cut, "--resume")
    assert outcome.code == 2
    assert "differs in algorithm (fedavg there, fedavgm here)" in outcome.err


def test_a_run_that_unlearns_the_start_is_told(finetune):
    given = ("--algorithm", "fedavg", "--init", "fedncm", "--batch-size", 512, "--rounds", 1)
    outcome = finetune(*given, "--client-lr", 1e4)
    assert outcome.code == 0
    assert re.search(r"fedavg, seed 0: ends at \d+\.\d%, less than half of what it started from", outcome.err)


def test_a_run_that_diverges_stops_and_the_others_are_kept(finetune, tmp_path):
    """A proximal term so strong that the third step is not finite."""
    given = ("--algorithm", "fedprox,fedavg", "--init", "fedncm", "--batch-size", 512, "--rounds", 2)
    outcome = finetune(*given, "--epochs", 3, "--mu", 1e38, "--out", tmp_path)
    assert outcome.code == 1
    assert "covfree: fedncm → fedprox, seed 0: diverged in round 1; what came before is kept" in outcome.err
    prox, average = json.loads(outcome.out)["results"]
    assert (prox["diverged"], average["diverged"]) == (1, 0)
    assert prox["runs"][0]["diverged_in_round"] == 1
    assert prox["last_accuracy_mean"] == prox["start_accuracy_mean"]
    assert average["runs"][0]["rounds"] == 2
    assert [line["round"] for line in history(tmp_path / "fedncm-fedprox-seed0")] == [0]
    assert [line["steps"] for line in history(tmp_path / "fedncm-fedavg-seed0")[1:]] == [3, 3]
    assert (tmp_path / "results.json").exists()


def test_options_in_a_file(finetune, tmp_path):
    """The same run as from the command line, which wins."""
    file = tmp_path / "options.toml"
    file.write_text(
        'init = ["fedncm"]\nalgorithm = "fedavg"\nrounds = 2\nbatch-size = 512\nclient_lr = 0.2\n'
    )
    outcome = finetune("--config", file, "--client-lr", 0.5)
    assert outcome.code == 0, outcome.err
    direct = finetune(
        *("--init", "fedncm", "--algorithm", "fedavg", "--rounds", 2, "--batch-size", 512, "--client-lr", 0.5)
    )
    ours, theirs = (json.loads(each.out) for each in (outcome, direct))
    assert ours["config"] == theirs["config"]
    assert ours["results"][0]["last_accuracy_mean"] == theirs["results"][0]["last_accuracy_mean"]
    for text, expected in {
        "rouns = 3\nbogus = 1": "unknown bogus, rouns; expected some of algorithm, alpha",
        'config = "other.toml"': "unknown config",
        "[finetune]\nrounds = 3": "unknown finetune; expected some of algorithm",
        "rounds = 2.5": "--rounds: expected a whole number, got '2.5'",
        "rounds = true": "--rounds: expected a whole number, got ",
        'client-lr = "fast"': "--client-lr: expected a number, got 'fast'",
        'norms = "some"': "--norms: expected one of batch, frozen, got 'some'",
        "rounds": "expected TOML",
    }.items():
        file.write_text(text)
        outcome = finetune("--config", file)
        assert outcome.is_one_line, outcome
        assert expected in outcome.err
    outcome = finetune("--config", tmp_path / "absent.toml")
    assert outcome.refuses("absent.toml: no such file")


BAD = {
    "client rate nan": (["--client-lr", "nan"], "--client-lr: .*finite.*got nan"),
    "client rate 0": (["--client-lr", 0], "--client-lr: expected a number above 0, got 0"),
    "negative server rate": (["--server-lr=-1"], "--server-lr: .*at least 0, got -1"),
    "unknown init": (["--init", "fedcof,bogus"], "--init: unknown method 'bogus'; expected some of fedncm"),
    "all inits": (["--init", "random,all"], "--init: expected some of random, fedncm, .*got 'all'"),
    "random twice": (["--init", "random,random"], "--init: expected different names"),
    "an init of equal numbers": (
        ["--init", "fedcof:shrinkage=1,fedcof:shrinkage=1.0"],
        "--init: expected different methods",
    ),
    "an init's number": (["--init", "fedncm:ridge=1"], "--init: fedncm takes .*, got ridge"),
    "an init's value": (["--init", "fed3r-random:sigma=0"], "--init: fed3r-random:sigma=0: sigma: .*above 0"),
    "no init": (["--init", ","], "--init: expected different names, got none"),
    "init twice": (["--init", "fedcof,fedcof"], "--init: expected different names"),
    "init that is not linear": (["--init", "qda"], "some of random, .*, whose heads are linear, got 'qda'"),
    "unknown algorithm": (["--algorithm", "sgd"], "--algorithm: expected some of fedavg, .*got 'sgd'"),
    "near an algorithm": (["--algorithm", "fedadem"], "got 'fedadem'; did you mean fedadam"),
    "mu of none": (["--mu", 0.1], "--mu: expected fedprox among --algorithm, got fedadam"),
    "mu nan": (["--algorithm", "fedprox", "--mu", "nan"], "--mu: .*finite.*got nan"),
    "a number of another": (["--algorithm", "fedavg:tau=1"], "--algorithm: fedavg takes no number, got tau"),
    "a negative number": (["--algorithm", "fedadam:tau=-1"], "--algorithm: fedadam: tau: .*at least 0"),
    "momentum above 1": (["--momentum", 2], "--momentum: expected a number in .0, 1., got 2"),
    "an optimiser of no file": (["--client-optimiser", "adam"], "--client-optimiser: .*mine.py:function"),
    "an optimiser beside momentum": (
        ["--client-optimiser", "a.py:b", "--momentum", 0.5],
        "--client-optimiser: expected neither --momentum",
    ),
    "no such file": (["--client-optimiser", "a.py:b"], "--client-optimiser: expected a Python file"),
    "negative decay": (["--weight-decay=-1"], "--weight-decay: .*at least 0"),
    "a stage of no round": (["--start-rounds", 0], "--start-rounds: expected 'once', 'all' or a number of"),
    "too long a stage": (
        ["--start-rounds", 4, "--participation", 2],
        "--start-rounds: expected at most 3, after which all clients came, got 4",
    ),
    "a stage of nothing": (
        ["--start-rounds", "all", "--init", "random"],
        "--start-rounds: .*got random alone",
    ),
    "clients that send twice": (
        ["--start-rounds", "all", "--init", "fedcof-refined"],
        "--start-rounds: expected methods whose clients send once, got fedcof-refined",
    ),
    "negative operations": (["--extractor-flops=-1"], "--extractor-flops: .*at least 0"),
    "a temperature of no head": (
        ["--init", "random", "--temperature", 0.1],
        "--temperature: expected a closed-form head in --init, got 0.1 for random",
    ),
    "temperature 0": (["--temperature", 0], "--temperature: expected 'auto', 'none' or a number above 0"),
    "rounds 0": (["--rounds", 0], "--rounds: expected at least 1, got 0"),
    "epochs 0": (["--epochs", 0], "--epochs: expected at least 1, got 0"),
    "batch size 0": (["--batch-size", 0], "--batch-size: expected at least 1, got 0"),
    "seeds 0": (["--seeds", 0], "--seeds: expected at least 1, got 0"),
    "participation 0": (["--participation", "0"], "--participation: expected a share .* got '0'"),
    "too large a share": (["--participation", "1.5"], "--participation: .*got '1.5'"),
    "too many clients": (["--participation", "7"], "--participation: .* up to 6, got '7'$"),
    "a word": (["--participation", "some"], "--participation: .*got 'some'"),
    "a part that is none": (["--train", "body"], "--train.*'body'"),
    "a backbone of features": (["--train", "all"], "--train all: expected --images"),
    "resume without out": (["--resume"], "--resume: expected --out beside it"),
    "tune beside a rate": (["--tune", "--client-lr", 0.1], "--client-lr: expected none beside --tune"),
    "partition": (["--partition", "random"], "--partition: expected one of inner_dirichlet"),
    "norms of a head": (
        ["--norms", "frozen"],
        "--norms: expected --train backbone or all beside it, as a head",
    ),
    "augmented features": (["--augment"], "--augment: expected --train backbone or all beside it, as a head"),
    "restarts of a head": (
        ["--restart", 3],
        "--restart: expected --train backbone or all, .* got --train head",
    ),
    "a restart each round": (["--restart", 1], "--restart: expected at least 2, got 1"),
    "prompts of a head": (
        ["--prompts", 3],
        "--prompts: expected --train prompts beside it, got",
    ),
    "no prompt": (["--top", 0], "--top: expected at least 1, got 0"),
    "pfpt of a head": (["--algorithm", "pfpt"], "--algorithm: expected --train prompts beside pfpt"),
    "a network without prompts": (
        ["--train", "prompts", "--images", "photos", "--backbone", "resnet18"],
        "--backbone: expected a vision transformer, which takes prompts, got resnet18",
    ),
    "tune with one client": (["--clients", 1, "--tune", "--init", "fedncm"], "--tune: expected at least 2"),
}


def test_bad_arguments(untyped, finetune, tmp_path):
    for name, (arguments, text) in BAD.items():
        outcome = finetune(*arguments)
        assert outcome.is_one_line, (name, outcome)
        assert re.search(text, outcome.err), (name, outcome.err)
    (tmp_path / "taken").write_text("")
    outcome = finetune("--out", tmp_path / "taken")
    assert outcome.refuses("--out: cannot make the folder")


def test_a_file_may_give_what_is_refused(cli, tmp_path):
    rng, labels = np.random.default_rng(0), np.arange(40) % 2
    content = {"features": rng.normal(size=(40, 3)), "labels": labels, "clients": np.arange(40) % 4}
    np.savez(tmp_path / "own.npz", **content)
    given = ("finetune", "--dataset", tmp_path / "own.npz")
    (tmp_path / "options.toml").write_text("clients = 100\n")
    outcome = cli(*given, "--config", tmp_path / "options.toml")
    assert outcome.refuses("--clients: expected none")


# Pictures and tables


def fake(init, algorithm, seed, accuracies):
    costs = {"clients": 5, "bytes_up": 1000, "bytes_down": 0, "flops": 9.0, "seconds": 0.1}
    records = [{"round": r, "accuracy": a, **costs} for r, a in enumerate(accuracies)]
    name = Training(init, algorithm, Rates(0.1, 1.0), 2, 1.0).name
    sent = covfree.SentBytes(1000 * len(records), 0)
    return Run(name, seed, accuracies[-1], sent, 0, 5, history=records)


def curves(runs):
    """Results with their titles."""
    names = dict.fromkeys(run.method for run in runs)
    parts = {name: name.split(" → ") for name in names}
    titles = {name: Training(*pair, Rates(0.1, 1.0), 2, 1.0).title for name, pair in parts.items()}
    return summarise(runs, titles)


def test_curves_over_seeds_and_of_unequal_length(tmp_path):
    """A run that stopped early shortens its curve, not the others'; unmeasured rounds are left out."""
    runs = [fake("fedcof", "fedavg", 0, [0.5, 0.6, 0.7]), fake("fedcof", "fedavg", 1, [0.5, 0.8])]
    del runs[0].history[1]["accuracy"]
    first, second = curves([*runs, fake("random", "fedavg", 0, [0.1, 0.2, 0.1])])
    assert first.runs == tuple(runs)
    assert first.title == "FedCOF (LDA, automatic γ) → FedAvg"
    assert second.title == "Random → FedAvg"
    assert [run.best["round"] for run in first.runs] == [2, 1]
    assert first.spread(lambda run: run.best["accuracy"]) == pytest.approx((0.75, 0.05 * 2**0.5))
    figure = draw("title", [second, *curves(runs[:1])], 10)
    for path in figures.save_all(figure, tmp_path / "curves.png"):
        assert path.stat().st_size > 1000


@pytest.mark.slow
def test_the_picture_of_many_curves_can_be_read():
    """Starts have a colour each, algorithms dashes; the legend lies below and covers nothing."""
    inits, algorithms = ["random", *list(methods_of_one_round())[:11]], list(registry())
    runs = [fake(init, name, 0, [0.5, 0.6, math.nan]) for init in inits for name in algorithms]
    every = curves(runs)
    with figures.style():
        figure = draw("a long title " * 20, every, 10)
        shown = drawn.texts(figure)
    by_round = figure.axes[0]
    styles = {}
    for curve in every:
        (line,) = (line for line in by_round.lines if line.get_label() == curve.title)
        styles[tuple(curve.method.split(" → "))] = line.get_color(), str(line._unscaled_dash_pattern)
    assert len(set(styles.values())) == len(runs)
    assert len({colour for colour, _ in styles.values()}) == len(inits)
    assert min(text.get_fontsize() for text in shown) >= 8
    boxes = drawn.boxes(shown)
    assert not np.triu(drawn.overlaps(boxes, boxes), 1).any()
    assert (boxes[:, 2] <= figure.bbox.width + 1).all()
    assert len(figure.legends[0].texts) == len(inits) + len(algorithms) + 1
    low, high = by_round.get_ylim()
    assert low < 50 < 60 < high


def test_curves_of_few_bytes_are_seen_beside_those_of_many():
    runs = [fake(init, "fedavg", 0, [0.5, 0.6, 0.7]) for init in ("random", "fedncm", "fed3r")]
    for run in runs:
        for record in run.history:
            record["bytes_up"] *= 1000 if run is runs[2] else 1
            record["flops"] *= 1e8 if run is runs[2] else 1e6
    with figures.style():
        figure = draw("", curves(runs), 10)
        figure.draw_without_rendering()
    by_round, by_bytes, by_flops = figure.axes
    assert by_round.get_xlabel() == "rounds, closed form included"
    assert (by_round.get_xscale(), by_bytes.get_xscale(), by_flops.get_xscale()) == (
        "linear",
        "symlog",
        "symlog",
    )
    numbers = drawn.boxes(by_flops.get_xticklabels())
    assert len(numbers) > 3
    assert not np.triu(drawn.overlaps(numbers, numbers), 1).any()
    ends = [by_bytes.transData.transform((line.get_xdata()[-1], 0))[0] for line in by_bytes.lines]
    left, right = by_bytes.bbox.x0, by_bytes.bbox.x1
    assert all(left + 0.2 * (right - left) < end < right for end in ends if end > left + 20)
    assert 2 <= len(by_bytes.get_xticks()) <= 4


def test_a_folder_needs_what_writes_checkpoints(cli, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    result = cli("finetune", "--out", tmp_path / "tuned")
    assert result.code == 1
    assert result.err == "covfree: orbax is needed for this: pip install '.[rounds]' in covfree's clone\n"
    assert not (tmp_path / "tuned").exists()
