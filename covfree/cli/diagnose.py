"""``covfree diagnose``: the quality of the covariance estimated from clients' messages."""

from __future__ import annotations

from typing import Annotated

import jax
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
    federation_of,
    variants_of,
)
from covfree.studies.source import of_file


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
) -> None:
    """Say how good the covariance is that the clients' messages allow, and whether clients differ.

    Example:
      covfree diagnose --clients 30 --alpha 0.5 --method fedcof-components
    """
    at_least("seed", seed, 0)
    chosen = next(iter(variants_of(method, option="method").values())).method
    if chosen.message is not None or chosen.message_rounds < len(chosen.rounds):
        raise ValueError(f"--method: expected one whose clients send rows, got {method!r}")
    data = of_file(dataset, test_file).load(seed)
    federation = federation_of(data, clients, partition, alpha)
    owners = assigned(federation, data, seed)
    key = jax.random.key(seed)
    rows = covfree.summarise(chosen, data.train_features, data.train_labels, owners, key=key)
    print(covfree.diagnose(rows, num_classes=data.num_classes, method=chosen))
