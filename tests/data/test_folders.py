"""Image folders: every layout, every source of clients, and files as they come."""

import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covfree.data.folders import image_folder

GREY = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
COLOUR = np.stack([GREY, GREY[::-1], 255 - GREY], -1)


@pytest.fixture
def folder(tmp_path):
    """Makes a folder of the files named: pictures where the name says so, else text."""

    def make(*files: str, content: bytes = b"text") -> Path:
        for file in files:
            path = tmp_path / "pictures" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix.lower() in (".png", ".bmp"):
                Image.fromarray(COLOUR).save(path)
            else:
                path.write_bytes(content)
        return tmp_path / "pictures"

    return make


def classes(images) -> list[str]:
    return [images.class_names[label] for label in images.labels]


# Layouts


def test_classes(folder):
    images = image_folder(folder("dog/2.png", "dog/10.png", "cat/b.png", "cat/deep/er/a.PNG", "a cat/ä.bmp"))
    assert images.name == "pictures"
    assert images.ids == ("a cat/ä.bmp", "cat/b.png", "cat/deep/er/a.PNG", "dog/10.png", "dog/2.png")
    assert images.class_names == ("a cat", "cat", "dog")
    assert classes(images) == ["a cat", "cat", "cat", "dog", "dog"]
    assert images.labels.dtype == np.int32
    assert images.is_test is None
    assert images.clients is None
    assert images.ignored == ()
    assert len(images) == 5


def test_classes_that_others_have_too(folder):
    path = folder("train/dog/1.png", "train/ant/2.png", "test/cat/3.png", "test/dog/4.png")
    images = image_folder(path, class_names=["dog", "cat", "bee", "ant"])
    assert images.class_names == ("dog", "cat", "bee", "ant")
    assert images.labels.tolist() == [1, 0, 3, 0]
    with pytest.raises(ValueError, match=r"pictures: train/ant/2\.png: class 'ant' is none of .*: dog, cat"):
        image_folder(path, class_names=["dog", "cat"])
    with pytest.raises(ValueError, match="class_names: expected each once, got dog, cat, ant, dog"):
        image_folder(path, class_names=["dog", "cat", "ant", "dog"])


CLASS, SPLIT, CLIENT = (f"(?P<{name}>[^/]+)/" for name in ("class", "split", "client"))
# The pattern (None: found), the files, and for each image in order: class, client, whether it is a test.
PATTERNS = {
    "split/class, found": (
        None,
        ("test/cat/1.png", "train/cat/2.png", "train/dog/3.png"),
        [("cat", None, True), ("cat", None, False), ("dog", None, False)],
    ),
    "in other words": (
        None,
        ("Training/cat/1.png", "VALID/cat/1.png"),
        [("cat", None, False), ("cat", None, True)],
    ),
    "two parts are one": (
        SPLIT + CLASS,
        ("testing/cat/1.png", "test/cat/1.png", "train/cat/1.png"),
        [("cat", None, True), ("cat", None, True), ("cat", None, False)],
    ),
    "train alone is a class": (
        None,
        ("train/1.png", "bus/1.png"),
        [("bus", None, None), ("train", None, None)],
    ),
    "train alone is a part": (SPLIT + CLASS, ("train/cat/1.png",), [("cat", None, None)]),
    "classes called as parts": (
        CLASS,
        ("train/1.png", "test/1.png"),
        [("test", None, None), ("train", None, None)],
    ),
    "client/class": (
        CLIENT + CLASS,
        ("u1/cat/1.png", "u1/dog/1.png", "u2/dog/1.png"),
        [("cat", "u1", None), ("dog", "u1", None), ("dog", "u2", None)],
    ),
    "split/class/client": (
        SPLIT + CLASS + CLIENT,
        ("test/cat/u9/1.png", "train/cat/u1/1.png"),
        [("cat", "u9", True), ("cat", "u1", False)],
    ),
    "folders of no meaning": (
        "[^/]+/" + CLIENT + "[^/]+/" + CLASS,
        ("x/u1/y/cat/1.png", "z/u2/y/cat/1.png"),
        [("cat", "u1", None), ("cat", "u2", None)],
    ),
    "a client in the name, which a test may lack": (
        SPLIT + CLASS + r"(u(?P<client>\d+)_)?",
        ("train/cat/u07_1.png", "train/dog/u3_1.png", "test/dog/1.png", "test/cat/u3_9.png"),
        [("cat", "3", True), ("dog", "", True), ("cat", "07", False), ("dog", "3", False)],
    ),
}


@pytest.mark.parametrize(("pattern", "files", "expected"), PATTERNS.values(), ids=PATTERNS)
def test_patterns(folder, pattern, files, expected):
    images = image_folder(folder(*files), pattern=pattern)
    assert images.ids == tuple(sorted(files))
    none = [None] * len(files)
    clients = none if images.clients is None else images.clients.tolist()
    is_test = none if images.is_test is None else images.is_test.tolist()
    assert list(zip(classes(images), clients, is_test, strict=True)) == expected


def test_validation_is_left_aside_where_there_is_a_test(folder):
    files = ("train/cat/1.png", "test/cat/1.png", "val/cat/1.png", "val/newt/1.png", "val/notes.txt")
    images = image_folder(folder(*files))
    assert images.ids == ("test/cat/1.png", "train/cat/1.png")
    assert images.class_names == ("cat",)
    assert images.ignored == ("val/",)


def test_what_is_no_image_is_left_aside(folder):
    root = folder(
        *("cat/1.png", "cat/notes.txt", "cat/table.csv", "cat/x.h5", "cat/figure.eps", "cat/none"),
        *("cat/.hidden.png", "cat/.thumbs/1.png", ".git/config", "cover.png", "Thumbs.db"),
    )
    images = image_folder(root)
    assert images.ids == ("cat/1.png",)
    assert images.ignored == (
        *(".git/", "Thumbs.db", "cat/.hidden.png", "cat/.thumbs/", "cat/figure.eps", "cat/none"),
        *("cat/notes.txt", "cat/table.csv", "cat/x.h5", "cover.png"),
    )


def test_folders_without_images(folder):
    root = folder("train/cat/1.png", "test/cat/1.png", "meta/lists/train.txt")
    (root / "train" / "dog").mkdir()
    assert image_folder(root).ignored == ("meta/lists/train.txt", "train/dog/")


def test_the_order_is_not_the_file_systems(folder, monkeypatch):
    root = folder("b/2.png", "b/1.png", "a/1.png", "a/d/2.png")
    expected = image_folder(root)
    scandir = os.scandir

    class Reversed:
        def __init__(self, path):
            with scandir(path) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(os, "scandir", Reversed)
    images = image_folder(root)
    assert images.ids == expected.ids
    assert images.fingerprint == expected.fingerprint


def test_links(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    Image.fromarray(COLOUR).save(outside / "1.png")
    root = folder("cat/1.png")
    (root / "dog").symlink_to(outside)
    (root / "cat" / "2.png").symlink_to(outside / "1.png")
    images = image_folder(root)
    assert images.ids == ("cat/1.png", "cat/2.png", "dog/1.png")
    np.testing.assert_array_equal(np.asarray(images.read(2)), COLOUR)
    (root / "cat" / "circle").symlink_to(root)
    with pytest.raises(ValueError, match=r"pictures: cat/circle is a link to a folder above it"):
        image_folder(root)
    (root / "cat" / "circle").unlink()
    (outside / "1.png").unlink()
    with pytest.raises(ValueError, match=r"2\.png: cannot be read, or is a broken link"):
        image_folder(root)


# Errors

WRONG = {
    "nothing": (
        dict(),
        ("readme.txt", "cat/notes.txt"),
        r"expected images that match .*, found none; the folder holds cat/, cat/notes\.txt, readme\.txt",
    ),
    "no classes": (
        dict(),
        ("1.png", "2.png", "3.png", "4.png", "5.png", "6.png"),
        r"found none; the folder holds 1\.png, .*5\.png, \.\.\. \(6 in all\)",
    ),
    "another pattern": (
        dict(pattern=SPLIT + CLASS + CLIENT),
        ("train/cat/1.png",),
        r"expected images that match .*client.*, found none",
    ),
    "another split": (
        dict(),
        ("train/cat/1.png", "test/cat/1.png", "extra/cat/1.png"),
        r"extra/cat/1\.png: split: expected train, test or val, got 'extra'",
    ),
    "nothing to train on": (
        dict(),
        ("train/cat/1.png", "test/cat/1.png", "test/dog/1.png", "test/dog/2.png"),
        "class 'dog' has 2 test images, none to train on",
    ),
    "an unknown group": (
        dict(pattern=CLASS + "(?P<user>.)"),
        ("cat/1/1.png",),
        r"pattern: expected a group \(\?P<class>\.\.\.\)",
    ),
    "no class": (dict(pattern=SPLIT), ("train/1.png",), r"pattern: expected a group .* got '\(\?P<split>"),
    "no pattern": (dict(pattern="(u"), ("cat/u1.png",), r"pattern: expected a regular expr.*got '\(u'"),
    "no client": (
        dict(pattern=CLASS + r"\d_u(?P<client>\d*)"),
        ("cat/1_u1.png", "cat/2_u.png"),
        r"pictures: cat/2_u\.png: client: expected one for each training example",
    ),
}


@pytest.mark.parametrize(("options", "files", "text"), WRONG.values(), ids=WRONG)
def test_wrong_folders_are_named(folder, options, files, text):
    with pytest.raises(ValueError, match=text) as error:
        image_folder(folder(*files), **options)
    assert "pictures" in str(error.value) or options


def test_missing_folders_are_named(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match=r"absent: no such folder"):
        image_folder(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"1\.png: no such folder"):
        image_folder(folder("1.png") / "1.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="found none; the folder holds nothing"):
        image_folder(tmp_path / "empty")


def test_folders_that_cannot_be_listed_are_named(folder, monkeypatch):
    root, scandir = folder("cat/1.png", "dog/1.png"), os.scandir

    def refused(path):
        if Path(path).name == "dog":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ValueError, match=r"dog: cannot be listed \(Permission denied\)"):
        image_folder(root)


def test_file_names_that_are_no_text_are_named(folder):
    root = folder("cat/1.png")
    try:
        shutil.copy(root / "cat/1.png", os.fsencode(root / "cat") + b"/\xff.png")
    except OSError:
        pytest.skip("this file system takes no such name")
    with pytest.raises(ValueError, match=r"\.png': expected a file name in UTF-8"):
        image_folder(root)


# Reading: what is read of an image is tested with `decode_image`


def test_a_missing_file_is_no_damaged_one(folder):
    root = folder("cat/1.png")
    images = image_folder(root)
    (root / "cat/1.png").unlink()
    with pytest.raises(FileNotFoundError):
        images.read(0)


def test_no_memory_is_no_damage(folder, monkeypatch):
    images = image_folder(folder("cat/1.png"))

    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr(Image, "open", exhausted)
    with pytest.raises(MemoryError):
        images.read(0)


def test_sets_can_be_sent_to_another_process(folder):
    images = pickle.loads(pickle.dumps(image_folder(folder("cat/1.png"))))
    np.testing.assert_array_equal(np.asarray(images.read(0)), COLOUR)


# The fingerprint


def test_fingerprint(folder, tmp_path, monkeypatch):
    root = folder("cat/1.png", "cat/2.png", "cat/notes.txt")
    monkeypatch.setattr(Image, "open", None)  # nothing is read
    before = image_folder(root).fingerprint
    assert image_folder(root).fingerprint == before
    assert re.fullmatch("[0-9a-f]{64}", before)
    seen = {before}

    def changed() -> bool:
        size = len(seen)
        seen.add(image_folder(root).fingerprint)
        return len(seen) > size

    (root / "cat/notes.txt").write_text("not an image")
    assert not changed()
    os.utime(root / "cat/1.png", ns=(0, 1))
    assert changed()
    with (root / "cat/1.png").open("ab") as file:
        file.write(b"x")
    os.utime(root / "cat/1.png", ns=(0, 1))
    assert changed()
    (root / "cat/2.png").rename(root / "cat/3.png")
    assert changed()
    (root / "cat/3.png").unlink()
    assert changed()


# Real images


def test_caltech101(shared):
    """101 categories, 14 images each to train on and 6 to test on."""
    root = shared / "data" / "caltech101-20"
    if not root.is_dir():
        pytest.skip(f"test data not found: {root}")
    images = image_folder(root)
    assert images.name == "caltech101-20"
    assert len(images.class_names) == 101
    assert (~images.is_test).sum() == 1414
    assert images.is_test.sum() == 606
    assert (np.bincount(images.labels[~images.is_test]) == 14).all()
    assert (np.bincount(images.labels[images.is_test]) == 6).all()
    assert images.ignored == ()
    for i in range(0, len(images), 200):
        with Image.open(root / images.ids[i]) as expected:
            np.testing.assert_array_equal(np.asarray(images.read(i)), np.asarray(expected.convert("RGB")))
