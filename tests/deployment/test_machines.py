"""Rounds between machines that share bytes alone: the simulation's result, through kills and bad mail."""

import gc
import os
import shutil

import numpy as np
import pytest
from machines import SIZES, Machines, assert_equal, check_kills, examples, finish
from variants import slow

import covfree
import covfree.rounds
from covfree.deployment import Refused, TooFew
from covfree.deployment.envelope import seal, unseal

# A number in place of the automatic rule, which takes long to compile: FedCOF has that.
REFINED = "fedcof-refined:shrinkage=0.1:rounds=1"
SELECTED = "fedncm-or-fedcof:shrinkage=0.1"
ROUNDS = {
    **dict.fromkeys(("fedcof", "fed3r", REFINED, SELECTED, "deepafl:num_layers=1")),
    "scaffold": 2,
}


def reasons(server) -> list[str]:
    file = server._folder / "aside.jsonl"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize(
    "algorithm", ["fedcof", REFINED, "scaffold", *slow("fed3r", SELECTED, "deepafl:num_layers=1")]
)
def test_machines_give_the_simulation_to_the_bit(algorithm, tmp_path):
    # Each round compiles for each padded size: two of the sites have one, and one algorithm has all sites.
    sizes = {site: SIZES[site] for site in (SIZES if algorithm == "fedcof" else ["berlin", "oslo"])}
    with Machines(tmp_path, algorithm, sizes, rounds=ROUNDS[algorithm]) as machines:
        own, server = machines.description, machines.server()
        result = finish(server, machines.clients())
    parts = [examples(site) for site in sizes]
    simulated = covfree.rounds.run(
        own.make_algorithm(),
        np.concatenate([features for features, _ in parts]),
        np.concatenate([labels for _, labels in parts]),
        np.repeat(np.arange(len(sizes)), list(sizes.values())),
        key=own.key(),
        rounds=own.rounds,
    )
    assert_equal(result, simulated.result)
    assert_equal(server._state, simulated.state)
    assert [record["sites"] for record in server.history] == [sorted(sizes)] * own.num_rounds


# A killed process closes no file; one that Python closes for it is no fault.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("algorithm", "rounds"), [(REFINED, None), ("scaffold", 2)])
def test_killed_anywhere_they_go_on_to_the_same_bits(algorithm, rounds, tmp_path):
    check_kills(tmp_path, 6, algorithm, rounds=rounds)
    gc.collect()


def test_bad_mail_is_set_aside_and_named(tmp_path):
    with Machines(tmp_path, REFINED, deadline=60, fewest=2) as machines:
        server, clients = machines.server(), machines.clients()
        first = server.open()
        assert server.open() == first  # the same round again
        answers = {site: client.answer(first) for site, client in clients.items()}

        def told(data: bytes) -> str | None:
            return server.take(data).reason

        assert told(b"") is not None
        assert "message: expected one of a federation" in (told(os.urandom(300)) or "")
        altered = bytearray(answers["oslo"])
        altered[-1] ^= 1
        assert "signature: expected that of 'oslo'" in (told(bytes(altered)) or "")
        assert told(answers["oslo"][:-40]) is not None
        about, arrays = unseal(answers["oslo"], machines.description.sites)
        # Signed by berlin in the name of oslo; by a stranger; and berlin's own with oslo's content.
        assert "signature" in (told(seal(machines.key("berlin"), about, arrays)) or "")
        stranger = {**about, "sender": "paris"}
        assert "sender: expected one of this federation, got 'paris'" in (
            told(seal(machines.key("berlin"), stranger, arrays)) or ""
        )
        server_answers = {**about, "sender": "server"}
        assert "sender" in (told(seal(machines.key("server"), server_answers, arrays)) or "")

        def signed(**changes) -> bytes:
            return seal(machines.key("oslo"), {**about, **changes}, arrays)

        uses = {**about["uses"], "weights": "5793" * 16, "class_names": ["cow", "cat", "dog"]}
        assert told(signed(uses=uses)) == (
            "weights: expected 81b681b681b6…, got 579357935793…; class_names: classes 0 and 1 are swapped"
        )
        assert "federation: expected" in (told(signed(federation="0" * 64)) or "")
        assert "kind" in (told(signed(kind="kept")) or "")
        assert "replayed" in (told(signed(nonce="0" * 32)) or "")
        assert "is not open" in (told(signed(turn=1)) or "")
        assert "examples: expected at most 64" in (told(signed(examples=65)) or "")
        assert told(signed(examples="many")) is not None
        assert told(signed(uses=[])) is not None
        name = next(name for name, array in arrays.items() if array.dtype == np.float32)
        wrong = {**arrays, name: np.full_like(arrays[name], np.nan)}
        assert f"{name}: expected finite numbers" in (told(seal(machines.key("oslo"), about, wrong)) or "")
        wrong = {**arrays, name: arrays[name][..., :1]}
        assert "upload: expected" in (told(seal(machines.key("oslo"), about, wrong)) or "")
        wrong = {**arrays, "more": arrays[name]}
        assert "upload: expected" in (told(seal(machines.key("oslo"), about, wrong)) or "")
        wrong = {**arrays, name: arrays[name].astype(np.float64)}
        assert "upload: expected" in (told(seal(machines.key("oslo"), about, wrong)) or "")
        wrong = {key: np.concatenate([array] * 2) for key, array in arrays.items()}
        assert told(seal(machines.key("oslo"), about, wrong)) == "upload: expected at most 3 rows, got 6"
        assert server.taken == {}

        # One with features a million times as large is set aside when the round closes.
        loud = {**arrays, name: arrays[name] * 1e6}
        assert told(seal(machines.key("oslo"), about, loud)) is None
        assert told(answers["oslo"]) == "doubled: the first counts"
        assert told(answers["berlin"]) is None
        assert told(answers["berlin"]) == "doubled: the same message again"
        with pytest.raises(TooFew, match=r"expected answers of 2 sites at least, got 1; missing: oslo, rome"):
            server.close()
        assert told(answers["oslo"]) is None  # it may send again
        machines.now.seconds += 61
        assert told(answers["rome"]) == "expired: the round was to close before it came"
        server.close()
        assert server.history[0]["sites"] == ["berlin", "oslo"]
        assert server.turn == 1
        assert "late: round 0 is closed" in (told(answers["rome"]) or "")
        assert any('"site": "oslo"' in line and "max_norm" in line for line in reasons(server))

        # What clients refuse.
        second = server.open()
        asked = unseal(second, {"server": machines.description.server})
        rome = machines.client("rome")
        assert rome.turn == 0  # it answered, but did not count
        for data, text in [
            (first[:100], "message: expected one of a federation"),
            (answers["oslo"], "sender: expected one of this federation, got 'oslo'"),
            (seal(machines.key("oslo"), asked.about, {}), "signature: expected that of 'server'"),
            (server.end(b""), "kind: expected 'ask', got 'end'"),
        ]:
            with pytest.raises(Refused, match=text):
                rome.answer(data)
        rome.answer(second)
        with pytest.raises(Refused, match="replayed: it opens round 0, but round 1 was answered"):
            rome.answer(first)
        machines.kill("rome")
        shutil.rmtree(tmp_path / "rome")
        slow = clients["oslo"].answer(second)
        machines.now.seconds += 61
        with pytest.raises(Refused, match="expired: round 1 was to close 1 s ago"):
            machines.client("rome").answer(second)
        # A round past its deadline is opened again, and answers that were taken stay.
        assert told(slow) == "expired: the round was to close before it came"
        third = server.open()
        assert third != second
        assert told(slow) == "replayed: it answers another opening of this round"
        assert told(clients["oslo"].answer(third)) is None
        machines.kill("rome")
        other = {**machines.description.extractor, "weights": "5793" * 16}
        with pytest.raises(
            ValueError,
            match=r"folder: expected a new one, or .*rome holds the state of federation",
        ):
            machines.client("rome", extractor=other)
        shutil.rmtree(tmp_path / "rome")
        machines.now.seconds -= 61
        rome = machines.client("rome", extractor=other)
        with pytest.raises(
            Refused, match=r"federation: expected \w+…, got \w+…; weights: expected 5793\w+…, got 81b6"
        ):
            rome.answer(second)
