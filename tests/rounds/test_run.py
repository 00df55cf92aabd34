"""The runner: who takes part, what is remembered, and that cutting a cohort changes nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covfree import finetune
from covfree.engine.checkpoint import CheckpointFolder
from covfree.rounds import (
    Algorithm,
    Checkpoint,
    ClientData,
    Evaluation,
    Placement,
    cohort,
    participation,
    run,
)
from covfree.rounds.data import ClientTable

KEY = jax.random.key(3)


class Up(NamedTuple):
    total: jax.Array
    count: jax.Array


def _init(params, num_clients, key):
    return {"total": jnp.zeros(2), "count": jnp.zeros((), jnp.int32), "round": jnp.zeros((), jnp.int32)}, {
        "met": jnp.zeros((), jnp.int32)
    }


def _client(params, sent, data, memory, key):
    features, labels = data.all()
    total = jnp.where((labels >= 0)[:, None], features, 0).sum(0) * params
    number = data.num_examples
    draw = jax.random.uniform(key)
    return Up(total, number), {"met": memory["met"] + 1}, {"size": number, "draw": draw}


def _server(params, state, total):
    return {
        "total": state["total"] + total.total,
        "count": state["count"] + total.count,
        "round": state["round"] + 1,
    }


def _broadcast(params, state):
    return state["round"]


def _result(params, state, memory):
    return state["total"]


def adding(factor=1.0):
    """Sums the features of those that take part; integers in float32, so that sums are exact."""
    functions = _init, _broadcast, _client, _server, _result
    return Algorithm(jnp.asarray(factor), "adding", *functions, whole=True)


def federation():
    rng = np.random.default_rng(0)
    sizes = [3, 0, 20, 1, 7, 40, 2, 5, 11, 3]
    clients = rng.permutation(np.repeat(np.arange(10), sizes))
    features = rng.integers(-9, 9, (len(clients), 2)).astype(np.float32)
    labels = rng.integers(0, 3, len(clients))
    clients[4], labels[9] = -1, -1
    return features, labels, clients


DATA = federation()


def sums_of(drawn):
    """Features and counts summed over the clients of some rounds, by hand."""
    features, labels, clients = DATA
    kept = [((clients == who) & (labels >= 0)) for row in drawn for who in row if who >= 0]
    return sum(features[k].sum(0) for k in kept), sum(k.sum() for k in kept)


def some_of(drawn):
    """A fifth of the clients drop out."""
    return np.where(np.random.default_rng(1).random(drawn.shape) < 0.2, -1, drawn)


def test_each_round_adds_those_who_take_part():
    drawn = np.array([[0, 5, 2], [9, -1, 4], [1, 6, 3]])
    done = run(adding(), *DATA, key=KEY, rounds=3, participation=drawn)
    total, count = sums_of(drawn)
    np.testing.assert_array_equal(done.result, total)
    assert int(done.state["count"]) == count
    np.testing.assert_array_equal(done.memory["met"], np.bincount(drawn[drawn >= 0], minlength=10))
    assert [record["clients"] for record in done.history] == [3, 2, 2]
    assert [record["bytes_up"] for record in done.history] == [36, 24, 24]
    assert [record["bytes_down"] for record in done.history] == [12, 8, 12]
    assert done.stopped is None
    # The array says how many rounds there are.
    assert run(adding(), *DATA, key=KEY, participation=drawn).history[-1]["round"] == 2


def test_the_same_clients_take_part_in_any_number_of_rounds():
    same = replace(adding(), same_clients=True)
    assert set(run(same, *DATA, key=KEY, rounds=3, participation=0.5).memory["met"].tolist()) == {0, 3}
    with pytest.raises(ValueError, match="uploads of the same clients in each of the 2 rounds of 'adding'"):
        run(same, *DATA, key=KEY, rounds=2, participation=np.array([[0, 1], [0, 2]]))


def test_metrics_are_weighted_by_examples():
    drawn = np.array([[0, 5]])
    done = run(adding(), *DATA, key=KEY, rounds=1, participation=drawn)
    sizes = np.array([sums_of([[who]])[1] for who in (0, 5)])
    assert done.history[0]["size"] == pytest.approx((sizes**2).sum() / sizes.sum())


def test_how_a_cohort_is_cut_changes_nothing():
    drawn = some_of(participation(10, 7, 4, seed=1))
    whole = run(adding(), *DATA, key=KEY, rounds=4, participation=drawn)
    for place in (
        Placement(width=3),
        Placement(mesh=jax.make_mesh((jax.device_count(),), ("clients",))),
        Placement(memory="host"),
    ):
        parts = run(adding(), *DATA, key=KEY, rounds=4, participation=drawn, place=place)
        for x, y in zip(jax.tree.leaves(whole[:3]), jax.tree.leaves(parts[:3]), strict=True):
            np.testing.assert_array_equal(x, y)
        for one, other in zip(whole.history, parts.history, strict=True):
            assert {**one, "seconds": 0} == pytest.approx({**other, "seconds": 0})


def test_a_clients_draws_depend_on_the_round_and_its_number_alone():
    def draws(drawn):
        return [
            run(adding(), *DATA, key=KEY, rounds=len(drawn), participation=np.array(drawn)).history[-1][
                "draw"
            ]
        ]

    assert draws([[5]]) == draws([[5]])
    assert draws([[0], [5]]) != draws([[5]])
    assert draws([[0], [5]]) == draws([[2], [5]])


def test_another_number_compiles_nothing_anew(caplog):
    run(adding(), *DATA, key=KEY, rounds=1)
    with jax.log_compiles():
        done = run(adding(3.0), *DATA, key=KEY, rounds=1)
    assert "Compiling" not in caplog.text
    np.testing.assert_array_equal(done.result, 3 * sums_of([range(10)])[0])


def test_the_history_is_a_line_a_round(tmp_path):
    path = tmp_path / "out" / "history.jsonl"
    evaluate = Evaluation(lambda total: {"first": total[0], "both": total}, every=2)
    options = {"participation": 0.3, "checkpoint": path.parent, "evaluate": evaluate}
    done = run(adding(), *DATA, key=KEY, rounds=5, **options)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == done.history
    assert [line["round"] for line in lines] == list(range(5))
    assert ["first" in line for line in lines] == [False, True, False, True, True]
    assert lines[-1]["both"] == np.asarray(done.result).tolist()
    assert {"round", "clients", "bytes_up", "bytes_down", "seconds", "size"} <= set(lines[0])


def test_a_run_stops_where_it_is_told_to():
    done = run(adding(), *DATA, key=KEY, rounds=9, stop=lambda history: len(history) == 2)
    assert len(done.history) == 2
    assert "stop" in done.stopped


def test_a_run_that_was_stopped_does_not_go_on_and_was_evaluated(tmp_path):
    for _ in range(2):
        done = run(
            adding(), *DATA, key=KEY, rounds=9, checkpoint=tmp_path,
            evaluate=Evaluation(lambda total: {"first": total[0], "odd": np.inf}, every=5),
            stop=lambda history: len(history) >= 2,
        )  # fmt: skip
        assert len(done.history) == 2
        assert done.stopped
        assert ["first" in record for record in done.history] == [False, True]
        # What is not finite is null, as JSON has no word for it.
        lines = (tmp_path / "history.jsonl").read_text().splitlines()
        assert [json.loads(line, parse_constant=pytest.fail).get("odd", 0) for line in lines] == [0, None]


def test_a_run_goes_on_after_an_error_of_what_stops_it(tmp_path):
    def stop(history):
        if len(history) == 2 and not mended:
            raise KeyError("loss")
        return False

    how = {"rounds": 3, "checkpoint": tmp_path, "stop": stop, "evaluate": lambda total: {"first": total[0]}}
    mended = []
    with pytest.raises(KeyError):
        run(adding(), *DATA, key=KEY, **how)
    mended.append(True)
    assert ["first" in record for record in run(adding(), *DATA, key=KEY, **how).history] == [True] * 3


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"round": 9, "bytes_up": 0}, r"\['bytes_up', 'round'\]"),
        (0.9, "evaluate: expected a dict .* got 0.9"),
    ],
)
def test_an_evaluation_adds_to_the_history_under_names_of_its_own(measured, message, untyped):
    with pytest.raises((TypeError, ValueError), match=message):
        run(adding(), *DATA, key=KEY, rounds=1, evaluate=lambda total: measured)


def test_an_evaluation_of_taken_names_is_refused_before_the_first_round():
    def client(*given):
        upload, memory, metrics = _client(*given)
        return upload, memory, {**metrics, "loss": 1.0 * metrics["size"]}

    ran = []
    algorithm = Algorithm(**{**vars(adding()), "client": client})
    with pytest.raises(ValueError, match=r"evaluate: expected names other than those .* got \['loss'\]"):
        run(algorithm, *DATA, key=KEY, rounds=2, evaluate=lambda total: {"loss": 0.0}, stop=ran.append)
    assert not ran


def test_a_cohort_of_varying_size_is_compiled_for_few():
    drawn = np.full((9, 10), -1)
    for number, row in enumerate(drawn):
        row[: number + 1] = np.random.default_rng(number).permutation(10)[: number + 1]
    small = np.where(DATA[2] == 5, 0, DATA[2])  # of one padded size
    before = cohort.answers._cache_size()
    run(adding(), *DATA[:2], small, key=KEY, rounds=9, participation=drawn)
    # Not one for each of the nine sizes. Other tests may have compiled some of the six before.
    assert cohort.answers._cache_size() - before <= 6


def test_a_large_client_does_not_make_small_ones_sort_as_much():
    """Padded sizes, in numbers that a client's order of examples is sorted by."""
    features, labels = np.zeros((2600, 1), np.float32), np.zeros(2600, int)
    clients = np.repeat(np.arange(201), [8] * 200 + [1000])
    sizes = ClientTable.of(features, labels, clients, whole=False).longest
    assert (sizes[:200].max(), sizes[200]) == (16, 1000)
    # Where that saves less than it costs to compile another function, all are of one size.
    three = np.repeat(np.arange(3), [8, 8, 1000])
    few = ClientTable.of(features[:1016], labels[:1016], three, whole=False).longest
    assert set(few) == {1000}
    # A large client changes nothing of what the others draw.
    means = finetune.fedavg(finetune.linear_model(finetune.random_head(1, 2, key=KEY)), 0.1, batch_size=3)
    drawn = np.tile(np.arange(200), (2, 1))
    features = np.arange(2600, dtype=np.float32)[:, None] / 2600
    with_it = run(means, features, labels, clients, key=KEY, rounds=2, participation=drawn).result
    alone = run(means, features[:1600], labels[:1600], clients[:1600], key=KEY, rounds=2).result
    np.testing.assert_allclose(with_it.weight, alone.weight, rtol=1e-6)


def test_numbers_of_numpy_draw_clients():
    plain, numpy = (
        run(adding(), *DATA, key=KEY, rounds=2, participation=many).history for many in (2, np.int64(2))
    )
    assert [record["draw"] for record in plain] == [record["draw"] for record in numpy]


def test_a_run_that_diverges_ends_with_the_last_good_state():
    def server(params, state, total):
        state = _server(params, state, total)
        return {**state, "total": state["total"] / jnp.where(state["round"] == 3, 0, 1)}

    good = run(adding(), *DATA, key=KEY, rounds=2)
    broken = Algorithm(**{**vars(adding()), "server": server})
    with pytest.warns(RuntimeWarning, match="round 2: the state is not finite"):
        done = run(broken, *DATA, key=KEY, rounds=9)
    assert "not finite" in done.stopped
    np.testing.assert_array_equal(done.result, good.result)
    # Clients remember nothing of the round that is undone.
    np.testing.assert_array_equal(done.memory["met"], good.memory["met"])
    assert len(done.history) == 2


class TestCheckpoints:
    """Saved after any round; killed and gone on with, the state is the same to the bit."""

    def test_a_run_goes_on_where_it_was(self, tmp_path):
        options = {"key": KEY, "participation": some_of(participation(10, 4, 6, seed=5))}
        whole = run(adding(), *DATA, rounds=6, **options)
        path = tmp_path / "saved"
        for rounds, memory in ((2, "device"), (5, "host"), (6, "device")):
            done = run(
                adding(), *DATA, rounds=rounds, checkpoint=path, place=Placement(memory=memory), **options
            )
            assert len(done.history) == rounds
        for x, y in zip(jax.tree.leaves(whole[:3]), jax.tree.leaves(done[:3]), strict=True):
            np.testing.assert_array_equal(x, y)

    @pytest.mark.slow
    def test_killed_at_any_moment(self, tmp_path):
        script = f"""
import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]
from test_run import *
run(adding(), *DATA, key=KEY, rounds=1000, participation=0.5, checkpoint=sys.argv[1])
"""
        path, lines = tmp_path / "saved", tmp_path / "saved" / "history.jsonl"
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
            stderr=subprocess.PIPE,
            env=dict(os.environ),
        )
        while process.poll() is None and not (lines.exists() and lines.read_text().count("\n") >= 3):
            time.sleep(0.05)
        assert process.poll() is None, process.stderr.read().decode()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        # A line may be there of a round whose checkpoint is not.
        rounds = lines.read_text().count("\n") + 2
        done = run(adding(), *DATA, key=KEY, rounds=rounds, participation=0.5, checkpoint=path)
        whole = run(adding(), *DATA, key=KEY, rounds=rounds, participation=0.5)
        for x, y in zip(jax.tree.leaves(whole[:3]), jax.tree.leaves(done[:3]), strict=True):
            np.testing.assert_array_equal(x, y)
        assert [json.loads(line)["round"] for line in lines.read_text().splitlines()] == list(range(rounds))

    @pytest.mark.parametrize(
        ("other", "what"),
        [
            ("name", r"algorithm \(adding there, other here\)\."),
            ("numbers", r"params \(1.0 there, 2.0 here\)\."),
            ("client", r"what clients and the server compute \(not the same as in the checkpoint\)\."),
            ("server", r"what clients and the server compute \(not the same as in the checkpoint\)\."),
            ("participation", r"participation \(other values of clients in 1 rounds\)\."),
            ("clients", r"clients \(other values of \d+ clients of \d+ examples\)\."),
            ("features", r"features \(other values of float32\[92, 2\]\)\."),
            ("key", r"key \(\[0 3\] there, \[0 4\] here\)\."),
        ],
    )
    def test_another_run_is_refused(self, tmp_path, other, what):
        features, labels, clients = DATA
        run(adding(), *DATA, key=KEY, rounds=1, participation=np.arange(3)[None], checkpoint=tmp_path)
        drawn = np.array([[0, 1, 3 if other == "participation" else 2], [0, 1, 2]])
        changed = {
            "name": {"name": "other"},
            # What is no number of the algorithm, but in its functions.
            "client": {"client": lambda *given: (_client(*given)[0], given[3], {})},
            "server": {"server": lambda *given: {**_server(*given), "count": 2 * given[1]["count"]}},
        }
        algorithm = Algorithm(
            **{**vars(adding(2.0 if other == "numbers" else 1.0)), **changed.get(other, {})}
        )
        data = {
            "clients": (features, labels, np.where(clients == 4, 3, clients)),
            "features": (2 * features, labels, clients),
        }.get(other, DATA)
        key = jax.random.key(4) if other == "key" else KEY
        how = "Call with the arguments of that run, in its version of covfree, to go on; "
        text = f"checkpoint: expected .* differs in {what} {how}"
        with pytest.raises(ValueError, match=text):
            run(algorithm, *data, key=key, rounds=2, participation=drawn, checkpoint=tmp_path)

    def test_a_longer_schedule_may_have_more_columns(self, tmp_path):
        clients = np.array([[0, 1, -1, -1], [2, 3, 4, -1], [5, 0, -1, -1], [1, 6, 7, 8]])
        whole = run(adding(), *DATA, key=KEY, rounds=4, participation=clients)
        for rounds, columns in ((1, 2), (2, 3), (4, 4)):
            drawn = clients[:rounds, :columns]
            done = run(adding(), *DATA, key=KEY, rounds=rounds, participation=drawn, checkpoint=tmp_path)
        for x, y in zip(jax.tree.leaves(whole[:2]), jax.tree.leaves(done[:2]), strict=True):
            np.testing.assert_array_equal(x, y)

    def test_what_ran_is_saved_before_it_is_measured(self, tmp_path):
        def fails(total):
            if float(jnp.abs(total).sum()) > 0:
                raise OSError("no test data")
            return {}

        options = {"key": KEY, "rounds": 3, "checkpoint": Checkpoint(tmp_path, every=2)}
        with pytest.raises(OSError, match="no test data"):
            run(adding(), *DATA, evaluate=Evaluation(fails, every=3), **options)
        numbers = []
        done = run(
            adding(), *DATA, **options, evaluate=lambda total: numbers.append(1) or {"first": total[0]}
        )
        # No round is run again; the last is measured.
        assert len(numbers) == 1
        assert ["first" in record for record in done.history] == [False, False, True]
        lines = (tmp_path / "history.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == done.history
        assert len({record["seconds"] for record in done.history}) == 3

    def test_the_state_is_saved_every_few_rounds_and_at_the_end(self, tmp_path):
        seen = []

        def look(history):
            seen.append([path.name for path in tmp_path.glob("saved/[0-9]*")])
            return len(history) == 7

        options = {"key": KEY, "rounds": 9, "participation": 2}
        saved = {"checkpoint": Checkpoint(tmp_path, every=3)}
        stopped = run(adding(), *DATA, **options, **saved, stop=look)
        # Saved before it is asked whether to stop.
        assert seen == [[], [], ["3"], ["3"], ["3"], ["6"], ["6"]]
        assert [path.name for path in tmp_path.glob("saved/[0-9]*")] == ["7"]
        assert len(stopped.history) == 7
        resumed, whole = run(adding(), *DATA, **options, **saved), run(adding(), *DATA, **options)
        assert [record["round"] for record in resumed.history] == list(range(9))
        np.testing.assert_array_equal(resumed.result, whole.result)
        with pytest.raises(ValueError, match="checkpoint: every: expected an integer of at least 1, got 0"):
            Checkpoint(tmp_path, every=0)

    def test_a_folder_is_of_one_run_at_a_time(self, tmp_path):
        def second(total):
            with pytest.raises(ValueError, match=r"checkpoint: expected a folder of no other run"):
                run(adding(), *DATA, key=KEY, rounds=1, checkpoint=tmp_path)
            return {}

        run(adding(), *DATA, key=KEY, rounds=1, checkpoint=tmp_path, evaluate=second)

    def test_a_folder_of_a_stream_is_refused(self, tmp_path):
        folder = CheckpointFolder(tmp_path, "a run over a Stream")
        folder.save(1, [np.ones(2)], {}, {})
        folder.close()
        with pytest.raises(ValueError, match=r"checkpoint: expected a run of rounds, .* a run over a Stream"):
            run(adding(), *DATA, key=KEY, rounds=1, checkpoint=tmp_path)

    def test_fewer_rounds_than_there_were_are_refused(self, tmp_path):
        run(adding(), *DATA, key=KEY, rounds=3, participation=0.5, checkpoint=tmp_path)
        with pytest.raises(ValueError, match=r"rounds: expected at least 3, as .* holds, got 2"):
            run(adding(), *DATA, key=KEY, rounds=2, participation=0.5, checkpoint=tmp_path)


class TestBadInput:
    """Errors name the argument, what came and what was expected."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"algorithm": adding}, "algorithm: expected .* adding, which makes one: call it"),
            ({"features": DATA[0][:, 0]}, r"features: expected shape \[examples"),
            ({"labels": DATA[1][:3]}, "labels: expected shape"),
            (
                {"algorithm": replace(adding(), num_classes=3), "labels": DATA[1] / 2},
                "labels: expected integers",
            ),
            ({"clients": np.full_like(DATA[2], -1)}, "clients: expected at least one example"),
            ({"clients": DATA[2] * 10**7}, "clients: expected numbers .* without large gaps"),
            ({"features": np.where(np.arange(2) == 1, np.nan, DATA[0])}, "features: row 0 of client"),
            ({"rounds": None}, "rounds: expected a number"),
            ({"rounds": 0}, "rounds"),
            ({"place": lambda: Placement(width=0)}, "place: width"),
            ({"place": lambda: Placement(memory="disk")}, "place: memory: expected one of .* got 'disk'"),
            ({"participation": np.array([[0, 0]])}, "round 0 has one twice"),
            ({"participation": np.array([[10]])}, "clients from 0 to 9"),
            ({"participation": np.zeros((0, 1), int)}, "expected 1 rounds, got 0"),
            ({"participation": 1.5}, r"a share of them in \(0, 1\], got 1.5"),
            ({"participation": True}, "participation: expected clients of a round, .*got True"),
            ({"participation": "all"}, "participation: expected clients of a round, .*got 'all'"),
            ({"evaluate": 0.3}, "evaluate: expected a function or None, got 0.3"),
            ({"stop": 5}, "stop: expected a function or None, got 5"),
            ({"place": lambda: Placement(mesh=2)}, "mesh: expected a jax.sharding.Mesh or None, got 2"),
            ({"key": 0}, "key: expected a PRNG key, .*got 0"),
        ],
    )
    def test_an_error_says_what_is_wrong(self, change, message, untyped):
        given = {
            "algorithm": adding(),
            **dict(zip(("features", "labels", "clients"), DATA, strict=True)),
            "rounds": 1,
            **change,
        }
        with pytest.raises((TypeError, ValueError), match=message):
            run(**{"key": KEY, **given, **({"place": given["place"]()} if "place" in given else {})})


def test_raw_keys_are_keys():
    typed = run(adding(), *DATA, key=jax.random.key(7), rounds=1, participation=0.3)
    raw = run(adding(), *DATA, key=jax.random.PRNGKey(7), rounds=1, participation=0.3)
    assert {**typed.history[0], "seconds": 0} == {**raw.history[0], "seconds": 0}


# Counts for each client the rounds in which it took part; the result is their counts.
REMEMBERING = Algorithm(
    (),
    "remembering",
    init=lambda params, num_clients, key: (jnp.asarray(num_clients), jnp.zeros(())),
    broadcast=lambda params, state: state,
    client=lambda params, sent, data, memory, key: (data.num_examples, memory + 1, {}),
    server=lambda params, state, total: state,
    result=lambda params, state, memory: memory,
)


@pytest.mark.parametrize("place", ["device", "host"])
def test_results_that_an_evaluation_keeps_stay_as_they_were(place):
    kept = []
    options = {"place": Placement(memory=place), "evaluate": lambda x: kept.append(x) or {}}
    run(REMEMBERING, *DATA, key=KEY, rounds=3, **options)
    assert [np.asarray(memory).max().item() for memory in kept] == [0, 1, 2, 3]


def test_clients_without_examples_do_not_count():
    features, labels, clients = DATA
    state = run(REMEMBERING, features, labels, 100 * clients, key=KEY, rounds=1).state
    assert state == len(np.unique(clients[(clients >= 0) & (labels >= 0)]))


def test_a_client_of_its_own_has_no_padding():
    features, labels = np.arange(10.0).reshape(5, 2), np.array([1, -1, 0, -1, 2])
    data = ClientData.own(features, labels, client=3)
    assert data.num_examples == 3
    own, kept = data.all()
    np.testing.assert_array_equal(own[:3], features[[0, 2, 4]])
    np.testing.assert_array_equal(kept, [1, 0, 2, -1, -1])
