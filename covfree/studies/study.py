"""A study: data sets × federations × methods × seeds. Runs that are already stored are not repeated."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from covfree.core.checks import check_type
from covfree.core.padding import is_large
from covfree.data import FeatureSet
from covfree.data.dataset import StrPath
from covfree.methods import Method
from covfree.studies.federation import Federation, left_out, several
from covfree.studies.fingerprint import fingerprint
from covfree.studies.known import FAILURES, failure, is_own
from covfree.studies.one_shot import run_method
from covfree.studies.progress import Lines, Listener
from covfree.studies.result import Run, RunFile, place_names
from covfree.studies.run_folder import RUNS, check_data, check_settings, holds_trainings, write_settings
from covfree.studies.source import contents_of
from covfree.studies.task import Task, clients_of, task_of
from covfree.studies.variants import Variant

if TYPE_CHECKING:
    from covfree.studies.training import Training


class Cell(NamedTuple):
    """The coordinates of a run in a study.

    Attributes:
        dataset: name of the data.
        seed: seed of the split, the partition and the method.
        federation: how examples are spread over clients, unused if the data has its own clients.
        method: the method's name.
    """

    dataset: str
    seed: int
    federation: Federation
    method: str


@dataclass
class Study:
    """Runs of every method on every federation of every data set for every seed.

    Attributes:
        datasets: by name, a function that returns the data for a seed (the split may depend on the seed).
        federations: how examples are spread over clients; unused if the data has its own clients.
        methods: by name, each a `Method`, a `Variant` made by `variants`, or a `Training`.
        seeds: seeds of splits, partitions and methods.
        figures: names in `covfree.metrics.NAMES`, measured in addition to the accuracy, in `Run.figures`.
            Figures by client need data that gives the client of each test example.
        predictions: whether test examples are counted by class and prediction, in `Run.predictions`.
        folder: stores the runs: those in closed form in ``runs.jsonl``, one per line, and each training in a
            folder of its own. Runs of other studies in it are kept. If a stored run lacks predictions that
            are asked for, it is repeated.
        settings: settings stored with the runs, by the names of options; runs with other settings cannot be
            resumed.
        failed: the error message of each run that failed, by its `Cell`.

    Raises:
        TypeError: if an argument is of the wrong type.

    >>> import covfree
    >>> from covfree import studies
    >>> from covfree.data import load_digits
    >>> study = studies.Study(
    ...     {"digits": lambda seed: load_digits(seed=seed)},
    ...     studies.federations([20], ["inner_dirichlet"], [0.1, 10.0]),
    ...     {"FedNCM": covfree.fedncm()},
    ...     seeds=[0],
    ... )
    >>> [(run.federation.alpha, round(run.accuracy, 2)) for run in study.runs()]
    [(0.1, 0.9), (10.0, 0.9)]
    """

    datasets: Mapping[str, Callable[[int], FeatureSet]]
    federations: Iterable[Federation]
    methods: Mapping[str, Method | Variant | Training]
    seeds: Iterable[int]
    figures: Sequence[str] = ()
    predictions: bool = False
    folder: StrPath | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    failed: dict[Cell, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_type("datasets", self.datasets, Mapping)
        check_type("methods", self.methods, Mapping)
        for name, load in self.datasets.items():
            if not callable(load):
                got = type(load).__name__
                raise TypeError(f"datasets: {name}: expected a function of the seed, got a {got}")
        for name, method in self.methods.items():
            if not isinstance(method, Method | Variant) and not hasattr(method, "algorithm"):
                raise TypeError(f"methods: {name}: expected a method, got a {type(method).__name__}")
        several("federations", self.federations, "federations")
        several("seeds", self.seeds, "seeds")
        if self.folder is not None:
            self.folder = Path(self.folder)
        # Make lists, as iterators can be read only once, and Python integers, as json rejects NumPy's.
        self.federations = list(self.federations)
        self.seeds = [operator.index(seed) for seed in dict.fromkeys(self.seeds)]

    @property
    def cells(self) -> list[Cell]:
        """All runs of the study, each given by a `Cell`, in the order in which they are run."""
        return [
            Cell(dataset, seed, federation, method)
            for dataset in self.datasets
            for seed in self.seeds
            for federation in self.federations
            for method in self.methods
        ]

    @property
    def titles(self) -> dict[str, str]:
        """Titles of methods in tables, by name, where a method has one."""
        return {name: each.title for name, each in self.methods.items() if not isinstance(each, Method)}

    @property
    def trainings(self) -> list[Training]:
        """The methods that are trained in rounds."""
        return [each for each in self.methods.values() if not isinstance(each, Method | Variant)]

    def check(self, resume: bool) -> None:
        """Raise ValueError if the folder has runs, unless ``resume`` is set and settings and data agree.

        If there is no error, write the settings of methods in closed form into the folder.

        Args:
            resume: whether runs in the folder are to be resumed.
        """
        if self.folder is None:
            return
        folder = Path(self.folder)
        for training in self.trainings:
            for seed in self.seeds:
                own = self.kept_with(training, seed)
                check_settings(training.folder(folder, seed), own, resume)
        if self.trainings and not resume and holds_trainings(folder):
            text = "holds runs; --resume goes on with them, or give another folder"
            raise ValueError(f"--out: {folder} {text}")
        if len(self.trainings) == len(self.methods):
            return
        now = {name: contents_of(load(0)) for name, load in self.datasets.items()}
        check_settings(folder, self.settings, resume)
        files = {name: getattr(load, "files", "") for name, load in self.datasets.items()}
        check_data(folder, now, files)
        write_settings(folder, self.settings, data=now)

    def kept_with(self, training: Training, seed: int) -> dict[str, Any]:
        """Return the settings that are saved in a training's folder, by name.

        These are the study's settings, the training's ``init`` (which names its first head) and
        ``algorithm``, and ``seed``.
        """
        own = {"init": training.init, "algorithm": training.algorithm, "seed": seed}
        return {**self.settings, **own}

    def runs(self, listener: Listener | None = None) -> Iterator[Run]:
        """Yield each run when it is done; runs that the folder holds are yielded without being repeated.

        A run is stored before it is yielded, so that a stopped study can be resumed. If a method in closed
        form fails, the study goes on, and ``failed`` gets the error message.

        Args:
            listener: receives the progress; by default a line on stderr every five seconds. ``Listener()`` is
                silent.

        Raises:
            ValueError: if a partition cannot be made, if data with its own clients is combined with several
                federations, if the folder holds runs of another method with the same name, or runs that
                lack a metric in ``figures``, or if a training fails.
        """
        listener, cells, compiled = listener or Lines(), self.cells, set[Any]()
        kept, prints, done = self._kept()
        numbers = {cell: number for number, cell in enumerate(cells, start=1)}
        for (dataset, seed), group in groupby(cells, lambda cell: (cell.dataset, cell.seed)):
            # Load data and make partitions only if runs are left to do.
            loaded = None
            for _, own in groupby(group, lambda cell: cell.federation):
                place = None
                for cell in own:
                    if cell in done:
                        yield done[cell]
                        continue
                    loaded = loaded or self._load(dataset, seed)
                    place = place or _Place(self, cell, *loaded)
                    if cell.method in prints:
                        key = cell.method, loaded[0].train_features.shape
                        self._tell(cell, numbers[cell], key in compiled, listener)
                        compiled.add(key)
                    try:
                        run = place.run(cell, listener)
                    except Exception as error:
                        # A user's own method may fail in any way.
                        way = self.methods[cell.method]
                        users = isinstance(way, Variant) and is_own(cell.method)
                        if cell.method not in prints or not (users or isinstance(error, FAILURES)):
                            raise
                        self.failed[cell] = failure(error, brief=True)
                        continue
                    if kept is not None and cell.method in prints:
                        kept.add(run, prints[cell.method])
                    yield run

    def name(self, cell: Cell) -> str:
        """Return the name of a run for messages to the user."""
        places = [(dataset, place) for dataset in self.datasets for place in self.federations]
        name = place_names(places)[places.index((cell.dataset, cell.federation))]
        where = f", {name}" if len(places) > 1 else ""
        return f"{cell.method}, seed {cell.seed}{where}"

    def _load(self, dataset: str, seed: int) -> tuple[FeatureSet, Any]:
        """Load a data set; return it, and its training features, on the device if that serves a method."""
        data = self.datasets[dataset](seed)
        if data.clients is not None and len(list(self.federations)) > 1:
            raise ValueError(
                f"{dataset}: expected data without clients of its own where several federations are made, "
                f"got {data.clients.max() + 1} clients"
            )
        if self.trainings:
            # Training reads the examples many times, so even large ones are loaded into one array.
            train, test = np.asarray(data.train_features), np.asarray(data.test_features)
            data = data._replace(train_features=train, test_features=test)
        features = data.train_features
        on_device = len(self.trainings) < len(self.methods) and not is_large(features)
        return data, jax.device_put(features) if on_device else features

    def _tell(self, cell: Cell, number: int, compiled: bool, listener: Listener) -> None:
        # "compiling" is a guess: if another seed's arrays differ in size, some functions compile again.
        doing, total = f"{self.name(cell)}{'' if compiled else ': compiling, then running'}", len(self.cells)
        listener.step(doing, number - 1, total, f"covfree: run {number} of {total}: {doing}")

    def _kept(self) -> tuple[RunFile | None, dict[str, str], dict[Cell, Run]]:
        """Read from the study's folder the finished runs of closed-form methods, which are not repeated.

        Returns:
            Three results: the file of runs, or None if the study has no folder; by the name of each method,
            its fingerprint, which tells whether a stored run is of this method or of another one with the
            same name; and, by `Cell`, the last run of each cell in the file. If the study counts predictions,
            runs without counts are left out.
        """
        prints = {
            name: fingerprint(each.method if isinstance(each, Variant) else each)
            for name, each in self.methods.items()
            if isinstance(each, Method | Variant)
        }
        if self.folder is None or not prints:
            return None, prints, {}
        kept, cells, done = RunFile(Path(self.folder) / RUNS), set(self.cells), dict[Cell, Run]()
        for run, method in kept.runs:
            if prints.get(run.method, method) != method:
                what = f"{run.method!r} of another version of covfree, or with other settings"
                remedy = "give another folder (--out)"
                if not isinstance(self.methods[run.method], Variant) or is_own(run.method):
                    what = f"another method named {run.method!r} (its settings or code differ)"
                    remedy = "rename this method, or give the study another folder"
                raise ValueError(f"{kept.path}: holds runs of {what}; {remedy}")
            assert run.federation is not None
            cell = Cell(run.dataset, run.seed, run.federation, run.method)
            if cell in cells and (lacking := set(self.figures) - set(run.figures)):
                what = ", ".join(sorted(lacking))
                text = f"holds runs without {what}; measure the same, or give the study another folder"
                raise ValueError(f"{kept.path}: {text}")
            if run.predictions is not None or not self.predictions:
                done[cell] = run
        return kept, prints, done


class _Place:
    """Runs methods on the data of one seed, divided among the clients of one federation.

    The methods share at most two `Task` objects: one with features as inputs, one with pixels. ``features``
    are the training features, perhaps on the device.
    """

    def __init__(self, study: Study, cell: Cell, data: FeatureSet, features: Any) -> None:
        self._study, self._seed, self._data, self._features = study, cell.seed, data, features
        self._images = getattr(study.datasets[cell.dataset], "images", None)
        self._clients = clients_of(data, cell.federation, cell.seed)
        self._tasks: dict[bool, Task] = {}

    def run(self, cell: Cell, listener: Listener) -> Run:
        """Run a cell's method in closed form, or do its training in rounds; return the `Run`."""
        study, way = self._study, self._study.methods[cell.method]
        if isinstance(way, Method | Variant):
            method = way.method if isinstance(way, Variant) else way
            more = {"figures": study.figures, "predictions": study.predictions}
            run = run_method(cell.method, method, self._task(False), **more)
        else:
            run = self._train(way, listener)
        lost = left_out(self._data.train_labels, self._clients)
        return replace(run, left_out=lost, dataset=cell.dataset, federation=cell.federation)

    def _train(self, training: Training, listener: Listener) -> Run:
        from covfree.studies.starts import start_of
        from covfree.studies.tuning import run_training

        study = self._study
        task = self._task(training.train != "head" and self._images is not None)
        # Make all starts before any training, so that a head that cannot be trained fails at once.
        for each in study.trainings:
            start_of(each.start, task)
        more = {"settings": study.kept_with(training, self._seed), "predictions": study.predictions}
        out = None if study.folder is None else Path(study.folder)
        return run_training(training, task, out=out, listener=listener, **more)

    def _task(self, of_pixels: bool) -> Task:
        """Return the `Task` with features as inputs or, if ``of_pixels``, images; it is made only once."""
        if of_pixels not in self._tasks:
            images = self._images if of_pixels else None
            self._tasks[of_pixels] = task_of(self._data, self._clients, self._seed, self._features, images)
        return self._tasks[of_pixels]
