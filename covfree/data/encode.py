"""Features of a text set, computed by a sentence encoder and kept in a file."""

from __future__ import annotations

from collections.abc import Callable

from covfree.backbones.sentence import SentenceEncoder
from covfree.checks import check_choice, check_positive
from covfree.data.dataset import StrPath
from covfree.data.feature_writer import FeatureWriter
from covfree.data.kept import Extracted, Progress, keep
from covfree.data.texts import TextSet

# Texts that are sorted by length, computed and written together, in batches.
_BATCHES = 16


def encode_texts(
    texts: TextSet,
    encoder: SentenceEncoder,
    *,
    out: StrPath,
    batch_size: int = 64,
    dtype: str = "float32",
    progress: Progress | None = None,
) -> Extracted:
    """Compute the features of all texts, once, into a file that `load_npz` reads.

    It continues where it stopped, and computes nothing again for the same texts and encoder, as
    `extract_features` does; the file holds the same arrays. Parameters are read only if they are needed. One
    device computes.

    Args:
        texts: the text set.
        encoder: see `covfree.backbones.sentence_encoder`.
        out: the file, ``.npz``.
        batch_size: texts that are computed together; 16 batches are written at a time.
        dtype: of the features in the file: ``"float32"``, or ``"float16"`` for half the size.
        progress: called now and then with the number of texts done and the number of all texts.

    Returns:
        The path of the file, and how many texts were computed.

    Raises:
        ValueError: if an argument is wrong, the file holds features of something else, or a feature is not
            finite.
        OSError: if the system refuses to read or write.
        ImportError: if ``tokenizers`` or ``safetensors`` is not installed.
    """
    check_positive("batch_size", batch_size)
    check_choice("dtype", dtype, ("float32", "float16"))
    if not len(texts):
        raise ValueError(f"texts: {texts.name} holds none")
    key = {
        "texts": texts.fingerprint,
        "encoder": encoder.name,
        "weights": encoder.sha256,
        "dtype": dtype,
    }

    def compute(writer: FeatureWriter, tell: Callable[[], None]) -> None:
        params = encoder.load()
        while writer.done < len(texts):
            some = texts.texts[writer.done : writer.done + _BATCHES * batch_size]
            writer.append(encoder.encode(params, some, batch_size=batch_size), {})
            tell()

    return keep(
        texts, key, compute, out=out, num_features=encoder.num_features, dtype=dtype, progress=progress
    )
