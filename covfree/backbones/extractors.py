"""Extractors: functions from a batch of images or texts to features, made with any library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from covfree.backbones.preprocess import crop, normalise
from covfree.backbones.table import Preprocessing


class Prepared(NamedTuple):
    """How an image is converted to an extractor's input; threads that decode images call ``prepare``.

    Attributes:
        prepare: a function from an image (Pillow or uint8 pixels) to an array.
        shape: the shape of the array.
        dtype: the data type of the array.
    """

    prepare: Callable[[Any], Any]
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, preprocessing: Preprocessing) -> Prepared:
        """Return a `Prepared` whose ``prepare`` resizes and crops an image as ``preprocessing`` says.

        The result for an image is an array [crop, crop, 3] of uint8, a quarter of the bytes of float32. It is
        not normalised yet.
        """
        size = preprocessing.crop
        return cls(partial(crop, preprocessing=preprocessing), (size, size, 3), "uint8")


@dataclass(frozen=True, eq=False)
class Extractor:
    """A function from a batch to features, with texts that identify its weights and preprocessing.

    `from_torch`, `from_onnx` and `from_function` make extractors; `extract_features` and `encode_texts` use
    them.

    Attributes:
        name: the name of the network.
        num_features: d, the number of features.
        compute: function from a batch (an array of prepared images, or a list of texts) to features [n, d].
        weights: text that identifies the weights, such as a SHA-256.
        preprocessing: the preprocessing, or a text that identifies it; None for texts.
        inputs: how an image is prepared; None for texts.
        computed_in: the data type in which the network computes.
    """

    name: str
    num_features: int
    compute: Callable[[Any], Any]
    weights: str
    preprocessing: Preprocessing | str | None = None
    inputs: Prepared | None = None
    computed_in: str = "float32"

    def __call__(self, batch: Any) -> np.ndarray:
        """Compute float32 features [n, d] of n images (Pillow or uint8 pixels) or n texts.

        Raises:
            ValueError: if the batch is empty, or the features have another shape.
        """
        if not len(batch):
            raise ValueError("batch: expected an image or text at least, got none")
        if self.inputs is not None:
            batch = np.stack([np.asarray(self.inputs.prepare(image), self.inputs.dtype) for image in batch])
        return self.checked(self.compute(batch), len(batch))

    def checked(self, features: Any, count: int) -> np.ndarray:
        """Return features from `compute` as float32 [count, d]; a ValueError if they have another shape."""
        array = np.asarray(features, np.float32)
        if array.shape != (count, self.num_features):
            raise ValueError(
                f"{self.name}: expected features of shape {[count, self.num_features]}, got "
                f"{list(array.shape)}"
            )
        return array

    @property
    def key(self) -> dict[str, Any]:
        """Name, data type, weights and preprocessing, in JSON values. It must be the same at all sites."""
        how = self.preprocessing
        return {
            "backbone": self.name,
            "computed_in": self.computed_in,
            "weights": self.weights,
            "preprocessing": asdict(how) if isinstance(how, Preprocessing) else how,
        }

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of `key`, which contains weights and preprocessing."""
        return fingerprint_of(self.key)


def fingerprint_of(key: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of an `Extractor.key`, or of the key in a feature file."""
    own = {name: key.get(name) for name in ("backbone", "computed_in", "weights", "preprocessing")}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def from_function(
    function: Callable[[Any], Any],
    *,
    name: str,
    weights: str,
    preprocessing: Preprocessing | None = None,
    computed_in: str = "float32",
) -> Extractor:
    """Make an extractor from a function that takes batches, such as sentence-transformers' ``encode``.

    The function is called once, with a black image or a short text, to determine d.

    Args:
        function: function that returns features [n, d]; its argument is a list of n texts or, with
            ``preprocessing``, normalised images [n, crop, crop, 3] in float32.
        name: the name of the network.
        weights: text that identifies its weights, such as the SHA-256 of their file. Sites with other weights
            must not use the same text.
        preprocessing: preprocessing of images; None for texts.
        computed_in: the data type in which the function computes.

    Raises:
        ValueError: if the function does not return features [n, d].

    >>> def encode(texts):
    ...     return [[len(text), text.count("a")] for text in texts]
    >>> extractor = from_function(encode, name="counts", weights="1")
    >>> extractor(["banana", "kiwi"]).tolist()
    [[6.0, 3.0], [4.0, 0.0]]
    """
    if preprocessing is None:
        return made(function, ["text"], name=name, weights=weights, computed_in=computed_in)

    def compute(pixels: np.ndarray) -> Any:
        return function(normalise(pixels, preprocessing))

    inputs = Prepared.of(preprocessing)
    probe = np.zeros((1, *inputs.shape), np.uint8)
    settings: dict[str, Any] = {"preprocessing": preprocessing, "inputs": inputs, "computed_in": computed_in}
    return made(compute, probe, name=name, weights=weights, **settings)


def made(compute: Callable[[Any], Any], probe: Any, *, name: str, weights: str, **settings: Any) -> Extractor:
    """Make an extractor; its number of features is that of ``compute(probe)``, for a batch of one input."""
    for argument, text in (("name", name), ("weights", weights)):
        if not isinstance(text, str) or not text:
            raise ValueError(f"{argument}: expected a text that identifies them, got {text!r}")
    shape = np.shape(np.asarray(compute(probe)))
    if len(shape) != 2 or shape[0] != 1 or shape[1] < 1:
        raise ValueError(
            f"{name}: expected features [1, d] of one example, got {list(shape)}; name an output that has "
            "one vector for each example, or wrap the network so that it returns one"
        )
    return Extractor(name, shape[1], compute, weights, **settings)


def pooled(features: Any) -> np.ndarray:
    """Return features without trailing axes of size 1, such as [n, d, 1, 1] after average pooling."""
    array = np.asarray(features)
    while array.ndim > 2 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def one_of(name: str | None, names: Sequence[str], argument: str, owner: str) -> str:
    """Return ``name``, which must be one of ``names``; if it is None, return the only name in ``names``.

    Raises:
        ValueError: if ``name`` is another one, or is None and there is not exactly one name. The message
            begins with ``argument``, and says that ``owner``, e.g. a file, has these ``names``.
    """
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        raise ValueError(f"{argument}: expected one of {', '.join(names)} of {owner}, got {name!r}")
    return name
