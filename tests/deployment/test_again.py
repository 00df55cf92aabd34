"""Commands of a federation given again: over folders of a finished one, of another, or after a loss."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from machines import draw_keys, examples, start

from covfree.cli.app import run
from covfree.deployment import Description, Server, load_key
from covfree.deployment.envelope import seal, unseal

SITES = ("berlin", "oslo")
NEW = ["--sites", "keys", "--key", "server.key", "--like", "berlin.npz", "--algorithm", "fedcof-refined"]
NEW[-1] += ":shrinkage=0.1:rounds=1"


def command(name: str, *words: str) -> list[str]:
    return ["federation", name, *words]


def serving(shared: str, state: str) -> list[str]:
    words = f"--key server.key --state {state} --out head.npz --poll 0.05"
    return command("serve", shared, *words.split())


def joining(shared: str, name: str, state: str) -> list[str]:
    words = f"--key {name}.key --features {name}.npz --state {state} --out {name}-head.npz --poll 0.05"
    return command("join", shared, *words.split())


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A folder with a federation that has ended, in shared; the server's own folder is s."""
    monkeypatch.chdir(tmp_path)
    draw_keys(*SITES, "server")
    for name in SITES:
        features, labels = examples(name)
        np.savez(f"{name}.npz", features=features, labels=labels, class_names=["cat", "cow", "dog"])
    assert run(command("new", "shared", *NEW)) == 0
    codes = dict[str, int]()
    words = {"server": serving("shared", "s"), **{name: joining("shared", name, name) for name in SITES}}
    for thread in [start(codes, name, own) for name, own in words.items()]:
        thread.join(120)
    assert codes == dict.fromkeys(words, 0)


def test_commands_given_again_say_what_they_found_and_what_to_do(finished, capsys):
    def told(words: list[str], code: int = 2) -> str:
        capsys.readouterr()
        assert run(words) == code
        return capsys.readouterr().err

    # The same commands once more give the head.
    assert run(serving("shared", "s")) == 0
    assert run(joining("shared", "oslo", "oslo")) == 0
    assert "there is nothing to stop" in told(
        command("stop", "shared", "--key", "server.key", "--reason", "x")
    )
    # The server's own folder is lost: it would ask for a round that all sites have answered.
    text = told(serving("shared", "lost"))
    assert text.startswith("covfree: --state: expected the folder of the server that ran this federation")
    assert "which has ended (end.message) in shared; lost is at round 1 of 2: give that" in text
    assert "join still gives the head" in text
    Path("shared/end.message").rename("end.message")
    assert "which is at round 2 of 2 in shared; lost is at round 1 of 2" in told(serving("shared", "lost"))
    Path("end.message").rename("shared/end.message")
    assert not Path("lost").exists()
    # A draft's end does not say whose uploads are in the head.
    keys = {"server": Description.load("shared/federation.json").server}
    about, arrays = unseal(end := Path("shared/end.message").read_bytes(), keys)
    del about["counted"]
    Path("shared/end.message").write_bytes(seal(load_key("server.key"), about, arrays))
    assert run(command("status", "shared")) == 0
    assert capsys.readouterr().out.endswith("\nended\n")
    Path("shared/end.message").write_bytes(end)
    # Folders of another federation.
    assert run(command("new", "other", *NEW)) == 0
    for words, folder in ((serving("other", "s"), "s"), (joining("other", "oslo", "oslo"), "oslo")):
        text = told(words)
        assert text.startswith("covfree: --state: expected a new one, or one of federation ")
        assert f"; {folder} holds the state of federation " in text
        assert "take another folder" in text
    # Folders of other machines of this federation.
    for words, holds in ((joining("shared", "oslo", "berlin"), "berlin"), (serving("shared", "oslo"), "oslo"),
                         (joining("shared", "oslo", "s"), "server")):  # fmt: skip
        text = told(words)
        assert text.startswith("covfree: --state: expected one of its own for each machine, got ")
        assert f"which holds the state of another ({holds})" in text
    # From their first use, before there is state in them; and folders of a draft, which stored no name.
    with Server(Description.load("other/federation.json"), "new", load_key("server.key")) as server:
        server.open()
    assert run([*joining("other", "oslo", "o"), "--wait", "0"]) == 3
    for words, holds in ((joining("other", "oslo", "new"), "server"), (serving("other", "o"), "oslo")):
        assert f"which holds the state of another ({holds})" in told(words)
    file = Path("berlin/federation")
    file.write_text((kept := file.read_text()).partition(" ")[0])
    assert "which holds the state of a draft of covfree 0.1.0" in told(joining("shared", "berlin", "berlin"))
    file.write_text(kept)
    assert run(joining("shared", "berlin", "berlin")) == 0
    # Other examples than those of the site's answers; a draft kept no digest of them.
    words = [*joining("shared", "berlin", "berlin"), "--features", "oslo.npz"]
    assert (
        "--features: oslo.npz: features: expected the examples of this site's answers, kept in berlin, got"
    ) in told(words)
    state = Path("berlin/berlin.message")
    about, arrays = unseal(state.read_bytes(), Description.load("shared/federation.json").sites)
    del about["digest"]
    state.write_bytes(seal(load_key("berlin.key"), about, arrays))
    assert run(words) == 0
    # A shared folder without its description is not a new one, and another's end is not this one's.
    description = Path("shared/federation.json").read_bytes()
    Path("shared/federation.json").unlink()
    assert "shared holds messages of another federation (asks, answers, round.message, end.message)" in told(
        command("new", "shared", *NEW)
    )
    shutil.copy("other/federation.json", "shared")
    assert run(command("status", "shared")) == 3
    Path("shared/federation.json").write_bytes(description)
    # State of another version, and state that was cut short.
    public = Path("keys/server.pub").read_text().strip()
    about, arrays = unseal(Path("s/state.message").read_bytes(), {"server": public})
    kept = Path("s/state.message").read_bytes()
    for changed in ({**arrays, "state.0": np.zeros(1)}, {k: v for k, v in arrays.items() if k != "counted"}):
        Path("s/state.message").write_bytes(seal(load_key("server.key"), about, changed))
        text = told(serving("shared", "s"))
        assert "in s, got one written by another version or for another method (" in text
    Path("s/state.message").write_bytes(kept)
    state = Path("s/state.message")
    state.write_bytes(state.read_bytes()[:-9])
    text = told(serving("shared", "s"))
    assert "--state: expected the state that this machine wrote to s, got a damaged one (signature" in text
    # Files in place of folders, and the wrong ones.
    assert "expected a shared folder, got the file oslo.npz" in told(command("new", "oslo.npz", *NEW))
    assert "--state: expected a folder for this machine's state, got the file" in told(
        joining("other", "oslo", "oslo.npz")
    )
    for name in ("oslo.key", "keys/server.pub"):
        words = ["--key", name, "--state", "t", "--out", "h.npz"]
        text = told(command("serve", "other", *words))
        assert "--key: expected the private key of 'server' in the description, got" in text
        assert name in text
    # A key may come from a pipe, as of a program that decrypts it.
    reading, writing = os.pipe()
    os.write(writing, Path("server.key").read_bytes())
    os.close(writing)
    words = ["--key", f"/dev/fd/{reading}", "--reason", "x"]
    assert run(command("stop", "other", *words)) == 0
    os.close(reading)
    words = [*joining("other", "oslo", "t"), "--key"]
    assert "--key: no such file: rome.key; covfree federation key makes one" in told([*words, "rome.key"])
    assert "got 'server', the name of the file of --key" in told([*words, "server.key"])


def test_a_key_pair_is_never_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # The public key was written over the private one.
    assert run(command("key", "site.pub")) == 2
    assert "expected a file such as site.key" in capsys.readouterr().err
    assert run(command("key", "site.key")) == 0
    kept = Path("site.pub").read_text()
    Path("link.pub").symlink_to("nowhere")
    for name, there in (("site.key", "site.pub"), ("site.pem", "site.pub"), ("link.key", "link.pub")):
        capsys.readouterr()
        assert run(command("key", name)) == 2
        assert f"{there} exists, and a key is never replaced: use it, or" in capsys.readouterr().err
    assert Path("site.pub").read_text() == kept
    assert not any(Path(name).exists() for name in ("site.pem", "link.key", "nowhere"))
    # A public key that was lost is made again.
    private = Path("site.key").read_bytes()
    Path("site.pub").unlink()
    assert run(command("key", "site.key")) == 0
    assert (Path("site.key").read_bytes(), Path("site.pub").read_text()) == (private, kept)
    Path("wrong.key").write_text("no key")
    assert run(command("key", "wrong.key")) == 2
    assert not Path("wrong.pub").exists()
    assert run(command("key", "other.PUB")) == 2
    assert "expected a file such as site.key" in capsys.readouterr().err
    assert run(command("key", "nowhere/site.key")) == 2
    assert "in a folder that is there" in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_of_a_key(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))  # a key has 65 bytes
    try:
        assert run(command("key", "site.key")) != 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
    assert run(command("key", "site.key")) == 0
