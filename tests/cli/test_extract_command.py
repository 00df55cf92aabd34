"""``covfree extract`` and ``covfree compare --images``: from images on disk to features and tables."""

import hashlib
import json
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import tiny_encoder
from backbones import seeded
from PIL import Image
from safetensors.numpy import save_file
from tiny_networks import RESNET, put_in_table

import covfree
from covfree.backbones import backbone, preprocess
from covfree.backbones.extractor import Backbone
from covfree.backbones.weights import tensor_shapes
from covfree.data import from_tfds
from covfree.data.dataset import load_npz
from covfree.data.extract import extract_features
from covfree.data.feature_file import read_feature_file
from covfree.data.images import load_images
from covfree.studies import extraction
from covfree.studies import source as source_module

NETWORK = backbone(RESNET)
CLASSES = ("cat", "dog")
COUNT = 24


def pictures() -> dict[str, np.ndarray]:
    """Of two classes and four clients: cats are dark, dogs are bright."""
    return {
        f"{CLASSES[i % 2]}/user{i // 2 % 4}_{i:02}.png": seeded.picture((40 + i % 3, 44)) // 2 + 127 * (i % 2)
        for i in range(COUNT)
    }


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file(seeded.tensors(tensor_shapes(NETWORK.shapes), NETWORK.name), path)
    return path


@pytest.fixture
def photos(tmp_path):
    for name, pixels in pictures().items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def tiny_network(monkeypatch, tmp_path):
    """With a cache of the test's own."""
    put_in_table(monkeypatch)
    monkeypatch.setenv("COVFREE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def features(cli, photos, weights, tmp_path):
    """Runs ``features`` on the photos into ``out.npz``; what is given comes last and wins."""

    def call(*arguments):
        given = ("--images", photos, "--backbone", "resnet-tiny", "--weights", weights, "--batch-size", 8)
        return cli("extract", *given, "--out", tmp_path / "out.npz", *arguments)

    return call


@pytest.fixture
def no_computing(monkeypatch):
    """Nothing more may be computed, or be got ready for it."""

    def refuse(*_):
        raise AssertionError("parameters are loaded")

    return lambda: monkeypatch.setattr(Backbone, "load", refuse)


def close(found, wanted):
    np.testing.assert_array_less(np.abs(found - wanted).max(1), 1e-6 * np.abs(wanted).max(1))


def test_a_folder_becomes_a_file_of_features(features, weights, tmp_path):
    outcome = features()
    assert outcome.code == 0, outcome.err
    assert outcome.out == ""
    file = read_feature_file(tmp_path / "out.npz")
    images = pictures()
    assert file.arrays["ids"].tolist() == sorted(images)
    pixels = np.stack([preprocess(images[name], RESNET) for name in sorted(images)])
    close(file.features, np.asarray(jax.jit(NETWORK.apply)(NETWORK.load(weights), pixels)))
    assert [CLASSES[label] for label in file.arrays["labels"]] == [name[:3] for name in sorted(images)]
    size = (tmp_path / "out.npz").stat().st_size
    assert re.fullmatch(
        rf"covfree: 24 images, 24 computed in \d+\.\d s \(\d+ images/s\): .*out\.npz, {size:,} bytes\n",
        outcome.err,
    )


def test_a_finished_file_is_used_again(features, no_computing, photos, weights, tmp_path):
    features()
    before = (tmp_path / "out.npz").read_bytes()
    no_computing()
    outcome = features()
    assert outcome.code == 0, outcome.err
    assert "24 images, nothing to compute: " in outcome.err
    assert (tmp_path / "out.npz").read_bytes() == before
    # From Python the same weights have the same hash.
    found = extract_features(load_images(photos), NETWORK, weights, out=tmp_path / "out.npz")
    assert found.computed == 0
    assert read_feature_file(found.path).key["weights"] == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_clients(features, no_computing, tmp_path):
    """By a pattern; of the same images no features are computed again."""
    owners = [name[8] for name in sorted(pictures())]
    for pattern in (r"(?P<class>[^/]+)/user(?P<client>\d)_", r"(?P<class>[^/]+)/(?P<client>user\d)_"):
        assert features("--pattern", pattern).code == 0
        no_computing()
    kept = read_feature_file(tmp_path / "out.npz").arrays["clients"].tolist()
    assert kept == [f"user{owner}" for owner in owners]


def test_a_pattern_with_splits(features, photos, tmp_path):
    for part in ("train", "val"):
        (tmp_path / "split" / part).mkdir(parents=True)
    for name in CLASSES:
        (photos / name).rename(tmp_path / "split" / "train" / name)
        (tmp_path / "split" / "val" / name).mkdir()
        Image.fromarray(seeded.picture((50, 60))).save(tmp_path / "split" / "val" / name / "a.png")
    assert (
        features("--images", tmp_path / "split", "--pattern", "(?P<split>[^/]+)/(?P<class>[^/]+)/").code == 0
    )
    assert read_feature_file(tmp_path / "out.npz").arrays["is_test"].sum() == 2


def test_sites_number_classes_by_one_list(features, photos, tmp_path):
    """Each has its own folder, in which a class may be missing; the file carries all names."""
    names = tmp_path / "classes.txt"
    names.write_text("dog\n\nant\ncat\n", encoding="utf-8")
    shutil.rmtree(photos / "dog")
    features("--class-names", names)
    data = load_npz(tmp_path / "out.npz")
    assert data.class_names == ("dog", "ant", "cat")
    assert (data.num_classes, set(data.train_labels.tolist())) == (3, {2})
    sent = covfree.client_message(
        covfree.fedncm(),
        data.train_features,
        data.train_labels,
        num_classes=3,
        class_names=data.class_names,
    )
    received = covfree.collect({"site": sent}, num_classes=3, class_names=("ant", "cat", "dog"))
    assert received.rejected["site"].startswith("class_names: expected 'ant' for class 0, got 'dog'")


def test_arrays_and_half_precision(features, tmp_path):
    images = np.stack([seeded.picture((40, 40)) + i for i in range(9)])
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(9) % 3)
    assert features("--images", tmp_path / "images.npz", "--dtype", "float16").code == 0
    file = read_feature_file(tmp_path / "out.npz")
    assert (file.features.shape, file.features.dtype) == ((9, 64), np.float16)


def test_a_tensorflow_data_set(features, monkeypatch, photos, tmp_path):
    asked = []

    def tfds(name, **options):
        asked.append((name, options))
        return load_images(photos)

    monkeypatch.setattr(from_tfds, "tfds", tfds)
    given = ("--images", "tfds:cifar10/1:3.0", "--client-column", "user")
    assert features(*given, "--train-split", "train[:10%]", "--test-split", "none").code == 0
    assert features("--images", "tfds:cifar10", "--test-split", "test[:5]").code == 0
    assert asked == [
        ("cifar10/1:3.0", {"train": "train[:10%]", "test": None, "client_column": "user"}),
        ("cifar10", {"test": "test[:5]"}),
    ]


def test_damaged_images_and_other_files(features, photos, tmp_path):
    broken = sorted(pictures())[3]
    (photos / broken).write_bytes((photos / broken).read_bytes()[:300])
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (photos / "cat" / name).write_text("no image")
    outcome = features()
    assert outcome.is_one_line, outcome
    assert re.search(rf"images: {broken}: cannot be read \(.*truncated.*\); on_damaged='skip'", outcome.err)
    outcome = features("--on-damaged", "skip")
    assert outcome.code == 0, outcome.err
    skipped, summary = outcome.err.splitlines()
    assert re.match(rf"covfree: skipped {broken}: .*truncated", skipped)
    text = "24 images, 1 skipped, 4 left aside (cat/a.txt, cat/b.txt, cat/c.txt, …), "
    assert summary.startswith(f"covfree: {text}")
    file = read_feature_file(tmp_path / "out.npz")
    assert file.arrays["ids"].tolist() == [name for name in sorted(pictures()) if name != broken]


def test_it_goes_on_after_a_damaged_image_is_taken_away(features, photos, tmp_path):
    """What was computed before it is not computed again; what it was computed from is the same."""
    *_, broken = sorted(pictures())
    content = (photos / broken).read_bytes()
    (photos / broken).write_bytes(content[:300])
    assert features("--batch-size", 8).is_one_line
    (photos / broken).unlink()
    outcome = features("--batch-size", 8)
    assert outcome.code == 0, outcome.err
    assert "23 images, 15 computed in" in outcome.err
    taken = read_feature_file(tmp_path / "out.npz")
    whole = tmp_path / "whole.npz"
    assert features("--batch-size", 8, "--out", whole).code == 0
    np.testing.assert_array_equal(taken.features, read_feature_file(whole).features)
    # Where an image that is done has changed, that is an error as before.
    (tmp_path / "out.npz").unlink()
    (photos / broken).write_bytes(content[:300])
    assert features("--batch-size", 8).is_one_line
    first = photos / sorted(pictures())[0]
    first.write_bytes(first.read_bytes() + b" ")
    outcome = features("--batch-size", 8)
    assert outcome.refuses("was begun with something else")


def test_the_bar_shows_how_fast_it_is(features, monkeypatch):
    assert "images/s" not in re.sub(r"\(\d+ images/s\)", "", features().err)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")

    def steps(images, *_, out, progress, **__):
        for done in range(0, 25, 8):
            progress(done, 24)
        return extraction.Extracted(out, 24, {})

    monkeypatch.setattr(extraction, "extract_features", steps)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", features().err)
    assert re.search(r"[\d,]+ images/s +━+ +24/24", text), text


# Comparing on images


@pytest.fixture
def compare(cli, photos, weights):
    def call(*arguments):
        given = ("--images", photos, "--backbone", "resnet_tiny", "--weights", weights)
        return cli("compare", *given, "--methods", "fedncm", "--clients", 3, "--seeds", 1, *arguments)

    return call


def test_compare_on_images(compare, no_computing, weights, photos, tmp_path):
    outcome = compare("--format", "json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    config = content["config"]
    assert (config["images"], config["backbone"], config["weights"]) == (
        str(photos),
        "resnet_tiny",
        str(weights),
    )
    assert "dataset" not in config
    (record,) = content["results"]
    assert record["accuracy_mean"] == 1
    (cached,) = (tmp_path / "cache").iterdir()
    assert re.fullmatch(r"photos-resnet_tiny-[0-9a-f]{16}\.npz", cached.name)
    assert "24 computed" in outcome.err
    no_computing()
    again = compare()
    assert again.code == 0, again.err
    assert again.out.startswith("photos: 16 train, 8 test, 3 clients, inner_dirichlet 0.1, 1 seed")
    assert "nothing to compute" in again.err


def test_a_changed_image_is_computed_anew(compare, photos, tmp_path):
    assert compare().code == 0
    first = sorted(pictures())[0]
    Image.fromarray(seeded.picture((60, 60))).save(photos / first)
    assert "24 computed" in compare().err
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_where_the_cache_is(monkeypatch, tmp_path):
    key, digest = {"images": "ab"}, hashlib.sha256(b'{"images": "ab"}').hexdigest()[:16]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COVFREE_CACHE", "own")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "common"))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = source_module.cache_file("a/b c", key).parent
    assert str(folder) == "own"
    monkeypatch.delenv("COVFREE_CACHE")
    path = source_module.cache_file("a/b c", key)
    assert path.parent == tmp_path / "common" / "covfree"
    assert path.name == f"a_b_c-{digest}.npz"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert source_module.cache_file("a", key).parent == tmp_path / ".cache" / "covfree"
    assert source_module.cache_file("a", {"images": "cd"}).name != source_module.cache_file("a", key).name
    (tmp_path / "file").touch()
    monkeypatch.setenv("COVFREE_CACHE", "file")
    with pytest.raises(OSError, match=r"file: features cannot be kept in this .*set COVFREE_CACHE to"):
        source_module.cache_file("a", key)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--partition", "random"], "--partition: expected one of"),
        (["--clients", "1000"], "clients.*at most .*got 1000"),
        (["--alpha", "0"], "alpha: expected a finite number above 0, got 0"),
        (["--dataset", "digits"], "--dataset: expected none beside --images"),
        (["--test-file", "test.npz"], "--test-file: expected none beside --images"),
        (["--backbone", "alexnet"], "--backbone: expected one of squeezenet1-1, .*, got 'alexnet'"),
        (["--weights", "absent.safetensors"], r"no such file: absent\.safetensors"),
        (["--images", "absent"], "--images: absent: no such file or folder"),
    ],
)
def test_bad_arguments_of_compare_show_before_anything_is_computed(
    untyped, compare, no_computing, tmp_path, arguments, text
):
    no_computing()
    outcome = compare("--out", tmp_path / "out", *arguments)
    assert outcome.is_one_line, outcome
    assert re.search(text, outcome.err), outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--batch-size", "0"], "--batch-size: expected at least 1, got 0"),
        (["--out", "features.npy"], r"--out: expected a file that ends in \.npz, got 'features\.npy'"),
        (["--backbone", "alexnet"], "--backbone: expected one of squeezenet1-1, .*, got 'alexnet'"),
        (["--dtype", "float64"], "--dtype.*'float64'"),
        (["--on-damaged", "hide"], "--on-damaged.*'hide'"),
        (["--images", "absent"], "--images: absent: no such file or folder"),
        (["--images", "absent", "--pattern", "x"], "--pattern: expected a folder of images, got absent"),
        (["--weights", "absent.safetensors"], r"no such file: absent\.safetensors"),
        (["--pattern", "colour"], "pattern.*colour"),
        (["--pattern", "("], "pattern: expected a regular expression"),
        (["--class-names", "absent.txt"], "--class-names: expected a text file in UTF-8, got absent.txt"),
        (["--class-names", __file__], "--class-names: expected a name a line, each once, in .*got"),
        (["--images", "tfds:x", "--class-names", "x"], "--class-names: expected a"),
        (["--client-column", "user"], "--client-column: expected a TensorFlow data set"),
        (["--test-split", "none"], "--test-split: expected a TensorFlow data set, tfds:NAME, got .*photos"),
        (["--images", "tfds:x", "--pattern", "x"], "--pattern: expected a folder of images, got tfds:x"),
    ],
)
def test_bad_arguments(untyped, features, no_computing, tmp_path, arguments, text):
    no_computing()
    outcome = features(*arguments)
    assert outcome.is_one_line, outcome
    assert re.search(text, outcome.err), outcome.err
    assert not (tmp_path / "out.npz").exists()


def test_bad_arguments_cost_no_heavy_imports(photos, tmp_path):
    """To the console script, as its entry point starts it, in a process of its own."""
    script = """
import sys
from covfree.cli import main
try:
    main()
finally:
    print([name for name in ("flax", "matplotlib", "huggingface_hub", "tensorflow") if name in sys.modules])
"""
    words = ["extract", "--images", str(photos), "--backbone", "resnet18", "--out", "a.npz"]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "[]\n"), done.stderr
    assert done.stderr.startswith("covfree: --weights: no package ships weights of resnet18")
    assert done.stderr.count("\n") == 1


def test_a_package_that_is_missing_is_named(features, monkeypatch):
    """And a name that covfree itself lacks is a bug, which shows where it is."""

    def missing(*_):
        raise ImportError("w is needed for this: pip install 'covfree[pretrained]'") from ImportError("no w")

    monkeypatch.setattr(extraction, "find_weights", missing)
    outcome = features()
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "covfree: w is needed for this: pip install 'covfree[pretrained]'\n"

    def broken(*_):
        raise ImportError("cannot import name")

    monkeypatch.setattr(extraction, "find_weights", broken)
    with pytest.raises(ImportError, match="cannot import name"):
        features()


def test_another_files_features_are_not_overwritten(features, photos, no_computing):
    features()
    no_computing()
    outcome = features("--dtype", "float16")
    assert outcome.refuses(
        "out.npz: holds features of something else (dtype: 'float32' there, 'float16' here)"
    )


# Texts


@pytest.fixture
def mails(tmp_path):
    lines = ["text,label,client"]
    lines += [
        f"the {word} is on,{label},c{i % 3}"
        for i in range(6)
        for word, label in (("rain", "x"), ("soup", "y"))
    ]
    (tmp_path / "mails.csv").write_text("\n".join(lines))
    return tmp_path / "mails.csv"


@pytest.fixture
def of_texts(cli, mails, tmp_path):
    """Runs ``extract`` on the mails into ``mails.npz`` with a tiny encoder."""
    folder = tiny_encoder.make(tmp_path / "tiny")

    def call(*arguments):
        given = ("--texts", mails, "--weights", folder, "--batch-size", 4, "--out", tmp_path / "mails.npz")
        return cli("extract", *given, *arguments)

    return call


def test_texts_become_a_file_of_features(of_texts, cli, tmp_path):
    outcome = of_texts()
    assert outcome.code == 0, outcome.err
    assert outcome.out == ""
    assert re.fullmatch(r"covfree: 12 texts, 12 computed in .*texts/s\): .*mails\.npz, .*\n", outcome.err)
    file = read_feature_file(tmp_path / "mails.npz")
    assert file.arrays["class_names"].tolist() == ["x", "y"]
    assert file.arrays["clients"].tolist() == [f"c{i // 2 % 3}" for i in range(12)]
    np.testing.assert_allclose(np.linalg.norm(file.features, axis=1), 1, rtol=1e-5)
    assert "12 texts, nothing to compute" in of_texts().err
    outcome = cli("compare", "--dataset", tmp_path / "mails.npz", "--methods", "fedncm", "--format", "json")
    assert outcome.code == 0, outcome.err
    (record,) = json.loads(outcome.out)["results"]
    assert record["accuracy_mean"] == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--images", "photos"], "--images: expected none beside --texts"),
        (["--backbone", "resnet18"], "--backbone: expected none beside --texts"),
        (["--pattern", "x"], "--pattern: expected none beside --texts"),
        (["--test-split", "test"], "--test-split: expected none beside --texts"),
        (["--on-damaged", "skip"], "--on-damaged: expected none beside --texts"),
        (["--text-column", "query"], "mails.csv: expected columns query and label once each"),
        (["--texts", "absent.csv"], r"absent\.csv: no such file"),
        (["--weights", "absent"], "absent: expected a sentence encoder, found no config.json"),
    ],
)
def test_bad_arguments_of_texts(of_texts, tmp_path, arguments, text):
    outcome = of_texts(*arguments)
    assert outcome.is_one_line, outcome
    assert re.search(text, outcome.err), outcome.err
    assert not (tmp_path / "mails.npz").exists()
