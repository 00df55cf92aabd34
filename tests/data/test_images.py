"""Image sets from arrays and .npz files, by name, what the record refuses, and how image files are read."""

import io
import pickle
import struct
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from covfree.data.folders import image_folder
from covfree.data.image_set import ImageSet, image_formats
from covfree.data.images import image_arrays, load_images

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3)).astype(np.uint8)
LABELS = np.array([1, 0, 2, 1])


def test_arrays():
    images = image_arrays(
        PIXELS,
        LABELS,
        clients=["b", "a", "", "b"],
        is_test=[False, False, False, True],
        class_names=("x", "y", "z"),
        name="mine",
    )
    assert images.name == "mine"
    assert images.ids == ("0", "1", "2", "3")
    assert images.labels.dtype == np.int32
    np.testing.assert_array_equal(images.labels, LABELS)
    assert images.class_names == ("x", "y", "z")
    assert images.clients.tolist() == ["b", "a", "", "b"]
    assert images.is_test.tolist() == [False, False, False, True]
    assert images.ignored == ()
    assert len(images) == 4
    for i in range(4):
        np.testing.assert_array_equal(images.read(i), PIXELS[i])


def test_what_is_not_given():
    images = image_arrays(PIXELS[..., 0], LABELS.astype(np.uint64))
    assert images.class_names == ("0", "1", "2")
    assert images.clients is None
    assert images.is_test is None
    assert images.read(2).shape == (6, 5)


def test_bytes_are_decoded():
    clients = ["a", "b", "ä", ""]
    images = image_arrays(PIXELS, LABELS, clients=np.array([client.encode() for client in clients]))
    assert images.clients.tolist() == clients


def test_sets_can_be_sent_to_another_process():
    images = pickle.loads(pickle.dumps(image_arrays(PIXELS, LABELS)))
    np.testing.assert_array_equal(images.read(1), PIXELS[1])


def test_fingerprint():
    """That of the pixels, however they lie in memory, and of their shape."""
    expected = image_arrays(PIXELS, LABELS).fingerprint
    strided = np.asfortranarray(PIXELS)
    assert image_arrays(strided, LABELS[::-1].copy()).fingerprint == expected
    changed = PIXELS.copy()
    changed[3, 5, 4, 2] ^= 1
    others = [changed, PIXELS[::-1], PIXELS.reshape(4, 5, 6, 3), PIXELS[:3]]
    prints = {image_arrays(other, LABELS[: len(other)]).fingerprint for other in others}
    assert len(prints | {expected}) == 5


WRONG = {
    "floats": (dict(images=PIXELS / 255), TypeError, "images: expected uint8 pixels, got float64"),
    "channels first": (
        dict(images=PIXELS.transpose(0, 3, 1, 2)),
        ValueError,
        r"images: expected \[n, height, width, 3\] or \[n, height, width\] .* got \[4, 3, 6, 5\]",
    ),
    "one image": (dict(images=PIXELS[0, 0]), ValueError, r"images: expected .* got \[5, 3\]"),
    "no image": (dict(images=PIXELS[:0], labels=LABELS[:0]), ValueError, r"got \[0, 6, 5, 3\]"),
    "float labels": (dict(labels=LABELS / 1), TypeError, "labels: expected integers, got float64"),
    "a label too few": (dict(labels=LABELS[1:]), ValueError, r"labels: expected shape \[4\], got \[3\]"),
    "a negative label": (dict(labels=LABELS - 1), ValueError, "labels: 1 has label -1; expected one in"),
    "a huge label": (dict(labels=LABELS + 2**40), ValueError, "got 1099511627778 as the largest of 3"),
    "a label beyond int32": (
        dict(labels=LABELS + 2**32, class_names=["x", "y", "z"]),
        ValueError,
        "labels: 0 has label 4294967297",
    ),
    "a label without a name": (
        dict(class_names=["x", "y"]),
        ValueError,
        r"labels: 2 has label 2; expected one in \[0, 2\)",
    ),
    "a client too many": (
        dict(clients=list("abcde")),
        ValueError,
        r"clients: expected shape \[4\], got \[5\]",
    ),
    "float clients": (
        dict(clients=LABELS / 1),
        TypeError,
        "clients: expected strings or integers, got float",
    ),
    "is_test of numbers": (
        dict(is_test=LABELS),
        TypeError,
        r"is_test: expected booleans, .*astype\(bool\), got int64",
    ),
}


@pytest.mark.parametrize(("others", "kind", "text"), WRONG.values(), ids=WRONG)
def test_wrong_arrays_are_named(others, kind, text):
    with pytest.raises(kind, match=rf"mine: .*{text}"):
        image_arrays(**dict(dict(images=PIXELS, labels=LABELS, name="mine"), **others))


def test_ids_are_there_once():
    with pytest.raises(ValueError, match=r"mine: ids: expected each once, got 'b' twice"):
        ImageSet("mine", ("a", "b", "b"), np.zeros(3, np.int32), ("x",), lambda i: PIXELS[i], "1")


# By name


@pytest.fixture
def file(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "mine.npz", **arrays)
        return tmp_path / "mine.npz"

    return write


def test_files(file):
    options = dict(
        clients=np.array([3, -1, 3, 4]),
        is_test=np.arange(4) > 2,
        class_names=np.array(["x", "y", "z"]),
    )
    images = load_images(file(images=PIXELS, labels=LABELS, notes=np.array("more"), **options))
    assert images.name == "mine"
    assert images.class_names == ("x", "y", "z")
    assert images.clients.tolist() == [3, -1, 3, 4]
    assert images.is_test.tolist() == [False, False, False, True]
    assert images.fingerprint == image_arrays(PIXELS, LABELS).fingerprint
    assert load_images(str(file(images=PIXELS, labels=LABELS))).class_names == ("0", "1", "2")


def test_folders(tmp_path):
    (tmp_path / "cat").mkdir()
    Image.fromarray(PIXELS[0]).save(tmp_path / "cat" / "1.png")
    for source in (tmp_path, str(tmp_path)):
        images = load_images(source)
        assert images.ids == ("cat/1.png",)
        np.testing.assert_array_equal(np.asarray(images.read(0)), PIXELS[0])


SOURCES = {
    "another file": ("mine.txt", ValueError, r"mine\.txt: expected a folder of images or an \.npz file"),
    "features": (
        "features.npz",
        ValueError,
        r"expected arrays images and labels, got \['features', 'labels'\]",
    ),
    "objects": ("objects.npz", ValueError, r"objects\.npz: expected an \.npz file of plain arrays"),
    "wrong arrays": ("floats.npz", ValueError, r"floats\.npz: floats: images: expected uint8 pixels"),
    "no file": ("absent.npz", FileNotFoundError, r"absent\.npz: no such file"),
    "nothing": ("absent", FileNotFoundError, r"absent: no such file or folder; expected .* tfds:NAME"),
}


@pytest.mark.parametrize(("name", "kind", "text"), SOURCES.values(), ids=SOURCES)
def test_other_sources_are_named(tmp_path, name, kind, text):
    (tmp_path / "mine.txt").write_text("text")
    np.savez(tmp_path / "features.npz", features=PIXELS, labels=LABELS)
    np.savez(tmp_path / "objects.npz", images=PIXELS, labels=LABELS, clients=np.array([None] * 4, object))
    np.savez(tmp_path / "floats.npz", images=PIXELS / 1, labels=LABELS)
    with pytest.raises(kind, match=text):
        load_images(tmp_path / name)


# Files

GREY = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
COLOUR = np.stack([GREY, GREY[::-1], 255 - GREY], -1)


@pytest.fixture
def read(tmp_path):
    """Saves an image under a name with Pillow, or as bytes, and reads it back through an image set."""

    def save(image, name: str, **options):
        path = tmp_path / "one" / "cat" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(image, bytes):
            path.write_bytes(image)
        else:
            image.save(path, **options)
        return image_folder(tmp_path / "one").read(0)

    return save


def png(**options) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(COLOUR).save(stream, "png", **options)
    return stream.getvalue()


def jpeg(size: int = 64) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(stream, "jpeg")
    return stream.getvalue()


ALPHA = np.dstack([COLOUR, np.full((6, 8), 9, np.uint8)])
PALETTE = Image.fromarray(COLOUR).quantize(16)
TREBLE = np.dstack([GREY] * 3)
KINDS = {
    "png": (Image.fromarray(COLOUR), "1.png", {}, COLOUR),
    "another name": (png(), "1.JPG", {}, COLOUR),
    "tiff": (Image.fromarray(COLOUR), "1.tiff", {}, COLOUR),
    "grey": (Image.fromarray(GREY), "1.png", {}, TREBLE),
    "black and white": (Image.fromarray(GREY > 99), "1.png", {}, np.dstack([(GREY > 99) * 255] * 3)),
    # Transparency is dropped, as in torchvision: no background shines through.
    "rgba": (Image.fromarray(ALPHA), "1.png", {}, COLOUR),
    "grey with alpha": (Image.fromarray(ALPHA[..., 2:]), "1.png", {}, np.dstack([ALPHA[..., 2]] * 3)),
    "palette": (PALETTE, "1.png", {}, np.asarray(PALETTE.convert("RGB"))),
    "transparent palette": (
        PALETTE,
        "1.png",
        dict(transparency=bytes(range(16))),
        np.asarray(PALETTE.convert("RGB")),
    ),
    "one transparent colour": (PALETTE, "1.gif", dict(transparency=3), np.asarray(PALETTE.convert("RGB"))),
    "16 bits of colour": (
        # Big-endian; Pillow keeps the upper eight, which is no clipping.
        b"P6 8 6 65535\n" + (COLOUR.astype(">u2") * 257).tobytes(),
        "1.ppm",
        {},
        COLOUR,
    ),
}


@pytest.mark.parametrize(("image", "name", "options", "expected"), KINDS.values(), ids=KINDS)
def test_kinds_of_images(read, image, name, options, expected):
    result = read(image, name, **options)
    assert result.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(result), expected)


# What shows each orientation upright: the image as the camera stored it, from the upright one.
STORED = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x.swapaxes(0, 1)[::-1],
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: x.swapaxes(0, 1)[:, ::-1],
}


@pytest.mark.parametrize("orientation", STORED)
def test_images_are_turned_upright(read, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](COLOUR)))
    np.testing.assert_array_equal(np.asarray(read(stored, "1.png", exif=exif)), COLOUR)


def test_a_photograph_turned_upright(read):
    """A JPEG, with colours that survive it: red on the left, blue on the right."""
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:, :16, 0] = upright[:, 16:, 2] = 250
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.fromarray(np.ascontiguousarray(STORED[6](upright)))
    result = np.asarray(read(stored, "1.jpg", exif=exif, quality=100, subsampling=0)).astype(int)
    assert np.abs(result - upright).max() < 4


@pytest.mark.parametrize("exif", [b"MM\0*\0\0\0\x08\xff\xffgarbage", b"garbage", b""])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_damaged_exif_does_no_harm(read, exif):
    content = jpeg()
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif
    np.testing.assert_array_equal(
        np.asarray(read(content[:2] + segment + content[2:], "1.jpg")),
        np.asarray(Image.open(io.BytesIO(content))),
    )


NO_IMAGE = "is no image that Pillow can read$"
SIXTEEN = Image.fromarray(GREY.astype(np.uint16) * 257)
DAMAGED = {
    "cut off": (jpeg()[: len(jpeg()) // 2], "1.jpg", "image file is truncated"),
    "a cut png": (png()[:-30], "1.png", "cannot be read as an image"),
    "empty": (b"", "1.jpg", NO_IMAGE),
    "text": (b"no image", "1.jpg", NO_IMAGE),
    # Pillow would run Ghostscript.
    "postscript": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "1.jpg",
        NO_IMAGE,
    ),
    "16 bits of grey": (
        SIXTEEN,
        "1.png",
        r"its mode I(;16)? has more than 8 bits a channel; convert it to 8 bits",
    ),
    "floats": (Image.fromarray(GREY.astype(np.float32)), "1.tiff", "its mode F has more than 8 bits"),
    "32 bits": (Image.fromarray(GREY.astype(np.int32)), "1.tiff", "its mode I has more than 8 bits"),
}


@pytest.mark.parametrize(("image", "name", "text"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_images_are_named(read, image, name, text):
    with pytest.raises(ValueError, match=rf"^cat/{name}: (?:cannot be read as an image \(.*)?{text}"):
        read(image, name)


@pytest.mark.parametrize("most", [20, 47], ids=["an error of Pillow's", "a warning of Pillow's"])
@pytest.mark.parametrize("action", ["error", "ignore"])
def test_huge_images_are_named(read, monkeypatch, most, action):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        with pytest.raises(ValueError, match=r"^cat/1\.png: cannot be read as an image \(.*48 pixels"):
            read(png(), "1.png")


# What is installed


@pytest.mark.parametrize(
    ("module", "source", "text"),
    [
        ("PIL.Image", "cat", r"PIL is needed for this: pip install '\.\[pretrained\]'"),
        (
            "tensorflow_datasets",
            "tfds:mnist",
            r"tensorflow_datasets is needed for this: pip install '\.\[tfds\]'",
        ),
    ],
)
def test_the_error_names_the_extra(monkeypatch, tmp_path, module, source, text):
    monkeypatch.setitem(sys.modules, module, None)
    image_formats.cache_clear()
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").touch()
    with pytest.raises(ImportError, match=text):
        load_images(tmp_path if source == "cat" else source)
    image_formats.cache_clear()
