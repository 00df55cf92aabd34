"""``covfree extract``: from images or texts to a file of features."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from covfree import backbones
from covfree.backbones import BACKBONES, SentenceEncoder, sentence_encoder
from covfree.backbones.hub import Weights, find_weights
from covfree.cli.options import IMAGES, NETWORK, WEIGHTS, at_least
from covfree.cli.progress import progress_bar
from covfree.data.extract import encode_texts, extract_features
from covfree.data.image_set import ImageSet, LabelledSet
from covfree.data.images import load_images
from covfree.data.kept import Extracted, Progress
from covfree.data.texts import TextSet, load_texts

# Of what was left aside, as much is named.
_SHOWN = 3


def extract_command(
    out: Annotated[
        Path, typer.Option(help="The file to write, .npz: what --dataset of other commands takes.")
    ],
    images: Annotated[str | None, IMAGES] = None,
    backbone: Annotated[str | None, NETWORK] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help=f"{WEIGHTS.help} With --texts: the folder of a sentence encoder, a BERT as "
            "sentence-transformers saves it; without it all-MiniLM-L6-v2."
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --images: texts, a .csv, .tsv or .jsonl file with text, label and, if there are "
            "any, client and split; or a .json file of lists of [text, label] by split."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            help="A regular expression with groups (?P<class>...) and, if there are any, (?P<client>...) and "
            "(?P<split>...), for the beginning of each image's path below the folder. Without it the first "
            "folder is the class, below a folder for the split where one is called train."
        ),
    ] = None,
    client_column: Annotated[
        str | None,
        typer.Option(help="Feature of a TensorFlow data set's examples that names their client."),
    ] = None,
    train_split: Annotated[
        str | None, typer.Option(help="Training split of a TensorFlow data set. Without it train.")
    ] = None,
    test_split: Annotated[
        str | None,
        typer.Option(
            help="Its test split, or none, for a third of each class. Without it test, else validation."
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16"], typer.Option(help="Of the features in the file.")
    ] = "float32",
    batch_size: Annotated[int, typer.Option(help="Images or texts that are computed together.")] = 64,
    on_damaged: Annotated[
        Literal["stop", "skip"], typer.Option(help="What to do about an image that cannot be read.")
    ] = "stop",
) -> None:
    """Compute features of images or texts with a pre-trained network, once, into a file.

    If it is interrupted, the same command goes on where it stopped. If the file is there and made of the same
    images or texts, nothing is computed: only labels, clients and split are brought up to date.

    Examples:
      covfree extract --images photos --backbone efficientnet-lite0 --out photos.npz

      covfree extract --images photos --pattern "(?P<client>[^/]+)/(?P<class>[^/]+)/" --backbone resnet18
      --weights resnet18.safetensors --out photos.npz

      covfree extract --texts mails.csv --out mails.npz
    """
    at_least("batch-size", batch_size, 1)
    if out.suffix != ".npz":
        raise ValueError(f"--out: expected a file that ends in .npz, got {str(out)!r}")
    splits = {"train": train_split, "test": test_split}
    if texts is not None:
        of_images = {
            "images": images,
            "backbone": backbone,
            "pattern": pattern,
            "client_column": client_column,
        }
        of_images |= {f"{name}_split": value for name, value in splits.items()}
        of_images["on_damaged"] = None if on_damaged == "stop" else on_damaged
        if given := {name: value for name, value in of_images.items() if value is not None}:
            raise ValueError(f"{_option(given)}: expected none beside --texts")
        found = load_texts(texts)
        encode(found, sentence_encoder(weights), out, dtype=dtype, batch_size=batch_size)
        return
    if images is None or backbone is None:
        raise ValueError("expected --images and --backbone, or --texts")
    name = backbone_of(backbone)
    # Of the two the data may be far larger to download.
    found = find_weights(weights, BACKBONES[name])
    data = read_images(images, pattern=pattern, splits=splits, client_column=client_column)
    extract(
        data,
        name,
        found,
        out,
        dtype=dtype,
        batch_size=batch_size,
        on_damaged=on_damaged,
    )


def backbone_of(text: str) -> str:
    """A name of the table, in which dashes and underscores are the same."""
    name = text.replace("-", "_")
    if name not in BACKBONES:
        raise ValueError(f"--backbone: expected one of {', '.join(BACKBONES)}, got {text!r}")
    return name


def read_images(
    source: str,
    *,
    pattern: str | None,
    splits: dict[str, Any],
    client_column: str | None,
) -> ImageSet:
    """The image set that ``--images`` and the options about it mean."""
    of_tfds = {name: value for name, value in splits.items() if value is not None}
    if client_column is not None:
        of_tfds["client_column"] = client_column
    kind, _, name = source.partition(":")
    if kind == "tfds":
        if pattern is not None:
            raise ValueError(f"--pattern: expected a folder of images, got {source}")
        from covfree.data.from_tfds import tfds

        if of_tfds.get("test") == "none":
            of_tfds["test"] = None
        return tfds(name, **of_tfds)
    if of_tfds:
        option = _option(of_tfds) + "-split" * bool(set(of_tfds) & {"train", "test"})
        raise ValueError(f"{option}: expected a TensorFlow data set, tfds:NAME, got {source}")
    if pattern is None:
        return load_images(source)
    if not Path(source).is_dir():
        raise ValueError(f"--pattern: expected a folder of images, got {source}")
    from covfree.data.folders import image_folder

    return image_folder(source, pattern=pattern)


def _option(given: dict[str, Any]) -> str:
    return "--" + next(iter(given)).replace("_", "-")


def extract(
    images: ImageSet,
    name: str,
    weights: Weights,
    out: Path,
    *,
    dtype: str = "float32",
    batch_size: int = 64,
    on_damaged: str = "stop",
) -> Extracted:
    """Compute features of images into a file under a bar, and say in the end what was done."""
    network = backbones.backbone(name)

    def compute(progress: Progress) -> Extracted:
        return extract_features(
            images,
            network,
            # Called only if there is something to compute: Flax and the file take seconds.
            lambda: network.load(weights.path),
            out=out,
            weights=weights.sha256,
            preprocessing=weights.preprocessing,
            batch_size=batch_size,
            dtype=dtype,
            on_damaged=on_damaged,
            progress=progress,
        )

    return _under_bar(images, "images", name, compute)


def encode(
    texts: TextSet, encoder: SentenceEncoder, out: Path, *, dtype: str = "float32", batch_size: int = 64
) -> Extracted:
    """Compute features of texts into a file, as `extract` does of images."""
    compute = partial(encode_texts, texts, encoder, out=out, dtype=dtype, batch_size=batch_size)
    return _under_bar(texts, "texts", encoder.name, lambda progress: compute(progress=progress))


def _under_bar(
    examples: LabelledSet, noun: str, name: str, compute: Callable[[Progress], Extracted]
) -> Extracted:
    start = time.perf_counter()
    with progress_bar() as bar:
        task = bar.add_task(name, total=None)

        def show(now: int, total: int) -> None:
            speed = bar.tasks[0].speed
            text = f"{speed:,.0f} {noun}/s" if speed else name
            bar.update(task, completed=now, total=total, description=text)

        found = compute(show)
    for example, reason in found.skipped.items():
        _say(f"skipped {example}: {reason}")
    _say(_summary(examples, noun, found, time.perf_counter() - start))
    return found


def _summary(examples: LabelledSet, noun: str, found: Extracted, seconds: float) -> str:
    parts = [f"{len(examples):,} {noun}"]
    if found.skipped:
        parts.append(f"{len(found.skipped):,} skipped")
    if examples.ignored:
        shown = ", ".join(examples.ignored[:_SHOWN]) + (", …" if len(examples.ignored) > _SHOWN else "")
        parts.append(f"{len(examples.ignored):,} left aside ({shown})")
    parts.append(
        f"{found.computed:,} computed in {seconds:.1f} s ({found.computed / seconds:,.0f} {noun}/s)"
        if found.computed
        else "nothing to compute"
    )
    return f"{', '.join(parts)}: {found.path}, {found.path.stat().st_size:,} bytes"


def _say(text: str) -> None:
    print(f"covfree: {text}", file=sys.stderr)
