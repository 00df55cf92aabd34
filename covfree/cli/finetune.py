"""``covfree finetune``: federated fine-tuning from closed-form heads."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import jax
import jax.numpy as jnp
import typer

from covfree.backbones import Backbone
from covfree.cli.config_file import Config
from covfree.cli.options import (
    Alpha,
    DataFile,
    FormatOption,
    ImagesFile,
    NetworkName,
    NumClients,
    Out,
    Partition,
    ReportFile,
    Resume,
    TestFile,
    WeightsFile,
    assigned,
    at_least,
    check_file,
    check_resume,
    federation_of,
    names_of,
    partition_settings,
    split_names,
)
from covfree.cli.training_options import (
    INIT,
    BatchSize,
    Momentum,
    NormMode,
    Part,
    Prompts,
    Restart,
    TemperatureText,
    Top,
    WeightDecay,
    check_descent,
    check_prompts,
    check_stage,
    rates_of,
    starts_of,
)
from covfree.core.checks import check_strength
from covfree.core.optional import optional
from covfree.engine.flops import call_flops
from covfree.studies import Study
from covfree.studies.names import of_options
from covfree.studies.present import present
from covfree.studies.progress import Progress
from covfree.studies.run_folder import make_folder
from covfree.studies.source import source_of
from covfree.studies.training import (
    ALGORITHMS,
    Training,
    algorithm_of,
    optimiser_of,
    participation_of,
    start_rounds_of,
)

# Settings of a `Training` that are stored by the same name.
_SETTINGS = (
    *("every", "width", "tune", "augment", "momentum", "weight_decay", "client_optimiser", "temperature"),
    *("start_rounds", "top"),
)


def finetune_command(
    dataset: DataFile = None,
    test_file: TestFile = None,
    images: ImagesFile = None,
    backbone: NetworkName = None,
    weights: WeightsFile = None,
    init: Annotated[str, INIT] = "random,fedcof",
    algorithm: Annotated[
        str,
        typer.Option(
            help=f"How to train, comma-separated: {', '.join(ALGORITHMS)}. Each may have arguments: "
            "fedadam:tau=1e-4:b2=0.9, fedadam-torch:eps=1e-8. pfpt trains only prompts."
        ),
    ] = "fedadam",
    part: Annotated[
        Part, typer.Option("--train", help="What is trained; all but the head need --images.")
    ] = "head",
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 50,
    participation: Annotated[
        str, typer.Option(help="Clients per round: a share such as 0.3 or 1.0, or a number such as 30.")
    ] = "0.3",
    client_lr: Annotated[
        float | None, typer.Option(help="Learning rate of the clients; by default the algorithm's own.")
    ] = None,
    server_lr: Annotated[
        float | None, typer.Option(help="Learning rate of the server; by default the algorithm's own.")
    ] = None,
    mu: Annotated[
        float | None, typer.Option(help="μ, the weight of fedprox's proximal term; by default 0.01.")
    ] = None,
    momentum: Momentum = 0.0,
    weight_decay: WeightDecay = 0.0,
    start_rounds: Annotated[
        str,
        typer.Option(
            help="Rounds in which clients send what a closed-form head needs: 'once', one round with all "
            "clients; 'all', rounds of --participation clients until each client has sent once; or the "
            "number of such rounds."
        ),
    ] = "once",
    extractor_flops: Annotated[
        float | None,
        typer.Option(
            help="Floating-point operations of the network on one example, added to the clients' costs; with "
            "--images they are counted.",
            show_default=False,
        ),
    ] = None,
    client_optimiser: Annotated[
        str | None,
        typer.Option(
            help="Instead of --momentum and --weight-decay: mine.py:function, which returns an optax "
            "optimiser for a learning rate."
        ),
    ] = None,
    temperature: TemperatureText = "auto",
    epochs: Annotated[int, typer.Option(help="Passes of a client over its examples in a round.")] = 1,
    batch_size: BatchSize = 32,
    norms: NormMode = None,
    augment: Annotated[
        bool,
        typer.Option("--augment", help="Crop and flip training images at random; not with --train head."),
    ] = False,
    lora: Annotated[
        int | None,
        typer.Option(
            help="LoRA: instead of the weights, train matrices of this rank that are added to the weights."
        ),
    ] = None,
    restart: Restart = None,
    prompts: Prompts = None,
    top: Top = None,
    tune_rates: Annotated[
        bool,
        typer.Option("--tune", help="Choose the learning rates; a fifth of the clients only test them."),
    ] = False,
    clients: NumClients = None,
    alpha: Alpha = None,
    partition: Partition = None,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds, from 0; each draws a split, a partition and a training.")
    ] = 1,
    every: Annotated[int, typer.Option(help="Rounds from one evaluation to the next.")] = 1,
    width: Annotated[
        int, typer.Option(help="Clients computed together; more than one is faster on accelerators.")
    ] = 1,
    out: Out = None,
    resume: Resume = False,
    checkpoint_every: Annotated[
        int, typer.Option(help="Rounds from one checkpoint in --out to the next.")
    ] = 10,
    report: ReportFile = None,
    config: Config = None,
    output_format: FormatOption = "table",
) -> None:
    """Train in rounds from closed-form or random heads, and show accuracy by round and by bytes.

    Examples:
      covfree finetune --init random,fedncm,fedcof --algorithm fedavg,fedadam --out tuned

      covfree finetune --dataset features.npz --rounds 200 --tune --seeds 3

      covfree finetune --images photos --backbone squeezenet1-1 --train all --rounds 10
    """
    sizes = {"rounds": rounds, "epochs": epochs, "batch-size": batch_size, "seeds": seeds, "every": every}
    more = {"width": width, "checkpoint-every": checkpoint_every, "lora": 1 if lora is None else lora}
    for name, size in {**sizes, **more}.items():
        at_least(name, size, 1)
    starts = starts_of(init)
    if restart is not None:
        at_least("restart", restart, 2)
        if None in starts.values() or part in ("head", "prompts"):
            raise ValueError(
                "--restart: expected --train backbone or all, which change the features, and only "
                f"closed-form heads in --init, got --train {part} --init {init}"
            )
    algorithms = names_of("algorithm", algorithm, split_names(algorithm))
    with of_options("algorithm"):
        for each in algorithms:
            algorithm_of(each)
    divided = check_descent(momentum, weight_decay, temperature, starts)
    if client_optimiser is not None:
        if momentum or weight_decay:
            raise ValueError("--client-optimiser: expected neither --momentum nor --weight-decay beside it")
        with of_options("client-optimiser"):
            optimiser_of(client_optimiser, 0.1)
    with of_options("start-rounds"):
        stage = start_rounds_of(start_rounds)
    if stage != "once":
        check_stage(starts)
    if extractor_flops is not None:
        check_strength("--extractor-flops", extractor_flops)
        if images is not None:
            raise ValueError("--extractor-flops: expected none beside --images, whose network is counted")
    rates = rates_of(algorithms, part, client_lr, server_lr, mu, tune_rates)
    if part != "head" and images is None:
        raise ValueError(f"--train {part}: expected --images, as a file of features has no network to train")
    check_prompts(algorithms, part, backbone, prompts, top)
    if part == "prompts" and (lora is not None or norms is not None):
        raise ValueError("--train prompts: expected neither --lora nor --norms, as the network stays")
    check_resume(resume, out)
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
    with of_options("participation"):
        drawn = participation_of(participation, int(owners.max()) + 1)
    if images is not None:
        if source.images is None:
            raise ValueError(
                f"--backbone: expected a network of covfree, as only these can be trained, got {backbone}"
            )
        extractor_flops = _forward_flops(source.images.network)
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
        "client_optimiser": client_optimiser,
        "temperature": divided,
        "start_rounds": stage,
        "extractor_flops": extractor_flops,
        "epochs": epochs,
        "batch_size": batch_size,
        "norms": norms,
        "augment": augment,
        "lora": lora,
        "restart": restart,
        "prompts": prompts,
        "top": top,
        "tune": tune_rates,
        **partition_settings([source.outline], asdict(federation)),
        "every": every,
        "width": width,
    }
    make_folder(out, "finetune")
    trainings = [
        Training(
            *(each, name, rates[name], rounds, drawn, part, norms, options),
            **{setting: given[setting] for setting in _SETTINGS},
            save_every=checkpoint_every,
            extractor_flops=extractor_flops or 0,
            rank=lora or 0,
            restart=restart or 0,
            prompts=prompts or 20,
        )
        for name in algorithms
        for each in starts
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
    shown = {**given, "init": list(starts), "algorithm": algorithms, "rounds": rounds, "seeds": seeds}
    # `shown` names the weights that were found; the command that repeats the runs needs the typed ones.
    repeat = {**shown, "weights": weights, "norms": None if part == "head" else norms}
    present("finetune", study, runs, output_format, shown, repeat, report)
    if any(run.diverged for run in runs):
        raise typer.Exit(1)


def _forward_flops(network: Backbone) -> int:
    """Return the number of floating-point operations of a network on one image."""
    size = network.spec.input_size
    image = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
    return call_flops(network.apply, network.shapes, image)
