"""``covfree diagnose``: how reliable the estimated covariance is, and which sites to distrust."""

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
    Partition,
    TestFile,
    assigned,
    at_least,
    check_file,
    federation_of,
    variants_of,
)
from covfree.studies.plots.sites import plot_sites
from covfree.studies.plots.style import save
from covfree.studies.progress import say
from covfree.studies.source import of_file


def diagnose_command(
    dataset: Dataset = "digits",
    test_file: TestFile = None,
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    method: Annotated[
        str, typer.Option(help="A method whose clients send class means, such as fedcof-components.")
    ] = "fedcof",
    seed: Annotated[int, typer.Option(help="Seed of the split and the partition.")] = 0,
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
    at_least("seed", seed, 0)
    chosen = next(iter(variants_of(method, option="method").values())).method
    if chosen.summary.stays or not chosen.one_shot:
        raise ValueError(f"--method: expected one whose clients send class means, got {method!r}")
    data = of_file(dataset, test_file).load(seed)
    federation = federation_of(data, clients, partition, alpha)
    owners = assigned(federation, data, seed)
    key = jax.random.key(seed)
    rows = covfree.summarise(chosen, data.train_features, data.train_labels, owners, key=key)
    print(covfree.diagnose(rows, num_classes=data.num_classes, method=chosen))


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
        save(plot_sites(report), picture)
        say(f"wrote {picture}")
