"""A sweep: every combination, each run as `fit` makes it, never twice, and none lost."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import covfree
from covfree import studies
from covfree.data import FeatureSet, load_digits
from covfree.data.partitions import PARTITIONERS
from covfree.methods import registry
from covfree.studies import Study, timing
from covfree.studies.federation import left_out
from covfree.studies.fingerprint import fingerprint
from covfree.studies.progress import Lines, Listener
from covfree.studies.result import RunFile
from covfree.studies.source import law_of

METHODS = {"ncm": covfree.fedncm(), "cof": covfree.fedcof(0.1)}


def small(seed: int) -> FeatureSet:
    """60 examples of 3 classes in 4 dimensions to train on, 30 to test."""
    rng = np.random.default_rng(seed)
    labels = np.arange(90) % 3
    features = (rng.normal(size=(90, 4)) + np.eye(3, 4)[labels]).astype(np.float32)
    return FeatureSet("small", features[:60], labels[:60], features[60:], labels[60:], 3)


FEDERATIONS = studies.federations([5], ["inner_dirichlet", "iid"], [0.5, 5.0])


class Told(Listener):
    """Keeps what it is told: numbers of runs, and what is said of them."""

    def __init__(self):
        self.steps = []

    def step(self, text, done, total, line=""):
        assert line == f"covfree: run {done + 1} of {total}: {text}"
        self.steps.append((done + 1, text))

    @property
    def numbers(self):
        return [number for number, _ in self.steps]


def runs(told=None, methods=METHODS, seeds=(0, 1), federations=FEDERATIONS, folder=None, data=small):
    return list(Study({"small": data}, federations, methods, seeds, folder=folder).runs(told))


@pytest.mark.slow
def test_a_study_in_python_tells_its_progress_unless_it_is_short(capsys):
    # First the one that compiles, which on a busy machine is not short.
    runs(Lines(every=0.0))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12
    assert lines[0].startswith("covfree: 0 of 12 done, now ncm, seed 0, ")
    runs()
    assert capsys.readouterr().err == ""
    runs(Lines(every=3600.0))
    assert capsys.readouterr().err == ""


def without_times(made):
    return [replace(run, client_seconds=0.0, server_seconds=0.0) for run in made]


def test_every_combination_as_fit_makes_it():
    made = runs(told := Told())
    keys = [(run.seed, run.federation, run.method) for run in made]
    assert keys == [(s, f, m) for s in (0, 1) for f in FEDERATIONS for m in METHODS]
    assert told.numbers == list(range(1, 13))
    assert [text.startswith(method) for (_, text), (*_, method) in zip(told.steps, keys, strict=True)]
    assert [text.endswith("compiling, then running") for _, text in told.steps] == [True] * 2 + [False] * 10
    # iid has no alpha, and comes once.
    assert [f.partition for f in FEDERATIONS] == ["inner_dirichlet", "inner_dirichlet", "iid"]
    for run in made:
        data, federation = small(run.seed), run.federation
        more = () if federation.partition == "iid" else (federation.alpha,)
        owners = PARTITIONERS[federation.partition](data.train_labels, 5, *more, seed=run.seed)
        head = covfree.fit(METHODS[run.method], data.train_features, data.train_labels, owners)
        scores = data.test_features @ np.asarray(head.weight) + np.asarray(head.bias)
        assert run.accuracy == pytest.approx((scores.argmax(1) == data.test_labels).mean())
        pairs = len(set(zip(data.train_labels.tolist(), owners.tolist(), strict=True)))
        assert (run.rows, run.clients, run.sent.statistics) == (pairs, 5, 4 * pairs * 4)


def test_a_sweep_goes_on_where_it_stopped(tmp_path):
    folder = tmp_path / "new"
    file, whole = folder / "runs.jsonl", runs()
    stopped = Study({"small": small}, FEDERATIONS, METHODS, (0, 1), folder=folder).runs()
    found = [next(stopped) for _ in range(5)]
    stopped.close()
    assert len(file.read_text().splitlines()) == len(found) == 5
    again = runs(told := Told(), folder=folder)
    assert told.numbers == list(range(6, 13))
    assert without_times(again) == without_times(whole)
    # The five are those of the file, to the times.
    assert again[:5] == [run for run, _ in RunFile(file).runs][:5]
    # Nothing is left to do; data are not even loaded. Other jobs take what is theirs and leave the rest.
    assert runs(folder=folder, data=lambda seed: 1 / 0) == again
    more = runs(told := Told(), seeds=(1, 7), methods={"ncm": METHODS["ncm"]}, folder=folder)
    assert ["seed 7" in text for _, text in told.steps] == [True] * 3
    assert more[:3] == [run for run in again if run.seed == 1 and run.method == "ncm"]
    assert len(file.read_text().splitlines()) == 15


@pytest.mark.parametrize("cut", [1, 30])
def test_a_line_that_was_cut_short_is_made_again(tmp_path, cut):
    file = tmp_path / "runs.jsonl"
    one = {"methods": {"ncm": METHODS["ncm"]}, "seeds": (0,), "folder": tmp_path}
    whole = runs(**one)
    content = file.read_bytes()
    file.write_bytes(content[:-cut])
    again = runs(told := Told(), **one)
    assert told.numbers == [3]
    assert without_times(again) == without_times(whole)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["seed"] for line in lines] == [0, 0, 0]
    assert file.read_bytes()[: len(content) // 2] == content[: len(content) // 2]


def test_a_line_that_is_no_run_is_an_error(tmp_path):
    file = tmp_path / "runs.jsonl"
    for text in ("no JSON\n", "{}\n", "[]\n"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"runs\.jsonl: line 1: expected a run"):
            runs(folder=tmp_path)
        assert file.read_text() == text


def test_another_method_of_the_same_name_is_an_error(tmp_path):
    few = {"seeds": (0,), "federations": FEDERATIONS[:1], "folder": tmp_path}
    runs(methods={"cof": covfree.fedcof(0.1)}, **few)
    for other in (covfree.fedcof(0.2), covfree.fedcof(0.1, head="ridge"), covfree.fedncm()):
        with pytest.raises(ValueError, match="another method named 'cof'"):
            runs(methods={"cof": other}, **few)
    runs(methods={"cof": covfree.fedcof(0.1)}, **few)


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"partition: expected one of inner_dirichlet.*got 'random'"):
        runs(federations=[studies.Federation(5, "random", 1.0)])
    with pytest.raises(ValueError, match=r"whole number, got 0\.1 for alpha, the classes of a client"):
        runs(federations=[studies.Federation(5, "pathological", 0.1)])
    own = lambda seed: small(seed)._replace(clients=np.arange(60) % 7)  # noqa: E731
    with pytest.raises(ValueError, match=r"small: expected data without clients of its own .*got 7 clients"):
        runs(seeds=[0], data=own)
    (run,) = runs(seeds=[0], federations=FEDERATIONS[:1], methods={"ncm": METHODS["ncm"]}, data=own)
    assert run.clients == 7


def test_a_partitioner_takes_its_other_arguments():
    """After the name; results keep the text, from which the federation is made again."""
    data = small(0)
    place = studies.Federation(3, "pathological:class_assignment_mode=deterministic", 1)
    np.testing.assert_array_equal(place.assign(data, 0), data.train_labels)
    assert law_of(data, place) == f"{place.partition}, classes per client = 1"
    for partition, message in {
        "pathological:mode=random": "partition: pathological takes class_assignment_mode, got mode",
        "iid:filling=1": "partition: iid takes no argument, got filling",
        "shards:shard_size": "partition: expected arguments such as",
    }.items():
        with pytest.raises(ValueError, match=message):
            studies.Federation(3, partition, 1).assign(data, 0)


def test_what_is_on_no_client_is_counted():
    with pytest.warns(UserWarning, match=r"on no client: \d"):
        studies.Federation(2, "pathological", 1).assign(small(0), 0)
    labels = np.array([0, 0, 1, 1, 2])
    assert left_out(labels, np.array([0, -1, -1, -1, 3])) == (3, 1)
    assert left_out(labels, np.arange(5)) == (0, 0)
    # Two clients of one class each: one class of three is nobody's.
    (run,) = runs(
        seeds=(0,), federations=[studies.Federation(2, "pathological", 1)], methods={"ncm": METHODS["ncm"]}
    )
    with pytest.warns(UserWarning, match="on no client: 20 of"):
        owners = PARTITIONERS["pathological"](small(0).train_labels, 2, 1, seed=0)
    assert run.left_out == (int((owners < 0).sum()), 1)
    assert run.left_out.examples == 20


def test_times_leave_compilation_out():
    """By a clock that stands still but for what is told of compilation and of calls."""
    import jax

    clock, calls = [0.0], []

    def function(seconds, compiling):
        calls.append(seconds)
        clock[0] += compiling + seconds
        if compiling:
            event = "/jax/core/compile/backend_compile_duration"
            # One function is traced within another: the inner seconds count once.
            timing._listen(event, compiling)
            timing._listen(event, compiling / 2)
        return seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing.time, "perf_counter", lambda: clock[0])
        # Compiled before: one call. Compiled now and short: a second. Long: one, less the compilation.
        assert timing.timed(lambda: function(0.25, 0.0)) == (0.25, 0.25)
        assert len(calls) == 1
        first = iter([3.0, 0.0])
        assert timing.timed(lambda: function(0.25, next(first))) == (0.25, 0.25)
        assert len(calls) == 3
        assert timing.timed(lambda: function(8.0, 4.0)) == (8.0, 8.0)
        assert len(calls) == 4
    # And jax tells.
    add = jax.jit(lambda x: x + 1)
    _, _, compiling = timing._call(lambda: add(1.0))
    assert compiling > 0
    assert timing._call(lambda: add(2.0))[2] == 0


def test_wrong_types_are_named_before_any_run(untyped):
    good = {"datasets": {"small": small}, "federations": FEDERATIONS, "methods": METHODS, "seeds": (0,)}
    for bad, text in (
        ({"seeds": 3}, "seeds: expected several seeds, such as a list, got 3"),
        ({"federations": FEDERATIONS[0]}, "federations: expected several federations"),
        ({"datasets": {"small": small(0)}}, "datasets: small: expected a function of the seed"),
        ({"methods": list(METHODS.values())}, "methods: expected a Mapping, got list"),
        ({"methods": {"ncm": "fedncm"}}, "methods: ncm: expected a method, got a str"),
    ):
        with pytest.raises(TypeError, match=text):
            Study(**{**good, **bad})


def test_methods_as_variants_gives_them():
    few = {"seeds": (0,), "federations": FEDERATIONS[:1]}
    made = runs(methods=studies.variants(["fedncm", "fedcof"], {"shrinkage": [0.1]}), **few)
    plain = runs(methods={"fedncm": METHODS["ncm"], "fedcof": METHODS["cof"]}, **few)
    assert without_times(made) == without_times(plain)


def test_runs_of_a_named_method_by_another_version_need_another_folder(tmp_path):
    """The user cannot rename covfree's own method."""
    few = {"seeds": (0,), "federations": FEDERATIONS[:1], "folder": tmp_path}
    runs(methods=studies.variants(["fedcof"], {"shrinkage": [0.1]}), **few)
    with pytest.raises(ValueError, match=r"of 'fedcof' of another version of covfree.*; give .* \(--out\)$"):
        runs(methods=studies.variants(["fedcof"]), **few)


def test_seeds_may_be_any_integers_of_an_iterator(tmp_path):
    data = {name: lambda seed: load_digits(seed=seed) for name in ("a", "b")}
    places = [studies.Federation(5, "inner_dirichlet", 1.0)]
    study = Study(data, places, {"x": covfree.fedncm()}, iter(np.arange(2)), folder=tmp_path)
    assert [(run.dataset, run.seed) for run in study.runs()] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_a_method_that_fails_does_not_end_the_others():
    """What it says is kept; an error that only a bug raises ends the study."""

    def broken(error):
        def head(*_):
            raise error

        return covfree.fedcof(0.1, head=head)

    few = {"seeds": (0,), "federations": FEDERATIONS[:1]}
    methods = {"broken": broken(ValueError("no such classes")), "ncm": METHODS["ncm"]}
    study = Study({"small": small}, FEDERATIONS[:1], methods, (0,))
    assert [run.method for run in study.runs()] == ["ncm"]
    ((cell, text),) = study.failed.items()
    assert cell.method == "broken"
    assert re.fullmatch(r"no such classes \(test_sweep.py, line \d+, in head\)", text)
    with pytest.raises(KeyError, match="bug"):
        runs(methods={"broken": broken(KeyError("bug"))}, **few)


def test_runs_of_other_jobs_need_no_figures(tmp_path):
    def run(name, **arguments):
        place, data = (
            [studies.Federation(5, "inner_dirichlet", 1.0)],
            {name: lambda seed: load_digits(seed=seed)},
        )
        return list(Study(data, place, {"x": covfree.fedncm()}, [0], folder=tmp_path, **arguments).runs())

    run("a")
    (made,) = run("b", figures=["balanced"])
    assert set(made.figures) == {"balanced"}
    with pytest.raises(ValueError, match="holds runs without balanced"):
        run("a", figures=["balanced"])


def test_texts_make_the_papers_variants():
    texts = {
        "fedcof-paper:num_subsets=none:subset_size=5": covfree.fedcof(1.0, None, head="ridge", subset_size=5),
        "fedcof-paper:shrinkage=0.1": covfree.fedcof(0.1, head="ridge"),
        "fedcgs:expansion=20": covfree.fedcgs().with_feature_map(covfree.relu_features(20)),
        "fedcgs:expansion=none": covfree.fedcgs(),
        "fedpft:num_components=10:epochs=50": covfree.fedpft(10, epochs=50),
    }
    for text, method in texts.items():
        ((_, made),) = studies.variants([text]).items()
        assert fingerprint(made.method) == fingerprint(method), text


def test_every_registered_method_has_a_fingerprint_of_its_own():
    prints = {name: fingerprint(entry.make()) for name, entry in registry().items()}
    assert len({*prints.values()}) == len(prints), prints
    assert prints == {name: fingerprint(entry.make()) for name, entry in registry().items()}
