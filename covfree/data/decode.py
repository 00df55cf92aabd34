"""Decode images in batches: threads decode ahead while the device computes on earlier batches."""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from covfree.backbones.extractors import Prepared
from covfree.backbones.table import Preprocessing
from covfree.core.optional import optional
from covfree.data.image_set import ImageSet, is_damage

_LEAVE_OUT = "on_damaged='skip' (covfree extract --on-damaged skip) leaves such images out"

# What Pillow raises for damaged files (its plugins for AVIF and DDS raise RuntimeError). Other built-in
# exceptions (TypeError, KeyError, …) would be bugs, so they are not caught.
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, OverflowError, RuntimeError, struct.error, zlib.error)


class DecodedBatch(NamedTuple):
    """A batch of consecutive images of a set.

    Attributes:
        start: index of the first image.
        size: number of images, including those that could not be read.
        pixels: [batch, crop, crop, 3], uint8, or the inputs that an `Extractor` prepares; 0 past ``size`` and
            for images that could not be read.
        skipped: the reason for each image that could not be read, by the image's index in the set.
    """

    start: int
    size: int
    pixels: np.ndarray
    skipped: dict[int, str]

    @property
    def kept(self) -> np.ndarray:
        """Indices of the rows of ``pixels`` that hold images."""
        rows = range(self.size)
        return np.array([row for row in rows if self.start + row not in self.skipped], np.intp)


def pixels_of(images: ImageSet, preprocessing: Preprocessing) -> np.ndarray:
    """Return all images, decoded, resized and cropped: [n, crop, crop, 3], uint8."""
    with closing(decoded_batches(images, Prepared.of(preprocessing), batch_size=64)) as batches:
        return np.concatenate([batch.pixels[: batch.size] for batch in batches])


def decoded_batches(
    images: ImageSet, how: Prepared, *, batch_size: int, start: int = 0, skip: bool = False
) -> Generator[DecodedBatch, None, None]:
    """Decode images in order, resized and cropped, in batches of one size.

    One thread for each CPU core decodes a bounded number of batches ahead of the consumer. The threads end
    when the iterator is exhausted, closed or garbage-collected.

    Args:
        images: the image set.
        how: the ``inputs`` of an `Extractor`, or `Prepared.of` a preprocessing. Pixels are not normalised
            here, as sending uint8 to the device takes a quarter of the bytes of float32.
        batch_size: images per batch; the last batch is filled up with zeros.
        start: index of the first image.
        skip: whether an image that cannot be read is reported in ``skipped``, or raises.

    Yields:
        `DecodedBatch`.
    """
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Decode enough batches ahead that every thread has work while the consumer uses a batch.
    ahead = 1 + -(-2 * threads // batch_size)
    damage = (*_DAMAGE, optional("PIL.Image", "pretrained").DecompressionBombError)
    shape = (batch_size, *how.shape)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="covfree-decode")

    def decode(index: int, out: np.ndarray) -> None:
        # Check the shape, as assignment would broadcast an input of another shape.
        if np.shape(made := how.prepare(images.read(index))) != how.shape:
            raise ValueError(f"prepared to {list(np.shape(made))}, expected {list(how.shape)}")
        out[...] = made

    def begin(first: int) -> tuple[int, np.ndarray, list[Future[None]]]:
        pixels = np.zeros(shape, how.dtype)
        last = min(first + batch_size, len(images))
        return first, pixels, [pool.submit(decode, i, pixels[i - first]) for i in range(first, last)]

    def finish(first: int, pixels: np.ndarray, futures: list[Future[None]]) -> DecodedBatch:
        skipped = {}
        for index, future in enumerate(futures, first):
            try:
                future.result()
            except damage as error:
                # The image set's error names the image, and so does `text`: give only that error's cause.
                cause = error.__cause__ or error
                reason = " ".join(str(cause).split()) or type(cause).__name__
                text = f"images: {images.ids[index]}: cannot be read ({reason})"
                if not is_damage(cause):
                    raise OSError(text) from error
                if not skip:
                    raise ValueError(f"{text}; {_LEAVE_OUT}") from error
                skipped[index] = reason
        return DecodedBatch(first, len(futures), pixels, skipped)

    waiting: deque[Any] = deque()
    try:
        for first in range(start, len(images), batch_size):
            waiting.append(begin(first))
            if len(waiting) > ahead:
                yield finish(*waiting.popleft())
        while waiting:
            yield finish(*waiting.popleft())
    finally:
        # Wait for the images that are being decoded, at most one for each thread; cancel the others.
        pool.shutdown(wait=True, cancel_futures=True)
