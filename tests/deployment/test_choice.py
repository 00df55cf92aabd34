"""What sites chose among candidates: the server's lines say it, and the head's file."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from machines import CLASSES, DIM, MORE, SIZES, Machines, examples

import covfree
from covfree.cli import app
from covfree.deployment import Folder, SecureSums, serve
from covfree.deployment.standing import Choice
from covfree.rounds import as_algorithm

CHOICE = "fedncm-or-fedcof:shrinkage=0.1"


def run(folder, sites, **fields) -> tuple[list[str], Folder]:
    """Serve a federation to its end, as ``covfree federation serve`` does; return its lines."""
    said = list[str]()
    with Machines(folder / "machines", CHOICE, sites, extractor={}, **fields) as machines:
        open_folder = machines.shared(folder / "shared")
        server, clients = machines.server(), machines.clients()

        def say(line: str) -> None:
            said.append(line)
            if " is open until " in line:
                asked = open_folder.read(open_folder.ask(server.turn))
                for name, client in clients.items():
                    open_folder.put(
                        open_folder.answers(server.turn) / f"{name}.message", client.answer(asked)
                    )

        serve(server, open_folder, poll=0.01, say=say)
        (folder / "head.npz").write_bytes(clients[next(iter(sites))].finish(open_folder.end.read_bytes())[0])
        assert covfree.load_head(folder / "head.npz").origin == {
            "federation": machines.description.identity,
            "taken": server.choice.taken,
            "sites": len(clients),
        }
        # A process that begins anew says the same.
        assert machines.server().choice == server.choice
    # A site that gets the head is told what it is.
    features, labels = examples("oslo")
    np.savez(folder / "oslo.npz", features=features, labels=labels)
    key, state = folder / "machines" / "oslo.key", folder / "machines" / "oslo"
    words = f"--key {key} --features {folder}/oslo.npz --state {state} --out {folder}/own.npz"
    assert app.run(["federation", "join", str(open_folder.path), *words.split()]) == 0
    return said, open_folder


def test_the_server_says_what_sites_chose(tmp_path, capsys):
    said, _ = run(tmp_path, SIZES)
    assert said[-1].partition(";")[0] in capsys.readouterr().err
    kept = sum(int(covfree.kept_aside(examples(site)[0], 0.1).sum()) for site in SIZES)
    assert said[-1].startswith("3 sites took part and chose fed")
    assert f"; errors on {kept} examples kept aside: fedncm " in said[-1]


@pytest.mark.slow
def test_behind_sums_the_server_says_it_too(tmp_path):
    said, _ = run(tmp_path, MORE, sums=SecureSums(1e6), fewest=3)
    assert said[-1].startswith("5 sites took part and chose fed")


def test_a_site_that_only_chose_is_not_in_the_head(tmp_path):
    with Machines(tmp_path, CHOICE, MORE, fewest=3, extractor={}) as machines:
        server, clients = machines.server(), machines.clients()
        while not server.finished:
            asked = server.open()
            for site in set(MORE) - {"oslo" if server.history else "rome"}:
                assert server.take(clients[site].answer(asked)).reason is None
            server.close()
        assert server.choice.sites == 4
        assert server.counted == machines.server().counted == ["berlin", "oslo", "wien", "york"]


@pytest.mark.parametrize(
    ("report", "after"),
    [
        ({"taken": 3}, None),
        ({"taken": 3, "counted": 5, "errors": [0.5]}, None),
        ({"taken": 0, "counted": 5, "losses": [0.5]}, "candidate 0"),
        ({"taken": 0, "counted": 5, "losses": [[0.5, 0.5]]}, None),  # which has no line of text
    ],
)
def test_an_algorithm_of_ones_own_may_report_anything(report, after, tmp_path):
    own = as_algorithm(covfree.fedncm(), num_classes=CLASSES)
    head = covfree.LinearHead(jnp.zeros((DIM, CLASSES)), jnp.zeros(CLASSES))
    changes: dict[str, Any] = {"report": lambda *_: report, "result": lambda *_: head}
    own = dataclasses.replace(own, **changes)
    with Machines(tmp_path, "fedncm-or-fedcof:shrinkage=0.1", extractor={}) as machines:
        server = machines.server(own)
        # No site could choose before the first round is done.
        assert server.choice is None
        server._counted[:] = 0
        assert (server.choice and server.choice.taken) == after
        assert server.head_file()


def test_a_choice_without_examples_says_so():
    choice = Choice("fedncm", {"fedncm": float("nan"), "fedcof": float("nan")}, "errors", 0, 0)
    assert str(choice) == "no site counted errors, so the first candidate was taken: fedncm"


def test_a_tie_is_no_win():
    choice = Choice("fedncm", {"fedcof": 0.25, "fedncm": 0.125, "qda": 0.125}, "errors", 16, 3)
    assert str(choice) == (
        "3 sites took part and chose fedncm, the first of 2 with equal errors; errors on 16 examples kept "
        "aside: fedcof 25.0 %, fedncm 12.5 %, qda 12.5 %"
    )
