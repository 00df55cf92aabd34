"""A server that looks into a folder again and again: what came in time, what came again, and what is odd."""

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from deployed import rows, spoil, with_matrix

import covfree
from covfree import collect, load_collected, save_collected
from covfree.protocol import door
from covfree.protocol.files import load_message, save_message
from covfree.protocol.inbox import Inbox

CLASSES = 3
SAME = "sent the same message again; a client counts once, so the first counts"
OTHER = "sent another message; the first counts"


def look(path, before=None, **options) -> covfree.Collected:
    """Open the folder and collect what is there."""
    return collect(Inbox(path, **options), num_classes=CLASSES, before=before)


def put(path, *names, message=None) -> None:
    for name in names:
        save_message(with_matrix(rows()) if message is None else message, path / f"{name}.safetensors")


def assert_same_message(ours, theirs) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


# Looking again


def test_a_folder_that_fills_up_gives_what_a_full_one_gives(tmp_path):
    server = look(tmp_path)
    assert server.clients == ()
    with pytest.raises(ValueError, match="message: expected the rows of a client at least, got none"):
        covfree.solve_message(covfree.fed3r(), server.message, num_classes=CLASSES)
    with pytest.raises(ValueError, match="folder: expected a sound message, got a folder without messages"):
        covfree.solve_rows(covfree.fedncm(), covfree.Stream(Inbox(tmp_path)), num_classes=CLASSES)
    for name in "abc":
        put(tmp_path, name)
        server = look(tmp_path, server)
        assert server.clients[-1] == name
        assert (server.rejected, server.repeated) == ({}, {})
    assert_same_message(server.message, look(tmp_path).message)


def test_files_that_were_counted_are_not_checked_again(tmp_path, monkeypatch):
    put(tmp_path, "a", "b")
    server = look(tmp_path)
    put(tmp_path, "c")
    checked = []
    check = door.check_message
    monkeypatch.setattr(door, "check_message", lambda *given: checked.append(given) or check(*given))
    server = look(tmp_path, server)
    assert len(checked) == 1
    assert server.clients == ("a", "b", "c")
    # Nor is one whose file is gone lost.
    (tmp_path / "a.safetensors").unlink()
    assert look(tmp_path, server).clients == ("a", "b", "c")


def test_a_server_that_was_stopped_goes_on(tmp_path):
    """What was counted is in a file; without it a replaced message would count in place of the first."""
    box = tmp_path / "inbox"
    box.mkdir()
    put(box, "a", "b", "c")
    (box / "d.safetensors").write_bytes(b"junk")
    save_collected(look(box), tmp_path / "server.safetensors")
    put(box, "a", message=with_matrix(rows(count=(1, 1))))
    put(box, "e")
    server = load_collected(tmp_path / "server.safetensors")
    again = look(box, server)
    assert again.clients == ("a", "b", "c", "e")
    assert again.repeated["a"].startswith(OTHER)
    assert list(again.rejected) == ["d"]
    np.testing.assert_array_equal(again.message.rows.count, [3, 5] * 4)
    left = covfree.forget(again, "b", message=with_matrix(rows()))
    np.testing.assert_allclose(left.message.matrix, 3 * with_matrix(rows()).matrix)
    assert look(box).message.rows.count.tolist() == [1, 1, *[3, 5] * 3]


@pytest.mark.parametrize("names", [("a", "b"), (1, 2), (1, "1")], ids=str)
@pytest.mark.parametrize("message", [rows(), with_matrix(rows()), with_matrix(rows(), solved=True)])
def test_what_was_collected_is_what_is_loaded(names, message, tmp_path):
    classes = ("cat", "dog", "cow")
    sent = {name: dataclasses.replace(message, sends="x", class_names=classes) for name in names}
    server = collect({**sent, 9: spoil(message, mean=np.nan)}, num_classes=CLASSES)
    server = collect(sent, num_classes=CLASSES, before=server)
    save_collected(server, tmp_path / "server")
    again = load_collected(tmp_path / "server")
    assert_same_message(again.message, server.message)
    for name in ("clients", "rejected", "repeated", "solved", "receipts", "bounds", "doubted"):
        assert getattr(again, name) == getattr(server, name), name


def test_what_is_no_file_of_a_server(untyped, tmp_path):
    put(tmp_path, "a")
    with pytest.raises(ValueError, match=r"got format 'covfree.Message'"):
        load_collected(tmp_path / "a.safetensors")
    server = collect({(1, 2): rows()}, num_classes=CLASSES)
    with pytest.raises(TypeError, match=r"clients: expected names that are texts or .* got \(1, 2\)"):
        save_collected(server, tmp_path / "server")
    save_collected(look(tmp_path), tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"got format 'covfree.Collected'"):
        load_message(tmp_path / "b.safetensors")


def test_who_sends_again_is_named_and_the_first_counts(tmp_path):
    put(tmp_path, "a", "b", "c", "d", "e")
    server = look(tmp_path)
    put(tmp_path, "a")
    put(tmp_path, "b", message=with_matrix(rows(count=(1, 1))))
    put(tmp_path, "c", message=rows(mean=((1, 2, 3), (4, 5, 6))))
    (tmp_path / "d.safetensors").write_bytes(b"junk")
    again = look(tmp_path, server)
    assert_same_message(again.message, server.message)
    assert again.clients == server.clients
    assert again.rejected == {}
    assert list(again.repeated) == ["a", "b", "c", "d"]
    assert again.repeated["a"] == SAME
    assert again.repeated["b"].startswith(OTHER)
    assert again.repeated["c"].startswith(OTHER)
    assert again.repeated["d"].startswith("sent what was set aside (path: ")
    # The other can be let count, as the reason says.
    sent = with_matrix(rows())
    changed = look(tmp_path, covfree.forget(again, "b", message=sent))
    assert changed.clients == ("a", "c", "d", "e", "b")
    np.testing.assert_array_equal(changed.message.rows.count[-2:], [1, 1])


def test_a_file_that_is_touched_all_the_time_is_what_it_is(tmp_path, monkeypatch):
    """And one that was put there again with the same bytes, or has a new mode, is the same file."""
    monkeypatch.setattr("covfree.protocol.inbox._KEPT", 0)
    put(tmp_path, "a", "b", message=rows())
    folder, read = Inbox(tmp_path), Inbox._read

    def touched(self, name):
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(file.read_bytes())
        file.chmod(0o600)
        return read(self, name)

    monkeypatch.setattr(Inbox, "_read", touched)
    server = collect(folder, num_classes=CLASSES)
    assert server.clients == ("a", "b")
    covfree.solve_rows(covfree.fedcof(1.0), covfree.Stream(folder), num_classes=CLASSES)
    assert folder.rejected == {}
    assert look(tmp_path, server).repeated == {}


def test_a_copy_of_what_was_counted_is_none_of_its_own_whatever_became_of_the_file(tmp_path):
    """But another client's message with the same numbers is."""
    put(tmp_path, "a", "moved")
    time.sleep(0.05)
    shutil.copy(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    server = look(tmp_path)
    assert server.clients == ("a", "moved")
    put(tmp_path, "a", "c")
    (tmp_path / "moved.safetensors").rename(tmp_path / "d.safetensors")
    again = look(tmp_path, server)
    assert again.clients == ("a", "moved", "c")
    assert again.repeated == {"a": SAME}
    assert set(again.rejected) == {"b", "d"}
    for name, first in {"b": "a", "d": "moved"}.items():
        expected = f"message: expected each client's own, got a copy of what {first!r} sent"
        assert again.rejected[name] == expected
    # What a copy held back may be sent again, and a client that was forgotten may come under another name.
    put(tmp_path, "b")
    again = look(tmp_path, covfree.forget(again, "moved", message=with_matrix(rows())))
    assert again.clients == ("a", "c", "b", "d")
    assert again.rejected == {}


def test_a_file_counts_once_though_the_pattern_gives_it_another_name(tmp_path):
    put(tmp_path, "a")
    server = look(tmp_path, pattern="*")
    assert server.clients == ("a",)
    save_message(with_matrix(rows(count=(1, 1))), tmp_path / "a")
    again = look(tmp_path, server, pattern="*")
    assert again.clients == ("a",)
    assert again.rejected["a.safetensors"].endswith("got a copy of what 'a' sent")
    assert again.repeated["a"].startswith(OTHER)


def test_who_was_set_aside_may_send_again(tmp_path):
    put(tmp_path, "a")
    put(tmp_path, "b", message=spoil(with_matrix(rows()), mean=np.nan))
    (tmp_path / "c.safetensors").write_bytes(b"cut short")
    server = look(tmp_path)
    assert set(server.rejected) == {"b", "c"}
    put(tmp_path, "b", "c")
    server = look(tmp_path, server)
    assert server.clients == ("a", "b", "c")
    assert (server.rejected, server.repeated) == ({}, {})


def test_numbers_announced_by_those_set_aside_do_not_stop_a_look(tmp_path):
    put(tmp_path, "a")
    (tmp_path / "b.safetensors").write_bytes(b"junk")
    server = collect(Inbox(tmp_path), num_classes=CLASSES, num_examples={"b": 10})
    assert (server.clients, list(server.rejected)) == (("a",), ["b"])
    # A name that nobody has is still told from those that count, and only if there are some.
    with pytest.raises(
        ValueError, match="num_examples: expected clients that sent, such as 'a', 'b'; got 'x"
    ):
        collect(Inbox(tmp_path), num_classes=CLASSES, num_examples={"x": 10})
    for file in tmp_path.iterdir():
        file.unlink()
    assert collect(Inbox(tmp_path), num_classes=CLASSES, num_examples={"x": 10}).clients == ()


# Odd files


def test_what_is_no_file_of_its_own_is_set_aside(tmp_path):
    """A pipe that nobody writes to would be waited for, and a link may lead anywhere."""
    put(tmp_path, "good")
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to("good.safetensors")
    (tmp_path / "dangling.safetensors").symlink_to("none")
    server = look(tmp_path)
    assert server.clients == ("good",)
    for name, kind in {
        "pipe": "a pipe, socket or device",
        "folder": "a folder",
        "link": "a symbolic link",
        "dangling": "a symbolic link",
    }.items():
        assert server.rejected[name].endswith(f"{name}.safetensors: expected a regular file, got {kind}")


def test_names_that_do_not_print_do_not_break_lines(tmp_path):
    put(tmp_path, "new\nline")
    for name in ("a\nforged: line", "b\x1b[2J"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"junk")
    shutil.move(tmp_path / "b\x1b[2J.safetensors", os.fsencode(tmp_path) + b"/\xff.safetensors")
    server = look(tmp_path)
    assert server.clients == ("new\nline",)
    assert set(server.rejected) == {"a\nforged: line", "\udcff"}
    assert all(reason.isprintable() for reason in server.rejected.values())
    (tmp_path / "new\nline.safetensors").unlink()
    with pytest.raises(ValueError, match="none among 2 files") as error:
        covfree.solve_rows(covfree.fedncm(), covfree.Stream(Inbox(tmp_path)), num_classes=CLASSES)
    assert str(error.value).isprintable()


@pytest.fixture
def unprivileged():
    """A folder that a user without privileges may look into; root becomes such a user for the test."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    put(folder, "good")
    (folder / "inner").mkdir()
    put(folder / "inner", "a")
    put(folder, "secret")
    for name in ("inner", "secret.safetensors"):
        (folder / name).chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
    (folder / "inner").chmod(0o700)
    shutil.rmtree(folder)


def test_what_may_not_be_read_is_named(unprivileged):
    server = look(unprivileged)
    assert server.clients == ("good",)
    assert list(server.rejected) == ["secret"]
    assert "Permission denied: " in server.rejected["secret"]
    # A folder that cannot be looked into may hold messages.
    server = look(unprivileged, pattern="**/*.safetensors")
    assert server.clients == ("good",)
    assert set(server.rejected) == {"secret", "inner/"}
    assert "Permission denied: " in server.rejected["inner/"]
    with pytest.raises(PermissionError, match=r"Permission denied: .*inner"):
        look(unprivileged / "inner")
    with pytest.raises(PermissionError, match=r"Permission denied: .*secret"):
        load_message(unprivileged / "secret.safetensors")


def test_files_that_are_being_written_are_no_messages(tmp_path):
    """Whatever the pattern; those of killed writers are removed after an hour."""
    put(tmp_path, "a")
    temporary = tmp_path / ".covfree-0123.tmp"
    shutil.copy(tmp_path / "a.safetensors", temporary)
    assert look(tmp_path, pattern="*").clients == ("a",)
    assert temporary.exists()
    os.utime(temporary, (0, 0))
    look(tmp_path)
    assert not temporary.exists()
    # In folders of the folder, if messages are looked for there.
    (tmp_path / "inner").mkdir()
    temporary = tmp_path / "inner" / temporary.name
    temporary.write_bytes(b"half")
    os.utime(temporary, (0, 0))
    look(tmp_path)
    assert temporary.exists()
    look(tmp_path, pattern="**/*.safetensors")
    assert not temporary.exists()


WRITERS = """
import os, random, signal, sys, time
import numpy as np
import covfree

def write(name, seed):
    rng = np.random.default_rng(seed)
    while True:
        rows = covfree.Rows(rng.normal(size=(2000, 50)), np.full(2000, 3), np.arange(2000) % 3)
        covfree.save_message(covfree.Message(rows), f"{sys.argv[1]}/{name}.safetensors")

os.umask(0o027)
random.seed(0)
# What is loaded for the first message is there when the others are timed.
rows = covfree.Rows(np.ones((1, 50)), np.ones(1), np.zeros(1, int))
covfree.save_message(covfree.Message(rows), sys.argv[2])
for trial in range(600):
    # On a busy machine few get so far as to write: the later ones have more time.
    if trial >= 30 and sum(name.endswith(".safetensors") for name in os.listdir(sys.argv[1])) >= 5:
        break
    child = os.fork()
    if child == 0:
        write(f"client-{trial % 7}", trial)
    time.sleep(random.uniform(0.001, 0.03) * (1 + trial / 30))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_writers_that_are_killed_while_a_server_looks(tmp_path):
    """Every file that has a message's name is whole at any time, and the group may read it."""
    (tmp_path / "inbox").mkdir()
    given = [sys.executable, "-W", "ignore", "-c", WRITERS, tmp_path / "inbox", tmp_path / "first"]
    server, looks = look(tmp_path / "inbox"), 0
    with subprocess.Popen(given) as writers:
        while writers.poll() is None:
            folder = Inbox(tmp_path / "inbox")
            assert folder.rejected == {}
            server = collect(folder, num_classes=CLASSES, before=server)
            assert server.rejected == {}
            looks += 1
            time.sleep(0.02)
    assert writers.returncode == 0
    assert looks > 5
    server = look(tmp_path / "inbox", server)
    written = sorted((tmp_path / "inbox").glob("*.safetensors"))
    assert len(written) >= 5
    assert sorted(server.clients) == [file.stem for file in written]
    assert server.rejected == {}
    assert {file.stat().st_mode & 0o777 for file in written} == {0o640}
    left = list((tmp_path / "inbox").glob(".covfree-*.tmp"))
    assert left, "expected writers that were killed in the middle"
    for file in left:
        os.utime(file, (0, 0))
    look(tmp_path / "inbox")
    assert sorted((tmp_path / "inbox").iterdir()) == written
