"""A federation that judges its sites: those that fail are left out of all rounds, by name."""

from contextlib import ExitStack

import numpy as np
import pytest
from machines import assert_equal, finish

from covfree.deployment import (
    Client,
    Description,
    Folder,
    Refused,
    Server,
    TooFew,
    load_key,
    new_key,
    serve,
)

CLASSES, DIM, NAMES = 4, 8, ("ant", "bee", "cat", "dog")


def examples(number: int, wrong: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    labels = rng.integers(0, CLASSES, 47).astype(np.int32)
    features = (rng.normal(size=(len(labels), DIM)) + 3 * np.eye(CLASSES, DIM)[labels]).astype(np.float32)
    return features, ((labels + 1) % CLASSES if wrong else labels).astype(np.int32)


def machines(stack, folder, sites, **fields) -> tuple[Server, dict[str, Client]]:
    """A server, and sites of which "c" shifts its labels."""
    folder.mkdir(exist_ok=True)
    keys = {name: new_key(folder / f"{name}.key") for name in (*sites, "server")}
    public = keys.pop("server")
    own = Description(
        "fedcof-refined:shrinkage=0.1:rounds=1",
        NAMES,
        DIM,
        keys,
        public,
        max_examples=47,
        judge_sites=True,
        **fields,
    )
    server = stack.enter_context(Server(own, folder / "server", load_key(folder / "server.key")))
    return server, {
        name: stack.enter_context(
            Client(own, name, folder / name, load_key(folder / f"{name}.key"), *examples(k, name == "c"))
        )
        for k, name in enumerate(sites)
    }


def test_a_site_that_fails_is_left_out_of_all_rounds_and_told(tmp_path):
    told, reason = list[str](), "labels: shifted by 1: its class ant is the others' dog"
    with ExitStack() as stack:
        server, sites = machines(stack, tmp_path, "abcdefgh")
        own = server.description
        own.save(tmp_path / "federation.json")
        folder = Folder(tmp_path)

        def say(text: str) -> None:
            """Let sites answer the round that is open; the one that was left out is told so."""
            told.append(text)
            if "is open" not in text:
                return
            asked = server.open()
            for name, site in sites.items():
                if server.turn and name == "c":
                    with pytest.raises(Refused, match=f"left out by the server: {reason}"):
                        site.answer(asked)
                    continue
                folder.put(folder.answers(server.turn) / f"{name}.message", site.answer(asked))

        serve(server, folder, lambda head: b"", poll=0, say=say)
        assert [record["rejected"] for record in server.history] == [{"c": reason}, {}]
        assert [record["sites"] for record in server.history] == [list("abdefgh")] * 2
        judged = "8 sites, of which 1 failed the check."
        assert [record["judged"] for record in server.history] == [judged, None]
        assert {f"round 1 of 2: {judged}", f"site c: left out: {reason}"} <= set(told)
        result = server.result
    # As if it had never answered.
    with ExitStack() as stack:
        server, sites = machines(stack, tmp_path / "honest", "abcdefgh")
        sites.pop("c")
        assert_equal(result, finish(server, sites))
    # A server that begins anew still knows whom it left out.
    with Server(own, tmp_path / "server", load_key(tmp_path / "server.key")) as server:
        assert server.left_out == {"c": reason}


def answered(server: Server, sites: dict[str, Client]) -> None:
    asked = server.open()
    assert [server.take(site.answer(asked)).reason for site in sites.values()] == [None] * len(sites)


def test_four_sites_judge_nobody_and_too_few_are_named(tmp_path):
    with ExitStack() as stack:
        for number in ("abcd", "abcdefgh"):
            server, sites = machines(stack, tmp_path / number, number, fewest=len(number))
            answered(server, sites)
            if number == "abcd":
                server.close()
                assert server.history[0]["judged"].startswith("4 sites: too few to judge.")
                assert server.left_out == {}
        with pytest.raises(TooFew, match="got 7; missing: c; left out: c: labels: shifted by 1"):
            server.close()
        assert server.missing == ["c"]


def test_only_sites_that_send_class_means_can_be_judged(tmp_path):
    keys = {name: new_key(tmp_path / name) for name in ("a", "server")}
    with pytest.raises(ValueError, match="judge_sites: expected an algorithm whose sites send class means"):
        Description("fedadam", NAMES, DIM, keys, keys.pop("server"), rounds=2, judge_sites=True)
