"""Extraction into a file: the features are right, nothing is computed twice, and nothing is lost."""

import dataclasses
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from backbones import seeded

from covfree.backbones import BACKBONES, Preprocessing, backbone, preprocess
from covfree.backbones.weights import tensor_shapes
from covfree.data import extract, kept, load_npz
from covfree.data.extract import extract_features, extractor_key
from covfree.data.feature_file import read_feature_file, rewrite
from covfree.data.image_set import ImageSet

SMALL = Preprocessing(72, 64, "bilinear", (124.0, 116.0, 104.0), (58.0, 57.0, 57.0))
NETWORK = backbone("squeezenet1_1")
COUNT, BATCH = 44, 8
PIXELS = [seeded.picture((70 + i % 5, 80 + i % 3)) // (1 + i % 4) + i for i in range(COUNT)]
CLASSES = ("cat", "dog", "emu")


def made(**changes) -> ImageSet:
    """Images in memory; ``broken`` ones cannot be read."""
    broken = changes.pop("broken", ())

    def read(i):
        if i in broken:
            raise OSError(f"image file is truncated ({i} bytes not processed)")
        return PIXELS[i]

    settings = {
        "name": "made",
        "ids": tuple(f"{CLASSES[i % 3]}/{i}.png" for i in range(COUNT)),
        "labels": np.arange(COUNT, dtype=np.int32) % 3,
        "class_names": CLASSES,
        "read": read,
        "fingerprint": "ab12",
        "clients": np.array([f"client {i % 7}" for i in range(COUNT)]),
        "is_test": np.arange(COUNT) % 4 == 3,
    }
    return ImageSet(**settings | changes)


@pytest.fixture(scope="module")
def params():
    return NETWORK.from_tensors(seeded.tensors(tensor_shapes(NETWORK.shapes), NETWORK.name))


@pytest.fixture(scope="module")
def expected(params):
    """Every image's features by the backbone's own functions."""
    spec = dataclasses.replace(NETWORK.spec, preprocessing=SMALL)
    pixels = np.stack([preprocess(image, spec) for image in PIXELS])
    return np.asarray(jax.jit(NETWORK.apply)(params, pixels))


@pytest.fixture
def run(params, tmp_path):
    """Extracts into one file, e.g. ``run(made(), batch_size=3)``."""

    def call(images=None, network=NETWORK, params=params, **arguments):
        settings = {
            "out": tmp_path / "made.npz",
            "weights": "cd34",
            "preprocessing": SMALL,
            "batch_size": BATCH,
        }
        return extract_features(made() if images is None else images, network, params, **settings | arguments)

    return call


def unread(i):
    raise AssertionError("no image is to be read")


def no_params():
    raise AssertionError("no parameters are to be loaded")


def close(found, wanted, tolerance=1e-6):
    """Relative to the largest number of each feature vector."""
    np.testing.assert_array_less(np.abs(found - wanted).max(1), tolerance * np.abs(wanted).max(1))


# What is computed


def test_the_file_holds_the_features_of_every_image(run, expected):
    told = []
    done = run(progress=lambda *numbers: told.append(numbers))
    assert (done.computed, done.skipped) == (COUNT, {})
    # 44 images in batches of 8, of which the last has 4.
    assert told == [(n, COUNT) for n in (0, 8, 16, 24, 32, 40, 44)]
    file = read_feature_file(done.path)
    close(file.features, expected)
    assert file.features.dtype == np.float32
    images = made()
    assert set(file.arrays) == {
        "labels", "ids", "class_names", "clients", "is_test", "skipped_ids", "skipped_reasons"
    }  # fmt: skip
    for name in ("labels", "clients", "is_test"):
        np.testing.assert_array_equal(file.arrays[name], getattr(images, name))
    assert file.arrays["labels"].dtype == np.int32
    assert tuple(file.arrays["ids"]) == images.ids
    assert tuple(file.arrays["class_names"]) == CLASSES
    assert len(file.arrays["skipped_ids"]) == len(file.arrays["skipped_reasons"]) == 0


def test_load_npz_reads_it(run, expected):
    images = made()
    data = load_npz(run(images).path)
    close(data.train_features, expected[~images.is_test])
    close(data.test_features, expected[images.is_test])
    np.testing.assert_array_equal(data.train_labels, images.labels[~images.is_test])
    assert data.num_classes == 3
    assert data.fixed_split
    # Clients are numbered by their names.
    np.testing.assert_array_equal(data.clients, (np.arange(COUNT) % 7)[~images.is_test])
    assert data.name == "made"


def test_a_set_without_clients_and_split(run):
    images = made(clients=None, is_test=None)
    file = read_feature_file(run(images).path)
    assert "clients" not in file.arrays
    assert "is_test" not in file.arrays


def test_one_compilation_serves_all_batches(run, monkeypatch):
    """Also the last, which is not full."""
    traced, apply = [], type(NETWORK).apply

    def counted(self, params, images, **options):
        traced.append(images.shape)
        return apply(self, params, images, **options)

    monkeypatch.setattr(type(NETWORK), "apply", counted)
    run(preprocessing=dataclasses.replace(SMALL, crop=40))
    assert traced == [(BATCH, 40, 40, 3)]


def test_the_size_of_batches_and_the_number_of_devices_change_nothing(run, tmp_path, monkeypatch):
    """Inference of an image does not depend on others; sums within it may be of another order."""
    assert jax.local_device_count() == 8
    sizes, batches = [], extract.decoded_batches

    def seen(*arguments, batch_size, **options):
        sizes.append(batch_size)
        return batches(*arguments, batch_size=batch_size, **options)

    monkeypatch.setattr(extract, "decoded_batches", seen)
    one = read_feature_file(run(out=tmp_path / "1.npz", batch_size=3).path)
    two = read_feature_file(run(out=tmp_path / "2.npz", batch_size=1000).path)
    device = jax.local_devices()[:1]
    monkeypatch.setattr(jax, "local_devices", lambda: device)
    three = read_feature_file(run(out=tmp_path / "3.npz", batch_size=3).path)
    # A multiple of the devices' number, and not much larger than the set.
    assert sizes == [8, 48, 3]
    assert one.key == two.key == three.key
    close(two.features, one.features)
    close(three.features, one.features)


def test_a_batch_is_dispatched_before_the_last_is_fetched(run, monkeypatch):
    events, features, writer = [], extract.features_of_pixels, kept.FeatureWriter

    def dispatched(*arguments):
        events.append("dispatch")
        assert [len(part.data) for part in arguments[1].addressable_shards] == [1] * 8
        return features(*arguments)

    class Writer(writer):
        def append(self, *arguments):
            events.append("write")
            super().append(*arguments)

    monkeypatch.setattr(extract, "features_of_pixels", dispatched)
    monkeypatch.setattr(kept, "FeatureWriter", Writer)
    run()
    assert events == ["dispatch", *["dispatch", "write"] * 5, "write"]


def test_half_precision(run, expected, tmp_path):
    """In the file, and in the network."""
    half = read_feature_file(run(dtype="float16").path)
    assert half.features.dtype == np.float16
    close(half.features.astype(np.float32), expected, 2**-11)
    rough = backbone("squeezenet1_1", dtype=jnp.bfloat16)
    file = read_feature_file(run(network=rough, out=tmp_path / "rough.npz").path)
    assert file.features.dtype == np.float32
    close(file.features, expected, 0.1)
    assert (file.key["computed_in"], half.key["computed_in"]) == ("bfloat16", "float32")


# What is not computed again


def test_a_finished_file_is_used_again(run):
    done = run()
    before, told = done.path.read_bytes(), []
    again = run(made(read=unread), params=no_params, batch_size=3, progress=lambda *n: told.append(n))
    assert again == (done.path, 0, {})
    assert told == [(COUNT, COUNT)]
    assert done.path.read_bytes() == before


def test_a_finished_file_of_an_earlier_draft_is_not_written_anew(run):
    path = run().path
    file = read_feature_file(path)
    earlier = {"kept_images": np.array("ab"), "skipped_identities": np.array([], str)}
    rewrite(path, file.arrays | earlier)
    before = path.stat()
    run(made(read=unread), params=no_params)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_labels_clients_and_split_are_those_of_today(run):
    before = read_feature_file(run().path).features.copy()
    changed = {
        "labels": np.arange(COUNT, dtype=np.int32) % 2,
        "class_names": ("even", "odd"),
        "clients": np.arange(COUNT) % 5,
        "is_test": None,
        "read": unread,
    }
    file = read_feature_file(run(made(**changed), params=no_params).path)
    np.testing.assert_array_equal(file.features, before)
    np.testing.assert_array_equal(file.arrays["labels"], changed["labels"])
    np.testing.assert_array_equal(file.arrays["clients"], changed["clients"])
    assert tuple(file.arrays["class_names"]) == ("even", "odd")
    assert "is_test" not in file.arrays


OTHER = {
    "images": ({"images": made(fingerprint="ef56")}, "images: 'ab12' there, 'ef56' here"),
    "weights": ({"weights": "ef56"}, "weights: 'cd34' there, 'ef56' here"),
    "dtype": ({"dtype": "float16"}, "dtype: 'float32' there, 'float16' here"),
    "crop": (
        {"preprocessing": dataclasses.replace(SMALL, crop=56)},
        r"preprocessing\.crop: 64 there, 56 here",
    ),
    "backbone": (
        {"network": backbone("resnet18")},
        "backbone: 'squeezenet1_1' there, 'resnet18' here",
    ),
    "type": (
        {"network": backbone("squeezenet1_1", dtype="bfloat16")},
        "computed_in: 'float32' there, 'bfloat16' here",
    ),
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(("changes", "text"), OTHER.values(), ids=OTHER)
def test_features_of_something_else_are_not_touched(run, tmp_path, changes, text, finished):
    if finished:
        run()
    else:
        with pytest.raises(ValueError, match="truncated"):
            run(made(broken=[30]))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert before
    with pytest.raises(ValueError, match=text):
        run(params=no_params, **changes)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# Interruption


def test_an_interrupted_run_goes_on(run, tmp_path):
    whole = run(out=tmp_path / "whole.npz").path.read_bytes()

    def interrupt(done, total):
        if done == 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(progress=interrupt)
    assert not (tmp_path / "made.npz").exists()
    read, images = [], made()

    def counted(i):
        read.append(i)
        return images.read(i)

    told = []
    done = run(made(read=counted), progress=lambda *numbers: told.append(numbers))
    assert sorted(read) == list(range(16, COUNT))
    assert done.computed == COUNT - 16
    assert told[0] == (16, COUNT)
    assert done.path.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.npz", "whole.npz"]


KILLED = """
import os, signal, sys, threading
sys.path.insert(0, {tests!r})
from backbones import seeded
from data.test_extract import BATCH, NETWORK, SMALL, made
from covfree.backbones.weights import tensor_shapes
from covfree.data.extract import extract_features
written, images = threading.Event(), made()

def read(i):
    if i >= 4 * BATCH:
        written.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    return images.read(i)

params = NETWORK.from_tensors(seeded.tensors(tensor_shapes(NETWORK.shapes), NETWORK.name))
extract_features(
    made(read=read), NETWORK, params, out={out!r}, weights="cd34", preprocessing=SMALL, batch_size=BATCH,
    progress=lambda done, total: written.set() if done else None,
)
"""


def test_a_killed_process_loses_nothing_that_is_done(run, tmp_path):
    whole = run(out=tmp_path / "whole.npz").path.read_bytes()
    tests = os.path.dirname(os.path.dirname(__file__))
    script = KILLED.format(tests=tests, out=str(tmp_path / "made.npz"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    resumed = run()
    assert BATCH <= COUNT - resumed.computed <= 4 * BATCH
    assert resumed.path.read_bytes() == whole


# Damage

BROKEN = {i: f"{CLASSES[i % 3]}/{i}.png" for i in (0, 9, *range(40, COUNT))}
KEPT = [i for i in range(COUNT) if i not in BROKEN]


def test_a_damaged_image_stops(run, expected):
    with pytest.raises(ValueError, match=r"^images: cat/21\.png: cannot be read \(image file is truncated"):
        run(made(broken=[21, 30]))
    # What came before is kept, and skipping goes on from it.
    done = run(made(broken=[21, 30]), on_damaged="skip")
    assert 0 < done.computed < COUNT
    assert list(done.skipped) == ["cat/21.png", "cat/30.png"]
    close(read_feature_file(done.path).features, np.delete(expected, [21, 30], 0))


def test_damaged_images_are_left_out_and_named(run, expected):
    done = run(made(broken=BROKEN), on_damaged="skip")
    assert done.computed == COUNT
    assert done.skipped == {
        BROKEN[i]: f"image file is truncated ({i} bytes not processed)" for i in sorted(BROKEN)
    }
    file, images = read_feature_file(done.path), made()
    close(file.features, expected[KEPT])
    for name in ("labels", "clients", "is_test"):
        np.testing.assert_array_equal(file.arrays[name], getattr(images, name)[KEPT])
    assert tuple(file.arrays["ids"]) == tuple(images.ids[i] for i in KEPT)
    assert dict(zip(file.arrays["skipped_ids"], file.arrays["skipped_reasons"], strict=True)) == done.skipped


def test_a_file_that_leaves_images_out_is_used_as_it_is(run):
    first = run(made(broken=BROKEN), on_damaged="skip")
    labels = np.arange(COUNT, dtype=np.int32) % 2
    again = run(made(read=unread, labels=labels), params=no_params, on_damaged="skip")
    assert again == (first.path, 0, first.skipped)
    file = read_feature_file(first.path)
    np.testing.assert_array_equal(file.arrays["labels"], labels[KEPT])
    # Who wants all images is told.
    with pytest.raises(
        ValueError, match=r"leaves out 6 images .*\(cat/0\.png, cat/9\.png, .* \(6 in all\)\)"
    ):
        run(params=no_params)


def of_files(without=(), changed=()) -> ImageSet:
    """Images as a folder has them, some taken away or changed; those in `BROKEN` cannot be read."""
    whole = made(broken=BROKEN)
    kept = [i for i in range(COUNT) if i not in without]
    identities = tuple(f"{whole.ids[i]}, {i in changed}" for i in kept)
    pick = {"labels": whole.labels[kept], "clients": whole.clients[kept], "is_test": whole.is_test[kept]}
    return made(
        **pick,
        ids=tuple(whole.ids[i] for i in kept),
        identities=identities,
        fingerprint=str(hash(identities)),
        read=lambda place: whole.read(kept[place]),
    )


def test_a_damaged_image_may_be_taken_away(run, tmp_path):
    """What came before it is not computed again; if any of that changed, it is another set."""
    whole = run(of_files(BROKEN), out=tmp_path / "whole.npz").path
    with pytest.raises(ValueError, match=r"^images: dog/40\.png: cannot be read"):
        run(of_files({0, 9}))
    changed = "names, sizes or modification times of"
    for other in (of_files({0, 9, 1}), of_files(BROKEN, {1}), of_files(range(10, COUNT))):
        with pytest.raises(ValueError, match=rf"key\.images: .* {changed} finished images .* start anew$"):
            run(other, params=no_params)
    done = run(of_files(BROKEN))
    assert done.computed == COUNT - len(BROKEN) - 24
    assert done.path.read_bytes() == whole.read_bytes()
    with pytest.raises(ValueError, match=rf"holds .*images: '.*' there.* {changed} images in made changed"):
        run(of_files(BROKEN, {1}), params=no_params)


def test_a_part_that_leaves_images_out_is_not_finished_without_asking(run):
    def interrupt(done, total):
        if done == 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made(broken=BROKEN), on_damaged="skip", progress=interrupt)
    with pytest.raises(
        ValueError, match=r"made\.npz\.partial: leaves out 2 images .*\(cat/0\.png, cat/9\.png\)"
    ):
        run(params=no_params)


def test_a_set_of_nothing_but_damaged_images(run, tmp_path):
    with pytest.raises(
        ValueError, match=r"none of the 44 images of made can be read \(image file is truncated \(0"
    ):
        run(made(broken=range(COUNT)), on_damaged="skip")
    assert not (tmp_path / "made.npz").exists()


# Bad arguments


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 0}, "batch_size: .*at least 1, got 0"),
        ({"dtype": "bfloat16"}, "dtype: expected one of .*got 'bfloat16'"),
        ({"on_damaged": "hide"}, "on_damaged: expected one of .*got 'hide'"),
        ({"out": "features.npy"}, r"expected the path of an \.npz file, got 'features\.npy'"),
        (
            {"network": backbone("vit_b_16")},
            "preprocessing: expected crop 224 for vit_b_16, got 64",
        ),
        (
            {"images": made(ids=(), labels=np.zeros(0, int), clients=None, is_test=None)},
            "images: made holds none",
        ),
    ],
)
def test_bad_arguments(untyped, run, tmp_path, monkeypatch, arguments, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=text):
        run(params=no_params, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_the_backbones_own_preprocessing_is_the_default():
    key = extractor_key(NETWORK, "x", None)
    assert key["preprocessing"] == dataclasses.asdict(BACKBONES["squeezenet1_1"].preprocessing)
