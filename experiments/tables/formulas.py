"""Printed formulas beside what covfree counts, on a small federation whose sizes are all different."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree import finetune
from covfree.backbones import BACKBONES, Backbone, Preprocessing, backbone
from covfree.rounds.adding import size_in_bytes
from covfree.rounds.algorithm import ClientData
from covfree.studies import variants

_FLOAT_BYTES = 4
_D, _C, _K = 16, 3, 5
_EXAMPLES = 2 * _K * _C
_LEVELS = Preprocessing(16, 16, "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
# A vision transformer whose features have d numbers: it consists of matrix products alone.
_SMALL = replace(
    BACKBONES["vit_b_16"],
    name="small",
    num_features=_D,
    preprocessing=_LEVELS,
    settings={"patch": 8, "size": 16, "dim": _D, "depth": 1, "heads": 2},
)
# How a letter is written, where it is not as it is.
_WRITTEN = {"F": "F_φ", "f": "F_ϕ", "f1": "F_1"}
_POWERS = {2: "²", 3: "³"}


@cache
def _network() -> Backbone:
    return backbone(_SMALL)


def _model(train: str) -> finetune.Model:
    """The small network with a head, or the head alone on features that are computed once."""
    head = finetune.random_head(_D, _C, key=jax.random.key(0))
    if train == "head":
        return finetune.linear_model(head)
    params: Any = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), _network().shapes)
    return finetune.network_model(_network(), params, head, train=train)  # type: ignore[arg-type]


def _inputs(train: str, number: int) -> np.ndarray:
    return np.zeros((number, _D) if train == "head" else (number, 16, 16, 3), np.float32)


@cache
def sizes() -> Mapping[str, float]:
    """The numbers that letters stand for.

    d features, C classes, K clients, n examples, D random features, b numbers of the extractor, E epochs; F
    and f are the multiplications, each with an addition, of extractor and head on one example, f1 those of
    the extractor's first layer.
    """
    network, image = _network(), jax.ShapeDtypeStruct((1, 16, 16, 3), jnp.float32)
    extractor = covfree.call_flops(network.apply, network.shapes, image) // 2
    patches, values = 4, 3 * 8 * 8
    return {
        "d": _D,
        "C": _C,
        "K": _K,
        "n": _EXAMPLES,
        "D": 11,
        "b": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(network.shapes)),
        "E": 2,
        "F": extractor,
        "f": _D * _C,
        "f1": patches * values * _D,
    }


def _closed_form(settings: Mapping[str, Any]) -> tuple[Any, np.ndarray, np.ndarray]:
    """A method, and a federation in which every client holds every class."""
    labels = np.tile(np.arange(_C), 2 * _K)
    (made,) = variants([settings["method"].format_map(sizes())]).values()
    return made.method, labels, np.repeat(np.arange(_K), 2 * _C)


def _sent(settings: Mapping[str, Any]) -> float:
    """Values that all clients of a method in closed form send."""
    return covfree.sent_bytes(*_closed_form(settings), dim=_D).statistics / _FLOAT_BYTES


def _operations(settings: Mapping[str, Any]) -> float:
    """Their operations; a multiplication with an addition is one."""
    return covfree.client_flops(*_closed_form(settings), dim=_D) / 2


@cache
def _passed(name: str, train: str) -> tuple[float, float]:
    """Values that a client sends and receives in a round of an algorithm."""
    algorithm = finetune.registry()[name].make(_model(train), 0.1, 1.0)
    data = ClientData.own(jnp.asarray(_inputs(train, 4)), jnp.arange(4) % _C)

    def round_of(key: Any) -> Any:
        state, memory = algorithm.init(algorithm.params, 1, key)
        sent = algorithm.broadcast(algorithm.params, state)
        return algorithm.client(algorithm.params, sent, data, memory, key)[0], sent

    up, down = jax.eval_shape(round_of, jax.random.key(0))
    return size_in_bytes(up) / _FLOAT_BYTES, size_in_bytes(down) / _FLOAT_BYTES


def _training(settings: Mapping[str, Any]) -> float:
    """Operations of a client's epochs: those of the loss's gradient; features of a head are computed once."""
    train, known = settings["train"], sizes()
    model = _model(train)

    def loss(trained: Any, inputs: Any) -> jax.Array:
        features, _ = model.features(trained, model.frozen, model.statistics, inputs, True, None)
        return model.loss(model.scores(trained, model.frozen, features), jnp.zeros(1, jnp.int32)).sum()

    one = covfree.call_flops(jax.grad(loss), model.trained, _inputs(train, 1)) // 2
    return known["n"] * (known["E"] * one + (known["F"] if train == "head" else 0))


COUNTED: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "sent": _sent,
    "operations": _operations,
    "up": lambda settings: _passed(settings["algorithm"], settings["train"])[0],
    "down": lambda settings: _passed(settings["algorithm"], settings["train"])[1],
    "training": _training,
}


def value_of(terms: Sequence[Sequence[Any]]) -> float:
    """A sum of products of letters in `sizes` and numbers.

    >>> value_of([["d", "C"], [2]])
    50
    """
    known = sizes()
    return sum(math.prod(known[each] if isinstance(each, str) else each for each in term) for term in terms)


def written(terms: Sequence[Sequence[Any]]) -> str:
    """The sum in the form in which the papers print it.

    >>> written([["n", "d", "d"], [0.5, "n", "d"], [-1, "C"], [1]])
    'nd²+0.5nd−C+1'
    """
    words = []
    for term in terms:
        factor = math.prod(each for each in term if not isinstance(each, str))
        letters = [each for each in term if isinstance(each, str)]
        shown = "".join(
            _WRITTEN.get(each, each) + _POWERS.get(letters.count(each), "") for each in dict.fromkeys(letters)
        )
        number = "" if abs(factor) == 1 and shown else f"{abs(factor):g}"
        words.append(("−" if factor < 0 else "+") + number + shown)
    return "".join(words).removeprefix("+")


def compared(settings: Mapping[str, Any]) -> str:
    """``=`` if covfree counts as many as the ``terms`` of a printed formula say; else its own, ``ours``.

    The letters are those of `sizes`. ``counts`` says what is counted, a key of `COUNTED`.

    Raises:
        ValueError: if it is unknown, or covfree counts neither.
    """
    counts = settings.get("counts", "sent")
    if counts not in COUNTED:
        raise ValueError(f"counts: expected one of {', '.join(COUNTED)}, got {counts!r}")
    found = COUNTED[counts](settings)
    if found == value_of(settings["terms"]):
        return "="
    if "ours" in settings and found == value_of(settings["ours"]):
        return written(settings["ours"])
    expected = " or ".join(
        f"{written(settings[name])} = {value_of(settings[name]):g}"
        for name in ("terms", "ours")
        if name in settings
    )
    raise ValueError(f"{counts}: expected {expected}, got {found:g}")
