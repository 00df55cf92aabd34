"""Print a study's results, write and draw them in a folder, and make a page of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covfree.core.atomic import replacing
from covfree.data import FeatureSet
from covfree.data.dataset import StrPath
from covfree.methods import Method
from covfree.studies import report
from covfree.studies.known import is_own, like
from covfree.studies.page import page_of, write_page
from covfree.studies.plots import accuracy, curve, sweep
from covfree.studies.plots.style import save_all
from covfree.studies.progress import say
from covfree.studies.result import Result, Run, accuracy_table, place_names, summarise
from covfree.studies.source import on_no_client
from covfree.studies.study import Study
from covfree.studies.table import Format, plural, show
from covfree.studies.variants import Variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def present(
    command: str,
    study: Study,
    runs: Sequence[Run],
    form: Format,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    page: Path | None = None,
) -> None:
    """Print the results as ``form``, and write them if the study has a folder.

    ``config`` is stored with the results. With ``page``, an HTML page is written to this path; ``given`` are
    the options in the command that the page shows.
    """
    results = _summarised(study, runs)
    content = report.as_json(config, report.environment(), results)
    lost, title = _left_out(results), _title(study, results)
    table = accuracy_table(results) if _is_several(study) else report.table(results)
    below = "\n".join(report.notes(results))
    show(form, title, table, report.records(results), content, lost, below)
    failed = _failed(study)
    for text in failed:
        say(text)
    if page is not None:
        out = None if study.folder is None else str(study.folder)
        given = {**given, "out": out, "report": str(page)}
        write_page(page_of(command, title, results, study.datasets, config, given, failed), page)
        say(f"wrote {page}")
    if study.folder is None:
        return
    folder = Path(study.folder)
    written = [folder / "results.json"]
    with replacing(written[0]) as draft:
        draft.write((content + "\n").encode())
    written += [path for path in _plot(study, results, folder, title) if path.suffix == ".png"]
    pictures = " (also as PDF and SVG)" if len(written) > 1 else ""
    say(f"wrote {' and '.join(map(str, written))}{pictures}")


def illustrate(study: Study, runs: Iterable[Run], folder: StrPath) -> list[Path]:
    """Draw a study's runs, and write a page on them, as ``covfree compare --report`` does (extra ``cli``).

    Args:
        study: the study. With ``predictions=True`` the page shows accuracy by class and client, too.
        runs: runs of this study, at least one, as `Study.runs` yields them.
        folder: where the files are written; made if missing. Files of the same names are replaced.

    Returns:
        The paths of ``page.html`` and of the pictures, each as PNG, PDF and SVG: accuracy against bytes, or
        by round, if there is one federation; accuracy against the number with the most values, if any varies.

    Raises:
        ValueError: if there are no runs.
    """
    results = _summarised(study, runs)
    if not results:
        once = "; an iterator is read once: give list(study.runs())" if isinstance(runs, Iterator) else ""
        raise ValueError(f"runs: expected at least one run, got none{once}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    page, title, seeds = folder / "page.html", _title(study, results), list(study.seeds)
    spread = _spread(study) or {"clients": "the data's own"}
    shown = {"dataset": list(study.datasets), **spread, "methods": list(study.methods), "seeds": seeds}
    shown |= study.settings
    write_page(page_of(None, title, results, study.datasets, shown, {}, _failed(study)), page)
    return [page, *_plot(study, results, folder, title)]


def _summarised(study: Study, runs: Iterable[Run]) -> list[Result]:
    """Summarise runs; if a method has no registered name, its result's ``kind`` is a method like it."""
    ways = study.methods.items()
    kinds = {name: like(way) for name, way in ways if isinstance(way, Method)}
    kinds |= {name: like(way.method) for name, way in ways if isinstance(way, Variant) and is_own(name)}
    return [replace(result, kind=kinds.get(result.method, "")) for result in summarise(runs, study.titles)]


def _spread(study: Study) -> dict[str, list[Any]]:
    """Return the distinct settings of federations, by the names of options; none if no partition is made."""
    if len(_with_clients(study)) == len(study.datasets):
        return {}
    given = dict[str, list[Any]]()
    for name in ("clients", "partition", "alpha"):
        places = [place for place in study.federations if name != "alpha" or place.partition != "iid"]
        given[name] = list(dict.fromkeys(getattr(place, name) for place in places))
    return {name: values for name, values in given.items() if values}


def _plot(study: Study, results: Sequence[Result], folder: Path, title: str) -> list[Path]:
    """Draw the pictures of results in a folder; return their paths."""
    written = list[Path]()
    if not _is_several(study):
        if report.is_trained(results):
            (data,) = _loaded(study).values()
            written += _drawn(folder / "accuracy.png", curve.draw, title, results, data.num_classes)
        else:
            written += _drawn(folder / "accuracy_vs_bytes.png", accuracy.draw, title, results)
    if (number := sweep.swept(results)) is not None:
        path = folder / f"accuracy_vs_{number}.png"
        written += _drawn(path, sweep.draw, title.split("\n")[0], results, number)
    return written


def _drawn(path: Path, draw: Callable[..., Figure], *arguments: Any) -> list[Path]:
    return save_all(draw(*arguments), path)


def _is_several(study: Study) -> bool:
    return len(study.datasets) * len(list(study.federations)) > 1


def _failed(study: Study) -> list[str]:
    return [f"{study.name(cell)}: failed, and is left out: {error}" for cell, error in study.failed.items()]


def _loaded(study: Study) -> dict[str, FeatureSet]:
    """Return the study's data sets by name, as its first seed gives them."""
    seed = next(iter(study.seeds))
    return {name: load(seed) for name, load in study.datasets.items()}


def _with_clients(study: Study) -> list[str]:
    """Return the names of the data sets that say which client has each example."""
    return [name for name, data in _loaded(study).items() if data.clients is not None]


def _title(study: Study, results: Sequence[Result]) -> str:
    """Return the title of results: data, federation and seeds, and how many examples are on no client.

    On several federations, the first line names the data sets, and the settings that all federations share,
    such as "10 clients"; a line for each federation with examples on no client follows.
    """
    number = len(list(study.seeds))
    seeds = f"{number} {plural('seed', number)}"
    if not _is_several(study):
        (data,), (place,) = _loaded(study).values(), study.federations
        spread = f"{_clients(place.clients)}, {place.partition}"
        if place.partition != "iid":
            spread += f" {place.alpha:g}"
        if data.clients is not None:
            spread = f"{_clients(int(data.clients.max()) + 1)} of its own"
        sizes = f"{len(data.train_labels)} train, {len(data.test_labels)} test"
        lost = on_no_client([run.left_out for result in results for run in result.runs])
        return ", ".join([f"{data.name}: {sizes}, {spread}, {seeds}", *lost])
    words, own, shared = [" and ".join(study.datasets)], _with_clients(study), _spread(study)
    if own:
        words.append(f"clients of its own in {' and '.join(own)}")
    # The settings that all federations share.
    forms = {"clients": _clients, "partition": str, "alpha": lambda alpha: f"alpha {alpha:g}"}
    words += [forms[name](values[0]) for name, values in shared.items() if len(values) == 1]
    words += [seeds, "test accuracy in %"]
    return "\n".join([", ".join(words), *_left_out(results)])


def _clients(number: int) -> str:
    return f"{number} {plural('client', number)}"


def _left_out(results: Sequence[Result]) -> list[str]:
    """Count the examples and classes that are on no client: one line of text for each such federation."""
    lines = []
    places = list(dict.fromkeys(result.place for result in results))
    for place, name in zip(places, place_names(places), strict=True):
        lost = [run.left_out for result in results if result.place == place for run in result.runs]
        lines += [f"{name}: {text}" for text in on_no_client(lost)]
    return lines
