"""Decoding by a pool of threads: order, padding, damage, and no thread that outlives its use."""

import errno
import io
import re
import threading
import time

import numpy as np
import pytest
from PIL import Image

from covfree.backbones import Prepared, Preprocessing
from covfree.backbones.preprocess import crop
from covfree.data.decode import decoded_batches
from covfree.data.image_set import ImageSet

CROP = Preprocessing(20, 16, "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
SMALL = Prepared.of(CROP)


def pictures(count: int) -> list[np.ndarray]:
    """Of different sizes, and each of one colour, so that order shows."""
    return [np.full((20 + i % 7, 24 + i % 5, 3), i % 256, np.uint8) for i in range(count)]


def image_set(count: int, read=None) -> ImageSet:
    arrays = pictures(count)
    ids = tuple(f"{i}.png" for i in range(count))
    return ImageSet("made", ids, np.zeros(count, np.int32), ("a",), read or arrays.__getitem__, "f")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("covfree-decode")]


@pytest.mark.parametrize(
    ("count", "batch", "start"), [(37, 8, 0), (37, 8, 13), (37, 100, 0), (16, 8, 0), (5, 1, 2)]
)
def test_batches_are_the_crops_in_order_filled_up_with_zeros(count, batch, start):
    def slow_at_first(i):
        # The first of a batch is done last.
        time.sleep(0.01 if i % batch == 0 else 0)
        return pictures(count)[i]

    found = list(decoded_batches(image_set(count, slow_at_first), SMALL, batch_size=batch, start=start))
    assert [part.start for part in found] == list(range(start, count, batch))
    assert sum(part.size for part in found) == count - start
    for part in found:
        assert part.pixels.shape == (batch, 16, 16, 3)
        assert part.pixels.dtype == np.uint8
        assert part.skipped == {}
        np.testing.assert_array_equal(part.kept, np.arange(part.size))
        for row in range(part.size):
            np.testing.assert_array_equal(part.pixels[row], crop(pictures(count)[part.start + row], CROP))
        assert not part.pixels[part.size :].any()


def test_nothing_to_decode():
    assert list(decoded_batches(image_set(3), SMALL, batch_size=2, start=3)) == []


def test_work_ahead_is_bounded():
    """Who takes nothing makes nobody read the whole set."""
    begun = []

    def read(i):
        begun.append(i)
        return pictures(1)[0]

    batches = decoded_batches(image_set(1000, read), SMALL, batch_size=16)
    next(batches)
    # On a busy machine readers are late; a reader without a bound goes on in the last wait.
    late = time.monotonic() + 60
    while len(begun) <= 16:
        assert time.monotonic() < late
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(begun) <= 16 * 6
    batches.close()
    assert threads() == []


def jpeg() -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(noise).save(file, "JPEG")
    return file.getvalue()


def raising(error: BaseException):
    def read(i):
        raise error

    return read


def opened(content: bytes):
    return lambda i: Image.open(io.BytesIO(content))


DAMAGED = {
    "cut short": (opened(jpeg()[:700]), "truncated"),
    "empty": (opened(b""), "cannot identify image file"),
    "torn": (raising(SyntaxError("broken PNG file")), "broken PNG file"),
    "text": (opened(b"no image"), "cannot identify image file"),
    "wrong shape": (lambda i: np.zeros((4, 4, 2), np.uint8), r"image: expected \[height, width, 3\]"),
    "a line": (lambda i: np.zeros((1, 1001, 3), np.uint8), "expected sides of at most 1000:1, got 1001 × 1"),
    "runtime error": (raising(RuntimeError("Failed to decode image")), "Failed to decode image"),
    "without a word": (raising(EOFError()), "EOFError"),
    "in two lines": (raising(ValueError("one\n  two")), "one two"),
    "a place before the file": (raising(OSError(errno.EINVAL, "Invalid argument")), "Invalid argument"),
}


def partly(broken, *indices):
    return lambda i: broken(i) if i in indices else pictures(10)[i]


@pytest.mark.parametrize(("broken", "reason"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_images_are_named(broken, reason):
    images = image_set(10, partly(broken, 2, 5, 9))
    with pytest.raises(ValueError, match=rf"^images: 2\.png: cannot be read \(.*{reason}.*\); on_damaged"):
        list(decoded_batches(images, SMALL, batch_size=4))
    first, second, third = decoded_batches(images, SMALL, batch_size=4, skip=True)
    assert [set(part.skipped) for part in (first, second, third)] == [{2}, {5}, {9}]
    for part in (first, second, third):
        (said,) = part.skipped.values()
        assert re.search(reason, said)
    np.testing.assert_array_equal(first.kept, [0, 1, 3])
    np.testing.assert_array_equal(third.kept, [0])
    assert not first.pixels[2].any()
    assert (first.pixels[3] == 3).all()
    assert threads() == []


def test_the_cause_of_an_image_sets_own_error_is_the_reason():
    def read(i):
        try:
            Image.open(io.BytesIO(b""))
        except OSError as error:
            raise ValueError(f"{i}.png: cannot be read as an image ({error})") from error

    with pytest.raises(ValueError, match=r"^images: 0\.png: cannot be read \(cannot identify image file"):
        list(decoded_batches(image_set(3, read), SMALL, batch_size=4))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_what_the_system_refuses_is_not_skipped(skip, wrapped):
    """Else a network drive that goes away would make half a data set damaged."""

    def read(i):
        try:
            raise OSError(errno.EMFILE, "Too many open files", "0.png")
        except OSError as error:
            if wrapped:
                raise ValueError("cannot be read") from error
            raise

    with pytest.raises(OSError, match=r"images: 0\.png: cannot be read \(.*Too many open files"):
        list(decoded_batches(image_set(3, read), SMALL, batch_size=4, skip=skip))


@pytest.mark.parametrize("error", [TypeError, KeyError, AssertionError])
def test_a_bug_is_no_damage(error):
    images = image_set(10, partly(raising(error("bug")), 3))
    with pytest.raises(error, match="bug"):
        list(decoded_batches(images, SMALL, batch_size=4, skip=True))
    assert threads() == []


def test_threads_end_with_who_takes_batches():
    for batch in decoded_batches(image_set(200), SMALL, batch_size=4):
        assert threads()
        if batch.start == 8:
            break
    assert threads() == []

    def raises():
        for _ in decoded_batches(image_set(200), SMALL, batch_size=4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        raises()
    assert threads() == []
