"""Image sets: images that are read when they are asked for, and what is known of them beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ImageSet:
    """Images that are read one at a time, and what is known of each without reading it.

    `image_folder`, `tfds` and `image_arrays` make them; so may you.

    Attributes:
        name: how tables name the data.
        ids: [n], what errors and feature files call an image, each once; in a folder its path below it.
        labels: [n] int32, in [0, C).
        class_names: [C].
        read: gives image i as `covfree.backbones.preprocess` takes it: a Pillow image or uint8 grey levels.
            It is called from several threads, and raises OSError or ValueError where an image is damaged.
        fingerprint: a hash of the images and their order, in hexadecimal; another as soon as one of them is.
        clients: [n], the name of each image's client, if the data says so.
        is_test: [n] booleans, if the data is split.
        ignored: files that are no images, or examples without a class, that were left aside.
    """

    name: str
    ids: tuple[str, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]
    read: Callable[[int], Any]
    fingerprint: str
    clients: np.ndarray | None = None
    is_test: np.ndarray | None = None
    ignored: tuple[str, ...] = ()

    def __len__(self) -> int:
        """The number of images."""
        return len(self.ids)
