"""The runs of ``covfree finetune``: made, and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covfree.studies import Federation, curves
from covfree.studies.federation import left_out
from covfree.studies.jobs import Job, Plan, run_all, say
from covfree.studies.page import finetuned_page, write_page
from covfree.studies.plots import curve as curve_plot
from covfree.studies.report import environment
from covfree.studies.source import Source, heading, on_no_client
from covfree.studies.tables import Format, show, texts
from covfree.studies.training import Run, Settings


@dataclass
class Finetuning:
    """Runs of fine-tuning on one federation.

    Attributes:
        source: of the data.
        federation: how its examples are spread.
        jobs: the runs to make.
        out: the folder for files, if there is to be one.
        page: the file for a page of the results, if there is to be one.
        runs: what is done.
    """

    source: Source
    federation: Federation
    jobs: Sequence[Job]
    out: Path | None
    page: Path | None
    runs: list[Run] = field(default_factory=list)

    def run(self, settings: Settings, plan: Plan) -> None:
        """Make the runs."""
        self.runs += run_all(list(self.jobs), self.source, self.federation, settings, plan)

    def show(self, form: Format, config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Print the results, and write them where there is a folder, and the page if there is to be one.

        Args:
            form: what to print.
            config: settings, by the names of options.
            given: those that a command line to repeat it says.
        """
        every = curves.curves(self.runs)
        content = curves.as_json(config, environment(), every)
        data = self.source.load(0)
        lost = []
        seeds = dict.fromkeys(job.seed for job in self.jobs)
        for seed in seeds:
            own = self.source.load(seed)
            lost.append(left_out(own.train_labels, self.federation.assign(own, seed)))
        title, left = heading(data, self.federation, len(seeds), lost), on_no_client(lost)
        lines = texts([curves.cells(curve) for curve in every])
        show(form, title, curves.COLUMNS, lines, curves.as_records(every), content, left_out=left)
        if self.out is not None:
            (self.out / "results.json").write_text(content + "\n", encoding="utf-8")
            picture, *_ = curve_plot.plot(self.out / "accuracy.png", title, every, data.num_classes)
            say(f"wrote {self.out / 'results.json'} and {picture} (also as PDF and SVG)")
        if self.page is not None:
            given = {**given, "report": self.page.name}
            page = finetuned_page(title, every, self.source, self.federation, config, given)
            write_page(page, self.page)
            say(f"wrote {self.page}")
