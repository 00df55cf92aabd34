"""Federations: the assignment of training examples to simulated clients."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from covfree.data import FeatureSet
from covfree.data.partitions import PARTITIONERS
from covfree.studies.names import parsed

# For these partitioners ``alpha`` is a client's number of shards or of classes; the values name which.
COUNTED = {"shards": "shards", "pathological": "classes"}


@dataclass(frozen=True)
class Federation:
    """A rule that spreads examples over clients, used if the data has no clients of its own.

    Attributes:
        clients: number of clients.
        partition: a name in `covfree.partitions.PARTITIONERS`, perhaps with other arguments of the
            partitioner: ``"pathological:class_assignment_mode=deterministic"``.
        alpha: the partitioner's parameter (``alpha`` of Dirichlet distributions, ``sigma`` of sizes, …);
            ``iid`` has none, and ignores it.
    """

    clients: int
    partition: str
    alpha: float | int

    @property
    def law(self) -> str:
        """The partitioner's name, without its arguments."""
        return self.partition.partition(":")[0]

    def check(self) -> dict[str, Any]:
        """Return the arguments of the partitioner that are set in ``partition``.

        Raises:
            ValueError: if the name or an argument is unknown.
        """
        known = ", ".join(PARTITIONERS)
        name, own = parsed(self.partition, "partition: expected arguments such as dirichlet:self_balancing=1")
        if name not in PARTITIONERS:
            raise ValueError(f"partition: expected one of {known}, got {self.partition!r}")
        others = list(inspect.signature(PARTITIONERS[name]).parameters.values())[2:]
        takes = [each.name for each in others if each.kind is each.KEYWORD_ONLY and each.name != "seed"]
        for argument in own:
            if argument not in takes:
                raise ValueError(
                    f"partition: {name} takes {', '.join(takes) or 'no argument'}, got {argument}"
                )
        return own

    def assign(self, data: FeatureSet, seed: int, *, warn: bool = True) -> Integer[np.ndarray, " examples"]:
        """Return each training example's client, from the data or the partition; −1 for no client.

        Args:
            data: the examples.
            seed: the seed of the partition.
            warn: whether to warn if the partition leaves examples out. Studies pass False, as their results
                report the numbers (`left_out`).

        Raises:
            ValueError: if the partition cannot be made, or the data's own clients hold no training example.
        """
        if data.clients is not None:
            if (data.clients < 0).all():
                raise ValueError(f"{data.name}: clients: expected some with training examples, got none")
            return data.clients
        own = self.check()
        try:
            with warnings.catch_warnings():
                if not warn:
                    warnings.filterwarnings("ignore", "on no client")
                return self._draw(data.train_labels, seed, own)
        except TypeError as error:
            raise ValueError(str(error)) from error

    def _draw(self, labels: np.ndarray, seed: int, own: dict[str, Any]) -> np.ndarray:
        partitioner = PARTITIONERS[self.law]
        if self.law == "iid":
            return partitioner(labels, self.clients, seed=seed)
        if self.law not in COUNTED:
            return partitioner(labels, self.clients, self.alpha, **own, seed=seed)
        if self.alpha != int(self.alpha):
            raise ValueError(
                f"expected a whole number, got {self.alpha:g} for alpha, the {COUNTED[self.law]} of a client"
            )
        return partitioner(labels, self.clients, int(self.alpha), **own, seed=seed)


def federations(
    clients: Iterable[int], partitions: Iterable[str], alphas: Iterable[float | int]
) -> list[Federation]:
    """Return a `Federation` for each combination of partition, number of clients and alpha.

    Alpha varies fastest. ``iid``, which ignores alpha, comes once for each number of clients.

    Raises:
        TypeError: if an argument is a single value instead of an iterable.
        ValueError: if a partition, or an argument of one, is unknown.

    >>> [str(f.alpha) for f in federations([10], ["inner_dirichlet", "iid"], [0.1, 0.5])]
    ['0.1', '0.5', '0.1']
    """
    several("clients", clients, "numbers")
    several("partitions", partitions, "names")
    several("alphas", alphas, "numbers")
    every = list(alphas)
    found = [
        Federation(count, partition, alpha)
        for partition, count in product(partitions, clients)
        for alpha in (every[:1] if partition == "iid" else every)
    ]
    for each in found:
        each.check()
    return found


def several(name: str, values: object, expected: str) -> None:
    """Raise TypeError unless ``values``, the argument ``name``, is an iterable other than a string."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected several {expected}, such as a list, got {values!r}")


class LeftOut(NamedTuple):
    """Counts of the training examples and classes that a partition gives to no client.

    Attributes:
        examples: number of training examples.
        classes: number of classes that have training examples, but none on a client.
    """

    examples: int
    classes: int


def left_out(labels: Integer[np.ndarray, " examples"], clients: Integer[np.ndarray, " examples"]) -> LeftOut:
    """Count the examples on no client (client below 0), and the classes whose examples are all on no client.

    >>> left_out(np.array([0, 0, 1, 1]), np.array([0, -1, -1, -1]))
    LeftOut(examples=3, classes=1)
    """
    kept = clients >= 0
    return LeftOut(int((~kept).sum()), len(np.unique(labels)) - len(np.unique(labels[kept])))
