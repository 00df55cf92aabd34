"""``covfree personalise``: trains a model for each client, and tests it on examples of this client."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from covfree.cli.config_file import Config
from covfree.cli.options import (
    DataFile,
    FormatOption,
    ImagesFile,
    NetworkName,
    Out,
    Resume,
    TestFile,
    WeightsFile,
    at_least,
    check_resume,
    federation_of,
    names_of,
)
from covfree.cli.training_options import (
    BatchSize,
    Momentum,
    NormMode,
    TemperatureText,
    WeightDecay,
    check_descent,
    starts_of,
)
from covfree.core.atomic import JsonLines, replacing
from covfree.core.checks import check_above_zero, check_share, check_strength
from covfree.data.partitions import PARTITIONERS
from covfree.studies.federation import Federation
from covfree.studies.names import of_options
from covfree.studies.personal import TITLES, Personalisation, Personalised, dealt
from covfree.studies.progress import Progress, say
from covfree.studies.report import environment
from covfree.studies.run_folder import RUNS, check_settings, make_folder, write_settings
from covfree.studies.source import Source, law_of, source_of
from covfree.studies.table import Table, TableCell, as_bytes, as_seconds, percent, plural, show
from covfree.studies.task import Task, network_of

_PAPER = Personalisation()
_FEDERATION = Federation(20, "dominant_classes", 0.2)


def personalise_command(
    dataset: DataFile = None,
    test_file: TestFile = None,
    images: ImagesFile = None,
    backbone: NetworkName = None,
    weights: WeightsFile = None,
    methods: Annotated[
        str, typer.Option(help=f"Some of {', '.join(TITLES)}, comma-separated.")
    ] = "local,fedavg,fedavg-ft,fedproto,fedcgs",
    init: Annotated[
        str, typer.Option(help="Head to start from: random, or a method such as fedcof:shrinkage=1.")
    ] = _PAPER.init,
    rounds: Annotated[int, typer.Option(help="Rounds of one pass over a client's examples.")] = _PAPER.rounds,
    epochs: Annotated[
        int, typer.Option(help="Passes of local and fedcgs, which do not train in rounds.")
    ] = _PAPER.epochs,
    home: Annotated[
        int, typer.Option(help="Passes of fedavg-ft's fine-tuning at each client, after the rounds.")
    ] = _PAPER.home,
    strength: Annotated[
        float,
        typer.Option(help="λ of fedproto and fedcgs, the weight of the features' distance from class means."),
    ] = _PAPER.strength,
    client_lr: Annotated[float, typer.Option(help="Learning rate of the clients.")] = _PAPER.rate,
    momentum: Momentum = _PAPER.momentum,
    weight_decay: WeightDecay = _PAPER.weight_decay,
    batch_size: BatchSize = _PAPER.batch_size,
    temperature: TemperatureText = "auto",
    rank: Annotated[
        int, typer.Option(help="Rank of the adapter that is trained between features and head.")
    ] = _PAPER.rank,
    norms: NormMode = None,
    test_share: Annotated[
        float,
        typer.Option(
            help="Share of a client's examples held back for tests, if test examples name no client."
        ),
    ] = 0.25,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients (20), if the data names none.", show_default=False)
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="The partition's parameter (0.2): concentration, sigma, share, or classes or shards per "
            "client.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help=f"How to divide the data (dominant_classes): {', '.join(PARTITIONERS)}.", show_default=False
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0.")] = 3,
    out: Out = None,
    resume: Resume = False,
    config: Config = None,
    output_format: FormatOption = "table",
) -> None:
    """Train a model for each client, and test it on examples that the client holds back.

    The defaults are FedCGS's (Table 3). With --images the whole network is trained, else an adapter and a
    head on features.

    Examples:
      covfree personalise --rounds 20 --epochs 40 --home 4

      covfree personalise --images photos --backbone resnet18 --weights resnet18.pth --norms batch --out own
    """
    chosen = names_of("methods", methods, TITLES)
    sizes = {"rounds": rounds, "epochs": epochs, "home": home, "batch-size": batch_size, "rank": rank}
    for name, size in {**sizes, "seeds": seeds}.items():
        at_least(name, size, 1)
    starts = starts_of(init)
    (start, *more), divided = starts, check_descent(momentum, weight_decay, temperature, starts)
    if more:
        raise ValueError(f"--init: expected one start, got {init}")
    check_above_zero("--client-lr", client_lr)
    check_strength("--strength", strength)
    if not 0 < check_share("--test-share", test_share) < 1:
        raise ValueError(f"--test-share: expected a number in (0, 1), got {test_share:g}")
    if norms is not None and images is None:
        raise ValueError("--norms: expected --images beside it, as features have no network to train")
    check_resume(resume, out)
    how = Personalisation(
        *(start, rounds, epochs, home, strength, client_lr, momentum, weight_decay),
        *(batch_size, divided, rank, norms or _PAPER.norms),
    )
    source = source_of(dataset, test_file, images, backbone, weights)
    federation = federation_of(source.outline, clients, partition, alpha, _FEDERATION)
    with of_options("partition"):
        federation.check()
    settings = {**source.config, **asdict(how), **asdict(federation), "test_share": test_share}
    make_folder(out, "personalise")
    folder = out and out / "personal"
    if folder is not None:
        check_settings(folder, settings, resume)
        write_settings(folder, settings)
    runs = _runs(how, chosen, range(seeds), source, federation, test_share, folder)
    law, counted = law_of(source.outline, federation), f"{seeds} {plural('seed', seeds)}"
    if source.outline.clients is None:
        law = f"{federation.clients} {plural('client', federation.clients)}, {law}"
    title = f"{source.outline.name}, {law}, {counted}: accuracy of each client on its own test examples"
    records = [_record(name, [run for run in runs if run["method"] == name]) for name in chosen]
    content = {"settings": settings, "environment": environment(), "results": records, "runs": runs}
    text = json.dumps(content, indent=2)
    if out is not None:
        with replacing(out / "results.json") as draft:
            draft.write((text + "\n").encode())
    columns = ("method", "accuracy, %", "lowest fifth, %", "bytes up", "bytes down", "time")
    show(output_format, title, Table(columns, tuple(map(_line, records)), broken=columns[1:]), records, text)
    if any(record["diverged"] for record in records):
        raise typer.Exit(1)


def _runs(
    how: Personalisation,
    chosen: list[str],
    seeds: range,
    source: Source,
    federation: Federation,
    test_share: float,
    folder: Path | None,
) -> list[dict[str, Any]]:
    """Run each method for each seed, unless the folder has the run; return the records of all runs."""
    kept = None if folder is None else JsonLines(folder / RUNS, dict, "a run")
    done = {(run["method"], run["seed"]): run for run in (kept.records if kept else ())}
    with Progress() as progress:
        for seed in seeds:
            task: Task | None = None
            for name in chosen:
                if (name, seed) in done:
                    continue
                task = task or _task(source, federation, test_share, seed)
                number, total = len(done) + 1, len(chosen) * len(seeds)
                text = f"{name}, seed {seed}"
                progress.step(text, number - 1, total, f"covfree: run {number} of {total}: {text}")
                found = how(name, task, folder and folder / f"{name}-seed{seed}")
                if found.diverged is not None:
                    say(f"{text}: diverged in round {found.diverged}; a smaller --client-lr may help")
                done[name, seed] = _kept(name, seed, found)
                if kept is not None:
                    kept.add(done[name, seed], done[name, seed])
    return [done[name, seed] for seed in seeds for name in chosen]


def _task(source: Source, federation: Federation, test_share: float, seed: int) -> Task:
    images, data = source.images, source(seed)
    pixels, network = (None, None) if images is None else (images.pixels(seed), network_of(images))
    try:
        task = dealt(data, federation, test_share, seed, pixels, network)
    except ValueError as error:
        raise ValueError(f"--partition {federation.partition}: {error}") from error
    tested = task.data.test_clients
    if tested is None or not ((tested >= 0) & (tested <= task.clients.max())).any():
        raise ValueError(
            f"--test-share: expected test examples at clients with training examples, got {test_share:g}, "
            f"which leaves none at any of the {task.clients.max() + 1} clients"
        )
    lost = len(data.train_labels) + len(data.test_labels) - len(task.data.train_labels)
    if data.clients is None and (lost := lost - len(task.data.test_labels)):
        say(f"seed {seed}: {lost:,} examples are on no client")
    return task


def _kept(name: str, seed: int, found: Personalised) -> dict[str, Any]:
    """Return the record of a method's run for JSON; a client without test examples has accuracy None."""
    accuracy = [None if np.isnan(each) else float(each) for each in found.accuracy]
    return {"method": name, "seed": seed, **found._asdict(), "accuracy": accuracy}


def _record(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over a method's runs, for all clients and for the worst fifth, and the median time."""
    tested = [np.sort([each for each in run["accuracy"] if each is not None]) for run in runs]
    mean = [float(each.mean()) for each in tested]
    low = [float(each[: max(1, len(each) // 5)].mean()) for each in tested]
    return {
        "method": name,
        "title": TITLES[name],
        "seeds": len(runs),
        "accuracy_mean": float(np.mean(mean)),
        "accuracy_sd": float(np.std(mean, ddof=1)) if len(mean) > 1 else None,
        "lowest_fifth_mean": float(np.mean(low)),
        **{key: float(np.mean([run[key] for run in runs])) for key in ("bytes_up", "bytes_down")},
        "seconds": float(np.median([run["seconds"] for run in runs])),
        "diverged": sum(run["diverged"] is not None for run in runs),
    }


def _line(record: dict[str, Any]) -> tuple[TableCell, ...]:
    mean, low = record["accuracy_mean"], record["lowest_fifth_mean"]
    return (
        TableCell(record["title"] + (" (diverged)" if record["diverged"] else "")),
        TableCell(percent(mean, record["accuracy_sd"]), mean),
        TableCell(f"{100 * low:.2f}", low),
        *(TableCell(as_bytes(record[key]), record[key]) for key in ("bytes_up", "bytes_down")),
        TableCell(as_seconds(record["seconds"]), record["seconds"]),
    )
