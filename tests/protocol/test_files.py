"""Message files: what is written is read, bad files are named, and a folder gives what `collect` gives."""

import json
import os
import re
import shutil
import struct
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from deployed import rows, spoil, with_matrix, with_rows

import covfree
from covfree import collect
from covfree.protocol import checks, files, inbox
from covfree.protocol.files import load_message, save_message
from covfree.protocol.inbox import Inbox

CLASSES, DIM = 3, 2
RNG = np.random.default_rng(0)


def gram(seed: int, **changes) -> covfree.Message:
    rng = np.random.default_rng(seed)
    message = rows(mean=rng.normal(size=(2, DIM)), count=rng.integers(1, 9, 2))
    return with_matrix(message, **changes)


EMPTY = rows(mean=np.zeros((0, DIM)), count=(), label=())
MESSAGES = {
    "means": rows(),
    "no rows": EMPTY,
    "float counts": rows(count_dtype=np.float64),
    "half precision": with_rows(rows(), mean=np.asarray(jnp.ones((2, DIM), jnp.bfloat16))),
    "jax arrays": jax.tree.map(jnp.asarray, rows()),
    "column by column": with_rows(rows(), mean=np.asfortranarray(rows().rows.mean)),
    "every other": with_rows(rows(), mean=np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::2]),
    "clients": with_rows(rows(), client=np.array([5, 7])),
    "covariances": with_rows(rows(), covariance=np.ones((2, DIM, DIM), np.float32)),
    "diagonals": with_rows(rows(), covariance=np.ones((2, DIM), np.float32)),
    "variances": with_rows(rows(), covariance=np.ones(2, np.float32)),
    "sketches": with_rows(rows(label=(0, -1)), sketch=np.array([False, True])),
    "gram": gram(0),
    "solved": gram(0, solved=True),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_what_is_written_is_read(message, tmp_path):
    save_message(message, tmp_path / "a.safetensors")
    again = load_message(tmp_path / "a.safetensors")
    assert jax.tree.structure(again) == jax.tree.structure(message)
    for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(message), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_a_write_that_fails_leaves_what_was_there(untyped, tmp_path):
    path = tmp_path / "a.safetensors"
    save_message(rows(), path)
    with pytest.raises(safetensors.SafetensorError):
        save_message(rows(mean=(("a", "b"), ("c", "d")), mean_dtype="U1"), path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]
    np.testing.assert_array_equal(load_message(path).rows.mean, rows().rows.mean)


def truncated(path):
    save_message(rows(), path)
    path.write_bytes(path.read_bytes()[:-3])


def empty(path):
    path.write_bytes(b"")


def junk(path):
    path.write_bytes(bytes(range(256)) * 8)


def head(path):
    tensors = {"weight": np.ones((DIM, CLASSES)), "bias": np.ones(CLASSES)}
    safetensors.numpy.save_file(tensors, path, metadata={"format": "covfree.LinearHead"})


def other_tensors(path):
    tensors = {name: np.ones(2) for name in ("mean", "count", "label", "momentum")}
    safetensors.numpy.save_file(tensors, path, metadata={"format": "covfree.Message"})


def too_few(path):
    safetensors.numpy.save_file({"mean": np.ones((1, 2))}, path, metadata={"format": "covfree.Message"})


def of_the_future(path):
    tensors = {"mean": np.ones((1, 2)), "count": np.ones(1), "label": np.zeros(1, int)}
    safetensors.numpy.save_file(tensors, path, metadata={"format": "covfree.Message", "version": "99"})


def float8(path):
    """NumPy has no such type, so that reading the tensor would fail in a way of its own."""
    header, place = {"__metadata__": {"format": "covfree.Message"}}, 0
    for name, dtype, shape, size in (
        ("mean", "F32", [1, 2], 8),
        ("label", "I64", [1], 8),
        ("count", "F8_E4M3", [1], 1),
    ):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(place))


BAD_FILES = {
    float8: "in data types among BF16, .*, got {'count': 'F8_E4M3'}",
    truncated: "cut short or no safetensors",
    empty: "cut short or no safetensors",
    junk: "cut short or no safetensors",
    head: "got format 'covfree.LinearHead' with \\['bias', 'weight'\\]",
    other_tensors: "no other tensors than .* got .*momentum",
    of_the_future: "in version 1, got version '99'",
    too_few: "with mean, count, label and .* got \\['mean'\\]",
}


@pytest.mark.parametrize(
    ("write", "reason"), BAD_FILES.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_file_that_is_no_message_is_named(write, reason, tmp_path):
    path = tmp_path / "strange.safetensors"
    write(path)
    with pytest.raises(ValueError, match=f"strange.safetensors: expected a message .*{reason}"):
        load_message(path)


@pytest.mark.parametrize("wrong", [dict(label=(0,)), dict(mean=(1, 2)), dict(label_dtype=np.float32)])
def test_arrays_that_do_not_fit_together_are_named(untyped, wrong, tmp_path):
    save_message(rows(**wrong), tmp_path / "strange.safetensors")
    with pytest.raises(ValueError, match=r"strange.safetensors: expected a message that is sound, got (l|m)"):
        load_message(tmp_path / "strange.safetensors")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_message(tmp_path / "a.safetensors")


def test_a_file_from_before_there_were_versions_is_read(tmp_path):
    tensors = {name: np.asarray(getattr(rows().rows, name)) for name in ("mean", "count", "label")}
    for name in "ab":
        safetensors.numpy.save_file(
            tensors, tmp_path / f"{name}.safetensors", metadata={"format": "covfree.Message"}
        )
    np.testing.assert_array_equal(load_message(tmp_path / "a.safetensors").rows.mean, rows().rows.mean)
    # Without an identity nothing says that one is a copy of the other.
    assert Inbox(tmp_path).rejected == {}


# Folders


def written(folder, messages, **strange) -> Inbox:
    """A folder with these messages, and files that are none."""
    for name, message in messages.items():
        save_message(message, folder / f"{name}.safetensors")
    for name, write in strange.items():
        write(folder / f"{name}.safetensors")
    return Inbox(folder)


@pytest.mark.parametrize("kept", [2**28, 100, 0])
def test_a_message_is_what_it_was_when_the_folder_was_opened(kept, tmp_path, monkeypatch):
    """Those that fit are read once; of others a digest tells whether they changed."""
    monkeypatch.setattr(inbox, "_KEPT", kept)
    messages = {"b": gram(1), "a": rows(), "c": EMPTY}
    folder = written(tmp_path, messages, d=junk)
    assert (list(folder), len(folder), list(folder.rejected)) == (["a", "b", "c"], 3, ["d"])
    assert re.search(r"d.safetensors: expected a message .* cut short", folder.rejected["d"])
    for name, message in messages.items():
        for ours, theirs in zip(jax.tree.leaves(folder[name]), jax.tree.leaves(message), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    for name in ("d", "nobody"):
        with pytest.raises(KeyError, match=name):
            folder[name]


def test_folders_in_a_folder(tmp_path):
    for name in ("hospital/a", "hospital/b", "a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        save_message(rows(), tmp_path / f"{name}.safetensors")
    folder = Inbox(tmp_path, "**/*.safetensors")
    assert list(folder) == ["a", "hospital/a", "hospital/b"]


def test_what_is_no_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for name, why in (("file", "$"), ("none", ", which does not exist")):
        with pytest.raises(ValueError, match=f"path: expected a folder, got '{tmp_path / name}'{why}"):
            Inbox(tmp_path / name)


SENT = {
    "rows": {f"client-{k}": rows(mean=RNG.normal(size=(2, DIM))) for k in range(7)},
    "gram": {f"client-{k}": gram(k) for k in range(7)},
    "solutions": {f"client-{k}": gram(k, solved=True) for k in range(7)},
    "variances": {
        f"client-{k}": with_rows(rows(), covariance=np.full((2, DIM), k, np.float32)) for k in range(7)
    },
}


@pytest.mark.parametrize("kept", [0, 900, 2**28])
@pytest.mark.parametrize("messages", SENT.values(), ids=SENT)
def test_collecting_files_is_collecting_messages(messages, kept, tmp_path, monkeypatch):
    """However many of them are in memory; bad ones before and after sound ones have the same reasons."""
    monkeypatch.setattr(inbox, "_KEPT", kept)
    messages = {
        "another kind": with_rows(rows(), covariance=np.ones(2, np.float32)),
        "beyond": rows(label=(0, CLASSES)),
        "cut": messages["client-1"],
        **messages,
        "client-0": spoil(messages["client-0"], mean=np.nan),
        "none": EMPTY,
        "wide": rows(mean=((1, 2, 3), (4, 5, 6))),
    }
    folder = written(tmp_path, messages, foreign=head, short=truncated, tiny=float8)
    with pytest.raises(ValueError, match=r"dim: expected .* messages differ in it: 2 \(\d+\), 3 \(1\)"):
        collect(folder, num_classes=CLASSES)
    options: dict[str, Any] = {"num_classes": CLASSES, "dim": DIM, "num_examples": {"cut": 99}}
    collected, expected = collect(folder, **options), collect(messages, **options)
    assert collected.clients == expected.clients
    assert jax.tree.structure(collected.message) == jax.tree.structure(expected.message)
    for ours, theirs in zip(
        jax.tree.leaves(collected.message), jax.tree.leaves(expected.message), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert set(expected.rejected) == {"another kind", "beyond", "client-0", "cut", "wide"}
    assert set(collected.rejected) == {*expected.rejected, "foreign", "short", "tiny"}
    assert {name: collected.rejected[name] for name in expected.rejected} == expected.rejected


def test_no_sound_file(tmp_path):
    folder = written(tmp_path, {"a": spoil(rows(), mean=np.nan)}, b=junk)
    collected = collect(folder, num_classes=CLASSES)
    assert collected.clients == ()
    assert collected.rejected["a"].startswith("mean: row")
    assert "b.safetensors: expected a message" in collected.rejected["b"]
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(ValueError, match=r"got none among 1 files. b: .*b.safetensors"):
        covfree.solve_rows(covfree.fedncm(), covfree.Stream(Inbox(tmp_path)), num_classes=CLASSES)


@pytest.mark.parametrize("change", ["unlink", "another", "link"])
def test_a_file_that_is_no_longer_what_it_was_is_set_aside(change, tmp_path, monkeypatch):
    monkeypatch.setattr(inbox, "_KEPT", 0)
    folder = written(tmp_path, {"a": rows(), "b": rows()})
    file = tmp_path / "b.safetensors"
    if change == "another":
        save_message(rows(count=(1, 1)), file)
    else:
        file.unlink()
    if change == "link":
        file.symlink_to("a.safetensors")
    collected = collect(folder, num_classes=CLASSES)
    assert collected.clients == ("a",)
    assert "b.safetensors" in collected.rejected["b"]


def test_a_copy_of_a_file_is_no_other_client(tmp_path):
    """But another client with the same numbers is."""
    written(tmp_path, {"a": gram(0), "b": gram(0), "c": gram(1)})
    time.sleep(0.05)
    shutil.copy(tmp_path / "a.safetensors", tmp_path / "a-copy.safetensors")
    shutil.copy(tmp_path / "c.safetensors", tmp_path / "d.safetensors")
    folder = Inbox(tmp_path)
    assert list(folder.receipts) == ["a", "b", "c"]
    collected = collect(folder, num_classes=CLASSES)
    assert collected.clients == ("a", "b", "c")
    assert set(collected.rejected) == {"a-copy", "d"}
    assert collected.rejected["d"].endswith("d.safetensors: expected a message of its own, got a copy of 'c'")


def test_an_identity_that_was_stolen_does_not_set_the_owner_aside(tmp_path):
    """Whatever the thief sends; only the same bytes are a copy."""
    written(tmp_path, {"good": rows()})
    with safetensors.safe_open(tmp_path / "good.safetensors", "numpy") as opened:
        metadata = opened.metadata()
    parts = {"mean": np.ones((1, 2)), "count": np.array([-5]), "label": np.array([0])}
    safetensors.numpy.save_file(parts, tmp_path / "aaa.safetensors", metadata=metadata)
    shutil.copy(tmp_path / "good.safetensors", tmp_path / "later.safetensors")
    collected = collect(Inbox(tmp_path), num_classes=CLASSES)
    assert collected.clients == ("good",)
    assert collected.rejected["aaa"].startswith("count: row 0 has count -5")
    assert collected.rejected["later"].endswith("got a copy of 'good'")


def test_names_are_as_unique_as_files(tmp_path):
    for name in ("a", "a.safetensors", "b.safetensors"):
        save_message(rows(), tmp_path / name)
    collected = collect(Inbox(tmp_path, "*"), num_classes=CLASSES)
    assert collected.clients == ("a", "a.safetensors", "b")


def test_a_hard_link_does_not_take_over_the_name(tmp_path):
    """It is the same file under another name; that which it was written for counts."""
    written(tmp_path, {"honest": rows(), "other": rows()})
    os.link(tmp_path / "honest.safetensors", tmp_path / "aaa.safetensors")
    (tmp_path / "deep").mkdir()
    shutil.copy2(tmp_path / "other.safetensors", tmp_path / "000.safetensors")
    collected = collect(Inbox(tmp_path), num_classes=CLASSES)
    assert collected.clients == ("honest", "other")
    assert collected.rejected["aaa"].endswith("got a copy of 'honest'")
    assert collected.rejected["000"].endswith("got a copy of 'other'")


def test_what_is_something_else_is_an_error_that_names_it(untyped, tmp_path):
    folder = written(tmp_path, {"0": rows()})
    for call, error, text in (
        (lambda: collect(folder, num_classes=0), ValueError, "num_classes: expected an integer of at least"),
        (
            lambda: collect(folder, num_classes=3, num_examples={0: 8}),
            ValueError,
            "num_examples: expected c",
        ),
        (lambda: Inbox(tmp_path, max_rows=0), ValueError, "max_rows: expected"),
        (lambda: save_message(rows().rows, tmp_path / "b"), TypeError, "message: expected a Message, got R"),
        (
            lambda: covfree.solve_rows(covfree.fedncm(), covfree.Stream(str(tmp_path)), num_classes=3),
            TypeError,
            "rows: expected an Inbox, got str",
        ),
    ):
        with pytest.raises(error, match=text):
            call()
    assert [file.name for file in tmp_path.iterdir()] == ["0.safetensors"]


# What strangers may write


def crafted(path, header: dict, size: int = 0) -> None:
    """A file of this header and so many bytes, all 0, which take no place on the disk."""
    text = json.dumps({"__metadata__": {"format": "covfree.Message"}, **header}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)


def tensor(dtype, shape, place, size):
    return {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}


def sparse(path):
    with path.open("wb") as file:
        file.truncate(6 * 2**30)


def sparse_message(path):
    n = 2**20
    header = {"mean": tensor("F32", [n, 1500], 0, 6000 * n)}
    crafted(
        path,
        {**header, "count": tensor("I8", [n], 6000 * n, n), "label": tensor("I8", [n], 6001 * n, n)},
        6002 * n,
    )


def rows_of_nothing(path):
    n = 10**7
    header = {"mean": tensor("F32", [n, 0], 0, 0), "count": tensor("I8", [n], 0, n)}
    crafted(path, {**header, "label": tensor("I8", [n], n, n)}, 2 * n)


def one_byte(path):
    crafted(path, {})
    with path.open("r+b") as file:
        file.truncate(1)


def deep(path):
    text = b"[" * 10**6
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def endless_header(path):
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 2**29) + b"{")
        file.truncate(2**29 + 8)


def no_table(path):
    path.write_bytes(struct.pack("<Q", 1) + b"7")


def of_words(about):
    return lambda path: crafted(path, {"mean": about, "count": about, "label": about}, 8)


STRANGE = {
    sparse: "of at most 1073741824 bytes, got 6442450944",
    sparse_message: "of at most 1073741824 bytes",
    rows_of_nothing: "of at most 1048576 rows, got 10000000",
    one_byte: "cut short",
    deep: "cut short or no safetensors: .*recursion|cut short or no safetensors: .*header",
    no_table: "cut short or no safetensors",
    endless_header: "its header is of 536870912 bytes",
    of_words(tensor("I64", [1], 0, 8)): "lies at 0 to 8; expected 8 bytes from 8 on",
    of_words(tensor("I64", [-1], 0, 8)): "has the shape",
    of_words(tensor("I64", [2**70], 0, 8)): "has the shape",
    of_words(tensor("I64", ["1"], 0, 8)): "has the shape",
    of_words({"dtype": "I64"}): "cut short or no safetensors",
    of_words(3): "cut short or no safetensors",
    of_words(tensor(["I64"], [1], 0, 8)): "no data type",
}


@pytest.mark.parametrize(("write", "reason"), STRANGE.items(), ids=[str(k) for k in range(len(STRANGE))])
def test_what_strangers_write_is_set_aside(write, reason, tmp_path):
    """Whoever reads the folder, and without reading what is too large."""
    folder = written(tmp_path, {"good": rows()}, bad=write)
    assert re.search(reason, folder.rejected["bad"])
    collected = collect(folder, num_classes=CLASSES)
    assert collected.clients == ("good",)
    head = covfree.solve_rows(covfree.fedncm(), covfree.Stream(folder), num_classes=CLASSES)
    assert head.weight.shape == (DIM, CLASSES)


def test_a_file_far_larger_than_all_others_is_not_read(tmp_path):
    def large(path):
        n = 2**20
        header = {"mean": tensor("F32", [n, 16], 0, 64 * n), "count": tensor("I8", [n], 64 * n, n)}
        crafted(path, {**header, "label": tensor("I8", [n], 65 * n, n)}, 66 * n)

    folder = written(tmp_path, {str(k): rows() for k in range(3)}, large=large)
    assert "of at most 67108864 bytes, got 692" in folder.rejected["large"]
    assert Inbox(tmp_path, max_bytes=2**27).rejected == {}


def test_a_file_that_is_cut_short_while_it_is_read(tmp_path, monkeypatch):
    """Were the file mapped, a signal would end this process."""
    read = files.read_tensors

    def cut(file, header, length):
        if os.path.samestat(os.fstat(file.fileno()), os.stat(tmp_path / "b.safetensors")):
            os.truncate(tmp_path / "b.safetensors", 100)
        return read(file, header, length)

    written(tmp_path, {"a": gram(0), "b": gram(1)})
    monkeypatch.setattr(inbox, "_KEPT", 0)
    folder = Inbox(tmp_path)
    monkeypatch.setattr(files, "read_tensors", cut)
    collected = collect(folder, num_classes=CLASSES)
    assert collected.clients == ("a",)
    assert "cut short or no safetensors: it ends after" in collected.rejected["b"]


def test_memory_that_is_not_there_is_a_reason(monkeypatch, tmp_path):
    folder = written(tmp_path, {"a": rows(), "b": rows()})
    taken = checks.as_received

    def full(message):
        if message is folder["a"]:
            raise MemoryError
        return taken(message)

    monkeypatch.setattr(checks, "as_received", full)
    collected = collect(folder, num_classes=CLASSES, max_norm=100)
    assert (collected.clients, collected.rejected) == (("b",), {"a": "MemoryError: "})


def test_padding_is_not_kept(tmp_path):
    """10⁶ rows of zeros cost nothing once they were looked at."""
    n = 10**5
    wide = covfree.Message(
        covfree.Rows(np.zeros((n, DIM), np.float32), np.zeros(n, np.int8), np.zeros(n, np.int8))
    )
    collected = collect(written(tmp_path, {"a": rows(), "zeros": wide}), num_classes=CLASSES)
    assert collected.clients == ("a", "zeros")
    assert len(collected.message.rows.count) == 2


@pytest.mark.parametrize("client", [np.zeros(5, int), np.zeros(2), np.zeros((2, 2), int)], ids=str)
def test_a_column_of_clients_of_another_shape(untyped, client, tmp_path):
    folder = written(tmp_path, {"good": rows(), "bad": with_rows(rows(), client=client)})
    covfree.solve_rows(covfree.fedncm(), covfree.Stream(folder), num_classes=CLASSES)
    assert folder.rejected["bad"].startswith("client: expected ")
    assert collect(folder, num_classes=CLASSES).rejected == folder.rejected


def test_a_name_that_is_not_utf_8(tmp_path):
    folder = written(tmp_path, {"good": rows()})
    shutil.copy(tmp_path / "good.safetensors", os.fsencode(tmp_path) + b"/\xff.safetensors")
    folder = Inbox(tmp_path)
    covfree.solve_rows(
        covfree.fedncm(), covfree.Stream(folder, checkpoint=tmp_path / "run"), num_classes=CLASSES
    )
    assert folder.rejected == {"\udcff": f"path: '{tmp_path}/\\udcff.safetensors': expected a name in UTF-8"}


def test_bounds_of_a_folder_are_those_of_messages(tmp_path):
    sent = {"a": rows(), "b": rows(count=(10**6, 5)), "c": rows(mean=9 * np.ones((2, 2)))}
    bounds = {"max_count": 1000, "max_norm": 6.0}
    folder = written(tmp_path, sent)
    collected = collect(folder, num_classes=CLASSES, **bounds)
    assert collected.clients == ("a",)
    assert collected.rejected["b"] == "count: counts sum to 1000005; expected at most max_count = 1000"
    assert collected.rejected["c"].startswith(
        "mean: row 0 (class 0) implies features with a root-mean-square norm of 12.7"
    )
    assert collected.bounds == {"max_count": "1000, as given", "max_norm": "6.0, as given"}
    covfree.solve_rows(covfree.fedncm(), covfree.Stream(folder, **bounds), num_classes=CLASSES)
    assert folder.rejected == collected.rejected
