"""The runs of ``covfree compare``: made, kept in a folder, and shown."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from covfree.core.atomic import replacing
from covfree.core.gathered import blocks
from covfree.studies import Federation, Job, Result, Run, accuracy_table, report, summarise, sweep
from covfree.studies.jobs import say
from covfree.studies.page import compared_page, write_page
from covfree.studies.plots import accuracy as accuracy_plot
from covfree.studies.progress import RunProgress
from covfree.studies.run_folder import check_settings, read_settings, write_settings
from covfree.studies.source import Source, heading, on_no_client
from covfree.studies.summary import place_names
from covfree.studies.tables import Columns, Format, show, texts

_RUNS = "runs.jsonl"


@dataclass
class Comparison:
    """Methods on federations of data sets.

    Attributes:
        sources: data by name.
        places: how examples are spread.
        seeds: of splits, partitions and methods.
        titles: of the methods, by name.
        settings: by the names of options: what must be equal for runs to go on.
        out: the folder for files, if there is to be one.
        figures: what is measured beside the accuracy.
        page: the file for a page of the results, if there is to be one.
        runs: what is done.
    """

    sources: Mapping[str, Source]
    places: Sequence[Federation]
    seeds: Sequence[int]
    titles: Mapping[str, str]
    settings: Mapping[str, Any]
    out: Path | None
    figures: Sequence[str] = ()
    page: Path | None = None
    runs: list[Run] = field(default_factory=list)

    def check(self, resume: bool) -> None:
        """Raise if the folder holds runs with other settings or data, or ones that shall not go on."""
        if self.out is None:
            return
        check_settings(self.out, self.settings, resume)
        if (self.out / _RUNS).exists() and read_settings(self.out) is None:
            raise ValueError(
                f"--out: {self.out} holds {_RUNS} without settings.json, which says what the runs are of; "
                f"give another folder"
            )
        now = {name: _contents(source) for name, source in self.sources.items()}
        earlier = read_settings(self.out, "data")
        for name in () if earlier is None else now:
            if earlier is not None and earlier["data"].get(name) != now[name]:
                raise ValueError(f"--resume: {self.out} holds runs on other contents of {name}")
        write_settings(self.out, self.settings, data=now)

    def run(self, methods: Mapping[str, Any]) -> None:
        """Make the runs that are not there yet."""
        loads = {name: source.load for name, source in self.sources.items()}
        file = None if self.out is None else self.out / _RUNS
        jobs = loads, self.places, methods, self.seeds
        more = {"figures": self.figures, "predictions": self.page is not None}
        with RunProgress(self._name) as progress:
            self.runs += sweep.run(*jobs, **more, file=file, tell=progress)

    def show(self, form: Format, config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Print the results, and write them where there is a folder, and the page if there is to be one.

        Args:
            form: what to print.
            config: settings, by the names of options.
            given: those that a command line to repeat it says.
        """
        results = summarise(self.runs, self.titles)
        content = report.as_json(config, report.environment(), results)
        several = len(self.sources) * len(self.places) > 1
        lost = self._left_out(results)
        title = self._several(lost) if several else self._one()
        if several:
            table = accuracy_table(results)
            columns = Columns(table.columns, broken=table.columns[1:])
            records = report.as_records(results)
            show(form, title, columns, table.lines, records, content, table.best, lost, report.names(results))
        else:
            down = report.receives(results)
            lines = texts([report.cells(result, down) for result in results])
            records = report.as_records(results)
            show(
                form,
                title,
                report.columns(results),
                lines,
                records,
                content,
                left_out=lost,
                below=report.names(results),
            )
        if self.page is not None:
            given = {**given, "report": self.page.name}
            write_page(compared_page(title, results, self.sources, config, given), self.page)
            say(f"wrote {self.page}")
        if self.out is None:
            return
        written = [self.out / "results.json"]
        with replacing(written[0]) as draft:
            draft.write((content + "\n").encode())
        if not several:
            written += accuracy_plot.plot(self.out / "accuracy_vs_bytes.png", title, results)[:1]
        pictures = " (also as PDF and SVG)" if len(written) > 1 else ""
        say(f"wrote {' and '.join(map(str, written))}{pictures}")

    def _one(self) -> str:
        (source,), (place,) = self.sources.values(), self.places
        lost = [run.left_out for run in self.runs]
        return heading(source.load(0), place, len(self.seeds), lost)

    def _several(self, lost: Sequence[str]) -> str:
        """What is the same everywhere, and what is left out where."""
        clients, partitions, alphas = (
            {getattr(place, name) for place in self.places} for name in ("clients", "partition", "alpha")
        )
        own = [name for name, source in self.sources.items() if source.outline.clients is not None]
        words = [" and ".join(self.sources)]
        if own:
            words.append(f"clients of its own in {' and '.join(own)}")
        if len(own) == len(self.sources):
            clients = partitions = alphas = set[Any]()
        words += [f"{number} clients" for number in clients if len(clients) == 1]
        words += [partition for partition in partitions if len(partitions) == 1]
        words += [f"alpha {alpha:g}" for alpha in alphas if len(alphas) == 1 and partitions != {"iid"}]
        words += [f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}", "test accuracy in %"]
        return "\n".join([", ".join(words), *lost])

    def _left_out(self, results: Sequence[Result]) -> list[str]:
        """What is on no client, by federation."""
        lines = []
        places = list(dict.fromkeys(result.place for result in results))
        for place, name in zip(places, place_names(places), strict=True):
            lost = [run.left_out for result in results if result.place == place for run in result.runs]
            lines += [f"{name}: {text}" for text in on_no_client(lost)]
        return lines

    def _name(self, job: Job) -> str:
        """How progress calls a run."""
        places = [(dataset, place) for dataset in self.sources for place in self.places]
        words = [job.method, f"seed {job.seed}"]
        if len(places) > 1:
            names = dict(zip(places, place_names(places), strict=True))
            words.append(names[job.dataset, job.federation])
        return ", ".join(words)


def _contents(source: Source) -> str:
    """Tells data apart."""
    data, digest = source.load(0), hashlib.sha256()
    for array in (data.train_features, data.train_labels, data.test_features, data.test_labels):
        digest.update(f"{array.dtype}{array.shape}".encode())
        for part in blocks(array):
            digest.update(np.ascontiguousarray(array[part]).data)
    return digest.hexdigest()[:16]
