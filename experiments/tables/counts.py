"""Cells that need no data: bytes, operations, rounds, numbers of values, from covfree's own functions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cache
from statistics import fmean
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.backbones import BACKBONES, backbone
from covfree.data.partitions import PARTITIONERS
from covfree.engine.flops import call_flops
from covfree.rounds import rounds_to_meet
from covfree.statistics import count_rows

# A number, or a mean and its spread.
Value = tuple[float, float | None]
_MEGA = 1e6
_FLOAT_BYTES = 4


def _values(means: int, dim: int, matrices: int = 0) -> int:
    """Numbers in so many means of dimension d, and d × d matrices: FedCOF, appendix H."""
    return means * dim + matrices * dim * dim


def means(pairs: int, dim: int, senders: int = 1) -> float:
    """MB of a mean for each client-class pair; of the average of so many senders."""
    return _FLOAT_BYTES * _values(pairs, dim) / _MEGA / senders


def grams(pairs: int, dim: int, matrices: int, senders: int = 1) -> float:
    """MB of a class sum for each pair and so many d × d matrices; of the average sender."""
    return _FLOAT_BYTES * _values(pairs, dim, matrices) / _MEGA / senders


def covariances(pairs: int, dim: int, senders: int = 1) -> float:
    """MB of a mean and a d × d matrix for each pair; of the average sender."""
    return _FLOAT_BYTES * _values(pairs, dim, pairs) / _MEGA / senders


def gram_ratio(pairs: int, dim: int, matrices: int) -> float:
    """How many times the bytes of class means those of Gram matrices are."""
    return grams(pairs, dim, matrices) / means(pairs, dim)


def network(backbone: str, dim: int, classes: int, rounds: int, sampled: int) -> float:
    """MB of a network and its head, down and up, for the sampled clients of all rounds: 2(E + dC)Ts."""
    return 2 * _FLOAT_BYTES * (parameters(backbone) + dim * classes) * rounds * sampled / _MEGA


def probe(dim: int, classes: int, rounds: int, sampled: int) -> float:
    """MB of a head, down and up: 2dCTs values."""
    return 2 * _FLOAT_BYTES * dim * classes * rounds * sampled / _MEGA


def prompts(dim: int, classes: int, pool: int, rounds: int, sampled: int) -> float:
    """MB of a head and a pool of P prompts, down and up: 2(dC + Pd)Ts values."""
    return 2 * _FLOAT_BYTES * (dim * classes + pool * dim) * rounds * sampled / _MEGA


def prompt_pools(dim: int, classes: int, pools: int, rounds: int, sampled: int) -> float:
    """MB of a head and of pools that change: 2(dCT + d Σ P_i)s; ``pools`` is their sum over rounds."""
    return 2 * _FLOAT_BYTES * (dim * classes * rounds + dim * pools) * sampled / _MEGA


def model_values(backbone: str, classes: int) -> float:
    """Parameters of a network with a head for these classes, biases included."""
    return parameters(backbone) + (BACKBONES[backbone].num_features + 1) * classes


def mixture_values(dim: int, classes: int, components: int) -> float:
    """Values of a client's diagonal Gaussian mixtures of each class, with their weights: (2d + 1)K_g C."""
    return (2 * dim + 1) * components * classes


def statistics_values(dim: int, classes: int) -> float:
    """Values of a Gram matrix, class sums and counts: (C + d)d + C."""
    return _values(classes, dim, 1) + classes


def pairs(classes: int, per_class: int, clients: int, partition: str, alpha: float, seeds: int) -> Value:
    """Client-class pairs of data with equally many examples of each class; mean and spread over seeds."""
    labels = np.repeat(np.arange(classes), per_class)
    found = []
    for seed in range(seeds):
        owners = PARTITIONERS[partition](labels, clients, alpha, seed=seed)
        found.append(count_rows(labels, owners))
    return fmean(found), float(np.std(found, ddof=1))


@cache
def meeting(clients: int, sampled: int, share: float) -> Value:
    """Rounds until a share of the clients was drawn: mean and standard deviation, exactly."""
    return rounds_to_meet(clients, sampled, share)


def visits(clients: int, sampled: int) -> float:
    """Rounds until all clients were drawn, if none is drawn twice."""
    return math.ceil(clients / sampled)


def sampling_rate(clients: int, sampled: int) -> float:
    """Clients of a round, in percent of all."""
    return 100 * sampled / clients


def examples_per_client(examples: int, clients: int) -> float:
    """Training examples of the average client, where the number of examples is known."""
    return examples / clients


def ratio(numerator: float, denominator: float) -> float:
    """A ratio of two printed numbers, such as a speed-up."""
    return numerator / denominator


def head_flops(dim: int, classes: int) -> float:
    """Millions of multiplications, each with an addition, of a linear head on one feature."""
    return dim * classes / _MEGA


def extractor_flops(backbone: str) -> float:
    """Millions of multiplications, each with an addition, of a network's convolutions and products."""
    return _products(backbone) / _MEGA


def network_flops(backbone: str, dim: int, classes: int) -> float:
    """Both."""
    return extractor_flops(backbone) + head_flops(dim, classes)


@cache
def parameters(name: str) -> int:
    """Numbers that a network without its classifier trains."""
    shapes = backbone(name).shapes["params"]
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@cache
def _products(name: str) -> int:
    """Multiplications of a network's convolutions and matrix products on one image."""
    made = backbone(name)
    size = made.spec.input_size
    image = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
    return call_flops(made.apply, made.shapes, image) // 2


COUNTS: Mapping[str, Callable[..., float | Value]] = {
    function.__name__: function
    for function in (
        means,
        grams,
        covariances,
        gram_ratio,
        network,
        probe,
        prompts,
        prompt_pools,
        model_values,
        mixture_values,
        statistics_values,
        pairs,
        meeting,
        visits,
        sampling_rate,
        examples_per_client,
        ratio,
        head_flops,
        extractor_flops,
        network_flops,
    )
}


def count(settings: Mapping[str, Any]) -> Value:
    """The value of a counted cell.

    Raises:
        ValueError: if the count is unknown, or lacks a setting.
    """
    name = settings["count"]
    if name not in COUNTS:
        raise ValueError(f"count: expected one of {', '.join(COUNTS)}, got {name!r}")
    asked = inspect.signature(COUNTS[name]).parameters
    lacking = [key for key, each in asked.items() if key not in settings and each.default is each.empty]
    if lacking:
        raise ValueError(f"count {name}: expected {', '.join(lacking)}")
    value = COUNTS[name](**{key: settings[key] for key in asked if key in settings})
    return value if isinstance(value, tuple) else (float(value), None)
