"""Message files: what is written is read, bad files are named, and a folder gives what `collect` gives."""

import json
import shutil
import struct
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from deployed import rows, spoil, with_matrix, with_rows

import covfree
from covfree.protocol import inbox
from covfree.protocol.files import load_message, save_message
from covfree.protocol.folder import MessageFolder
from covfree.protocol.inbox import collect_files

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
    assert MessageFolder(tmp_path).rejected == {}


# Folders


def written(folder, messages, **strange) -> MessageFolder:
    """A folder with these messages, and files that are none."""
    for name, message in messages.items():
        save_message(message, folder / f"{name}.safetensors")
    for name, write in strange.items():
        write(folder / f"{name}.safetensors")
    return MessageFolder(folder)


def test_a_folder_reads_headers_and_counts_alone(tmp_path, monkeypatch):
    messages = {"b": gram(1), "a": rows(), "c": EMPTY}
    written(tmp_path, messages, d=junk)
    opened = safetensors.safe_open
    read = []

    class Spy:
        """Notes every number that is read."""

        def __init__(self, *args, **options):
            self._file = opened(*args, **options)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def get_slice(self, name):
            tensor = self._file.get_slice(name)

            class Slice:
                get_shape, get_dtype = tensor.get_shape, tensor.get_dtype

                def __getitem__(self, key):
                    read.append(tensor[key].size)
                    return tensor[key]

            return Slice()

        def get_tensor(self, name):
            read.append(self._file.get_tensor(name).size)
            return self._file.get_tensor(name)

        def __getattr__(self, name):
            return getattr(self._file, name)

    monkeypatch.setattr(safetensors, "safe_open", Spy)
    folder = MessageFolder(tmp_path)
    # The counts of two messages of two rows, and nothing of any other part.
    assert set(read) == {0, 2}
    assert read.count(2) == 2
    assert [file.name for file in folder.files] == ["a", "b", "c"]
    assert list(folder.rejected) == ["d"]
    for file in folder.files:
        for ours, theirs in zip(
            jax.tree.leaves(file.header), jax.tree.leaves(messages[file.name]), strict=True
        ):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


def test_folders_in_a_folder(tmp_path):
    for name in ("hospital/a", "hospital/b", "a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        save_message(rows(), tmp_path / f"{name}.safetensors")
    folder = MessageFolder(tmp_path, "**/*.safetensors")
    assert [file.name for file in folder.files] == ["a", "hospital/a", "hospital/b"]


def test_what_is_no_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "none"):
        with pytest.raises(ValueError, match=f"path: expected a folder, got '{path}'"):
            MessageFolder(path)


SENT = {
    "rows": {f"client-{k}": rows(mean=RNG.normal(size=(2, DIM))) for k in range(7)},
    "gram": {f"client-{k}": gram(k) for k in range(7)},
    "solutions": {f"client-{k}": gram(k, solved=True) for k in range(7)},
    "variances": {
        f"client-{k}": with_rows(rows(), covariance=np.full((2, DIM), k, np.float32)) for k in range(7)
    },
}


@pytest.mark.parametrize("batch", [1, 900, 2**28])
@pytest.mark.parametrize("messages", SENT.values(), ids=SENT)
def test_collecting_files_is_collecting_messages(messages, batch, tmp_path, monkeypatch):
    messages = {**messages, "client-0": spoil(messages["client-0"], mean=np.nan), "none": EMPTY}
    folder = written(tmp_path, messages, foreign=head, short=truncated, tiny=float8)
    monkeypatch.setattr(inbox, "_BATCH", batch)
    sizes = []

    def noted(batch, **options):
        sizes.append(len(batch))
        return covfree.collect(batch, **options)

    monkeypatch.setattr(inbox, "collect", noted)
    collected = collect_files(folder, num_classes=CLASSES)
    expected = covfree.collect(messages, num_classes=CLASSES)
    # A batch is a file, or about two, or all.
    assert max(sizes) == {1: 1, 900: max(sizes), 2**28: 8}[batch]
    assert batch != 900 or 1 < max(sizes) < 4
    assert collected.clients == expected.clients
    assert jax.tree.structure(collected.message) == jax.tree.structure(expected.message)
    for ours, theirs in zip(
        jax.tree.leaves(collected.message), jax.tree.leaves(expected.message), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert set(collected.rejected) == {"client-0", "foreign", "short", "tiny"}
    assert collected.rejected["client-0"] == expected.rejected["client-0"]


@pytest.mark.parametrize("batch", [1, 2**28])
def test_all_files_say_what_is_expected_of_each(untyped, batch, tmp_path, monkeypatch):
    # The odd ones come first, and would be the measure in a batch of their own.
    messages = {"a": rows(mean=((1, 2, 3), (4, 5, 6))), "b": gram(0), **SENT["rows"]}
    folder = written(tmp_path, {**messages, "c": rows(label=(0,))})
    monkeypatch.setattr(inbox, "_BATCH", batch)
    with pytest.raises(ValueError, match=r"dim: expected .* got None and messages of 2 \(8\), 3 \(1\)"):
        collect_files(folder, num_classes=CLASSES)
    collected = collect_files(folder, num_classes=CLASSES, dim=DIM)
    assert collected.clients == tuple(SENT["rows"])
    assert collected.rejected == {
        "a": "mean: expected shape [rows, 2], got [2, 3]",
        "b": "matrix: expected none as others send, got an array of 2 dimensions",
        "c": "label: expected shape [2] as mean has, got [1]",
    }
    three = collect_files(folder, num_classes=CLASSES, dim=3)
    assert three.clients == ("a",)


def test_counts_that_were_announced(tmp_path):
    folder = written(tmp_path, {name: rows() for name in "abc"})
    collected = collect_files(folder, num_classes=CLASSES, num_examples={"a": 7, "b": 8})
    assert collected.clients == ("b", "c")
    assert collected.rejected == {"a": "count: counts sum to 8; expected the 7 examples announced"}


def test_bad_files_before_any_sound_one_are_named_too(tmp_path, monkeypatch):
    wrong = {
        "a": spoil(rows(), mean=np.inf),
        "b": rows(label=(0, CLASSES)),
        "c": rows(count=(1, 1)),
    }
    folder = written(tmp_path, {**wrong, "d": rows()})
    monkeypatch.setattr(inbox, "_BATCH", 1)
    collected = collect_files(folder, num_classes=CLASSES, num_examples={"c": 8})
    assert collected.clients == ("d",)
    assert collected.rejected == dict(
        covfree.collect({**wrong, "d": rows()}, num_classes=CLASSES, num_examples={"c": 8}).rejected
    )


def test_no_sound_file(tmp_path):
    folder = written(tmp_path, {"a": spoil(rows(), mean=np.nan)}, b=junk)
    collected = collect_files(folder, num_classes=CLASSES)
    assert collected.clients == ()
    assert collected.rejected["a"].startswith("mean: row")
    assert "b.safetensors: expected a message" in collected.rejected["b"]
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(ValueError, match=r"got none among 1 files. b: .*b.safetensors"):
        covfree.solve_stream(covfree.fedncm(), MessageFolder(tmp_path), num_classes=CLASSES)


def test_a_file_that_is_gone_is_set_aside(tmp_path):
    folder = written(tmp_path, {"a": rows(), "b": rows()})
    (tmp_path / "a.safetensors").unlink()
    collected = collect_files(folder, num_classes=CLASSES)
    assert collected.clients == ("b",)
    assert "a.safetensors" in collected.rejected["a"]


def test_a_copy_of_a_file_is_no_other_client(tmp_path):
    """But another client with the same numbers is."""
    written(tmp_path, {"a": gram(0), "b": gram(0), "c": gram(1)})
    time.sleep(0.05)
    shutil.copy(tmp_path / "a.safetensors", tmp_path / "a-copy.safetensors")
    shutil.copy(tmp_path / "c.safetensors", tmp_path / "d.safetensors")
    folder = MessageFolder(tmp_path)
    assert [file.name for file in folder.files] == ["a", "b", "c"]
    collected = collect_files(folder, num_classes=CLASSES)
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
    collected = collect_files(MessageFolder(tmp_path), num_classes=CLASSES)
    assert collected.clients == ("good",)
    assert collected.rejected["aaa"].startswith("count: row 0 has count -5")
    assert collected.rejected["later"].endswith("got a copy of 'good'")


def test_names_are_as_unique_as_files(tmp_path):
    for name in ("a", "a.safetensors", "b.safetensors"):
        save_message(rows(), tmp_path / name)
    collected = collect_files(MessageFolder(tmp_path, "*"), num_classes=CLASSES)
    assert collected.clients == ("a", "a.safetensors", "b")


def test_what_is_something_else_is_an_error_that_names_it(untyped, tmp_path):
    folder = written(tmp_path, {"0": rows()})
    for call, error, text in (
        (
            lambda: collect_files(str(tmp_path), num_classes=3),
            TypeError,
            "folder: expected a MessageFolder, got str",
        ),
        (
            lambda: collect_files(folder, num_classes=0),
            ValueError,
            "num_classes: expected an integer of at least",
        ),
        (
            lambda: collect_files(folder, num_classes=3, num_examples={0: 8}),
            ValueError,
            "num_examples: expected c",
        ),
        (
            lambda: save_message(rows().rows, tmp_path / "b"),
            TypeError,
            "message: expected a Message, got Rows",
        ),
        (
            lambda: covfree.solve_stream(covfree.fedncm(), str(tmp_path), num_classes=3),
            TypeError,
            "source: expected a MessageFolder, got str",
        ),
    ):
        with pytest.raises(error, match=text):
            call()
    assert [file.name for file in tmp_path.iterdir()] == ["0.safetensors"]


def test_bounds_of_a_folder_are_those_of_messages(tmp_path):
    sent = {"a": rows(), "b": rows(count=(10**6, 5)), "c": rows(mean=9 * np.ones((2, 2)))}
    folder = written(tmp_path, sent)
    collected = collect_files(folder, num_classes=CLASSES, max_count=1000, max_norm=6.0)
    assert collected.clients == ("a",)
    assert collected.rejected["b"] == "count: counts sum to 1000005; expected at most max_count = 1000"
    assert collected.rejected["c"].startswith("mean: row 0 (class 0) is of features of norm 12.7")
