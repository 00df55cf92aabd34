"""``covfree audit``: attacks that find clients' examples and classes in the sums that they send."""

from __future__ import annotations

from typing import Annotated

import numpy as np
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
    named_option,
)
from covfree.studies.source import of_file


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

    at_least("seed", seed, 0)
    at_least("group", group, 1)
    data = of_file(dataset, test_file).load(seed)
    federation = federation_of(data, clients, partition, alpha)
    owners = assigned(federation, data, seed)
    features = np.asarray(data.train_features)
    bound = float(np.linalg.norm(features, axis=1).max()) if clip is None else clip
    with named_option("epsilon"), named_option("delta"), named_option("clip"), named_option("clients"):
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
        roc.plot(out / "audit.png", title, found.findings)
        print(f"\nWritten: {out / 'audit.md'}, {out / 'audit.png'} (also as PDF and SVG)")
