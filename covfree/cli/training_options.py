"""Options that ``covfree finetune`` and ``covfree personalise`` share, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from covfree.backbones import backbone
from covfree.cli.options import at_least, split_names, variants_of
from covfree.core.checks import check_share, check_strength
from covfree.finetune import registry as algorithms_by_name
from covfree.finetune.model import Norms
from covfree.finetune.registry import Rates
from covfree.methods import registry
from covfree.studies.extraction import backbone_of
from covfree.studies.names import of_options
from covfree.studies.starts import RANDOM, Temperature
from covfree.studies.training import PFPT, TRAINABLE, algorithm_of, temperature_of
from covfree.studies.variants import Variant

Part = Literal["head", "backbone", "all", "prompts"]
INIT = typer.Option(
    help=f"Heads to start from, comma-separated: random, {', '.join(TRAINABLE)}; perhaps with arguments, as "
    "in fedcof:shrinkage=0.1."
)
Momentum = Annotated[float, typer.Option(help="Momentum of the clients' gradient descent.")]
WeightDecay = Annotated[
    float, typer.Option(help="Weight decay of the clients, as in PyTorch's SGD: 4e-5 in Fed3R's tables.")
]
TemperatureText = Annotated[
    str,
    typer.Option(
        "--temperature",
        help="Temperature of a closed-form head's softmax: 'auto' divides the head by the temperature that "
        "fits the training examples best; a number (0.1 in Fed3R's tables) divides the scores throughout "
        "training; 'none' divides by nothing.",
    ),
]
BatchSize = Annotated[int, typer.Option(help="Examples per batch of a client.")]
NormMode = Annotated[
    Norms | None,
    typer.Option(
        help="Batch norms of a trained network: 'frozen' normalises by the running statistics, which stay; "
        "'batch' by the batch's statistics, and averages the running ones over clients.",
        show_default="frozen",
    ),
]
Restart = Annotated[
    int | None,
    typer.Option(
        help="With --train backbone or all: of every so many rounds, the last computes the closed-form head "
        "again, on the trained network's features."
    ),
]
Prompts = Annotated[
    int | None,
    typer.Option(
        help="With --train prompts: number of prompts that a vision transformer gets (20).",
        show_default=False,
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        help="With --train prompts: number of prompts for an image, the most similar ones; by default all."
    ),
]


def starts_of(text: str) -> dict[str, Variant | None]:
    """Parse ``--init``: the heads that training starts from, each a method, or None for `RANDOM`.

    Raises:
        ValueError: if a method is unknown or refuses a number, its head is not linear, or a name comes twice.
    """
    names = split_names(text)
    refused = {*registry(), "all"} - set(TRAINABLE)
    for name in names:
        if name.partition(":")[0] in refused:
            known = ", ".join((RANDOM, *TRAINABLE))
            raise ValueError(f"--init: expected some of {known}, whose heads are linear, got {name!r}")
    closed = [name for name in names if name != RANDOM]
    made = iter(variants_of(",".join(closed), option="init").items() if closed else ())
    starts = dict((RANDOM, None) if name == RANDOM else next(made) for name in names)
    if not names or len(starts) < len(names):
        raise ValueError(f"--init: expected different names, got {', '.join(names) or 'none'}")
    return starts


def check_descent(
    momentum: float, weight_decay: float, temperature: str, starts: Mapping[str, Any]
) -> Temperature:
    """Check the options of the clients' gradient descent; return the temperature, parsed."""
    check_share("--momentum", momentum)
    check_strength("--weight-decay", weight_decay)
    with of_options("temperature"):
        number = temperature_of(temperature)
    if set(starts) == {RANDOM} and isinstance(number, float):
        raise ValueError(f"--temperature: expected a closed-form head in --init, got {number} for {RANDOM}")
    return number


def check_prompts(
    algorithms: list[str], part: Part, network: str | None, prompts: int | None, top: int | None
) -> None:
    """Raise ValueError if an option of prompts is out of range, or does not fit --train or the network."""
    for name, number in {"prompts": prompts, "top": top}.items():
        if number is not None:
            at_least(name, number, 1)
            if part != "prompts":
                raise ValueError(f"--{name}: expected --train prompts beside it, got --train {part}")
    if part != "prompts" and PFPT in algorithms:
        raise ValueError(f"--algorithm: expected --train prompts beside {PFPT}, got --train {part}")
    if part == "prompts" and network is not None and not backbone(backbone_of(network)).takes_prompts:
        raise ValueError(f"--backbone: expected a vision transformer, which takes prompts, got {network}")


def check_stage(starts: Mapping[str, Variant | None]) -> None:
    """Raise ValueError unless ``--start-rounds`` fits the heads from which training starts.

    ``starts`` has the method that makes each head, or None for a random head. At least one must be a method,
    and the clients of each method must send only once.
    """
    closed = {name: start.method for name, start in starts.items() if start is not None}
    for name, method in closed.items():
        if not method.one_shot:
            raise ValueError(f"--start-rounds: expected methods whose clients send once, got {name}")
    if not closed:
        raise ValueError("--start-rounds: expected a closed-form head in --init, got random alone")


def rates_of(
    algorithms: list[str],
    part: Part,
    client_lr: float | None,
    server_lr: float | None,
    mu: float | None,
    tune_rates: bool,
) -> dict[str, Rates]:
    """Check the options of learning rates, and return each algorithm's rates by its name.

    A rate that is not given is the algorithm's default.
    """
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
        takers = [name for name, entry in algorithms_by_name().items() if "mu" in entry.accepts]
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
