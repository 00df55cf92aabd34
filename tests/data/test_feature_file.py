"""Feature files: whatever ends the writing, what is read is what was computed, or an error."""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from covfree.core import array_file, atomic
from covfree.data import feature_file
from covfree.data.feature_file import FeatureFile, differences, read_feature_file, rewrite
from covfree.data.kept import FeatureWriter

IMAGES, DIM = 7, 3
KEY = {"backbone": "tiny", "weights": "ab12", "crop": {"size": (4, 4), "mean": 0.5}}
SIZES = {"num_features": DIM, "dtype": "float16"}
VALUES = np.random.default_rng(0).normal(size=(IMAGES, DIM)).astype(np.float32)
# One by one, several, and a piece of no rows at all.
ENDS = (1, 4, 5, 7)
REASONS = {2: "cut short", 4: "no image: ‘b\udce4r.png’\n", 5: ""}
SOUND = [image for image in range(IMAGES) if image not in REASONS]
ARRAYS = {
    "labels": np.array([0, 1, 2, 0], np.int32),
    "ids": np.array(["a/1.png", "b/ä.png", "c", "b/\udce4.png"]),
    "is_test": np.array([True, False, False, True]),
    "class_names": np.array(["a", "b", "c"]),
    "skipped_ids": np.zeros(0, "U1"),
}


def piece(start: int, stop: int) -> tuple[np.ndarray, dict[int, str]]:
    """What is appended for these images."""
    kept = [image for image in SOUND if start <= image < stop]
    return VALUES[kept], {image: reason for image, reason in REASONS.items() if start <= image < stop}


def write_on(writer: FeatureWriter, ends=ENDS) -> None:
    """Append what is not done."""
    for stop in ends:
        if stop > writer.done:
            writer.append(*piece(writer.done, stop))


def written(path: Path, arrays=ARRAYS, key=KEY, **sizes) -> Path:
    with FeatureWriter(path, key, **{**SIZES, **sizes}) as writer:
        write_on(writer)
        return writer.finish(arrays)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A file that nothing interrupted."""
    return written(tmp_path_factory.mktemp("whole") / "a.npz")


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


# What is written is read


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_written_is_read(tmp_path, dtype):
    path = written(tmp_path / "deep" / "er" / "a.npz", dtype=dtype)
    assert path == tmp_path / "deep" / "er" / "a.npz"
    assert names(path.parent) == ["a.npz"]
    features, arrays, key = read_feature_file(path)
    assert features.dtype == dtype
    np.testing.assert_array_equal(features, VALUES[SOUND].astype(dtype))
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert key == {**KEY, "crop": {"size": [4, 4], "mean": 0.5}}


def test_features_stay_on_the_disk_and_cannot_be_changed(finished):
    features = read_feature_file(str(finished)).features
    assert isinstance(features.base, np.memmap)
    assert not features.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        features[0, 0] = 1


def test_numpy_reads_the_file(finished):
    with np.load(finished, allow_pickle=False) as file:
        assert set(file.files) == {"features", "key", *ARRAYS}
        np.testing.assert_array_equal(file["features"], VALUES[SOUND].astype(np.float16))
        np.testing.assert_array_equal(file["ids"], ARRAYS["ids"])
        assert json.loads(str(file["key"]))["weights"] == "ab12"


def test_the_same_features_make_the_same_file(finished, tmp_path):
    with FeatureWriter(tmp_path / "a.npz", KEY, **SIZES) as writer:
        write_on(writer, (IMAGES,))
        writer.finish(ARRAYS)
    assert (tmp_path / "a.npz").read_bytes() == finished.read_bytes()


def test_data_is_read_block_by_block(monkeypatch, finished):
    before = read_feature_file(finished).features
    monkeypatch.setattr(array_file, "_BLOCK", 5)
    np.testing.assert_array_equal(read_feature_file(finished).features, before)


def test_entries_may_be_larger_than_4_gib(finished):
    """That is for the archive to say beforehand: its header has room for lengths of 8 bytes."""
    with zipfile.ZipFile(finished) as archive, finished.open("rb") as stream:
        for info in archive.infolist():
            stream.seek(info.header_offset + 30 + len(info.filename))
            assert stream.read(4) == b"\x01\x00\x10\x00"
            assert info.compress_type == zipfile.ZIP_STORED


def test_a_file_that_is_there_stays_until_the_new_one_is_complete(finished, tmp_path):
    path = tmp_path / "a.npz"
    shutil.copy(finished, path)
    with FeatureWriter(path, {"weights": "new"}, **SIZES) as writer:
        write_on(writer)
        assert read_feature_file(path).key["weights"] == "ab12"
        writer.finish(ARRAYS)
    assert read_feature_file(path).key == {"weights": "new"}
    assert names(tmp_path) == ["a.npz"]


# Whatever ends the writing


def left(folder: Path, count: int) -> Path:
    """A file of which so many pieces were written, and then half a one more."""
    path = folder / "a.npz"
    with FeatureWriter(path, KEY, **SIZES) as writer:
        write_on(writer, ENDS[:count])
    with (folder / "a.npz.partial" / "features").open("ab") as data:
        data.write(b"torn")
    return path


@pytest.mark.parametrize("count", range(len(ENDS) + 1))
def test_what_goes_on_makes_the_same_file(finished, tmp_path, count):
    path = left(tmp_path, count)
    abandoned = tmp_path / ".covfree-0.tmp"
    abandoned.write_bytes(b"left by a kill while the file was finished" * 99)
    os.utime(abandoned, (0, 0))
    with FeatureWriter(path, KEY, **SIZES) as writer:
        assert writer.done == (0, *ENDS)[count]
        assert writer.skipped == piece(0, writer.done)[1]
    written(path)
    assert path.read_bytes() == finished.read_bytes()
    assert names(tmp_path) == ["a.npz"]


def test_a_kill_while_the_folder_is_removed(tmp_path, finished, monkeypatch):
    path = tmp_path / "a.npz"
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        written(path)
    assert names(tmp_path) == ["a.npz", "a.npz.partial"]
    with FeatureWriter(path, {"weights": "new"}, **SIZES) as writer:
        assert writer.done == 0
        write_on(writer)
        writer.finish(ARRAYS)
    assert names(tmp_path) == ["a.npz"]


VICTIM = """
import sys
import numpy as np
from covfree.data.kept import FeatureWriter

sizes = dict(num_features=50, dtype="float32")
with FeatureWriter(sys.argv[1], {"weights": "ab12"}, **sizes) as writer:
    print("open", flush=True)
    while True:
        skipped = {writer.done + 1: "damaged"}
        writer.append(np.arange(150, dtype=np.float32).reshape(3, 50) + writer.done, skipped)
"""


def test_a_writer_that_is_killed(tmp_path):
    """The lock ends with the process, and all that counts is whole."""
    key, sizes = {"weights": "ab12"}, dict(num_features=50, dtype="float32")
    path = tmp_path / "a.npz"
    with subprocess.Popen([sys.executable, "-c", VICTIM, path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            with pytest.raises(BlockingIOError, match=r"a\.npz\.partial: another process is writing there"):
                FeatureWriter(path, key, **sizes)
            data = tmp_path / "a.npz.partial" / "features"
            while data.stat().st_size < 10**5:
                time.sleep(0.005)
        finally:
            process.kill()
    with FeatureWriter(path, key, **sizes) as writer:
        done = writer.done
        assert done % 4 == 0
        assert done >= 4 * (10**5 // 600)
        assert writer.skipped == dict.fromkeys(range(1, done, 4), "damaged")
    rows = np.fromfile(data, np.float32)[: 50 * (done - len(range(1, done, 4)))].reshape(-1, 50)
    starts = np.arange(0, done, 4, dtype=np.float32)
    expected = starts[:, None, None] + np.arange(150, dtype=np.float32).reshape(1, 3, 50)
    np.testing.assert_array_equal(rows, expected.reshape(-1, 50))


def test_one_writer_at_a_time(tmp_path, finished):
    path = tmp_path / "a.npz"
    shutil.copy(finished, path)
    with FeatureWriter(path, KEY, **SIZES) as writer:
        write_on(writer)
        with pytest.raises(BlockingIOError, match=r"a\.npz\.partial: another process is writing there"):
            FeatureWriter(path, KEY, **SIZES)
        writer.finish(ARRAYS)
    with FeatureWriter(path, KEY, **SIZES) as writer:
        assert writer.done == 0
    with pytest.raises(ValueError, match="closed"):
        writer.append(*piece(0, 1))


def test_the_folder_is_removed_while_somebody_waits_for_it(tmp_path, monkeypatch):
    """A lock on a file that is no longer there is none."""
    lock = feature_file.lock

    def removed_before(file):
        shutil.rmtree(tmp_path / "a.npz.partial")
        return lock(file)

    monkeypatch.setattr(feature_file, "lock", removed_before)
    with pytest.raises(BlockingIOError):
        FeatureWriter(tmp_path / "a.npz", KEY, **SIZES)


def test_a_file_system_without_locks(tmp_path, monkeypatch, finished):
    def flock(*arguments):
        raise OSError("not supported")

    monkeypatch.setattr(atomic.fcntl, "flock", flock)
    written(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == finished.read_bytes()


def test_a_disk_that_is_full_for_a_while(tmp_path, finished):
    """A call that fails half-way has not happened."""
    resource = pytest.importorskip("resource", reason="only Unix limits the size of a file")
    import signal

    path = tmp_path / "a.npz"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with FeatureWriter(path, KEY, **SIZES) as writer:
        writer.append(*piece(0, 1))
        for stop in (4, 5, 7):
            size = (tmp_path / "a.npz.partial" / "features").stat().st_size
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max(size, 9), before[1]))
                with pytest.raises(OSError, match="too large"):
                    writer.append(*piece(writer.done, stop))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            writer.append(*piece(writer.done, stop))
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (150, before[1]))
            with pytest.raises(OSError, match="too large"):
                writer.finish(ARRAYS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert names(tmp_path) == ["a.npz.partial"]
        writer.finish(ARRAYS)
    assert path.read_bytes() == finished.read_bytes()


def test_data_that_was_lost(tmp_path, finished):
    path = tmp_path / "a.npz"
    shutil.copy(finished, path)
    with FeatureWriter(path, KEY, **SIZES) as writer:
        write_on(writer)
        data = tmp_path / "a.npz.partial" / "features"
        data.write_bytes(data.read_bytes()[:-1])
        with pytest.raises(OSError, match=r"a\.npz\.partial: is damaged; remove it to start anew"):
            writer.finish({})
    assert path.read_bytes() == finished.read_bytes()


# Another key, and wrong arguments

OTHERS = {
    "a value": (dict(key={**KEY, "weights": "cd34"}), r"\(key\.weights: 'ab12' there, 'cd34' here\)"),
    "deep inside": (
        dict(key={**KEY, "crop": {"size": (4, 5), "mean": 0.5}}),
        r"\(key\.crop\.size: \[4, 4\] there, \[4, 5\] here\)",
    ),
    "one more": (dict(key={**KEY, "seed": 0}), r"\(key\.seed: nothing there, 0 here\)"),
    "one less": (dict(key={"backbone": "tiny", "weights": "ab12"}), r"key\.crop\.size: .* there, nothing"),
    "sizes": (
        dict(key={**KEY, "seed": 0}, num_features=4),
        r"\(key\.seed: nothing there, 0 here; num_features: 3 there, 4 here\)",
    ),
}


@pytest.mark.parametrize(("changes", "text"), OTHERS.values(), ids=OTHERS)
def test_pieces_of_another_key_are_left_alone(tmp_path, changes, text):
    path = tmp_path / "a.npz"
    with FeatureWriter(path, KEY, **SIZES) as writer:
        write_on(writer, (4,))
    changed = {**SIZES, **changes}
    with pytest.raises(ValueError, match=r"a\.npz\.partial: was begun with something else .*" + text):
        FeatureWriter(path, changed.pop("key", KEY), **changed)
    with FeatureWriter(path, KEY, **SIZES) as writer:
        assert writer.done == 4


def test_what_earlier_versions_began_goes_on(tmp_path, finished):
    """Their state has more entries."""
    path = left(tmp_path, 2)
    state = json.loads((tmp_path / "a.npz.partial" / "state.json").read_text())
    state["about"] |= {"num_examples": IMAGES, "dtype": "float16"}
    (tmp_path / "a.npz.partial" / "state.json").write_text(json.dumps(state | {"without": {}}))
    written(path)
    assert path.read_bytes() == finished.read_bytes()


def test_keys_are_compared_as_they_are_in_the_file():
    assert differences(KEY, json.loads(json.dumps(KEY))) == []
    assert differences({"a": {}}, {"a": None}) == ["a: {} there, None here"]
    assert differences({"a": True}, {"a": 1}) == ["a: True there, 1 here"]
    assert differences({}, {}) == []


def replaced(value: float, row: int = 1, place: int = 2) -> np.ndarray:
    values = np.ones((3, DIM), np.float32)
    values[row, place] = value
    return values


WRONG_PIECES = {
    "nan": ((replaced(np.nan), {}), "features: example 2 has nan at position 2; expected finite"),
    "infinity": ((replaced(-np.inf, 0), {}), "features: example 1 has -inf at position 2"),
    "beyond float16": (
        (replaced(70000, place=0), {2: "damaged", 3: "too"}),
        "features: example 4 has 70000.0 at position 0; expected finite numbers that float16 can hold",
    ),
}


@pytest.mark.parametrize(("arguments", "text"), WRONG_PIECES.values(), ids=WRONG_PIECES)
def test_wrong_pieces_are_not_written(tmp_path, finished, arguments, text):
    with FeatureWriter(tmp_path / "a.npz", KEY, **SIZES) as writer:
        write_on(writer, (1,))
        with pytest.raises(ValueError, match=text):
            writer.append(*arguments)
        assert writer.done == 1
        write_on(writer)
        writer.finish(ARRAYS)
    assert (tmp_path / "a.npz").read_bytes() == finished.read_bytes()


# Other labels


def test_rewrite_keeps_features_and_key(tmp_path, finished):
    path = tmp_path / "a.npz"
    shutil.copy(finished, path)
    before = read_feature_file(path)
    rewrite(path, {"labels": np.arange(4), "clients": np.array(["x", "y", "x", "y"])})
    after = read_feature_file(path)
    np.testing.assert_array_equal(after.features, before.features)
    assert isinstance(after.features.base, np.memmap)
    assert after.key == before.key
    assert set(after.arrays) == {"labels", "clients"}
    rewrite(path, ARRAYS)
    assert path.read_bytes() == finished.read_bytes()
    assert names(tmp_path) == ["a.npz"]


def test_rewrite_needs_a_sound_file(tmp_path, finished):
    content = bytearray(finished.read_bytes())
    content[200] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz: expected an \.npz file"):
        rewrite(tmp_path / "a.npz", {})
    assert (tmp_path / "a.npz").read_bytes() == content
    assert names(tmp_path) == ["a.npz"]


def test_rewrite_spares_a_file_that_came_meanwhile(tmp_path, finished, monkeypatch):
    path, copy = tmp_path / "a.npz", shutil.copyfileobj
    shutil.copy(finished, path)

    def slow(*streams):
        copy(*streams)
        path.unlink()
        written(path, key={"backbone": "other"})

    monkeypatch.setattr(feature_file.shutil, "copyfileobj", slow)
    with pytest.raises(BlockingIOError, match=r"a\.npz: another process replaced it meanwhile"):
        rewrite(path, {"labels": np.arange(4)})
    assert read_feature_file(path).key == {"backbone": "other"}
    assert names(tmp_path) == ["a.npz"]


# Damaged and foreign files


def same(a: FeatureFile, b: FeatureFile) -> bool:
    alike = [(a.features, b.features), *((a.arrays[name], b.arrays.get(name)) for name in a.arrays)]
    return (
        a.key == b.key
        and set(a.arrays) == set(b.arrays)
        and all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in alike)
    )


def read_or_why_not(path: Path) -> FeatureFile | str:
    try:
        return read_feature_file(path)
    except ValueError as error:
        return str(error)


def test_any_byte_of_a_file_that_is_altered(tmp_path):
    """The error names the file; or the byte says nothing (times, rights, versions) and all is as it was."""
    path = tmp_path / "a.npz"
    with FeatureWriter(path, {"a": 1}, num_features=2, dtype="float32") as writer:
        writer.append(np.float32([[1, 2], [3, 4]]), {})
        writer.finish({"labels": np.array([0, 1])})
    before, content = read_feature_file(path), path.read_bytes()
    results = []
    for index in range(len(content)):
        altered = bytearray(content)
        altered[index] ^= 1 << index * 5 % 8
        # Not into the file that is mapped.
        path.unlink()
        path.write_bytes(altered)
        results.append(read_or_why_not(path))
    errors = [result for result in results if isinstance(result, str)]
    assert len(errors) > 0.7 * len(content)
    assert all(error.startswith(f"{path}: expected") for error in errors)
    assert all(same(result, before) for result in results if not isinstance(result, str))


def test_a_file_that_is_cut_short(tmp_path, finished):
    content = finished.read_bytes()
    for length in range(0, len(content), 7):
        (tmp_path / "a.npz").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"a\.npz: expected an \.npz file of plain arrays"):
            read_feature_file(tmp_path / "a.npz")


FOREIGN = {
    "no key": (dict(features=VALUES), r"features \[n, d\] and the key .* got arrays \['features'\]"),
    "no features": (dict(key=np.array("{}")), r"got arrays \['key'\]"),
    "a key of bytes": (dict(features=VALUES, key=np.array(b"{}")), r"got float32\[7, 3\] and \|S2\[\]"),
    "keys": (dict(features=VALUES, key=np.array(["{}"])), r"got float32\[7, 3\] and <U2\[1\]"),
    "no JSON": (dict(features=VALUES, key=np.array("{")), r"in JSON, got '\{'"),
    "a list": (dict(features=VALUES, key=np.array("[1]")), r"in JSON, got '\[1\]'"),
    "doubles": (dict(features=VALUES.astype(float), key=np.array("{}")), r"got float64\[7, 3\] and <U2\[\]"),
    "flat": (dict(features=VALUES[0], key=np.array("{}")), r"got float32\[3\] and <U2\[\]"),
}


@pytest.mark.parametrize(("arrays", "text"), FOREIGN.values(), ids=FOREIGN)
def test_files_of_something_else(tmp_path, arrays, text):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=r"a\.npz: expected .*" + text):
        read_feature_file(tmp_path / "a.npz")


def test_a_file_that_is_replaced_while_it_is_read(tmp_path, finished):
    """What was mapped is still the old file."""
    path = tmp_path / "a.npz"
    shutil.copy(finished, path)
    features = read_feature_file(path).features
    with FeatureWriter(path, KEY, **SIZES) as writer:
        writer.append(np.zeros((IMAGES, DIM), np.float32), {})
        writer.finish({})
    assert not read_feature_file(path).features.any()
    np.testing.assert_array_equal(features, VALUES[SOUND].astype(np.float16))
