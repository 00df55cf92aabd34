"""The runs of ``covfree finetune``, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covfree.finetune.registry import Rates
from covfree.studies import Federation, curves
from covfree.studies.progress import progress_bar
from covfree.studies.run_folder import RunFolder
from covfree.studies.source import Source
from covfree.studies.training import Run, Settings, Task, make_start, make_task, train
from covfree.studies.tuning import ROUNDS, set_aside, tune


@dataclass(frozen=True)
class Plan:
    """Which rates: those given or an algorithm's own, and whether they are tuned."""

    rates: dict[str, Rates]
    tune: bool


@dataclass(frozen=True)
class Job:
    """A run to make, and where it is kept."""

    init: str
    algorithm: str
    seed: int
    folder: RunFolder | None

    @property
    def name(self) -> str:
        """What lines call it."""
        return f"{self.init} → {self.algorithm}, seed {self.seed}"


def folder_of(
    out: Path | None, init: str, algorithm: str, seed: int, given: dict[str, Any]
) -> RunFolder | None:
    """The folder of a run, if there is to be one."""
    if out is None:
        return None
    own = {**given, "init": init, "algorithm": algorithm, "seed": seed}
    return RunFolder(out / f"{init}-{algorithm}-seed{seed}", own)


def run_all(
    jobs: list[Job], source: Source, federation: Federation, settings: Settings, plan: Plan
) -> Iterator[Run]:
    """Make the runs, each given as it is done, and say how far they are."""
    for seed in dict.fromkeys(job.seed for job in jobs):
        own = [job for job in jobs if job.seed == seed]
        task = make_task(source, federation, seed, settings.train)
        # All of them before any training, so that a head that cannot be trained shows at once.
        inits = dict.fromkeys(job.init for job in own)
        starts = {init: make_start(init, task, seed) for init in inits}
        tuning = _Tuning(task, seed, settings) if plan.tune else None
        for job in own:
            rates, tried = plan.rates[job.algorithm], None
            earlier = job.folder and job.folder.rates()
            if earlier:
                rates, tried = earlier
            elif tuning is not None:
                rates, tried = tuning.rates(job, rates)
            if job.folder is not None and not earlier:
                job.folder.begin(rates, tried)
            with progress_bar(width=12) as bar:
                live = curves.Live(bar, bar.add_task(job.name), job.name, settings.rounds)
                folder = job.folder and job.folder.path
                start = starts[job.init]
                run = train(
                    task, start, job.init, job.algorithm, rates, settings, seed, folder=folder, tell=live
                )
            if run.diverged is not None:
                say(
                    f"{job.name}: diverged in round {run.diverged}; what came before is kept. A smaller "
                    f"--client-lr (now {rates.client:g}) or --server-lr ({rates.server:g}) may help"
                )
            yield replace(run, tried=tried)


class _Tuning:
    """The training clients of a seed without a fifth of them, and starts from those."""

    def __init__(self, task: Task, seed: int, settings: Settings) -> None:
        self._task, self._seed, self._settings = set_aside(task, seed), seed, settings
        self._starts: dict[str, Any] = {}

    def rates(self, job: Job, base: Rates) -> tuple[Rates, list[dict[str, Any]]]:
        """The rates for a run, said and with what was tried."""
        if job.init not in self._starts:
            self._starts[job.init] = make_start(job.init, self._task, self._seed)
        start = self._starts[job.init]
        with progress_bar(width=12) as bar:
            live = curves.LiveTuning(bar, bar.add_task(f"{job.name}: tuning"), job.name)
            rates, tried = tune(
                self._task, start, job.init, job.algorithm, base, self._settings, self._seed, tell=live
            )
        rounds = min(ROUNDS, self._settings.rounds)
        say(
            f"{job.name}: tuned to --client-lr {rates.client:g} --server-lr {rates.server:g}, by the mean "
            f"accuracy of rounds 1 to {rounds} on clients set aside"
        )
        return rates, tried


def say(text: str) -> None:
    """Tell something on stderr, so that what is printed can be piped."""
    print(f"covfree: {text}", file=sys.stderr)
