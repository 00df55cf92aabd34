"""``covfree partition``, ``diagnose`` and ``audit``: describe a federation's data, and attack its sums."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer

import covfree
from covfree.cli.options import (
    Alpha,
    Dataset,
    NumClients,
    Out,
    Partition,
    TestFile,
    assigned,
    at_least,
    check_file,
    federation_of,
    variants_of,
)
from covfree.data import FeatureSet
from covfree.data.partitions import partition_statistics
from covfree.studies import Federation, plot_partition
from covfree.studies.names import of_options
from covfree.studies.plots import style as figures
from covfree.studies.plots.sites import plot_sites
from covfree.studies.progress import say
from covfree.studies.run_folder import make_folder
from covfree.studies.source import law_of, of_file

SplitSeed = Annotated[int, typer.Option(help="Seed of the split and the partition.")]


def partition_command(
    dataset: Dataset = "digits",
    test_file: TestFile = None,
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    seed: SplitSeed = 0,
    out: Out = None,
) -> None:
    """Show how a partition spreads the training examples: sizes, classes per client, clients per class.

    Example:
      covfree partition --clients 30 --alpha 0.5 --out partition
    """
    data, federation, owners = _divided(dataset, test_file, clients, partition, alpha, seed)
    make_folder(out, "partition")
    statistics = partition_statistics(data.train_labels, owners, data.num_classes)
    print(statistics)
    if out is not None:
        figure = plot_partition(statistics, title=f"{data.name}, {law_of(data, federation)}, seed {seed}")
        picture, *_ = figures.save_all(figure, out / "partition.png")
        say(f"wrote {picture} (also as PDF and SVG)")


def diagnose_command(
    dataset: Dataset = "digits",
    test_file: TestFile = None,
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    method: Annotated[
        str, typer.Option(help="A method whose clients send class means, such as fedcof-components.")
    ] = "fedcof",
    seed: SplitSeed = 0,
    messages: Annotated[
        Path | None, typer.Option(help="A folder of received messages, instead of a data set.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="With --messages: the .png file for a picture of the sites.")
    ] = None,
) -> None:
    """Report how reliable the covariance estimated from clients' messages is, and whether clients differ.

    With --messages, judge for each site whether its message should be believed, and if not, why.

    Examples:
      covfree diagnose --clients 30 --alpha 0.5 --method fedcof-components

      covfree diagnose --messages inbox --picture sites.png
    """
    if picture is not None:
        if messages is None:
            raise ValueError("--picture: expected --messages, whose sites it shows")
        check_file("picture", picture, ".png", ())
    if messages is not None:
        _diagnose_messages(messages, picture)
        return
    chosen = next(iter(variants_of(method, option="method").values())).method
    if chosen.summary.stays or not chosen.one_shot:
        raise ValueError(f"--method: expected one whose clients send class means, got {method!r}")
    data, _, owners = _divided(dataset, test_file, clients, partition, alpha, seed)
    key = jax.random.key(seed)
    rows = covfree.summarise(chosen, data.train_features, data.train_labels, owners, key=key)
    print(covfree.diagnose(rows, num_classes=data.num_classes, method=chosen))


def audit_command(
    dataset: Dataset = "digits",
    test_file: TestFile = None,
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    epsilon: Annotated[float, typer.Option(help="ε of the noisy uploads.")] = 1.0,
    delta: Annotated[
        float, typer.Option(help="δ of the noisy uploads; well below one over the number of examples.")
    ] = 1e-5,
    clip: Annotated[
        float | None,
        typer.Option(
            help="Bound on the norm of features; by default the data's largest norm, which is not public."
        ),
    ] = None,
    group: Annotated[
        int, typer.Option(help="Clients per group; the sums over groups are attacked too.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the split, the partition and the groups.")] = 0,
    out: Out = None,
) -> None:
    """Attack clients' class sums: find examples in the sums, each client's classes, and single clients' sums.

    One third of the examples forms the federation; docs/privacy.md explains the table.

    Example:
      covfree audit --clients 20 --epsilon 1 --out out/audit
    """
    from covfree.privacy.federation_audit import audit

    at_least("group", group, 1)
    data, _, owners = _divided(dataset, test_file, clients, partition, alpha, seed)
    features = np.asarray(data.train_features)
    bound = float(np.linalg.norm(features, axis=1).max()) if clip is None else clip
    with of_options("epsilon", "delta", "clip", "clients"):
        found = audit(
            features,
            np.asarray(data.train_labels),
            np.asarray(owners),
            epsilon=epsilon,
            delta=delta,
            clip=bound,
            group=group,
            seed=seed,
        )
    many = len(np.unique(np.asarray(owners)[np.asarray(owners) >= 0]))
    text = (
        f"{data.name}: {many:,} clients with a third of its examples; seed {seed}. The noise hides one "
        f"example: ε = {epsilon:g}, δ = {delta:g}, norms up to {bound:.4g}. By chance, an AUC is 0.5, and "
        f"10 % are named.\n\n{found}"
    )
    print(text)
    if out is not None:
        from covfree.studies.plots import roc

        out.mkdir(parents=True, exist_ok=True)
        (out / "audit.md").write_text(f"{text}\n", encoding="utf-8")
        title = f"Members found in class sums: {data.name}, {many:,} clients, ε = {epsilon:g}"
        figures.save_all(roc.draw(title, found.findings), out / "audit.png")
        print(f"\nWritten: {out / 'audit.md'}, {out / 'audit.png'} (also as PDF and SVG)")


def _divided(
    dataset: str,
    test_file: Path | None,
    clients: int | None,
    partition: str | None,
    alpha: float | None,
    seed: int,
) -> tuple[FeatureSet, Federation, np.ndarray]:
    """Return the data of a seed, how it is divided, and the client of each training example."""
    at_least("seed", seed, 0)
    data = of_file(dataset, test_file).load(seed)
    federation = federation_of(data, clients, partition, alpha)
    return data, federation, assigned(federation, data, seed)


def _diagnose_messages(folder: Path, picture: Path | None) -> None:
    """Read the messages in a folder, print a table that judges each site, and write a picture if asked."""
    if not folder.is_dir():
        absent = "" if folder.exists() else ", which does not exist"
        raise ValueError(f"--messages: expected a folder, got {str(folder)!r}{absent}")
    inbox = covfree.Inbox(folder)
    sent = [message for message in inbox.values() if isinstance(message, covfree.Message)]
    classes = max((int(np.max(message.rows.label, initial=-1)) + 1 for message in sent), default=0)
    classes = max([classes, *(len(message.class_names or ()) for message in sent)])
    if not classes:
        raise ValueError(f"--messages: expected messages with class means, got none in {str(folder)!r}")
    collected = covfree.collect(inbox, num_classes=classes)
    for site, reason in collected.rejected.items():
        say(f"{site}: set aside: {reason}")
    report = covfree.diagnose_sites(collected, num_classes=classes)
    print(report)
    if picture is not None:
        figures.save(plot_sites(report), picture)
        say(f"wrote {picture}")
