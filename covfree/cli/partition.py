"""``covfree partition``: how a partition spreads the training examples."""

from __future__ import annotations

from typing import Annotated

import typer

from covfree.cli.options import (
    Alpha,
    Dataset,
    NumClients,
    Out,
    Partition,
    TestFile,
    assigned,
    at_least,
    federation_of,
)
from covfree.data.partitions import partition_statistics
from covfree.studies import plot_partition
from covfree.studies.plots import style as figures
from covfree.studies.progress import say
from covfree.studies.run_folder import make_folder
from covfree.studies.source import law_of, of_file


def partition_command(
    dataset: Dataset = "digits",
    test_file: TestFile = None,
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    seed: Annotated[int, typer.Option(help="Seed of the split and the partition.")] = 0,
    out: Out = None,
) -> None:
    """Show how a partition spreads the training examples: sizes, classes per client, clients per class.

    Example:
      covfree partition --clients 30 --alpha 0.5 --out partition
    """
    at_least("seed", seed, 0)
    data = of_file(dataset, test_file).load(seed)
    federation = federation_of(data, clients, partition, alpha)
    owners = assigned(federation, data, seed)
    make_folder(out, "partition")
    statistics = partition_statistics(data.train_labels, owners, data.num_classes)
    print(statistics.as_table())
    if out is not None:
        figure = plot_partition(statistics, title=f"{data.name}, {law_of(data, federation)}, seed {seed}")
        picture, *_ = figures.save_all(figure, out / "partition.png")
        say(f"wrote {picture} (also as PDF and SVG)")
