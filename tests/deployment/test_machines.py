"""Rounds between machines that share bytes alone: the simulation's result, through kills and bad mail."""

import gc
import os
import shutil

import numpy as np
import pytest
from machines import SIZES, Machines, assert_equal, check_kills, examples, finish, simulated
from variants import slow

from covfree.deployment import Client, Refused, TooFew
from covfree.deployment.envelope import seal, unseal

# A number in place of the automatic rule, which takes long to compile: FedCOF has that.
REFINED = "fedcof-refined:shrinkage=0.1:rounds=1"
SELECTED = "fedncm-or-fedcof:shrinkage=0.1"
ROUNDS = {
    **dict.fromkeys(("fedcof", "fed3r", REFINED, SELECTED, "deepafl:num_layers=1")),
    "scaffold": 2,
}


def reasons(server) -> list[str]:
    file = server.folder / "aside.jsonl"
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
    expected = simulated(own, sizes)
    assert_equal(result, expected.result)
    assert_equal(server._state, expected.state)
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

        altered = bytearray(answers["oslo"])
        altered[-1] ^= 1
        about, arrays = unseal(answers["oslo"], machines.description.sites)
        name = next(name for name, array in arrays.items() if array.dtype == np.float32)

        def signed(key: str = "oslo", wrong: dict | None = None, **changes) -> bytes:
            return seal(machines.key(key), {**about, **changes}, arrays if wrong is None else wrong)

        uses = {**about["uses"], "weights": "5793" * 16, "class_names": ["cow", "cat", "dog"]}
        doubled = {key: np.concatenate([array] * 2) for key, array in arrays.items()}
        for data, text in (
            (b"", "message: expected one of a federation"),
            (os.urandom(300), "message: expected one of a federation"),
            (bytes(altered), "signature: expected that of 'oslo'"),
            (answers["oslo"][:-40], "signature: expected that of 'oslo'"),
            # Signed by berlin in the name of oslo; by a stranger; and by the server.
            (signed("berlin"), "signature"),
            (signed("berlin", sender="paris"), "sender: expected one of this federation, got 'paris'"),
            (signed("server", sender="server"), "sender"),
            (signed(uses=uses), "weights: expected 81b681b681b6…, got 579357935793…; class_names: classes 0"),
            (signed(uses=[]), "dim: expected 8, got none"),
            (signed(federation="0" * 64), "federation: expected"),
            (signed(kind="kept"), "kind"),
            (signed(nonce="0" * 32), "late: it answers an earlier opening"),
            (signed(turn=1), "is not open"),
            (signed(examples=65), "examples: expected at most 64"),
            (signed(examples="many"), "examples: expected at most 64"),
            (
                signed(wrong={**arrays, name: np.full_like(arrays[name], np.nan)}),
                f"{name}: expected finite numbers",
            ),
            (signed(wrong={**arrays, name: arrays[name][..., :1]}), "upload: expected"),
            (signed(wrong={**arrays, "more": arrays[name]}), "upload: expected"),
            (signed(wrong={**arrays, name: arrays[name].astype(np.float64)}), "upload: expected"),
            (signed(wrong=doubled), "upload: expected at most 3 rows, got 6"),
        ):
            assert text in (told(data) or "")
        assert server.taken == {}

        # One with features a million times as large is set aside when the round closes.
        assert told(signed(wrong={**arrays, name: arrays[name] * 1e6})) is None
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
        assert told(slow) == "late: it answers an earlier opening of this round"
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


def test_a_round_that_is_opened_again_gets_the_same_answer_whatever_data_the_site_has_now(tmp_path):
    with Machines(tmp_path, REFINED, deadline=60) as machines:
        own, server = machines.description, machines.server()
        first = unseal(machines.client("oslo").answer(server.open()), own.sites)
        machines.kill("oslo")
        machines.now.seconds += 61
        fewer = "oslo", tmp_path / "oslo", machines.key("oslo"), *(each[:9] for each in examples("oslo"))
        with pytest.raises(ValueError, match="features: expected the examples of this site's answers"):
            Client(own, *fewer)
        features, labels = examples("oslo")
        with Client(own, *fewer[:3], features, labels.astype(np.uint8)):
            pass
        # A draft's folder does not say which examples it had.
        state = tmp_path / "oslo" / "oslo.message"
        about, arrays = unseal(state.read_bytes(), own.sites)
        del about["digest"]
        state.write_bytes(seal(machines.key("oslo"), about, arrays))
        with Client(own, *fewer, now=machines.now) as client:
            again = unseal(client.answer(server.open()), own.sites)
        assert (first.about["examples"], again.about["examples"]) == (64, 64)
        assert_equal(first.arrays, again.arrays)
