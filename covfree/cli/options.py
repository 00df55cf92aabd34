"""The options that commands share, and how their texts are read."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import covfree
from covfree.backbones import BACKBONES
from covfree.checks import check_strength
from covfree.cli.compare import entries
from covfree.federation import PARTITIONERS
from covfree.transforms import Transform


class Format(StrEnum):
    """What is printed."""

    table = "table"
    markdown = "markdown"
    json = "json"
    csv = "csv"


DATASET = typer.Option(
    help="'digits' (1,797 real images that ship with scikit-learn), or an .npz file with "
    "features (n × d), labels (n) and, if there are any, clients (n) and is_test (n).",
    show_default="digits",
)
Dataset = Annotated[str, DATASET]
TestFile = Annotated[Path | None, typer.Option(help="An .npz file with the test part's features and labels.")]
_CLIENTS = "Number of clients, where the data names none."
_ALPHA = (
    "The partition's number: concentration of the Dirichlet laws (small: few classes a client), "
    "sigma of lognormal_sizes, classes or shards a client for pathological and shards, "
    "uniform share of dominant_classes."
)
_PARTITION = f"How examples are spread: {', '.join(PARTITIONERS)}."
NumClients = Annotated[int, typer.Option(help=_CLIENTS)]
Alpha = Annotated[float, typer.Option(help=_ALPHA)]
Partition = Annotated[str, typer.Option(help=_PARTITION)]
# Those of a command that refuses them where they change nothing: None if they were not given.
GivenClients = Annotated[int | None, typer.Option(help=_CLIENTS, show_default="100")]
GivenAlpha = Annotated[float | None, typer.Option(help=_ALPHA, show_default="0.1")]
GivenPartition = Annotated[str | None, typer.Option(help=_PARTITION, show_default="inner_dirichlet")]
Out = Annotated[Path | None, typer.Option(help="Folder for files; made if it is not there.")]

# Of images; some commands need them and others do not.
IMAGES = typer.Option(
    help="A folder of images with one folder a class, an .npz file with images (n × h × w × 3, uint8) and "
    "labels (n), or tfds:NAME, a TensorFlow data set."
)
NETWORK = typer.Option(help=f"Pre-trained network: {', '.join(BACKBONES)}.")
WEIGHTS = typer.Option(
    help="Its weights: a .safetensors or .pth file, or owner/name@commit on the Hugging Face hub; covfree "
    "backbones lists them. Without it those that a Python package brings, for efficientnet_lite0."
)


def method_names(methods: str) -> list[str]:
    """Names that are separated by commas; all of them for 'all'."""
    if methods.strip() == "all":
        return list(entries())
    return split_names(methods)


def split_names(text: str) -> list[str]:
    """Names that are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def names_of(option: str, text: str, known: Collection[str]) -> list[str]:
    """Names that are separated by commas: known ones, and different ones."""
    names = split_names(text)
    for name in names:
        if name not in known:
            raise ValueError(f"--{option}: expected some of {', '.join(known)}, got {name!r}")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"--{option}: expected different names, got {', '.join(names) or 'none'}")
    return names


def shrinkage_of(text: str | None) -> float | str | None:
    """A number, or 'auto'."""
    if text is None or text == "auto":
        return text
    try:
        gamma = float(text)
    except ValueError:
        raise ValueError(f"--shrinkage: expected 'auto' or a number, got {text!r}") from None
    return check_strength("--shrinkage", gamma)


def count_noise_of(text: str) -> Transform:
    """Noise from the name of its law and ε."""
    kind, _, epsilon = text.partition(":")
    try:
        number = float(epsilon)
    except ValueError:
        raise ValueError(f"--noise: expected a law and a number such as laplace:1, got {text!r}") from None
    return covfree.count_noise(cast(Any, kind), number)


def at_least(name: str, value: int, least: int) -> None:
    """Raise unless an option is large enough."""
    if value < least:
        raise ValueError(f"--{name}: expected at least {least}, got {value}")


def make_folder(out: Path | None) -> None:
    """Make the folder for files, if there is to be one."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--out: cannot make the folder {out} ({error.strerror})") from error
