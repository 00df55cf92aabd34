"""A federation that stops before its end: its server and its sites are told why, and end at once."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from machines import SIZES, Machines, examples, start

from covfree.cli.app import run
from covfree.deployment import Stopped, TooFew, join, serve
from covfree.deployment.envelope import seal


def test_sites_end_as_a_round_closes_with_too_few(tmp_path):
    said, told = list[str](), list[str]()
    with Machines(tmp_path / "machines", "fedcof:shrinkage=0.1", deadline=1, fewest=2) as machines:
        own, folder = machines.description, machines.shared(tmp_path / "shared")
        machines.now = time.time
        # What others sign, or of another federation, stops nobody.
        for key, about in [("oslo", {}), ("oslo", {"sender": "oslo"}), ("server", {"federation": "0" * 64})]:
            more = {"kind": "stop", "sender": "server", "federation": own.identity, "reason": "no", **about}
            folder.stop.write_bytes(seal(machines.key(key), more, {}))
            folder.check_stop()

        def site() -> None:
            try:
                join(machines.client("rome"), folder, poll=0.02, wait=60, say=said.append)
            except Stopped as error:
                told.append(str(error))

        thread = threading.Thread(target=site)
        thread.start()
        with pytest.raises(TooFew) as caught:
            serve(machines.server(), folder, lambda head: b"head", poll=0.02, say=said.append)
        thread.join(10)
        assert told == [str(caught.value)]
        assert "missing: berlin, oslo" in told[0]
        # Any error is told; a server that starts again takes its word back.
        with pytest.raises(Stopped):
            folder.check_stop()

        def broken(*_, **__):
            raise OSError("no space left")

        server = machines.server()
        server.open = broken
        with pytest.raises(OSError, match="no space left"):
            serve(server, folder, lambda head: b"head", say=said.append)
        with pytest.raises(Stopped, match="no space left"):
            folder.check_stop()


def test_the_command_ends_the_server_and_sites(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with Machines(tmp_path, "fedcof:shrinkage=0.1", extractor={}) as machines:
        folder = machines.shared(Path("shared"))
    for name in SIZES:
        features, labels = examples(name)
        np.savez(f"{name}.npz", features=features, labels=labels)
    codes, common = dict[str, int](), ["--poll", "0.05", "--key"]
    serving = ["federation", "serve", "shared", *common, "server.key", "--state", "s", "--out", "head.npz"]

    def site(name: str) -> threading.Thread:
        files = ["--features", f"{name}.npz", "--state", f"state-{name}", "--out", f"{name}-head.npz"]
        return start(codes, name, ["federation", "join", "shared", *common, f"{name}.key", *files])

    threads = [start(codes, "server", serving), site("oslo")]
    while not (folder.answers(0) / "oslo.message").exists():
        assert all(thread.is_alive() for thread in threads), capsys.readouterr()
        time.sleep(0.05)
    stop = ["federation", "stop", "shared", "--reason", "rome has other photos", "--key"]
    assert run([*stop, "oslo.key"]) == 2
    assert (
        "--key: expected the private key of 'server' in the description, got another, in oslo.key"
        in capsys.readouterr().err
    )
    assert run([*stop, "server.key"]) == 0
    for thread in threads:
        thread.join(10)
    assert codes == {"server": 3, "oslo": 3}
    told = "the server stopped: rome has other photos; if the server runs again, give the same command again"
    assert told in capsys.readouterr().err
    assert run(["federation", "status", "shared"]) == 3
    assert "stopped: rome has other photos" in capsys.readouterr().out
    # Started again, they go on with the answer that was taken.
    threads = [start(codes, "server", serving)]
    while folder.stop.exists():
        time.sleep(0.05)
    threads += [site(name) for name in SIZES]
    for thread in threads:
        thread.join(60)
    assert codes == dict.fromkeys(("server", *SIZES), 0)
    assert len({(tmp_path / name).read_bytes() for name in ("head.npz", "oslo-head.npz")}) == 1
