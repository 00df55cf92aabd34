"""``covfree diagnose``: how good the covariance is that the clients' messages allow."""

from __future__ import annotations

from typing import Annotated

import jax
import typer

import covfree
from covfree.cli.jobs import say
from covfree.cli.options import (
    Alpha,
    Dataset,
    NumClients,
    Partition,
    ReportFile,
    TestFile,
    assigned,
    at_least,
    check_file,
    federation_of,
    partition_settings,
    variants_of,
)
from covfree.cli.page import diagnosed_page, write_page
from covfree.cli.source import of_file


def diagnose_command(
    dataset: Dataset = "digits",
    test_file: TestFile = None,
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    method: Annotated[
        str, typer.Option(help="A method whose clients send rows, such as fedcof or fedcof-components.")
    ] = "fedcof",
    seed: Annotated[int, typer.Option(help="Seed of the split and the partition.")] = 0,
    report: ReportFile = None,
) -> None:
    """Say how good the covariance is that the clients' messages allow, and whether clients differ.

    Example:
      covfree diagnose --clients 30 --alpha 0.5 --method fedcof-components --report diagnosis.html
    """
    at_least("seed", seed, 0)
    if report is not None:
        check_file("report", report, ".html", (dataset, test_file))
    variant = next(iter(variants_of(method, {}, "method").values()))
    chosen = variant.method
    if chosen.message is not None or chosen.message_rounds < len(chosen.rounds):
        raise ValueError(f"--method: expected one whose clients send rows, got {method!r}")
    source = of_file(dataset, test_file)
    data = source.load(seed)
    federation = federation_of(data, clients, partition, alpha)
    owners = assigned(federation, data, seed)
    key = jax.random.key(seed)
    rows = covfree.summarise(chosen, data.train_features, data.train_labels, owners, key=key)
    found = covfree.diagnose(rows, num_classes=data.num_classes, method=chosen)
    print(found)
    if report is not None:
        settings = {**source.config, **partition_settings(data, federation), "method": method, "seed": seed}
        write_page(diagnosed_page(found, variant.title, data, federation, settings, report.name), report)
        say(f"wrote {report}")
