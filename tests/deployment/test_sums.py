"""Secure sums between machines: bit for bit that of integers, through kills and with sites that leave."""

import gc
import re
import shutil
import threading
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from machines import MORE, Machines, assert_equal, check_kills, finish, padded
from precision import assert_close

from covfree.cli.app import run
from covfree.deployment import Description, Refused, SecureSums, Stopped, TooFew, join, serve
from covfree.deployment.door import Left
from covfree.deployment.envelope import seal, unseal
from covfree.deployment.steps import Steps
from covfree.deployment.sums import Sums
from covfree.rounds.adding import Parts
from covfree.secure import STEPS
from covfree.secure.messages import session_named


def make(folder, algorithm="fed3r", **fields):
    return Machines(folder, algorithm, MORE, **{"sums": SecureSums(1e6), "fewest": 3, **fields})


def of_integers(description, came):
    """The result if the uploads of those that came in each round are added as Python's integers."""
    own, point = description, description.words
    steps = Steps(own.make_algorithm(), len(own.sites), own.key(), own.example, own.max_examples)
    state, memory = steps.start()
    memories = dict.fromkeys(own.sites, memory)
    for turn, sites in enumerate(came):
        sent, total = steps.broadcast(state), 0
        for number, site in enumerate(own.sites):
            upload, after = steps.upload(number, turn, sent, memories[site], *padded(site))
            if site in sites:
                memories[site] = after
                total = total + np.array(point.encode(list(upload.values())).tolist(), object)
        form = steps.form(state)
        words = np.array([int(word) % 2**64 for word in total], np.uint64)
        state, _ = steps.serve(state, Parts(point.decode(words, form.sums), [], form.structure).upload())
    return steps.result(state)


def step(server, clients):
    asked = server.open()
    for client in clients.values():
        receipt = server.take(client.answer(asked))
        assert receipt.reason is None, receipt
    server.close()
    return asked


@pytest.mark.slow
def test_fedran_sends_nothing_above_a_bound_that_fits_its_data(tmp_path):
    """Squares of small numbers scaled up for float32 were 2¹⁰⁰."""
    algorithm, heads = "fedran:num_directions=4:num_features=32", []
    for name, sums in (("sums", SecureSums(1e6)), ("whole", None)):
        with Machines(tmp_path / name, algorithm, MORE, sums=sums, fewest=3) as machines:
            heads.append(finish(machines.server(), machines.clients()).head)
    assert_close(heads[0].weight, heads[1].weight, 1e-3)


@pytest.mark.parametrize(
    ("algorithm", "rounds", "at", "holders"),
    [("fedcof:shrinkage=0.1", None, 2, 4), ("scaffold", 2, 1, None), ("fed3r", None, 3, None)],
)
def test_the_result_is_that_of_integers_whoever_leaves(algorithm, rounds, at, holders, tmp_path):
    there = [site for site in MORE if site != "oslo"]
    with make(tmp_path, algorithm, rounds=rounds, sums=SecureSums(1e6, holders=holders)) as machines:
        server, clients = machines.server(), machines.clients()
        for turn in range(5):
            step(server, {site: clients[site] for site in (there if turn >= at else MORE)})
        if algorithm.startswith("fedcof"):
            # Its later rounds need all whose counts are in the first, and nobody else.
            asked = server.open()
            with pytest.raises(
                Refused, match="left out by the server: all rounds need the sites of the first"
            ):
                clients["oslo"].answer(asked)
            about, arrays = unseal(asked, {"server": machines.description.server})
            asked = seal(machines.key("server"), {**about, "left_out": {}}, arrays)
            late = server.take(clients["oslo"].answer(asked))
            assert "need the sites of the first" in (late.reason or "")
            clients.pop("oslo")
            for site in clients:
                server.take(clients[site].answer(server.open()))
            server.close()
            for _ in range(2):
                step(server, clients)
            # Nor does a site agree to a sum of fewer, which the first would show to be without one of them.
            about, arrays = unseal(server.open(), {"server": machines.description.server})
            machines.kill("york")
            shutil.copytree(tmp_path / "york", tmp_path / "kept")
            fewer = {**arrays, "came": arrays["came"][1:]}
            with pytest.raises(
                Refused, match=r"came: expected the same sites as in the sum before, \(0, 2, 3, 4\), got"
            ):
                machines.client("york").answer(seal(machines.key("server"), about, fewer))
            machines.kill("york")
            shutil.rmtree(tmp_path / "york")
            (tmp_path / "kept").rename(tmp_path / "york")
            clients["york"] = machines.client("york")
        result = finish(server, clients)
        number = server.description.num_rounds
        assert [each["round"] for each in server.history] == list(range(5 * number))
        came = [there if at < 3 else list(MORE), *[list(clients)] * (number - 1)]
        assert_equal(result, of_integers(server.description, came))
        if holders is not None:
            # Without oslo, class 0 is three sites' alone: york has none of it.
            assert number == 3
            assert server._state.common.tolist() == [False, True, True]


# A process that is killed while it opens a file closes nothing.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_killed_anywhere_they_go_on_to_the_same_sum(tmp_path):
    check_kills(tmp_path, 5, "fed3r", sums=SecureSums(1e6))
    gc.collect()


def test_a_site_answers_nobody_who_asks_for_less(tmp_path):
    with make(tmp_path) as machines:
        own = machines.description
        rome = machines.client("rome")
        # The same federation without secure sums is another one, whoever signs it.
        bare = Machines(tmp_path, "fed3r", MORE, fewest=3)
        with bare, pytest.raises(Refused, match="federation: expected"):
            rome.answer(bare.server().open())
        # A server that lies: it asks for the upload at once, for another size, or for the step again.
        machines.alive.pop("server", None)
        (tmp_path / "server").rename(tmp_path / "bare")
        server, clients = machines.server(), machines.clients()
        asked = [step(server, clients) for _ in range(2)]
        rome = machines.client("rome")
        assert rome.turn == 1

        def lie(data, **changes):
            about, arrays = unseal(data, {"server": own.server})
            arrays = {**arrays, **changes.pop("arrays", {})}
            return seal(machines.key("server"), {**about, **changes}, arrays)

        with pytest.raises(Refused, match="replayed: it opens round 0"):
            rome.answer(lie(asked[0], nonce="0" * 32))
        late = machines.client("wien")
        shown = machines.server().open()
        for other in (4, 3):  # this site has not masked anything yet
            with pytest.raises(Refused, match="expected to have answered the step before"):
                late.answer(lie(shown, turn=other))
        for other in (5, 10, -1, "2"):  # rounds that nobody promised
            with pytest.raises(
                Refused, match=f"turn: expected one of the 5 of this federation, got {other!r}"
            ):
                late.answer(lie(shown, turn=other))
        # Any error ends a site's part, and the server's next question finds no secret.
        shutil.copytree(tmp_path / "york", tmp_path / "york before")
        with pytest.raises(Refused, match="items: expected those of 0 rounds, got 1"):
            machines.client("york").answer(lie(shown, items=[[]]))
        with pytest.raises(Refused, match="items: expected those of 0 rounds, got 1"):
            machines.client("york").answer(shown)
        machines.kill("york")
        shutil.rmtree(tmp_path / "york")
        (tmp_path / "york before").rename(tmp_path / "york")
        about, arrays = unseal(shown, {"server": own.server})
        size = about["words"]
        for changes, why in (
            ({"words": 0}, "words: expected the number"),
            ({"words": "many"}, "words: expected the number"),
            ({"turn": None}, "turn: expected one of the 5"),
            ({"expires": "soon"}, "expires: expected seconds or None, got 'soon'"),
            ({"expires": -(10**400)}, "expires: expected seconds or None, got '-1000"),
            ({"left_out": ["rome"]}, "left_out: expected reasons by site"),
            ({"nonce": 3}, "nonce: expected text, got '3'"),
            ({"items": None}, "items: expected at most 5 lists of at most 320 rows, got 'None'"),
            ({"items": [[10**15]]}, "items: expected at most 5 lists of at most 320 rows"),
            ({"items": [["x"]]}, "items: expected at most 5 lists of at most 320 rows"),
        ):
            with pytest.raises(Refused, match=why):
                rome.answer(lie(shown, **changes))
        assert rome.turn == 1
        # Too few neighbours' shares: rome has no further part, also as a process that begins anew.
        few = {name: arrays[name][:1] for name in ("sender", "receiver", "box")}
        with pytest.raises(Refused, match="step mask: expected at least 3 neighbours that shared"):
            rome.answer(lie(shown, arrays=few))
        for client in (rome, machines.client("rome")):
            # Asked again, it says the same.
            with pytest.raises(Refused, match=r"expected at least 3 neighbours .* takes no further part"):
                client.answer(shown)
        # The others go on. Asked for the step once more, in other words, a site gives the same upload.
        server = machines.server()
        for site in ("berlin", "oslo", "wien", "york"):
            first = unseal(machines.client(site).answer(shown), own.sites)
            moved = {name: array + 1 for name, array in arrays.items() if name.startswith("sent")}
            again = unseal(machines.client(site).answer(lie(shown, nonce="1" * 32, arrays=moved)), own.sites)
            assert first.about["examples"] == 0
            assert first.arrays["words"].shape == (size,)
            np.testing.assert_array_equal(first.arrays["words"], again.arrays["words"])
            assert server.take(machines.client(site).answer(shown)).reason is None
        server.close()
        asks = server.open()
        machines.kill("berlin")
        shutil.copytree(tmp_path / "berlin", tmp_path / "kept")
        # It opens one of a neighbour's secrets, and none unless its own upload is among those that came.
        for came, why in (
            ([1, 3, 4], "expected this client, 0"),
            ([0, 1], "at least 3 clients, got 2"),
            ([0, 1, 3, 4], ""),
            ([0, 1, 3, 9], "clients of the session"),
        ):
            # Each lie is told to a berlin that has heard no other.
            machines.kill("berlin")
            shutil.rmtree(tmp_path / "berlin")
            shutil.copytree(tmp_path / "kept", tmp_path / "berlin")
            berlin = machines.client("berlin")
            if not why:
                # rome did share; its upload did not come: only its key may be opened.
                assert server.take(berlin.answer(asks)).reason is None
                for site in ("oslo", "wien", "york"):
                    assert server.take(machines.client(site).answer(asks)).reason is None
                server.close()
                opened = unseal(berlin.answer(server.open()), own.sites)
                assert set(opened.arrays["seed_of"].tolist()) == {1, 3, 4}
                assert set(opened.arrays["key_of"].tolist()) == {2}
                continue
            with pytest.raises(Refused, match=why):
                berlin.answer(lie(asks, arrays={"came": np.array(came, np.int32)}))


def test_the_number_of_examples_that_a_site_claims_is_not_kept(tmp_path):
    with make(tmp_path) as machines:
        server = machines.server()
        answer = machines.client("rome").answer(server.open())
        about, arrays = unseal(answer, machines.description.sites)
        server.take(seal(machines.key("rome"), {**about, "examples": 7}, arrays))
        assert server.taken == {"rome": 0}


def test_too_few_is_named_and_the_step_is_opened_again(tmp_path):
    with make(tmp_path, deadline=60) as machines:
        server, clients = machines.server(), machines.clients()
        step(server, clients)
        step(server, clients)
        asked = server.open()
        for site in ("rome", "oslo"):
            server.take(clients[site].answer(asked))
        with pytest.raises(
            TooFew, match="round 1 of 1, step mask: expected answers of 4 sites at least"
        ) as caught:
            server.close()
        assert "bound" not in str(caught.value)  # no site left
        machines.now.seconds += 61
        again = server.open()
        assert again != asked
        for site in ("berlin", "wien", "york"):
            assert server.take(clients[site].answer(again)).reason is None
        server.close()
        step(server, clients)
        step(server, clients)
        assert_equal(server.result, of_integers(machines.description, [list(MORE)]))


@pytest.mark.parametrize("sizes", [list(MORE), ["berlin", "oslo", "rome"]])
def test_a_site_whose_numbers_exceed_the_bound_leaves_and_nobody_waits(sizes, tmp_path, capsys):
    # Only oslo has a number above the bound, 305 in its Gram matrix; there is no deadline.
    said, heard = {site: list[str]() for site in sizes}, list[str]()
    with Machines(tmp_path, "fed3r", sizes, sums=SecureSums(250.0), fewest=3) as machines:
        folder, server, clients = machines.shared(tmp_path / "shared"), machines.server(), machines.clients()

        def site(name: str) -> None:
            with suppress(Stopped):
                join(clients[name], folder, poll=0.02, wait=60, say=said[name].append)

        threads = [threading.Thread(target=site, args=[name]) for name in sizes]
        for thread in threads:
            thread.start()
        with nullcontext() if len(sizes) > 3 else pytest.raises(TooFew) as caught:
            serve(server, folder, lambda head: b"head", poll=0.02, say=heard.append)
        for thread in threads:
            thread.join(30)
        (text,) = [text for text in said["oslo"] if "bound" in text]
        assert re.match(
            "round 1 of 1, step mask: upload: expected numbers of at most 250, the bound on which all "
            r"clients agreed, got 304.*; agree on a larger bound \(between machines: a new federation",
            text,
        )
        assert any("left: the site takes no further part in this sum" in line for line in heard)
        sent = unseal((folder.answers(2) / "oslo.message").read_bytes(), machines.description.sites)
        assert sent.arrays == {}  # it says that it leaves, and no more
        assert sum("set aside: left" in line for line in heard) == 1
        if len(sizes) > 3:
            assert server.history[-1]["sites"] == [site for site in sorted(sizes) if site != "oslo"]
            assert text == said["oslo"][-1]  # once, not at each step
            assert heard[-1] == "in the head: berlin, rome, wien, york; not in it: oslo"
            assert run(["federation", "status", str(folder.path)]) == 0
            assert f"ended\n{heard[-1]}\n" in capsys.readouterr().out
        else:
            assert "got 2; left this sum: oslo: ask " in str(caught.value)
            assert "bound=250 of --sums" in str(caught.value)
            # Asked again it leaves again, and why is said.
            said["oslo"].clear()
            server.take(clients["berlin"].answer(again := server.open()))
            with pytest.raises(Left, match="upload: expected numbers of at most 250") as left:
                clients["oslo"].answer(again)
            assert (server.take(left.value.answer).reason or "").startswith("left: ")
            assert server.missing == []


def test_an_answer_counts_although_another_process_of_the_site_left(tmp_path):
    with make(tmp_path / "machines", "fedcof:shrinkage=0.1", deadline=60) as machines:
        server, folder = machines.server(), machines.shared(tmp_path)
        path = folder.answers(1) / "rome.message"
        step(server, machines.clients())
        # The site rome is started with another --state folder: it has not answered the step before.
        asked = server.open()
        folder.put(folder.ask(1), asked)
        wrong = machines.client("rome", "wrong")
        said = list[str]()
        for there in (None, machines.client("rome").answer(asked)):
            if there is not None:
                folder.put(path, there)
            with pytest.raises(TooFew):
                join(wrong, folder, poll=0.01, wait=0.0, say=said.append)
            assert ("the answer in" in said[-1]) == (there is not None)
            receipt = server.take(path.read_bytes())
            assert (receipt.reason or "valid").startswith("left" if there is None else "valid")
            assert ("rome" in server.missing, "rome" in server.taken) == (False, there is not None)
        assert path.read_bytes() == there


def test_a_federation_goes_on_after_a_site_started_with_the_wrong_state(tmp_path):
    with make(tmp_path / "machines", "fedcof:shrinkage=0.1") as machines:
        server, clients, own = machines.server(), machines.clients(), machines.description
        for _ in range(7):
            step(server, clients)
        asked = server.open()
        wrong = machines.client("rome", "wrong")
        with pytest.raises(Left) as left:
            wrong.answer(asked)
        assert (server.take(left.value.answer).reason or "").startswith("left: ")
        for site in set(MORE) - {"rome"}:
            assert server.take(clients[site].answer(asked)).reason is None
        assert server.missing == []  # nobody is waited for
        with pytest.raises(TooFew, match=r"left this sum: rome: .* another --state: start it with its own"):
            server.close()
        server = machines.server()
        assert server.open() != asked
        assert (server.take(left.value.answer).reason or "").startswith("late: ")
        assert server.missing == ["rome"]
        step(server, {"rome": clients["rome"]})
        assert_equal(finish(server, clients), of_integers(own, [list(MORE)] * own.num_rounds))


def test_a_site_that_joins_late_is_not_said_to_have_left(tmp_path):
    with make(tmp_path, deadline=60) as machines:
        server, clients = machines.server(), machines.clients()
        for _ in range(2):
            step(server, {site: clients[site] for site in MORE if site != "rome"})
        with pytest.raises(Left) as left:
            clients["rome"].answer(server.open())
        server.take(left.value.answer)
        with pytest.raises(TooFew) as caught:
            server.close()
        assert str(caught.value).endswith("got 0; missing: berlin, oslo, wien, york")


def test_a_site_that_was_not_in_the_first_round_is_not_waited_for(tmp_path, capsys):
    with make(tmp_path / "machines", "fedcof:shrinkage=0.1") as machines:
        server, clients = machines.server(), machines.clients()
        for turn in range(5):
            step(server, clients if turn < 2 else {site: clients[site] for site in MORE if site != "york"})
        asked = server.open()
        assert server.missing == [site for site in MORE if site != "york"]
        with pytest.raises(Refused, match="left out by the server: all rounds need the sites of the first"):
            clients["york"].answer(asked)
        folder = machines.shared(tmp_path)
        folder.put(folder.round, server.standing({}))
        assert run(["federation", "status", str(tmp_path)]) == 3
        assert "york: left out: all rounds need the sites of the first" in capsys.readouterr().out


def test_status_says_what_the_server_took(tmp_path, capsys, monkeypatch):
    with make(tmp_path / "machines", deadline=60) as machines:
        server, clients, own = machines.server(), machines.clients(), machines.description
        folder = machines.shared(tmp_path)

        def lines() -> dict[str, str]:
            assert run(["federation", "status", str(tmp_path)]) == 3
            found = capsys.readouterr().out.splitlines()
            assert found[0].endswith(": fed3r, 3 classes, 1 round")
            return dict(line.strip().split(": ", 1) for line in found if line.startswith("  "))

        def look(_) -> None:
            """As the server waits between two looks into the folder: send something, or see what it says."""
            asked = folder.read(folder.ask(0))
            if not server.taken:
                sent = {site: clients[site].answer(asked) for site in ("berlin", "rome")}
                about = {**unseal(sent["rome"], own.sites).about, "left": True}
                # An answer; one that others sign; a site that leaves; another site's answer.
                sent |= {"oslo": clients["oslo"].answer(asked)[:-1], "wien": sent["berlin"]}
                sent["rome"] = seal(machines.key("rome"), about, {})
                for site, data in sent.items():
                    folder.put(folder.answers(0) / f"{site}.message", data)
                assert lines() == dict.fromkeys(sent, "sent; the server has not read it yet") | {
                    "york": "not yet"
                }
                return
            found = lines()
            assert found["berlin"] == "answered"
            assert found["oslo"].startswith("set aside: signature: expected that of 'oslo', got another")
            assert found["rome"].startswith("set aside: left: the site takes no further part in this sum")
            assert found["wien"].startswith("set aside: by the name of berlin: doubled: the same message")
            raise KeyboardInterrupt

        monkeypatch.setattr("covfree.deployment.folder.time.sleep", look)
        with pytest.raises(KeyboardInterrupt):
            serve(server, folder, lambda head: b"", say=lambda text: None)
        # What others sign is not the server's word.
        folder.round.write_bytes(seal(machines.key("oslo"), folder.standing() or {}, {}))
        assert folder.standing() is None


def test_too_few_says_how_many_are_enough():
    keys = {number: bytes([number] * 32) for number in range(6)}
    whole = Sums(session_named("a", keys, 1, least=3), "abcdef")
    # Each of them needs three others, also before anything is masked.
    assert whole.too_few("advertise", range(3)) == "answers of 4 sites at least, got 3"
    assert whole.too_few("advertise", range(4)) == ""
    sparse = Sums(session_named("a", keys, 1, least=3, neighbours=4), "abcdef")
    found = sparse.too_few("advertise", range(3))
    assert re.fullmatch("answers of 3 of the 4 sites that share masks with each of [a-f, ]+", found)


def test_an_announcement_without_a_class_ends_the_federation(tmp_path):
    with make(tmp_path / "machines", "fedcof:shrinkage=0.1", sums=SecureSums(1e6, holders=5)) as machines:
        server, clients = machines.server(), machines.clients()
        for turn in range(5):
            # One site leaves, so no class has five holders.
            step(server, clients if turn < 2 else {site: clients[site] for site in MORE if site != "york"})
        assert server.finished
        # Also of a server that begins anew.
        with pytest.raises(
            ValueError, match="round 1 of 3, step unmask: no class is held by 5 clients or more"
        ):
            serve(machines.server(), machines.shared(tmp_path), lambda head: b"", say=lambda text: None)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"sums": SecureSums(0.0)}, "sums: bound: expected a finite number above 0"),
        ({"sums": SecureSums(1e6, threshold=1)}, "sums: threshold: expected above half of 4 neighbours"),
        ({"sums": SecureSums(1e6, neighbours=3)}, "sums: neighbours: expected an even number"),
        ({"sums": SecureSums(1e6, holders=2)}, "holders: expected at least 3 clients, got 2"),
        ({"sums": SecureSums(1e6, holders=9)}, "holders: expected at most the number of sites, 5, got 9"),
        ({"algorithm": "fedpft"}, "sums"),
        ({"algorithm": "fedcof", "judge_sites": True}, "judge_sites: expected an algorithm whose sites send"),
    ],
)
def test_descriptions_that_hide_nothing_are_errors(fields, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        make(tmp_path, **fields)


def test_the_description_says_so(tmp_path):
    with make(tmp_path, sums=SecureSums(1e6, neighbours=2, threshold=2)) as machines:
        machines.description.save(tmp_path / "f.json")
        assert Description.load(tmp_path / "f.json") == machines.description
        assert machines.description.named(2) == "round 1 of 1, step mask"
        bare = Machines(tmp_path, "fed3r", MORE, fewest=3).description
        assert bare.identity != machines.description.identity
        assert bare.steps == ("answer",)
        assert machines.description.steps == STEPS
