"""Running methods on simulated federations: the experiment behind ``covfree compare``."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.data import FeatureSet
from covfree.federation import PARTITIONERS
from covfree.methods import Method
from covfree.methods import registry as methods_of_one_round
from covfree.methods.registry import Entry
from covfree.refine import Refined
from covfree.refine import registry as refined_methods
from covfree.refine.registry import Entry as RefinedEntry
from covfree.statistics.products import scatter_products
from covfree.types import Message

T = TypeVar("T")


@dataclass(frozen=True)
class Federation:
    """How the examples are spread where the data does not say so.

    Attributes:
        clients: number of clients.
        partition: a name in `covfree.federation.PARTITIONERS`.
        parameter: the partitioner's one number (``alpha`` of the Dirichlet laws, ``sigma`` of the sizes, …).
    """

    clients: int
    partition: str
    parameter: float

    def assign(self, data: FeatureSet, seed: int) -> np.ndarray:
        """The client of each training example: the data's own, or the partition's.

        Raises:
            ValueError: naming the command line's options, if the partition cannot be made.
        """
        if data.clients is not None:
            return data.clients
        if self.partition not in PARTITIONERS:
            raise ValueError(
                f"--partition: expected one of {', '.join(PARTITIONERS)}, got {self.partition!r}"
            )
        try:
            return self._draw(data.train_labels, seed)
        except (TypeError, ValueError) as error:
            given = f"--partition {self.partition} --clients {self.clients} --alpha {self.parameter:g}"
            raise ValueError(f"{given}: {error}") from error

    def _draw(self, labels: np.ndarray, seed: int) -> np.ndarray:
        partitioner = PARTITIONERS[self.partition]
        if self.partition == "iid":
            return partitioner(labels, self.clients, seed=seed)
        parameter = self.parameter
        if self.partition in ("shards", "pathological"):
            # These count classes or shards.
            if parameter != int(parameter):
                raise ValueError(f"expected a whole number, got {parameter:g}")
            parameter = int(parameter)
        return partitioner(labels, self.clients, parameter, seed=seed)


@dataclass(frozen=True)
class Run:
    """One method on one federation.

    Attributes:
        method: name in the registry.
        seed: of the split, the partition and the method.
        accuracy: share of the test examples that the head gets right, in [0, 1].
        sent: bytes up of all clients.
        received: bytes down to all clients, before the head.
        clients: clients that hold examples.
        rows: rows that the phases summed over.
        client_flops: floating-point operations of all clients, from features to what they send.
        client_seconds: time of all clients' work, run as one batch, compilation left out.
        server_seconds: time from what the clients sent to the head, compilation left out.
    """

    method: str
    seed: int
    accuracy: float
    sent: covfree.SentBytes
    received: int
    clients: int
    rows: int
    client_flops: int
    client_seconds: float
    server_seconds: float


@dataclass(frozen=True)
class Result:
    """A method's runs over all seeds; means, medians, and the standard deviation if there are two seeds."""

    method: str
    title: str
    runs: tuple[Run, ...]

    @property
    def accuracy(self) -> tuple[float, float | None]:
        """Mean and standard deviation of the accuracy."""
        values = [run.accuracy for run in self.runs]
        # NumPy's, as `statistics.stdev` fails on NaN.
        return fmean(values), float(np.std(values, ddof=1)) if len(values) > 1 else None

    def mean(self, value: Callable[[Run], float]) -> float:
        """Mean of a figure over the runs."""
        return fmean(value(run) for run in self.runs)

    def median(self, value: Callable[[Run], float]) -> float:
        """Median of a figure over the runs: of times, which whatever else a machine does makes long."""
        return median(value(run) for run in self.runs)


def entries() -> dict[str, Entry | RefinedEntry]:
    """All named methods, of one round and of more."""
    return {**methods_of_one_round(), **refined_methods()}


def make_methods(names: Sequence[str], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Methods of the registries by name, each with those of the numbers that it accepts.

    Raises:
        ValueError: if a name is unknown or given twice, or a number is accepted by none of the methods.
    """
    known = entries()
    for name in names:
        if name not in known:
            raise ValueError(f"methods: unknown method {name!r}; expected some of {', '.join(known)}")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"methods: expected different names, got {', '.join(names) or 'none'}")
    for number in numbers:
        if not any(number in known[name].accepts for name in names):
            takers = [name for name, entry in known.items() if number in entry.accepts]
            raise ValueError(f"{number}: none of the methods takes it; expected one of {', '.join(takers)}")
    return {
        name: known[name].make(**{k: v for k, v in numbers.items() if k in known[name].accepts})
        for name in names
    }


def title_of(name: str, numbers: Mapping[str, Any]) -> str:
    """How tables name a method: by its title, in which numbers given replace the defaults in parentheses."""
    entry = entries()[name]
    title, defaults, _ = entry.title.partition(" (")
    given = [f"{number}={value}" for number, value in numbers.items() if number in entry.accepts]
    return f"{title} ({', '.join(given)})" if defaults and given else entry.title


def compare(
    datasets: Callable[[int], FeatureSet],
    methods: Mapping[str, Method | Refined],
    federation: Federation,
    seeds: Iterable[int],
) -> Iterator[Run]:
    """Run every method on a federation for every seed; yields each run as it is done.

    Args:
        datasets: the data for a seed (its split may depend on it).
        methods: by name.
        federation: how examples are spread over clients, unless the data says so.
        seeds: of the splits, partitions and methods.
    """
    for seed in seeds:
        data = datasets(seed)
        clients = federation.assign(data, seed).astype(np.int32)
        covfree.check(data.train_features, data.train_labels, clients, num_classes=data.num_classes)
        train = tuple(jax.device_put(x) for x in (data.train_features, data.train_labels, clients))
        for name, method in methods.items():
            try:
                yield _run(name, method, data, train, seed)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error


def _run(
    name: str, method: Method | Refined, data: FeatureSet, train: tuple[jax.Array, ...], seed: int
) -> Run:
    features, labels, owners = train
    first = method.method if isinstance(method, Refined) else method
    key = jax.random.key(seed)
    rows, summary_seconds = timed(partial(covfree.summarise, first, features, labels, owners, key=key))
    # Where the message is rows, the server evaluates the phases; else the clients do and sums are sent.
    totals, phase_seconds = timed(partial(covfree.accumulate, first, rows, num_classes=data.num_classes))
    by_server = first.message is None
    client_seconds = summary_seconds + (0 if by_server else phase_seconds)
    server_seconds = phase_seconds if by_server else 0
    # Rows are counted as they are, as a transform may have dropped some; matrices were never made one by one.
    sent = (
        covfree.message_bytes(Message(rows))
        if by_server
        else covfree.sent_bytes(first, labels, owners, dim=features.shape[1])
    )
    if isinstance(method, Refined):
        head, seconds = _refined(method, totals, features, jnp.where(owners >= 0, labels, -1))
        client_seconds, server_seconds = client_seconds + seconds[0], server_seconds + seconds[1]
        # A round sends no rows, so that no transform drops any.
        plain, whole = (
            covfree.sent_bytes(each, labels, owners, dim=features.shape[1]) for each in (first, method)
        )
        sent = sent._replace(statistics=sent.statistics + whole.statistics - plain.statistics)
    else:
        head, seconds = timed(partial(covfree.solve_totals, method, *totals))
        server_seconds += seconds
    return Run(
        method=name,
        seed=seed,
        accuracy=float(covfree.evaluate(head, data.test_features, data.test_labels)),
        sent=sent,
        received=covfree.received_bytes(method, labels, owners, dim=features.shape[1]),
        clients=len(np.unique(owners[owners >= 0])),
        rows=int((np.asarray(rows.count) > 0).sum()),
        client_flops=covfree.client_flops(method, labels, owners, dim=features.shape[1]),
        client_seconds=client_seconds,
        server_seconds=server_seconds,
    )


def _refined(
    method: Refined, totals: tuple[Any, ...], features: jax.Array, labels: jax.Array
) -> tuple[Any, tuple[float, float]]:
    """The refined head, as `covfree.fit` makes it, and seconds of the clients' products and of the server."""
    progress, by_server = timed(
        partial(jax.jit(lambda method, totals: method.begin(*totals)), method, totals)
    )
    by_clients = 0.0
    mapped, products, advance = (
        jax.jit(function)
        for function in (
            lambda method, features: method.method.mapped(features),
            scatter_products,
            lambda method, progress, products: method.advance(progress, *products),
        )
    )
    features = mapped(method, features)
    for _ in method.asked(*progress.search.right.shape):
        asked = progress.moments.mean, progress.search.directions
        answer, seconds = timed(partial(products, features, labels, *asked))
        by_clients += seconds
        progress, seconds = timed(partial(advance, method, progress, answer))
        by_server += seconds
    return method.head(progress), (by_clients, by_server)


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """Result and seconds of a second call; the first compiles."""
    jax.block_until_ready(function())
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    return result, time.perf_counter() - start


def environment() -> dict[str, str]:
    """Versions and machine, so that figures can be read later."""
    return {
        "covfree": covfree.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "platform": platform.platform(),
    }
