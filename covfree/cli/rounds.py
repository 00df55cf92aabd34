"""``covfree rounds``: who takes part in which round, and how much a server has seen by then."""

from __future__ import annotations

import sys
from typing import Annotated

import jax
import typer

from covfree import figures
from covfree.cli.finetune import participation_of
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
from covfree.cli.run_folder import make_folder
from covfree.cli.source import law_of, load_named
from covfree.federation import plot_schedule, schedule, schedule_statistics
from covfree.keys import participation_seed


def rounds_command(
    dataset: Dataset = "digits",
    test_file: TestFile = None,
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 50,
    participation: Annotated[
        str, typer.Option(help="Clients of a round: a share such as 0.3 or 1.0, or a number such as 30.")
    ] = "0.1",
    once: Annotated[
        bool, typer.Option("--once", help="Draw each client once: rounds draw from those that did not come.")
    ] = False,
    dropout: Annotated[float, typer.Option(help="Probability that an upload never arrives.")] = 0.0,
    late: Annotated[
        float,
        typer.Option(help="Probability that one that does arrive comes a round later."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the split, the partition and the draw.")] = 0,
    out: Out = None,
) -> None:
    """Show a participation schedule: who is drawn in which round, and what has been seen by the end of it.

    An upload is lost with probability dropout, comes a round later with
    probability (1 - dropout) * late, and else comes in its own round.
    "Times drawn" counts all draws, also those whose upload is lost.

    Example:
      covfree rounds --clients 100 --participation 10 --rounds 60 --dropout 0.1 --out schedule
    """
    at_least("seed", seed, 0)
    at_least("rounds", rounds, 1)
    for name, chance in {"dropout": dropout, "late": late}.items():
        if not 0 <= chance <= 1:
            raise ValueError(f"--{name}: expected a probability in [0, 1], got {chance:g}")
    data = load_named(dataset, test_file, seed=seed)
    federation = federation_of(data, clients, partition, alpha)
    owners = assigned(federation, data, seed)
    number = int(owners.max()) + 1
    drawn = participation_of(participation, number)
    # The draw of covfree finetune, which also leaves out clients after the last with examples.
    draw = participation_seed(jax.random.key(seed))
    plan = schedule(number, drawn, rounds, seed=draw, replacement=not once, dropout=dropout, late=late)
    make_folder(out, "rounds")
    statistics = schedule_statistics(plan, data.train_labels, owners, num_clients=number)
    print(statistics.as_table(data.client_names))
    if out is not None:
        words = [data.name, law_of(data, federation), f"participation {participation}"]
        words += ["each client once"] * once
        words += [
            f"{name} {chance:g}" for name, chance in {"dropout": dropout, "late": late}.items() if chance
        ]
        title = ", ".join([*words, f"seed {seed}"])
        picture, *_ = figures.save_all(plot_schedule(statistics, title=title), out / "rounds.png")
        print(f"wrote {picture} (also as PDF and SVG)", file=sys.stderr)
