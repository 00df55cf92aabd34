"""Feature sets: the digits, and .npz files, sound and broken."""

import io
import json
import zipfile

import numpy as np
import pytest

from covfree import LinearHead, save_head
from covfree.core.array_file import read_npz
from covfree.data import FeatureSet, load, load_digits, load_npz

EXAMPLES, DIM, CLASSES = 30, 4, 3


def arrays(seed: int = 0, **others) -> dict[str, np.ndarray]:
    """A sound file's arrays: 10 examples of each of 3 classes. ``None`` leaves one out."""
    features = np.random.default_rng(seed).normal(size=(EXAMPLES, DIM)).astype(np.float32)
    sound = {"features": features, "labels": np.arange(EXAMPLES) % CLASSES}
    return {name: array for name, array in {**sound, **others}.items() if array is not None}


@pytest.fixture
def file(tmp_path):
    """Writes arrays to a file and gives its path."""

    def write(name: str = "mine.npz", **others):
        np.savez(tmp_path / name, **arrays(**others))
        return tmp_path / name

    return write


def assert_same(a: FeatureSet, b: FeatureSet):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def merged(data: FeatureSet) -> np.ndarray:
    """All examples of both parts, sorted, as [label, features]."""
    features = np.concatenate([data.train_features, data.test_features])
    labels = np.concatenate([data.train_labels, data.test_labels])
    table = np.column_stack([labels, features])
    return table[np.lexsort(table.T[::-1])]


# The digits


def test_digits():
    data = load_digits()
    assert data.name == "digits"
    assert data.train_features.shape[1] == data.test_features.shape[1] == 64
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert data.num_classes == 10
    assert data.clients is None
    assert not data.fixed_split
    assert data.train_features.dtype == data.test_features.dtype == np.float32
    assert data.train_labels.dtype == data.test_labels.dtype == np.int32
    for features in (data.train_features, data.test_features):
        assert features.min() == 0
        assert features.max() == 1


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits as sklearn_digits

    pixels, labels = sklearn_digits(return_X_y=True)
    table = np.column_stack([labels, pixels / 16])
    np.testing.assert_array_equal(merged(load_digits()), table[np.lexsort(table.T[::-1])])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_third_of_each_class_is_held_out(seed):
    data = load_digits(seed=seed)
    train, test = np.bincount(data.train_labels), np.bincount(data.test_labels)
    np.testing.assert_array_equal(test, (train + test) // 3)


def test_the_split_is_drawn_by_the_seed_alone():
    assert_same(load_digits(seed=3), load_digits(seed=3))
    assert_same(load_digits(seed=3), load("digits", seed=3))
    first, second = load_digits(seed=0), load_digits(seed=1)
    assert (first.test_features != second.test_features).any()
    np.testing.assert_array_equal(merged(first), merged(second))


def test_digits_have_no_separate_test_file(file):
    with pytest.raises(ValueError, match="test: expected none with dataset 'digits'"):
        load("digits", test=file())


@pytest.mark.parametrize("name", ["Digits", "mnist", "", "features.mat"])
def test_unknown_dataset(name):
    with pytest.raises(ValueError, match=r"dataset: expected 'digits', the path of a file that ends in"):
        load(name)


# Sound files


def test_a_file_without_a_test_part_is_split_by_the_seed(file):
    path = file()
    data = load_npz(path, seed=1)
    assert data.name == "mine"
    assert not data.fixed_split
    assert data.clients is None
    assert data.num_classes == CLASSES
    np.testing.assert_array_equal(np.bincount(data.test_labels), [3, 3, 3])
    sound = arrays()
    table = np.column_stack([sound["labels"], sound["features"]])
    np.testing.assert_array_equal(merged(data), table[np.lexsort(table.T[::-1])])
    assert_same(data, load_npz(path, seed=1))
    assert_same(data, load(str(path), seed=1))
    assert (data.test_features != load_npz(path, seed=2).test_features).any()


def test_is_test_decides_and_no_seed_changes_it(file):
    is_test = np.arange(EXAMPLES) % 7 == 0
    path, sound = file(is_test=is_test), arrays()
    data = load_npz(path)
    assert data.fixed_split
    np.testing.assert_array_equal(data.train_features, sound["features"][~is_test])
    np.testing.assert_array_equal(data.train_labels, sound["labels"][~is_test])
    np.testing.assert_array_equal(data.test_features, sound["features"][is_test])
    np.testing.assert_array_equal(data.test_labels, sound["labels"][is_test])
    assert_same(data, load_npz(path, seed=9))


def test_a_separate_test_file(file):
    path, test = file(), file("test.npz", seed=1, labels=np.arange(EXAMPLES) % 5)
    data = load_npz(path, test=test)
    assert data.fixed_split
    assert data.name == "mine"
    np.testing.assert_array_equal(data.train_features, arrays()["features"])
    np.testing.assert_array_equal(data.test_features, arrays(1)["features"])
    np.testing.assert_array_equal(data.test_labels, np.arange(EXAMPLES) % 5)
    assert data.num_classes == 5  # two of them only in the test part
    assert_same(data, load_npz(path, test=test, seed=9))
    assert_same(data, load(path, test=test))


@pytest.mark.parametrize("names", [[3, 10**9, 77], ["zoe", "abe", "mia"], [b"z", b"a", b"\xff"]])
def test_clients_are_numbered_in_the_order_of_their_names(file, names):
    """Integers with gaps, strings and bytes; order of the sorted names."""
    clients = np.array(names)[np.arange(EXAMPLES) // 4 % 3]
    is_test = np.arange(EXAMPLES) % 5 == 0
    data = load_npz(file(clients=clients, is_test=is_test))
    assert data.clients.dtype == np.int32
    expected = [sorted(names).index(name) for name in clients[~is_test].tolist()]
    np.testing.assert_array_equal(data.clients, expected)
    shown = (
        name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in sorted(names)
    )
    assert data.client_names == tuple(shown)


@pytest.mark.parametrize(
    "names", [np.array(["b", "", "a"]), np.array([b"b", b"", b"a"]), np.array([9, -1, 3])], ids=str
)
def test_nobody_is_no_client(file, names):
    data = load_npz(file(clients=names[np.arange(EXAMPLES) % 3], is_test=np.arange(EXAMPLES) < 3))
    np.testing.assert_array_equal(data.clients, np.array([1, -1, 0])[np.arange(3, EXAMPLES) % 3])
    assert data.client_names in (("a", "b"), ("3", "9"))


def test_names_of_classes_count_those_without_an_example(file):
    names = np.array([f"class {i}" for i in range(CLASSES + 4)])
    assert load_npz(file(class_names=names)).num_classes == CLASSES + 4
    same = file("test.npz", class_names=names)
    assert load_npz(file(class_names=names), test=same).num_classes == CLASSES + 4
    assert load_npz(file(class_names=names), test=file("test.npz")).num_classes == CLASSES + 4


def test_names_of_classes_that_do_not_fit(file):
    names = np.array([f"class {i}" for i in range(CLASSES)])
    with pytest.raises(ValueError, match=rf"mine\.npz: class_names: expected at least {CLASSES} names"):
        load_npz(file(class_names=names[:-1]))
    with pytest.raises(ValueError, match=r"test\.npz: class_names: expected the same as in .*mine\.npz"):
        load_npz(file(class_names=names), test=file("test.npz", class_names=names[::-1]))


def test_clients_with_a_split_by_seed(file):
    """Each training example keeps its client: here the client is written into its features."""
    clients = np.arange(EXAMPLES) % 5
    features = np.repeat(clients[:, None], DIM, 1).astype(np.float32)
    data = load_npz(file(clients=clients, features=features), seed=4)
    np.testing.assert_array_equal(data.clients, data.train_features[:, 0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_keep_their_precision(file, dtype):
    features = arrays()["features"].astype(dtype)
    data = load_npz(file(features=features, is_test=np.arange(EXAMPLES) < 9))
    assert data.train_features.dtype == data.test_features.dtype == dtype
    np.testing.assert_array_equal(data.train_features, features[9:])


def test_a_test_file_of_more_precision_loses_no_example(file):
    """What half precision cannot hold is still finite: 1e6 is above its largest number, 65504."""
    path = file(features=arrays()["features"].astype(np.float16))
    data = load_npz(path, test=file("test.npz", features=1e6 * np.ones((EXAMPLES, DIM), np.float32)))
    assert np.isfinite(data.test_features).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_labels_of_any_integer_type(file, dtype):
    labels = arrays()["labels"].astype(dtype)
    data = load_npz(file(labels=labels, is_test=np.arange(EXAMPLES) < 9))
    assert data.train_labels.dtype == np.int32
    np.testing.assert_array_equal(data.train_labels, labels[9:])


def test_gaps_in_the_labels_are_absent_classes(file):
    data = load_npz(file(labels=arrays()["labels"] * 4))
    assert data.num_classes == 9
    assert set(data.train_labels) == set(data.test_labels) == {0, 4, 8}
    with pytest.warns(UserWarning, match="labels: the smallest is 1, so class 0 has no example"):
        assert load_npz(file(labels=arrays()["labels"] + 1)).num_classes == 4
    names = np.array(["none", "a", "b", "c"])
    assert load_npz(file(labels=arrays()["labels"] + 1, class_names=names)).num_classes == 4


def test_a_class_with_one_or_two_examples_is_not_held_out(file):
    """A third of 1 or 2 is none: a class is never without a training example."""
    labels = np.zeros(EXAMPLES, int)
    labels[0], labels[1:3] = 1, 2
    data = load_npz(file(labels=labels))
    np.testing.assert_array_equal(np.bincount(data.train_labels, minlength=3), [18, 1, 2])
    np.testing.assert_array_equal(np.bincount(data.test_labels, minlength=3), [9, 0, 0])


def test_other_arrays_are_left_alone(file):
    assert_same(load_npz(file(weather=np.array(["a", "b", "c"]))), load_npz(file()))


@pytest.mark.parametrize(
    "names", [["a", "ö", "c", "d"], [b"a", b"\xc3\xb6", b"c", b"d"]], ids=["text", "bytes"]
)
def test_class_names_are_kept(file, names):
    data = load_npz(file(class_names=np.array(names)))
    assert (data.class_names, data.num_classes) == (("a", "ö", "c", "d"), 4)
    assert load_npz(file()).class_names is None


def test_clients_of_the_test_part_are_numbered_like_those_of_training(file):
    """Client z has test examples alone, so it comes after those that train; "" is nobody."""
    clients = np.resize(np.array(["b", "z", "", "a"]), EXAMPLES)
    is_test = np.isin(clients, ["z", ""]) | (np.arange(EXAMPLES) < 4)
    data = load_npz(file(clients=clients, is_test=is_test))
    assert data.clients is not None
    assert data.test_clients is not None
    numbers = {"a": 0, "b": 1, "z": 2, "": -1}
    assert data.clients.tolist() == [numbers[name] for name in clients[~is_test]]
    assert data.test_clients.tolist() == [numbers[name] for name in clients[is_test]]
    assert load_npz(file()).test_clients is None
    # Where no test example is anybody's, the data says nothing of them.
    none = np.where(is_test, "", "a")
    assert load_npz(file(clients=none, is_test=is_test)).test_clients is None


@pytest.mark.parametrize("kind", [np.int64, np.uint8, str], ids=["int64", "uint8", "text"])
def test_clients_in_a_test_file(file, kind):
    clients = (np.arange(EXAMPLES) % 4 + 2).astype(kind)
    path = file(clients=clients)
    data = load_npz(path, test=file("test.npz", clients=clients[::-1].copy()))
    assert data.clients is not None
    assert data.test_clients is not None
    assert data.test_clients.tolist() == data.clients.tolist()[::-1]
    plain = load_npz(path, test=file("bare.npz"))
    assert plain.test_clients is None
    assert plain.clients is not None
    assert plain.clients.tolist() == data.clients.tolist()
    other = np.arange(EXAMPLES) if kind is str else np.full(EXAMPLES, "a")
    with pytest.raises(ValueError, match=r"test\.npz: clients: expected the kind of"):
        load_npz(path, test=file("test.npz", clients=other))


def test_compressed_files(tmp_path, file):
    np.savez_compressed(tmp_path / "small.npz", **arrays())
    small, large = load_npz(tmp_path / "small.npz"), load_npz(file())
    assert_same(small._replace(name=""), large._replace(name=""))


def on_disk(array: np.ndarray) -> bool:
    return isinstance(array.base, np.memmap)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_that_are_not_compressed_stay_on_the_disk(file, dtype):
    features = arrays()["features"].astype(dtype)
    read = read_npz(file(features=features))
    assert on_disk(read["features"])
    assert read["features"].dtype == dtype
    np.testing.assert_array_equal(read["features"], features)
    np.testing.assert_array_equal(read["labels"], arrays()["labels"])


@pytest.mark.parametrize("shift", range(8))
def test_features_at_any_place_of_a_file(tmp_path, shift):
    """A map need not start where a number would in memory."""
    np.savez(tmp_path / "mine.npz", **{"x" * (shift + 1): np.ones(1)}, **arrays())
    read = read_npz(tmp_path / "mine.npz")["features"]
    assert on_disk(read)
    np.testing.assert_array_equal(read, arrays()["features"])


def test_features_column_by_column(file):
    features = np.asfortranarray(arrays()["features"])
    assert not features.flags.c_contiguous
    read = read_npz(file(features=features))["features"]
    assert on_disk(read)
    np.testing.assert_array_equal(read, features)


@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_arrays_in_other_versions_of_their_format(tmp_path, version):
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        for name, array in arrays().items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, version)
    np.testing.assert_array_equal(read_npz(tmp_path / "mine.npz")["features"], arrays()["features"])


def test_the_parts_do_not_need_the_file(file):
    path = file(is_test=np.arange(EXAMPLES) < 9)
    data = load_npz(path)
    path.unlink()
    for part in (data.train_features, data.test_features):
        assert not isinstance(part.base, np.memmap)
        assert part.flags.writeable


def test_entries_that_are_no_arrays_are_left_alone(file):
    path = file()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert set(read_npz(path)) == {"features", "labels"}


# Broken files: a ValueError that names the file and the array

nan_at_7 = np.ones((EXAMPLES, DIM))
nan_at_7[7, 2] = np.nan
infinite_at_8 = np.ones((EXAMPLES, DIM), np.float16)
infinite_at_8[8, 0] = -np.inf
negative_at_4 = np.arange(EXAMPLES) % CLASSES
negative_at_4[4] = -1
labels = np.arange(EXAMPLES) % CLASSES

WRONG = {
    "no features": (dict(features=None), r"expected arrays features and labels, got \['labels'\]"),
    "no labels": (dict(labels=None), r"expected arrays features and labels, got \['features'\]"),
    "nothing": (dict(features=None, labels=None), r"expected arrays features and labels, got \[\]"),
    "one feature": (
        dict(features=np.ones(EXAMPLES)),
        r"features: expected shape \[examples, dim\] .* got \[30\]",
    ),
    "images": (dict(features=np.ones((EXAMPLES, 2, 2))), r"features: expected shape .* got \[30, 2, 2\]"),
    "dim 0": (dict(features=np.ones((EXAMPLES, 0))), r"features: .*dim of at least 1, got \[30, 0\]"),
    "integer features": (
        dict(features=np.ones((EXAMPLES, DIM), int)),
        "features: expected floats, got int64",
    ),
    "complex features": (dict(features=np.ones((EXAMPLES, DIM), complex)), "features: expected floats, got"),
    "one-hot labels": (
        dict(labels=np.eye(3, dtype=int)[labels]),
        r"labels: expected shape \[30\], .* got \[30, 3\]",
    ),
    "a label too few": (dict(labels=labels[1:]), r"labels: expected shape \[30\], .* got \[29\]"),
    "float labels": (dict(labels=labels.astype(float)), "labels: expected integers, got float64"),
    "nan": (dict(features=nan_at_7), r"features: row 7 \(class 1\) holds nan at position 2"),
    "infinity": (dict(features=infinite_at_8), r"features: row 8 \(class 2\) holds -inf at position 0"),
    "negative label": (dict(labels=negative_at_4), "labels: row 4 has label -1; expected 0 or above"),
    "labels beyond int32": (
        dict(labels=labels + 2**32, is_test=labels == 0),
        "labels: row 0 has label 4294967296",
    ),
    "a client too few": (dict(clients=labels[1:]), r"clients: expected shape \[30\], got \[29\]"),
    "clients that are no numbers": (dict(clients=np.where(labels > 0, labels, np.nan)), "clients: "),
    "one is_test": (dict(is_test=np.array(True)), r"is_test: expected shape \[30\], got \[\]"),
    "is_test that is no boolean": (
        dict(is_test=(labels == 0).astype(int)),
        r"is_test: expected booleans, got int64; use is_test\.astype\(bool\)",
    ),
    "nothing to train on": (
        dict(is_test=np.ones(EXAMPLES, bool)),
        "expected examples in both parts, got 0 to train and 30 to test",
    ),
    "nothing to test on": (
        dict(is_test=np.zeros(EXAMPLES, bool)),
        "expected examples in both parts, got 30 to train and 0 to test",
    ),
    "one example a class": (
        dict(labels=np.arange(EXAMPLES)),
        "expected examples in both parts, got 30 to train and 0 to test; there are too few of each class",
    ),
    "no example": (
        dict(features=np.ones((0, DIM)), labels=labels[:0]),
        "expected examples in both parts, got 0 to train and 0 to test",
    ),
}


@pytest.mark.parametrize(("others", "text"), WRONG.values(), ids=WRONG)
def test_wrong_arrays_are_named(file, others, text):
    with pytest.raises(ValueError, match=text) as error:
        load_npz(file(**others))
    assert "mine.npz: " in str(error.value)


SEPARATE = {
    "another dim": (
        dict(features=np.ones((EXAMPLES, DIM + 1))),
        r"test\.npz: features: expected dim 4 as in .*mine\.npz, got 5",
    ),
    "no labels": (dict(labels=None), r"test\.npz: expected arrays features and labels, got \['features'\]"),
    "nan": (dict(features=nan_at_7), r"test\.npz: features: row 7 \(class 1\) holds nan at position 2"),
    "negative label": (dict(labels=negative_at_4), r"test\.npz: labels: row 4 has label -1"),
}


@pytest.mark.parametrize(("others", "text"), SEPARATE.values(), ids=SEPARATE)
def test_a_wrong_test_file_is_named(file, others, text):
    with pytest.raises(ValueError, match=text):
        load_npz(file(), test=file("test.npz", **others))


def test_both_is_test_and_a_test_file(file):
    path = file(is_test=np.arange(EXAMPLES) < 9)
    with pytest.raises(ValueError, match=r"mine\.npz: expected either is_test .* or a separate test file"):
        load_npz(path, test=file("test.npz"))


class Ran(Exception):
    """Raised by unpickling `Bomb`."""


class Bomb:
    """An object whose unpickling is noticed."""

    def __reduce__(self):
        return _run, ()


def _run():
    raise Ran


def test_nothing_in_a_file_is_run(file, tmp_path):
    bombs = np.array([Bomb()] * EXAMPLES, object)
    with pytest.raises(Ran), np.load(file(extra=bombs), allow_pickle=True) as opened:
        opened["extra"]
    with pytest.raises(ValueError, match=r"expected an \.npz file of plain arrays"):
        load_npz(tmp_path / "mine.npz")


def saved(save=np.savez_compressed) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays())
    return stream.getvalue()


def npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, arrays()["features"])
    return stream.getvalue()


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("readme.txt", "hello")
    return stream.getvalue()


def altered(name: str) -> bytes:
    """A file that is not compressed with one bit changed in the middle of an array."""
    content = bytearray(saved(np.savez))
    values = arrays()[name].tobytes()
    content[content.index(values) + len(values) // 2] ^= 1
    return bytes(content)


def damaged() -> bytes:
    content = bytearray(saved())
    content[150:200] = b"\xff" * 50
    return bytes(content)


BROKEN = {
    "empty": b"",
    "text": b"features,labels\n1,2\n",
    "cut to 100 bytes": saved()[:100],
    "cut in the middle": saved()[: len(saved()) // 2],
    "cut at the end": saved()[:-3],
    "damaged": damaged(),
    "features altered": altered("features"),
    "labels altered": altered("labels"),
    "a single array": npy(),
    "a zip of something else": archive(),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_what_is_no_npz_file_is_named(tmp_path, content):
    (tmp_path / "broken.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.npz: expected "):
        load_npz(tmp_path / "broken.npz")


def test_missing_files_are_named(file, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.npz: no such file"):
        load_npz(tmp_path / "absent.npz")
    with pytest.raises(FileNotFoundError, match=r"absent\.npz: no such file"):
        load_npz(file(), test=tmp_path / "absent.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(FileNotFoundError, match=r"folder\.npz: no such file"):
        load_npz(tmp_path / "folder.npz")


# Real features


def test_caltech101(shared):
    """8,677 images of 101 categories through EfficientNet-Lite0; a third of each is the test part."""
    path = shared / "data" / "features" / "caltech101-efficientnet_lite0.npz"
    if not path.is_file():
        pytest.skip(f"test data not found: {path}")
    data = load(path)
    assert data.name == "caltech101-efficientnet_lite0"
    assert len(data.train_labels) + len(data.test_labels) == 8677
    assert data.num_classes == 101
    assert data.fixed_split
    assert data.clients is None
    assert data.train_features.shape == (len(data.train_labels), 1280)
    assert data.train_features.dtype == np.float16
    train, test = np.bincount(data.train_labels), np.bincount(data.test_labels)
    assert (np.abs(test - (train + test) / 3) <= 1).all()


# Other files


TEXTS = np.array(["cat", "ant", "bee"])[np.arange(EXAMPLES) % CLASSES]


def written(folder) -> dict[str, str]:
    """The same examples in a file of each kind, by what is typed for it."""
    arrow, csv, parquet = (pytest.importorskip(f"pyarrow{name}") for name in ("", ".csv", ".parquet"))
    from safetensors.numpy import save_file

    own = arrays(clients=np.arange(EXAMPLES) % 5)
    features, _, clients = own.values()
    for name, array in own.items():
        np.save(folder / f"{name}.npy", array)
    save_file(own, folder / "x.safetensors")
    lists = arrow.FixedSizeListArray.from_arrays(features.ravel(), DIM)
    kinds = arrow.array(TEXTS.tolist()).dictionary_encode()
    table = arrow.table({"embedding": lists, "kind": kinds, "client": clients})
    parquet.write_table(table, folder / "x.parquet", row_group_size=7)
    with arrow.ipc.new_stream(folder / "data.arrow", table.schema) as stream:
        stream.write_table(table, 11)
    with arrow.ipc.new_file(folder / "x.arrow", table.schema) as stream:
        stream.write_table(table)
    saved = folder / "saved"
    saved.mkdir()
    (folder / "data.arrow").rename(saved / "data.arrow")
    (saved / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    wide = {f"f{i}": features[:, i] for i in range(DIM)} | {
        "label": TEXTS.tolist(),
        "client": clients,
    }
    csv.write_csv(arrow.table(wide), folder / "x.csv")
    csv.write_csv(arrow.table(wide | {"note": TEXTS}), folder / "noted.csv")
    named = ":features=embedding:labels=kind"
    return {
        "npy": f"{folder}/features.npy:labels={folder}/labels.npy:clients={folder}/clients.npy",
        "safetensors": f"{folder}/x.safetensors",
        "csv": f"{folder}/x.csv",
        "csv, named": f"{folder}/noted.csv:features=f*:labels=label",
        "csv, by name": f"{folder}/noted.csv:features=f0+f1+f2+f3",
        "parquet": f"{folder}/x.parquet{named}",
        "arrow": f"{folder}/x.arrow{named}",
        "folder": f"{saved}{named}",
    }


def test_every_kind_of_file_gives_the_same_set(tmp_path):
    for kind, typed in written(tmp_path).items():
        data = load(typed)
        names = None if kind in ("npy", "safetensors") else ("ant", "bee", "cat")
        order = np.array([0, 1, 2]) if names is None else np.array([2, 0, 1])
        assert data.class_names == names, kind
        assert data.num_classes == CLASSES
        sound = arrays()
        table = np.column_stack([order[sound["labels"]], sound["features"]])
        np.testing.assert_allclose(merged(data), table[np.lexsort(table.T[::-1])], rtol=1e-6, err_msg=kind)
        assert sorted(data.client_names) == ["0", "1", "2", "3", "4"]


def hugging_face(path, parts) -> None:
    """What ``save_to_disk`` writes of the tables of splits; the names are those of ClassLabel."""
    arrow = pytest.importorskip("pyarrow")
    for part, (columns, names) in parts.items():
        (path / part).mkdir(parents=True)
        (path / part / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
        about = {"info": {"features": {"label": {"names": names}}}}
        table = arrow.table(columns).replace_schema_metadata({"huggingface": json.dumps(about)})
        with arrow.ipc.new_stream(path / part / "data.arrow", table.schema) as stream:
            stream.write_table(table)
    (path / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))


def test_splits_of_hugging_face_are_the_parts(tmp_path):
    """Whatever the order of their columns; but the names of their classes must be the same."""
    labels, names = [0, 1, 2] * 2, ["dog", "cat", "emu"]
    train = {"a": np.arange(6.0), "b": np.arange(6.0, 12.0), "label": labels}
    test = dict(reversed(train.items())) | {"a": -np.arange(6.0)}
    hugging_face(tmp_path / "both", {"train": (train, names), "test": (test, names)})
    data = load(tmp_path / "both")
    assert (data.name, data.fixed_split, data.class_names) == ("both", True, tuple(names))
    np.testing.assert_array_equal(data.train_features, np.stack([train["a"], train["b"]], 1))
    np.testing.assert_array_equal(data.test_features, np.stack([test["a"], test["b"]], 1))
    with pytest.raises(ValueError, match=r"test: expected none with .*both, which has a split test"):
        load(tmp_path / "both", test=tmp_path / "both" / "test")
    hugging_face(tmp_path / "other", {"train": (train, names), "test": (test, ["cat", "dog", "emu"])})
    with pytest.raises(ValueError, match=r"test: class_names: expected the same as in .*train"):
        load(tmp_path / "other")
    hugging_face(tmp_path / "single", {"train": (train, names)})
    with pytest.raises(ValueError, match=r"expected the splits train and test, .* got \['train'\]"):
        load(tmp_path / "single")
    (tmp_path / "both" / "train" / "state.json").write_text('{"_data_files": []}')
    with pytest.raises(ValueError, match="train: expected files with the same columns, one at least"):
        load(tmp_path / "both")


def test_columns_of_features_go_by_their_names(tmp_path, file):
    named = [file(f"{names}.npz", feature_names=list(names)) for names in ("abcd", "dbca")]
    for read in (load, load_npz):
        ordered = read(named[0], test=named[1]).test_features
        np.testing.assert_array_equal(ordered, arrays()["features"][:, [3, 1, 2, 0]])
    numbers = np.random.default_rng(0).normal(size=(6, 2)).round(3)

    def table(name, columns) -> str:
        rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
        return f"{tmp_path}/{name}"

    # A column of booleans, such as of pandas' get_dummies, counts as numbers.
    train = {"a": numbers[:, 0], "b": numbers[:, 1], "hot": [True, False] * 3, "labels": [0, 1] * 3}
    path = table("train.csv", train)
    data = load(path, test=table("test.csv", {name: train[name] for name in ("labels", "hot", "b", "a")}))
    np.testing.assert_array_equal(data.train_features, np.column_stack([numbers, [1, 0] * 3]))
    np.testing.assert_array_equal(data.test_features, data.train_features)
    assert load(f"{path}:features=a", test=path).train_features.shape == (6, 1)
    for columns, expected in {
        ("a", "hot", "labels"): r"test\.csv: features: .* of .*train\.csv, but it lacks 'b'",
        ("a", "b", "hot", "labels", "c"): "but it has also 'c'",
    }.items():
        with pytest.raises(ValueError, match=expected):
            load(path, test=table("test.csv", {name: train.get(name, range(6)) for name in columns}))
    for column in ("", "Unnamed: 0", "label", "PassengerId", "row"):
        with pytest.raises(ValueError, match=rf"got also '{column}' \(int64\)"):
            load(table("index.csv", {column: range(6), **train}))
    # Such a name alone says nothing.
    assert load(table("id.csv", {"row": [3, 1, 4, 1, 5, 9], **train})).train_features.shape == (4, 4)
    with pytest.raises(ValueError, match=r"q\.csv: .*got also 'a' \(string\)"):
        load(table("q.csv", train | {"a": ["?", *numbers[1:, 0]]}))
    (tmp_path / "twice.csv").write_text("a,a,labels\n1,2,0\n")
    with pytest.raises(ValueError, match=r"twice\.csv: .* for each column, got 'a' 2 times"):
        load(tmp_path / "twice.csv")


def test_columns_of_parquet_that_are_no_features(tmp_path):
    """The index of a data frame; what is not asked for and has gaps. Integers in lists are numbers."""
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    columns = {"a": [0.5, 1, 2, 3, 4, 5], "label": [0, 1] * 3, "note": [None, *"bcdef"]}
    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table(columns), path)
    assert load(f"{path}:features=a").train_features.shape == (4, 1)
    frame = {"a": columns["a"], "label": columns["label"], "id": range(6), "__index_level_0__": range(6)}
    about = {"pandas": json.dumps({"index_columns": ["id", {"kind": "range"}]})}
    parquet.write_table(arrow.table(frame).replace_schema_metadata(about), path)
    assert load(path).train_features.shape == (4, 1)
    assert load(f"{path}:features=a+id").train_features.shape == (4, 2)
    parquet.write_table(arrow.table({"features": [[1, 2], [3, 4]] * 3, "label": [0, 1] * 3}), path)
    assert load(path).train_features.tolist() == [[1, 2], [3, 4]] * 2


def test_what_other_programs_write(tmp_path):
    """Metadata of PyTorch in safetensors; numbers in another order of bytes."""
    from safetensors.numpy import save_file

    own = arrays()
    save_file(own, tmp_path / "x.safetensors", metadata={"format": "pt"})
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in own.items()}
    np.savez(tmp_path / "x.npz", **swapped)
    for name, array in swapped.items():
        np.save(tmp_path / f"{name}.npy", array)
    typed = ["x.safetensors", "x.npz", f"features.npy:labels={tmp_path}/labels.npy"]
    for data in (load(f"{tmp_path}/{name}") for name in typed):
        assert data.train_features.dtype == np.float32
        assert_same(data._replace(name=""), load_npz(tmp_path / "x.npz")._replace(name=""))


def test_text_labels_are_numbered_by_the_file_s_names(file):
    names, order = np.array(["dog", "cat", "horse"]), np.arange(EXAMPLES) % 2
    path = file(labels=names[order], class_names=names)
    data = load(path, test=file("test.npz", labels=names[order]))
    assert (data.class_names, data.num_classes) == (tuple(names), 3)
    np.testing.assert_array_equal(data.train_labels, order)
    np.testing.assert_array_equal(data.test_labels, order)
    with pytest.raises(ValueError, match=r"test\.npz: labels: expected names in class_names, got 'cow'"):
        load(path, test=file("test.npz", labels=np.full(EXAMPLES, "cow")))
    with pytest.raises(
        ValueError, match=r"test\.npz: expected arrays features and labels, got \['features'\]"
    ):
        load(path, test=file("test.npz", labels=None))


def test_texts_of_a_table_are_cleaned(tmp_path, file):
    """Spaces around labels; a test part marked by texts; and a test file that has names of its own."""
    pytest.importorskip("pyarrow.csv")
    rows = ["0.5, ant,train", "1.5,ant ,test", "2.5,bee,train", "3.5,bee,test"]

    def table(name, rows) -> str:
        (tmp_path / name).write_text("\n".join(["f,label,split", *rows]) + "\n")
        return f"{tmp_path}/{name}:features=f"

    data = load(table("x.csv", rows) + ":is_test=split")
    assert (data.class_names, data.train_features[:, 0].tolist()) == (("ant", "bee"), [0.5, 2.5])
    assert data.test_labels.tolist() == [0, 1]
    (tmp_path / "y.csv").write_text("f,kind\n7,bee\n8, ant\n")
    other = load(table("x.csv", rows), test=f"{tmp_path}/y.csv:labels=kind")
    assert (other.test_labels.tolist(), other.test_features[:, 0].tolist()) == ([1, 0], [7, 8])
    with pytest.raises(ValueError, match=r"x\.csv: labels: expected a label for .* got none in row 2"):
        load(table("x.csv", [*rows[:2], "1, ,train"]))
    with pytest.raises(ValueError, match="is_test: expected booleans or the texts train and test, got 'val'"):
        load(table("x.csv", [*rows, "9,ant,val"]) + ":is_test=split")


def test_load_keeps_the_extractor(file):
    keys = [json.dumps({"backbone": "mine", "weights": weights}) for weights in "12"]
    path, other = (file(f"{i}.npz", key=np.array(key)) for i, key in enumerate(keys))
    assert load(path).extractor == load_npz(path).extractor is not None
    with pytest.raises(ValueError, match=r"1\.npz: features: expected those of the extractor of .*0\.npz"):
        load(path, test=other)


def test_names_of_hugging_face_s_class_labels(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    # As `datasets` writes a column of its type ClassLabel; the last class has no example.
    about = {"info": {"features": {"kind": {"names": ["cat", "dog", "cow"], "_type": "ClassLabel"}}}}
    columns = arrow.table({"features": np.eye(6).tolist(), "kind": [0, 1] * 3})
    named = columns.replace_schema_metadata({"huggingface": json.dumps(about)})
    parquet.write_table(named, tmp_path / "x.parquet")
    data = load(f"{tmp_path}/x.parquet:labels=kind")
    assert (data.num_classes, data.class_names) == (3, ("cat", "dog", "cow"))
    parquet.write_table(columns.replace_schema_metadata({"huggingface": "{"}), tmp_path / "x.parquet")
    assert load(f"{tmp_path}/x.parquet:labels=kind").class_names is None


def test_what_cannot_be_read_says_what_can(tmp_path):
    typed = written(tmp_path)
    save_head(LinearHead(np.eye(2), np.zeros(2)), tmp_path / "head.npz")
    np.savez(tmp_path / "other.npz", labels=[0, 1], embedding=np.eye(2))
    for text, expected in {
        f"{tmp_path}/head.npz": r"head\.npz: expected features and labels, got a saved head",
        f"{tmp_path}/other.npz": r"no array 'features' \(it has labels, embedding\); .*:features=embedding",
        f"{tmp_path}/x.h5": r"file that ends in \.npz, \.npy, \.pt, .*got '.*x\.h5'",
        f"{tmp_path}/x.parquet": r"expected a column labels; say .*x\.parquet:labels=COLUMN, one of embed",
        f"{tmp_path}/x.parquet:labels=client": r"got also 'embedding' \(.*, 'kind' .*:features=a\+b",
        f"{tmp_path}/x.parquet:features=embedding:labels=a": "labels: expected one of embedding, .* got 'a'",
        f"{tmp_path}/noted.csv": r"expected columns of features alone, got also 'note' \(string\)",
        f"{tmp_path}/noted.csv:features=f0+note": "features: expected columns of numbers, got 'note'",
        f"{tmp_path}/noted.csv:features=note": "features: expected floats, got <U3",
        f"{tmp_path}/x.csv:features=f0+zz": "or the name of one of f0, .*, got 'zz'",
        f"{tmp_path}/x.csv:features=f0+label": "or the name of one of f0, .*, got 'label'",
        f"{tmp_path}/x.csv:client=client": "expected names of features, labels, .* got 'client'",
        f"{tmp_path}/features.npy": "expected the file of its labels too, such as .*:labels=",
        f"{tmp_path}/features.npy:labels={tmp_path}/x.csv": r"x\.csv: expected a \.npy file .* begins b'",
        str(tmp_path): "expected the folder of one split that save_to_disk of datasets wrote",
    }.items():
        with pytest.raises(ValueError, match=expected):
            load(text)
    wide = ",".join([*(f"p{i}" for i in range(64)), "digit"])
    (tmp_path / "wide.csv").write_text(f"{wide}\n{'0,' * 64}1\n")
    with pytest.raises(ValueError, match=r"one of p0, p1, .*p16, …, p63, digit$"):
        load(f"{tmp_path}/wide.csv")
    with pytest.raises(ValueError, match=r"columns: expected names of features, .* got 'label'"):
        load(typed["csv"], columns={"label": "label"})
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(f"{tmp_path}/absent.csv")
    with pytest.raises(TypeError, match=r"dataset: expected a path, got dict; call covfree.fit with"):
        load({"features": np.eye(2)})
    for name in ("x.parquet", "x.arrow", "features.npy"):
        (tmp_path / name).write_bytes(b"no such thing")
        with pytest.raises(ValueError, match=f"{name}: expected a"):
            load(f"{tmp_path}/{name}")
