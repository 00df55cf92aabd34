"""``covfree fit`` and ``covfree evaluate``: write a head to a file, and measure it on data."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

import covfree
from covfree.cli.options import (
    Alpha,
    DataFile,
    FormatOption,
    ImagesFile,
    NetworkName,
    NumClients,
    Partition,
    TestFile,
    WeightsFile,
    assigned,
    at_least,
    check_file,
    federation_of,
    variants_of,
)
from covfree.data import FeatureSet
from covfree.engine.batch import state_of
from covfree.heads import metrics
from covfree.heads.file import SavedHead
from covfree.methods import registry
from covfree.studies.federation import left_out
from covfree.studies.known import alternatives, failure, is_own, sees_no_covariance
from covfree.studies.origin import origin_of, says_enough, seen_in_training
from covfree.studies.predictions import scores_of
from covfree.studies.progress import say
from covfree.studies.source import Source, class_name, on_no_client, source_of
from covfree.studies.table import Table, percent, show

_TITLES = {
    "accuracy": "accuracy, %",
    "balanced": "balanced accuracy, %",
    "worst_class": "worst class, %",
    "mean_client": "mean of clients, %",
    "worst_client": "worst client, %",
    "p10_client": "10th percentile of clients, %",
    "nll": "negative log-likelihood, nats",
    "ece": "expected calibration error, %",
}


def fit_command(
    out: Annotated[Path, typer.Option(help="The head's file to write, .npz.")],
    dataset: DataFile = None,
    test_file: TestFile = None,
    images: ImagesFile = None,
    backbone: NetworkName = None,
    weights: WeightsFile = None,
    method: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(registry())}; perhaps with arguments: fedcof:shrinkage=0.1:head=ridge. "
            "With fedcof-or-fedcof-student, clients choose one of the two."
        ),
    ] = "fedcof",
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="Divide scores by the temperature that fits the training part best."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the split, the partition and the method.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
) -> None:
    """Fit a head to the training part, as a federation of clients would, and write it to a file.

    Examples:
      covfree fit --dataset features.npz --method fedcof --out head.npz

      covfree fit --images photos --backbone efficientnet-lite0 --calibrate --out head.npz
    """
    at_least("seed", seed, 0)
    check_file("out", out, ".npz", (dataset, test_file, images, weights))
    if out.exists() and not overwrite:
        raise ValueError(f"--out: {out} is there; --overwrite replaces it, or give another file")
    ((name, variant),) = variants_of(method, option="method").items()
    chosen = variant.method
    source = source_of(dataset, test_file, images, backbone, weights)
    federation = federation_of(source.outline, clients, partition, alpha)
    assigned(federation, source.outline, seed)
    data = source.load(seed)
    owners, classes = assigned(federation, data, seed), data.num_classes
    for text in on_no_client([left_out(data.train_labels, owners)]):
        say(f"{data.name}: {text}")
    train = data.train_features, data.train_labels
    key = jax.random.key(seed)
    try:
        state = state_of(chosen, *train, owners, classes, key)
        head: Any = covfree.solve_totals(chosen, *state)
        told = {} if chosen.report is None else chosen.report(chosen.params, state)
        accuracy = metrics.accuracy(scores_of(head, data.test_features), data.test_labels)
    except Exception as error:
        if not is_own(name):
            raise
        raise ValueError(f"{name}: {failure(error)}") from error
    if note := sees_no_covariance(name, len(np.unique(owners[owners >= 0]))):
        say(note)
    if "taken" in told:
        say(f"clients took {alternatives(name)[int(told['taken'])]}")
    if calibrate:
        kept = np.where(owners >= 0, data.train_labels, -1)
        try:
            temperature = covfree.calibrate_temperature(head, np.asarray(data.train_features), kept)
            head = covfree.with_temperature(head, temperature)
        except TypeError:
            raise ValueError(f"--calibrate: expected a method with a linear head, got {method}") from None
    dim = data.train_features.shape[1]
    try:
        covfree.save_head(head, out, class_names=data.class_names, dim=dim, origin=origin_of(data, seed))
    except OSError as error:
        raise ValueError(f"--out: cannot write {out} ({error.strerror})") from error
    say(
        f"{method} on {data.name}, {dim} features, {classes} classes: test accuracy "
        f"{100 * float(accuracy):.2f} %; wrote {out}"
    )


def evaluate_command(
    head: Annotated[Path, typer.Option(help="A file of a head, from covfree fit, finetune or save_head.")],
    dataset: DataFile = None,
    test_file: TestFile = None,
    images: ImagesFile = None,
    backbone: NetworkName = None,
    weights: WeightsFile = None,
    every: Annotated[bool, typer.Option("--all", help="Use all examples, not only the test part.")] = False,
    confusion: Annotated[
        Path | None,
        typer.Option(help="A .csv file to write: number of examples by class (row) and prediction."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the split; by default the seed with which the head was fitted."),
    ] = None,
    output_format: FormatOption = "table",
) -> None:
    """Measure a head on the test part: accuracy (also by class and by client), likelihood, calibration.

    Figures by client need data that names the client of each test example.

    Example:
      covfree evaluate --head head.npz --dataset features.npz --confusion confusion.csv
    """
    at_least("seed", seed or 0, 0)
    if confusion is not None:
        check_file("confusion", confusion, ".csv", (head, dataset, test_file, images, weights))
    saved = covfree.load_head(head)
    source = source_of(dataset, test_file, images, backbone, weights, to_train=False)
    data, seed = _unseen(head, saved, source, seed, every)
    if saved.class_names and not data.class_names:
        say("the head's classes have names, the data's are numbers: matched by number")
    data = _numbered(saved, data)
    _check_fit(head, saved, data)
    data = data._replace(
        class_names=saved.class_names or data.class_names, num_classes=saved.num_classes or data.num_classes
    )
    if every:
        data = _all_as_test(data)
    labels, clients = data.test_labels, data.test_clients
    if not says_enough(saved.origin) and not every and not data.fixed_split:
        say(
            f"{head} does not record which examples it was fitted to: some of these {len(labels):,} "
            "test examples may have been trained on; --all uses every example"
        )
    scores = scores_of(saved.head, data.test_features)
    names = tuple(n for n in metrics.NAMES if clients is not None or n not in metrics.CLIENT_NAMES)
    figures = metrics.measure(scores, labels, names, clients=clients)
    by_class = _by_class(scores, data)
    lines = [(_title(name, by_class), _shown(name, figure)) for name, figure in figures.items()]
    record = {name: figure if math.isfinite(figure) else None for name, figure in figures.items()}
    content = {
        "config": {"head": str(head), **source.config, "all": every, "seed": seed},
        "examples": len(labels),
        "metrics": record,
        "classes": by_class,
    }
    title = f"{head} on {data.name}: {len(labels):,} examples"
    text = json.dumps(content, indent=2, ensure_ascii=False)
    show(output_format, title, Table(("figure", "value"), tuple(lines)), [record], text)
    if confusion is not None:
        _write_confusion(confusion, np.asarray(metrics.confusion_matrix(scores, labels)), data)
        say(f"wrote {confusion}")


def _unseen(
    path: Path, saved: SavedHead, source: Source, seed: int | None, every: bool
) -> tuple[FeatureSet, int]:
    """Load the data on which a saved head is evaluated; return it, and the seed of its split.

    Without ``seed``, it is the one in the head's file, or 0. Raise ValueError if the head was fitted to
    examples of the test part, unless all examples are to be evaluated (``every``).
    """
    origin = saved.origin
    if origin is None or not says_enough(origin):
        return source.load(seed or 0), seed or 0
    used = int(origin["seed"]) if seed is None else seed
    data = source.load(used)
    if not every and (fault := seen_in_training(data, used, origin)):
        raise ValueError(f"--head: {path} was fitted to examples of the test part: {fault}; or give --all")
    return data, used


def _all_as_test(data: FeatureSet) -> FeatureSet:
    """Return the data with all examples in the test part; those of unknown clients are at client −1."""
    clients = data.clients
    if clients is not None:
        nobody = np.full(len(data.test_labels), -1, np.int32)
        clients = np.concatenate([clients, nobody if data.test_clients is None else data.test_clients])
    return data._replace(
        test_features=np.concatenate([data.train_features, data.test_features]),
        test_labels=np.concatenate([data.train_labels, data.test_labels]),
        test_clients=clients,
    )


def _numbered(saved: SavedHead, data: FeatureSet) -> FeatureSet:
    """Return the data with its classes renumbered as in the head, by the classes' names.

    The data is unchanged if the numbers agree already, if data or head has no names, if the head has a name
    twice, or if it lacks one of the data's classes.
    """
    ours, theirs = saved.class_names or (), data.class_names or ()
    if len(set(ours)) < len(ours) or theirs == ours[: len(theirs)] or not set(theirs) <= set(ours):
        return data
    place = np.array([ours.index(name) for name in theirs], np.int32)
    return data._replace(
        train_labels=place[data.train_labels],
        test_labels=place[data.test_labels],
        num_classes=len(ours),
        class_names=ours,
    )


def _check_fit(path: Path, saved: SavedHead, data: FeatureSet) -> None:
    """Raise ValueError unless the data has the head's number of features and its classes."""
    dim = data.test_features.shape[1]
    if dim != saved.dim:
        raise ValueError(f"--head: {path} takes {saved.dim} features, got {dim} in {data.name}")
    if data.num_classes > (saved.num_classes or 0):
        raise ValueError(
            f"--head: {path} knows {saved.num_classes} classes, got {data.num_classes} in {data.name}"
        )
    for label, (ours, theirs) in enumerate(
        zip(saved.class_names or (), data.class_names or (), strict=False)
    ):
        if ours != theirs:
            raise ValueError(f"--head: class {label} of {path} is {ours!r}, but {theirs!r} in {data.name}")


def _by_class(scores: np.ndarray, data: FeatureSet) -> list[dict[str, Any]]:
    """Return each class's examples, recall (None without examples) and precision (None if not predicted)."""
    labels = data.test_labels
    counts = np.bincount(labels, minlength=data.num_classes)
    shares = {"recall": metrics.class_recall, "precision": metrics.class_precision}
    columns = {name: np.asarray(function(scores, labels)) for name, function in shares.items()}
    return [
        {
            "class": class_name(data, label),
            "examples": int(counts[label]),
            **{name: None if np.isnan(own[label]) else float(own[label]) for name, own in columns.items()},
        }
        for label in range(data.num_classes)
    ]


def _title(name: str, by_class: list[dict[str, Any]]) -> str:
    """Return the title of a metric in the table; for ``worst_class``, the title names the class."""
    title = _TITLES[name]
    known = [record for record in by_class if record["recall"] is not None]
    if name == "worst_class" and known:
        worst = min(known, key=lambda record: record["recall"])["class"]
        return title.replace("class", f"class ({worst})")
    return title


def _shown(name: str, figure: float) -> str:
    if math.isnan(figure):
        return "none"
    if name == "nll":
        return "∞" if math.isinf(figure) else f"{figure:.4f}"
    return percent(figure, None)


def _write_confusion(path: Path, counts: np.ndarray, data: FeatureSet) -> None:
    names = [class_name(data, label) for label in range(data.num_classes)]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["class", *names])
            writer.writerows([name, *line] for name, line in zip(names, counts.tolist(), strict=True))
    except OSError as error:
        raise ValueError(f"--confusion: cannot write {path} ({error.strerror})") from error
