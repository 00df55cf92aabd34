"""`Training`: the settings of a training in rounds from a closed-form or random head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import optax

import covfree
import covfree.rounds
from covfree.core.checks import check_above_zero, check_strength
from covfree.core.registries import nearest
from covfree.finetune import Model, pfpt, registry
from covfree.finetune.local import as_optimiser
from covfree.finetune.model import Norms, Trained
from covfree.finetune.registry import Entry, Rates
from covfree.rounds.schedule import participation as draw
from covfree.studies.known import function_of
from covfree.studies.names import parsed
from covfree.studies.starts import From, StartRounds, Temperature, start_title

Part: TypeAlias = Trained | Literal["prompts"]
TRAINABLE = tuple(name for name, entry in covfree.methods.registry().items() if entry.linear)
_ARROW = " → "


def _pfpt(model: Model, client: Any, server_lr: float, **options: Any) -> covfree.rounds.Algorithm:
    return pfpt(model, client, **options)


# The registry's algorithms train any model. PFPT trains only prompts, and its server has no rate.
PFPT = "pfpt"
ALGORITHMS = {
    **registry(),
    PFPT: Entry("PFPT", _pfpt, registry()["fedavg"].head, registry()["fedavg"].network),
}


@dataclass(frozen=True)
class Training:
    """A method of a study that trains a head in rounds.

    Attributes:
        init: `RANDOM`, or the method that makes the head with which training starts.
        algorithm: name in `covfree.finetune.registry`, perhaps with numbers, such as ``"fedadam:tau=1e-4"``;
            or ``"pfpt"``.
        rates: learning rates of the clients and the server.
        rounds: number of rounds.
        participation: clients per round, a number or a share.
        train: the part that is trained; see `covfree.finetune.network_model`. ``"prompts"`` for
            `covfree.finetune.prompt_model`.
        norms: how batch norms train; see `covfree.finetune.network_model`.
        options: options of the algorithm other than its rates, such as ``epochs``.
        every: rounds between evaluations.
        save_every: rounds between checkpoints.
        width: number of clients that are simulated at once.
        tune: whether the rates are tuned on a grid around the given ones, see `covfree.studies.tuning`.
        augment: whether images are cropped and flipped at random in training.
        momentum: momentum of the clients' gradient descent.
        weight_decay: the clients add this multiple of the parameters to the gradient, before momentum.
        client_optimiser: instead of momentum and decay, a function in a file, see `optimiser_of`.
        temperature: ``"auto"`` fits a temperature to a closed-form head, and divides the head by it once. A
            number divides scores throughout training, as in `covfree.finetune.at_temperature`; with prompts,
            the head is divided by it once. ``"none"`` divides nothing.
        start_rounds: rounds of the closed-form stage, in which clients send statistics for the first head:
            ``"once"`` for one round of all clients; ``"all"`` for rounds of ``participation`` clients each,
            no client twice, until all have sent; or the number of such rounds.
        extractor_flops: operations of the feature extractor on an example; clients' costs include them where
            clients compute features.
        rank: the rank of `covfree.finetune.lora` on a network's layers; 0 to train the layers themselves.
        restart: every so many rounds, all clients take part in a closed-form stage on the trained network's
            features, and training continues from the head that this stage gives; 0 for never.
        prompts: number of prompts, if ``train`` is ``"prompts"``.
        top: the number of prompts that an image reads, those most similar to the image; None for all prompts.
    """

    init: str
    algorithm: str
    rates: Rates
    rounds: int
    participation: int | float
    train: Part = "head"
    norms: Norms = "frozen"
    options: Mapping[str, Any] = field(default_factory=dict)
    every: int = 1
    save_every: int = 10
    width: int = 1
    tune: bool = False
    augment: bool = False
    momentum: float = 0.0
    weight_decay: float = 0.0
    client_optimiser: str | None = None
    temperature: Temperature = "auto"
    start_rounds: StartRounds = "once"
    extractor_flops: int | float = 0
    rank: int = 0
    restart: int = 0
    prompts: int = 20
    top: int | None = None

    @property
    def stretches(self) -> list[int]:
        """How many rounds of training come before the first restart, then after each restart."""
        if not self.restart:
            return [self.rounds]
        number, rest = divmod(self.rounds, self.restart)
        return [self.restart - 1] * number + [rest]

    @property
    def start(self) -> From:
        """The part of the settings that determines the head from which training starts."""
        return From(*(getattr(self, name) for name in From._fields))

    @property
    def client(self) -> Any:
        """The clients' optimiser, or for plain gradient descent its learning rate; see `descent`."""
        if self.client_optimiser is not None:
            return optimiser_of(self.client_optimiser, self.rates.client)
        return descent(self.rates.client, self.momentum, self.weight_decay)

    @property
    def name(self) -> str:
        """The training's name in results."""
        return f"{self.init}{_ARROW}{self.algorithm}"

    @property
    def title(self) -> str:
        """The training's title in tables."""
        entry, numbers = algorithm_of(self.algorithm)
        shown = f" ({', '.join(f'{k}={v}' for k, v in numbers.items())})" if numbers else ""
        return f"{start_title(self.init)}{_ARROW}{entry.title}{shown}"

    def folder(self, out: Path, seed: int) -> Path:
        """Return the subfolder of a study's folder that keeps this training's run."""
        # Replace slashes, as the name of a function in a file may contain folders.
        start = self.init.replace("/", "_").replace("\\", "_")
        return out / f"{start}-{self.algorithm}-seed{seed}"


def descent(rate: float, momentum: float, weight_decay: float) -> Any:
    """Return the clients' optimiser: SGD with momentum and weight decay, or ``rate`` itself if both are 0."""
    return jax.tree_util.Partial(_descent, rate, momentum, weight_decay) if momentum or weight_decay else rate


# Cache the result: jax compares functions by identity, and would compile again for an equal function.
@cache
def optimiser_of(text: str, rate: float) -> Any:
    """Return the optax transformation that a user's function makes from the learning rate ``rate``.

    ``text`` names the function and its file, such as ``mine.py:function``.
    """
    made = function_of(text, "client-optimiser")(rate)
    try:
        as_optimiser(f"client-optimiser: {text}", made)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return made


def _descent(rate: Any, momentum: Any, weight_decay: Any) -> Any:
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.sgd(rate, momentum=momentum))


def algorithm_of(text: str) -> tuple[Entry, dict[str, Any]]:
    """Parse text such as ``fedadam:tau=1e-4``; return the entry in `ALGORITHMS`, and the hyperparameters."""
    name, numbers = parsed(text, "algorithm: expected a number such as fedadam:tau=1e-4")
    if name not in ALGORITHMS:
        near = nearest(name, ALGORITHMS)
        raise ValueError(f"algorithm: expected some of {', '.join(ALGORITHMS)}, got {name!r}{near}")
    entry = ALGORITHMS[name]
    for number, value in numbers.items():
        if number not in entry.accepts:
            takes = sorted(entry.accepts)
            listed = ", ".join(takes) or "no number"
            raise ValueError(f"algorithm: {name} takes {listed}, got {number}{nearest(number, takes)}")
        try:
            check_strength(number, value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"algorithm: {name}: {error}") from error
    return entry, numbers


def temperature_of(text: str) -> Temperature:
    """Parse a temperature: a number above 0, 'auto' or 'none'."""
    if text in ("auto", "none"):
        return text  # pyright: ignore
    try:
        return float(check_above_zero("temperature", float(text)))
    except ValueError:
        raise ValueError(f"temperature: expected 'auto', 'none' or a number above 0, got {text!r}") from None


def start_rounds_of(text: str) -> StartRounds:
    """Convert the text of ``--start-rounds``: 'once' and 'all' stay texts, others must be an integer from 1.

    It says in how many rounds clients send statistics for the first head, see `Training.start_rounds`.
    """
    if text in ("once", "all"):
        return text  # pyright: ignore
    if not (text.strip().isdecimal() and int(text) > 0):
        raise ValueError(f"start-rounds: expected 'once', 'all' or a number of at least 1, got {text!r}")
    return int(text)


def start_and_algorithm(name: str) -> tuple[str, str]:
    """Split a training's name, such as ``"fedcof → fedavg"``, into its start and its algorithm."""
    init, _, algorithm = name.partition(_ARROW)
    return init, algorithm


def participation_of(text: str, num_clients: int) -> int | float:
    """Parse a number of clients, or a share of them."""
    try:
        number = int(text) if text.strip().lstrip("+-").isdigit() else float(text)
        draw(num_clients, number, 1, seed=0)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"participation: expected a share in (0, 1] or a number of clients up to {num_clients}, got "
            f"{text!r}"
        ) from error
    return number
