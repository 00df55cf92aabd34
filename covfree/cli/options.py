"""Options that several commands share, and functions that parse their texts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import numpy as np
import typer

from covfree.core.registries import nearest
from covfree.data import FeatureSet
from covfree.data.partitions import PARTITIONERS
from covfree.methods import registry
from covfree.studies.federation import COUNTED, Federation
from covfree.studies.names import as_number, of_options, parsed
from covfree.studies.table import Format
from covfree.studies.variants import Variant, variants

T = TypeVar("T")


DATASET = typer.Option(
    help="'digits' (default), or a file (.npz, .csv, .parquet, .pt, …) of features (n × d), labels (n); "
    "x.csv:labels=kind names a column.",
    show_default=False,
)
Dataset = Annotated[str, DATASET]
DataFile = Annotated[str | None, DATASET]
TestFile = Annotated[Path | None, typer.Option(help="A file of test features and labels, as --dataset.")]
# These options default to None, so that given ones can be refused if the data has its own clients.
CLIENTS = typer.Option(help="Number of clients (100), if the data names none.", show_default=False)
ALPHA = typer.Option(
    help="The partition's parameter (0.1): concentration, sigma, share, or classes or shards per client.",
    show_default=False,
)
PARTITION = typer.Option(
    help=f"How to divide the data (default: the first): {', '.join(PARTITIONERS)}.", show_default=False
)
NumClients = Annotated[int | None, CLIENTS]
Alpha = Annotated[float | None, ALPHA]
Partition = Annotated[str | None, PARTITION]
USUAL = Federation(100, "inner_dirichlet", 0.1)
Out = Annotated[Path | None, typer.Option(help="Folder for the results; made if missing.")]
ReportFile = Annotated[Path | None, typer.Option("--report", help="An .html page to write, or replace.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the runs that --out holds.")]

NETWORK = typer.Option(help="Name (see covfree backbones) or x.onnx[:TENSOR].")
WEIGHTS = typer.Option(help="Weights: .safetensors, .pth or owner/name@commit.")
ImagesFile = Annotated[
    str | None,
    typer.Option(help="One folder per class, .npz, tfds:NAME or femnist."),
]
NetworkName = Annotated[str | None, NETWORK]
WeightsFile = Annotated[str | None, WEIGHTS]


def method_names(methods: str) -> list[str]:
    """Split method names at commas; 'all' stands for every method of the registry."""
    return [each for name in split_names(methods) for each in (registry() if name == "all" else [name])]


def split_names(text: str) -> list[str]:
    """Split a text at commas into names, without spaces and empty names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def names_of(option: str, text: str, known: Collection[str]) -> list[str]:
    """Split names at commas; raise ValueError if there are none, one is not in `known`, or one repeats."""
    names = split_names(text)
    for name in names:
        if name not in known:
            raise ValueError(
                f"--{option}: expected some of {', '.join(known)}, got {name!r}{nearest(name, known)}"
            )
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"--{option}: expected different names, got {', '.join(names) or 'none'}")
    return names


def values_of(option: str, text: str, kind: Callable[[str], T], expected: str) -> list[T]:
    """Convert values between commas by `kind`; raise ValueError if there is none, or one fails or repeats."""
    parts, values = [each for each in text.split(",") if each.strip()], list[T]()
    wrong = text
    for wrong in parts:
        try:
            values.append(kind(wrong))
        except ValueError:
            break
    if not values or len(values) < len(parts):
        raise ValueError(f"--{option}: expected {expected}, or several with commas between, got {wrong!r}")
    if len(set(values)) < len(values):
        raise ValueError(f"--{option}: expected different values, got {text!r}")
    return values


def seeds_of(text: str) -> list[int]:
    """Parse seeds: a single number n means 0, …, n − 1; a text with commas lists the seeds."""
    values = values_of("seeds", text, int, "a number of seeds")
    if "," in text:
        for value in values:
            at_least("seeds", value, 0)
            if value >= 2**32:
                raise ValueError(f"--seeds: expected numbers below 2^32, got {value}")
        return values
    at_least("seeds", values[0], 1)
    return list(range(values[0]))


FormatOption = Annotated[
    Format,
    # A short metavar, as a list of the choices would take half of the width of the help.
    typer.Option(
        "--format", metavar="NAME", help=f"Output format: {', '.join(get_args(Format))}.", show_default=False
    ),
]
Set = Annotated[
    str | None,
    typer.Option(
        "--set",
        help="Try in all methods: shrinkage=auto,10%:head=lda.",
    ),
]


def numbers_of(text: str | None) -> dict[str, list[Any]]:
    """Parse a text such as ``shrinkage=auto,0.1:num_subsets=3`` into a list of values for each name."""
    if text is None:
        return {}
    expected = "set: expected numbers such as shrinkage=auto,0.1:num_subsets=3"
    with of_options("set"):
        numbers = parsed(f":{text}", expected)[1]
    found = {}
    for name, value in numbers.items():
        found[name] = values_of("set", str(value), lambda each: as_number(each.strip()), f"a value of {name}")
    return found


def variants_of(
    methods: str, numbers: Mapping[str, list[Any]] | None = None, option: str = "methods"
) -> dict[str, Variant]:
    """Make the methods that an option lists, such as "fedncm,fedcof", and return them by name.

    Args:
        methods: the option's value.
        numbers: values of arguments: with ``{"shrinkage": [0.1, 1.0]}``, ``fedcof`` gives two methods. A
            method takes only arguments that it knows.
        option: the option's name, for errors; "method" takes one method.

    Raises:
        ValueError: if a name, a number or the number of methods is wrong; the message begins with the option.
    """
    try:
        found = variants(method_names(methods), numbers or {})
        if option == "method" and len(found) > 1:
            raise ValueError(f"methods: expected one method, got {len(found)}")
        return found
    except ValueError as error:
        name, _, text = str(error).partition(":")
        # If a value in ``numbers`` is wrong, the error begins with its key, a parameter's name.
        shown = option if name == "methods" else f"set: {name}"
        from covfree.finetune import registry as trained

        if any(f"unknown method {each!r}" in text for each in trained()):
            # The name is that of a training algorithm, not a misspelt method: suggest no similar method.
            text = text.partition("; did you mean ")[0] + "; covfree finetune trains by it in rounds"
        raise ValueError(f"--{shown}:{text}") from error


# Arguments of partitioners, and the options that set them.
_ARGUMENTS = {
    "num_partitions": "--clients",
    **dict.fromkeys(("alpha", "sigma", "num_classes_per_partition", "num_shards_per_partition"), "--alpha"),
    "uniform_share": "--alpha",
}


def federation_of(
    data: FeatureSet,
    clients: int | None,
    partition: str | None,
    alpha: float | None,
    usual: Federation = USUAL,
) -> Federation:
    """Make the federation that the options describe; an option that is None takes its value from ``usual``.

    Raises:
        ValueError: if an option is given but the data names its clients; the message names the option.
    """
    given = {"clients": clients, "partition": partition, "alpha": alpha}
    refuse_partition([data], given)
    return replace(usual, **{name: value for name, value in given.items() if value is not None})


def refuse_partition(every: Sequence[FeatureSet], given: Mapping[str, Any]) -> None:
    """Raise ValueError if an option of partitions is given, although all data sets name their clients.

    `given` has the options' values by name; None if an option is not given.
    """
    for name, value in given.items():
        if value is not None and all(data.clients is not None for data in every):
            names = ", ".join(data.name for data in every)
            have = "has clients of its own" if len(every) == 1 else "have clients of their own"
            raise ValueError(f"--{name}: expected none, as {names} {have}")


def partition_settings(every: Sequence[FeatureSet], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the partition's settings, ``values`` (clients, partition, alpha), for storage with the results.

    All are None if every data set says to which client each example belongs: then no partition is made.
    """
    own = all(data.clients is not None for data in every)
    return dict.fromkeys(values) if own else dict(values)


def assigned(federation: Federation, data: FeatureSet, seed: int) -> np.ndarray:
    """Return the client of each training example.

    Raises:
        ValueError: if the partition cannot be made (the message names the options), or if none of the data's
            own clients has a training example.
    """
    with of_options("partition"):
        federation.check()
    try:
        return federation.assign(data, seed, warn=False)
    except ValueError as error:
        if data.clients is not None:
            raise
        given = f"--partition {federation.partition} --clients {federation.clients}"
        text = re.sub(r"\w+", lambda word: _ARGUMENTS.get(word[0], word[0]), str(error))
        if federation.law in COUNTED and federation.alpha == USUAL.alpha:
            text += f"; give --alpha, whose default of {USUAL.alpha} is for other partitions"
        if "--clients: " in text and federation.clients == USUAL.clients:
            text += f"; give --clients, whose default is {USUAL.clients}"
        raise ValueError(f"{given} --alpha {federation.alpha:g}: {text}") from error


def at_least(name: str, value: int, least: int) -> None:
    """Raise ValueError if an option's value is below ``least``."""
    if value < least:
        raise ValueError(f"--{name}: expected at least {least}, got {value}")


def check_resume(resume: bool, out: Path | None) -> None:
    """Raise ValueError if ``--resume`` is given without ``--out``."""
    if resume and out is None:
        raise ValueError("--resume: expected --out beside it")


def check_file(
    option: str, path: Path, suffix: str, inputs: tuple[str | Path | None, ...], out: Path | None = None
) -> None:
    """Raise ValueError unless a path has the suffix, is none of the `inputs`, and its folder exists.

    The folder may also be ``out``, which the command makes later.
    """
    if path.suffix != suffix:
        raise ValueError(f"--{option}: expected a file that ends in {suffix}, got {str(path)!r}")
    if not path.parent.is_dir() and path.parent != out:
        raise ValueError(f"--{option}: expected a file in a folder that is there, got {str(path)!r}")
    for source in inputs:
        if source is not None and path.exists() and os.path.exists(source) and path.samefile(source):
            raise ValueError(
                f"--{option}: expected another file than those that are read, got "
                f"{str(path)!r}, which is one of them"
            )
