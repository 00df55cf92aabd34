"""``covfree finetune``: federated fine-tuning from closed-form heads."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from covfree.cli.config_file import Config
from covfree.cli.options import (
    DATASET,
    IMAGES,
    NETWORK,
    WEIGHTS,
    Alpha,
    FormatOption,
    NumClients,
    Out,
    Partition,
    ReportFile,
    TestFile,
    assigned,
    at_least,
    check_file,
    federation_of,
    named_option,
    names_of,
    partition_settings,
    split_names,
)
from covfree.core.checks import check_share, check_strength
from covfree.core.optional import optional
from covfree.finetune import registry
from covfree.finetune.registry import Rates
from covfree.studies import Study
from covfree.studies.present import present
from covfree.studies.progress import Progress
from covfree.studies.run_folder import make_folder
from covfree.studies.source import source_of
from covfree.studies.starts import RANDOM
from covfree.studies.training import (
    TRAINABLE,
    Training,
    algorithm_of,
    participation_of,
    temperature_of,
)

Part = Literal["head", "backbone", "all"]
NormMode = Literal["frozen", "batch"]


def finetune_command(
    dataset: Annotated[str | None, DATASET] = None,
    test_file: TestFile = None,
    images: Annotated[str | None, IMAGES] = None,
    backbone: Annotated[str | None, NETWORK] = None,
    weights: Annotated[str | None, WEIGHTS] = None,
    init: Annotated[
        str, typer.Option(help=f"Heads to start from, comma-separated: random, {', '.join(TRAINABLE)}.")
    ] = "random,fedcof",
    algorithm: Annotated[
        str,
        typer.Option(
            help=f"How to train, comma-separated: {', '.join(registry())}. Each may have numbers of its own: "
            "fedadam:tau=1e-4:b2=0.999, fedadam-torch:eps=1e-8."
        ),
    ] = "fedadam",
    part: Annotated[
        Part, typer.Option("--train", help="What is trained; backbone and all need --images.")
    ] = "head",
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 50,
    participation: Annotated[
        str, typer.Option(help="Clients of a round: a share such as 0.3 or 1.0, or a number such as 30.")
    ] = "0.3",
    client_lr: Annotated[
        float | None, typer.Option(help="Learning rate of the clients; the algorithm's own without it.")
    ] = None,
    server_lr: Annotated[float | None, typer.Option(help="Learning rate of the server, likewise.")] = None,
    mu: Annotated[float | None, typer.Option(help="μ of fedprox. Without it 0.01.")] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of the clients' gradient descent.")] = 0.0,
    weight_decay: Annotated[
        float, typer.Option(help="Weight decay of the clients, as in PyTorch's SGD: 4e-5 in Fed3R's tables.")
    ] = 0.0,
    temperature: Annotated[
        str,
        typer.Option(
            help="Scores of a closed-form head are divided by it before training: 'auto' for what fits the "
            "training examples best, 'none', or a number, 0.1 in Fed3R's tables."
        ),
    ] = "auto",
    epochs: Annotated[int, typer.Option(help="Passes of a client over its examples in a round.")] = 1,
    batch_size: Annotated[int, typer.Option(help="Examples of a client's step.")] = 32,
    norms: Annotated[
        NormMode | None,
        typer.Option(
            help="Batch norms of a network: their statistics stay, or are trained too.", show_default="frozen"
        ),
    ] = None,
    augment: Annotated[
        bool, typer.Option("--augment", help="Crop and flip images at random in training; with --images.")
    ] = False,
    tune_rates: Annotated[
        bool,
        typer.Option("--tune", help="Choose the learning rates on a fifth of the training clients."),
    ] = False,
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds (splits, partitions, runs), from 0.")] = 1,
    every: Annotated[int, typer.Option(help="Rounds from one evaluation to the next.")] = 1,
    width: Annotated[int, typer.Option(help="Clients computed at once; more pay on accelerators.")] = 1,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the runs that --out holds.")] = False,
    checkpoint_every: Annotated[
        int, typer.Option(help="Rounds from one checkpoint in --out to the next.")
    ] = 10,
    report: ReportFile = None,
    config: Config = None,
    output_format: FormatOption = "table",
) -> None:
    """Train from closed-form heads in rounds: accuracy by round, and by bytes.

    Examples:
      covfree finetune --init random,fedncm,fedcof --algorithm fedavg,fedadam --out tuned

      covfree finetune --dataset features.npz --rounds 200 --tune --seeds 3

      covfree finetune --images photos --backbone squeezenet1-1 --train all --rounds 10
    """
    sizes = {"rounds": rounds, "epochs": epochs, "batch-size": batch_size, "seeds": seeds, "every": every}
    for name, size in {**sizes, "width": width, "checkpoint-every": checkpoint_every}.items():
        at_least(name, size, 1)
    inits = names_of("init", init, (RANDOM, *TRAINABLE))
    algorithms = names_of("algorithm", algorithm, split_names(algorithm))
    with named_option("algorithm"):
        for each in algorithms:
            algorithm_of(each)
    check_share("--momentum", momentum)
    check_strength("--weight-decay", weight_decay)
    with named_option("temperature"):
        divided = temperature_of(temperature)
    rates = _rates(algorithms, part, client_lr, server_lr, mu, tune_rates)
    if part != "head" and images is None:
        raise ValueError(f"--train {part}: expected --images, as features have no backbone left to train")
    if resume and out is None:
        raise ValueError("--resume: expected --out beside it")
    if out is not None:
        optional("orbax.checkpoint", "rounds")  # checkpoints need it: fail before any work if it is missing
    if norms is not None and part == "head":
        raise ValueError("--norms: expected --train backbone or all beside it, as a head has no batch norms")
    if augment and part == "head":
        raise ValueError("--augment: expected --train backbone or all beside it, as a head sees features")
    norms = norms or "frozen"
    source = source_of(dataset, test_file, images, backbone, weights)
    federation = federation_of(source.outline, clients, partition, alpha)
    # Make the partition once before any work, so that a bad argument fails at once.
    owners = assigned(federation, source.outline, seed=0)
    with named_option("participation"):
        drawn = participation_of(participation, int(owners.max()) + 1)
    options = {"epochs": epochs, "batch_size": batch_size} | ({} if mu is None else {"mu": mu})
    if report is not None:
        check_file("report", report, ".html", (dataset, test_file, images, weights, config), out)
    given = {
        **source.config,
        "train": part,
        "participation": drawn,
        "client_lr": client_lr,
        "server_lr": server_lr,
        "mu": mu,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "temperature": divided,
        "epochs": epochs,
        "batch_size": batch_size,
        "norms": norms,
        "augment": augment,
        "tune": tune_rates,
        **partition_settings(source.outline, federation),
        "every": every,
        "width": width,
    }
    make_folder(out, "finetune")
    trainings = [
        Training(
            *(each, name, rates[name], rounds, drawn, part, norms, options),
            every=every,
            save_every=checkpoint_every,
            width=width,
            tune=tune_rates,
            augment=augment,
            momentum=momentum,
            weight_decay=weight_decay,
            temperature=divided,
        )
        for name in algorithms
        for each in inits
    ]
    study = Study(
        {source.outline.name: source},
        [federation],
        {training.name: training for training in trainings},
        range(seeds),
        predictions=report is not None,
        folder=out,
        settings=given,
    )
    study.check(resume)
    with Progress(width=12) as progress:
        runs = list(study.runs(progress))
    shown = {**given, "init": inits, "algorithm": algorithms, "rounds": rounds, "seeds": seeds}
    # The results name the weights that were found, but the command to repeat needs the option's text.
    repeat = {**shown, "weights": weights, "norms": None if part == "head" else norms}
    present("finetune", study, runs, output_format, shown, repeat, report)
    if any(run.diverged for run in runs):
        raise typer.Exit(1)


def _rates(
    algorithms: list[str],
    part: Part,
    client_lr: float | None,
    server_lr: float | None,
    mu: float | None,
    tune_rates: bool,
) -> dict[str, Rates]:
    """Return each algorithm's learning rates, and check the options about them."""
    given = {"client-lr": client_lr, "server-lr": server_lr}
    for name, rate in given.items():
        if rate is None:
            continue
        if tune_rates:
            raise ValueError(f"--{name}: expected none beside --tune, which chooses it")
        if check_strength(f"--{name}", rate) == 0:
            raise ValueError(f"--{name}: expected a number above 0, got 0")
    if mu is not None:
        check_strength("--mu", mu)
        takers = [name for name, entry in registry().items() if "mu" in entry.accepts]
        if not set(takers) & {name.partition(":")[0] for name in algorithms}:
            raise ValueError(f"--mu: expected {', '.join(takers)} among --algorithm, got {algorithms[0]}")
    rates = {}
    for name in algorithms:
        entry, _ = algorithm_of(name)
        own = entry.head if part == "head" else entry.network
        rates[name] = Rates(
            own.client if client_lr is None else client_lr, own.server if server_lr is None else server_lr
        )
    return rates
