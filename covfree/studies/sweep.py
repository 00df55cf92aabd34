"""Data sets × federations × methods × seeds, run one after the other, and never twice."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import covfree
from covfree.core.checks import check_type
from covfree.core.gathered import Features, is_large
from covfree.data import FeatureSet
from covfree.methods import Method
from covfree.studies.federation import Federation, several
from covfree.studies.file import RunFile, fingerprint
from covfree.studies.one_run import Place, Run, run_method
from covfree.studies.variants import Variant


class Job(NamedTuple):
    """A run to make.

    Attributes:
        dataset: name of the data.
        seed: of the split, the partition and the method.
        federation: how examples are spread over clients, unless the data says so.
        method: its name.
    """

    dataset: str
    seed: int
    federation: Federation
    method: str


class Begun(NamedTuple):
    """What is told when a run begins.

    Attributes:
        job: the run.
        number: its place among all runs of the sweep, from 1.
        total: how many runs there are.
        first: whether it is this process's first run of the method on data of this size, which compiles.
    """

    job: Job
    number: int
    total: int
    first: bool


def run(
    datasets: Mapping[str, Callable[[int], FeatureSet]],
    federations: Sequence[Federation],
    methods: Mapping[str, Method | Variant],
    seeds: Iterable[int],
    *,
    figures: Sequence[str] = (),
    predictions: bool = False,
    file: str | PathLike[str] | None = None,
    tell: Callable[[Begun], None] | None = None,
) -> Iterator[Run]:
    """Run every method on every federation of every data set for every seed.

    Yields each run as it is done. With a file, a run is in it before it is yielded, and a sweep that was
    interrupted goes on where it stopped: runs that the file holds are yielded as they are.

    Args:
        datasets: by name, the data for a seed (its split may depend on it).
        federations: how examples are spread over clients, unless the data says so.
        methods: by name; `variants` makes such.
        seeds: of splits, partitions and methods.
        figures: names in `covfree.metrics.NAMES`: measured beside the accuracy, in `Run.figures`. Those of
            clients need data that says whose its test examples are.
        predictions: whether test examples are counted by class and prediction, in `Run.predictions`.
        file: keeps the runs, one line of JSON each. It may hold runs of other jobs, which stay. Runs that
            lack the predictions asked for are made again.
        tell: is told of each run before it is made.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if a partition cannot be made, data with clients of its own meets several federations, a
            method fails, or the file holds runs of another method by the same name.

    >>> import covfree
    >>> from covfree import studies
    >>> from covfree.data import load_digits
    >>> from functools import partial
    >>> runs = studies.run(
    ...     {"digits": lambda seed: load_digits(seed=seed)},
    ...     studies.federations([20], ["inner_dirichlet"], [0.1, 10.0]),
    ...     {"FedNCM": covfree.fedncm()},
    ...     seeds=[0],
    ... )
    >>> [(run.federation.alpha, round(run.accuracy, 2)) for run in runs]
    [(0.1, 0.9), (10.0, 0.9)]
    """
    check_type("datasets", datasets, Mapping)
    check_type("methods", methods, Mapping)
    for name, load in datasets.items():
        if not callable(load):
            raise TypeError(f"datasets: {name}: expected a function of the seed, got a {type(load).__name__}")
    chosen = {name: each.method if isinstance(each, Variant) else each for name, each in methods.items()}
    for name, method in chosen.items():
        if not isinstance(method, Method):
            raise TypeError(f"methods: {name}: expected a method, got a {type(method).__name__}")
    several("federations", federations, "federations")
    several("seeds", seeds, "seeds")
    # Iterators end; and JSON has no integers but Python's.
    federations, chosen_seeds = list(federations), [operator.index(seed) for seed in dict.fromkeys(seeds)]
    jobs = [
        Job(dataset, seed, federation, method)
        for dataset in datasets
        for seed in chosen_seeds
        for federation in federations
        for method in methods
    ]
    return _runs(datasets, federations, chosen, jobs, figures, predictions, file, tell)


def _runs(
    datasets: Mapping[str, Callable[[int], FeatureSet]],
    federations: Sequence[Federation],
    methods: Mapping[str, Method],
    jobs: list[Job],
    figures: Sequence[str],
    predictions: bool,
    file: str | PathLike[str] | None,
    tell: Callable[[Begun], None] | None,
) -> Iterator[Run]:
    """What `run` yields."""
    kept = None if file is None else RunFile(Path(file))
    prints = {name: fingerprint(method) for name, method in methods.items()}
    numbers = {job: number for number, job in enumerate(jobs, start=1)}
    done = _done(kept, prints, numbers, set(figures), predictions)
    compiled: set[tuple[str, tuple[int, ...]]] = set()
    for (dataset, seed), group in groupby(jobs, lambda job: (job.dataset, job.seed)):
        # Data are not loaded, nor partitions made, where nothing is left to do.
        loaded = None
        for federation, own in groupby(group, lambda job: job.federation):
            place = None
            for job in own:
                if job in done:
                    yield done[job]
                    continue
                loaded = loaded or _Loaded.of(datasets[dataset](seed), dataset, federations)
                place = place or loaded.place(federation, seed)
                key = job.method, place.features.shape
                if tell is not None:
                    tell(Begun(job, numbers[job], len(jobs), key not in compiled))
                compiled.add(key)
                try:
                    made = run_method(job.method, methods[job.method], place, figures, predictions)
                except ValueError as error:
                    raise ValueError(f"{job.method}: {error}") from error
                if kept is not None:
                    kept.add(made, prints[job.method])
                yield made


class _Loaded(NamedTuple):
    """Data of a seed, its training examples on the device unless they are large."""

    data: FeatureSet
    name: str
    features: jax.Array | Features
    labels: jax.Array

    @staticmethod
    def of(data: FeatureSet, name: str, federations: Sequence[Federation]) -> _Loaded:
        """Take data, or raise if they have clients of their own where there are several federations."""
        if data.clients is not None and len(federations) > 1:
            raise ValueError(
                f"{name}: expected data without clients of its own where several federations are made, got "
                f"{data.clients.max() + 1} clients"
            )
        features = data.train_features
        features = features if is_large(features) else jax.device_put(features)
        return _Loaded(data, name, features, jax.device_put(data.train_labels))

    def place(self, federation: Federation, seed: int) -> Place:
        """Spread the examples over clients."""
        data = self.data
        clients = federation.assign(data, seed).astype(np.int32)
        covfree.check(data.train_features, data.train_labels, clients, num_classes=data.num_classes)
        return Place(data, self.features, self.labels, clients, seed, self.name, federation)


def _done(
    kept: RunFile | None,
    prints: Mapping[str, str],
    jobs: Container[Job],
    figures: set[str],
    predictions: bool,
) -> dict[Job, Run]:
    """The runs that a file holds, with the predictions if they are asked for; the last of each."""
    done: dict[Job, Run] = {}
    for run, method in [] if kept is None else kept.runs:
        if kept is not None and prints.get(run.method, method) != method:
            raise ValueError(
                f"{kept.path}: holds runs of another method named {run.method!r}, with other numbers or of "
                f"another version; give this one another name, or the sweep another file"
            )
        assert run.federation is not None
        job = Job(run.dataset, run.seed, run.federation, run.method)
        if kept is not None and job in jobs and (lacking := figures - set(run.figures)):
            raise ValueError(
                f"{kept.path}: holds runs without {', '.join(sorted(lacking))}; measure the same, or give "
                f"the sweep another file"
            )
        if run.predictions is not None or not predictions:
            done[job] = run
    return done
