"""``covfree compare``: methods on one federation, or on several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from covfree.cli.config_file import Config
from covfree.cli.options import (
    ALPHA,
    CLIENTS,
    PARTITION,
    USUAL,
    DataFile,
    FormatOption,
    ImagesFile,
    NetworkName,
    Out,
    ReportFile,
    Resume,
    Set,
    TestFile,
    WeightsFile,
    assigned,
    check_file,
    check_resume,
    names_of,
    numbers_of,
    partition_settings,
    refuse_partition,
    seeds_of,
    values_of,
    variants_of,
)
from covfree.heads.metrics import CLIENT_NAMES, NAMES
from covfree.studies import Federation, Study, federations
from covfree.studies.known import is_own
from covfree.studies.names import of_options
from covfree.studies.pooled import POOLED, TITLE
from covfree.studies.present import present
from covfree.studies.progress import Progress, say
from covfree.studies.run_folder import make_folder
from covfree.studies.source import Source, sources_of
from covfree.studies.variants import Variant, chosen_of, with_noise

T = TypeVar("T")


def compare_command(
    dataset: DataFile = None,
    test_file: TestFile = None,
    images: ImagesFile = None,
    backbone: NetworkName = None,
    weights: WeightsFile = None,
    methods: Annotated[
        str,
        typer.Option(
            help="'all', or names (fedncm,fed3r,fedcof), with arguments as in "
            "fedcof:shrinkage=0.1:head=ridge.",
            show_default=False,
        ),
    ] = "fedncm,fed3r,fedcof",
    check: Annotated[
        bool, typer.Option("--check", help="Test your own methods first (check_method).")
    ] = False,
    clients: Annotated[str | None, CLIENTS] = None,
    alpha: Annotated[str | None, ALPHA] = None,
    partition: Annotated[str | None, PARTITION] = None,
    seeds: Annotated[
        str,
        typer.Option(help="Number of random splits (5), or seeds: 3,5,8.", show_default=False),
    ] = "5",
    pooled: Annotated[
        bool,
        typer.Option(
            "--pooled",
            help="Add logistic regression on all data in one place.",
        ),
    ] = False,
    numbers: Set = None,
    select: Annotated[
        bool, typer.Option("--select", help="Add one in which clients choose from --methods.")
    ] = False,
    noise: Annotated[
        str | None,
        typer.Option(help="Noise on counts (no DP): laplace:ε, gaussian:ε, …"),
    ] = None,
    metrics: Annotated[str | None, typer.Option(help=f"What to measure: {', '.join(NAMES)}.")] = None,
    out: Out = None,
    resume: Resume = False,
    report: ReportFile = None,
    config: Config = None,
    output_format: FormatOption = "table",
) -> None:
    """Compare methods on federations: accuracy, bytes up and time.

    Values separated by commas are run in every combination:
      covfree compare --methods fedcof,mine.py:function --alpha 0.1,0.5 --out runs
      covfree compare --dataset features.npz --set shrinkage=auto,0.1,1
      covfree compare --images photos --backbone efficientnet-lite0

    """
    chosen_seeds = seeds_of(seeds)
    chosen = variants_of(methods, numbers_of(numbers))
    if check:
        _check_contracts(chosen)
    named = list(chosen)
    if select:
        with of_options("methods"):
            chosen = {**chosen, **chosen_of(chosen)}
    if noise is not None:
        with of_options("noise"):
            chosen = with_noise(chosen, noise)
    if pooled:
        chosen = {**chosen, POOLED.name: Variant(TITLE, POOLED)}
    check_resume(resume, out)
    counts = _values("clients", clients, int, "a number of clients")
    laws = _values("partition", partition, str.strip, "a partition")
    alphas = _values("alpha", alpha, float, "a number")
    with of_options("partition"):
        places = federations(counts, laws, alphas)
    sources = sources_of(dataset, test_file, images, backbone, weights)
    outlines = [source.outline for source in sources.values()]
    # Raise an error only if all data sets have clients of their own; otherwise the options apply to the
    # data sets that have none.
    refuse_partition(outlines, {"clients": clients, "partition": partition, "alpha": alpha})
    # Make every partition once before any work, so that a bad argument fails at once.
    for name, source in sources.items():
        _check_places(name, source, places)
    figures = [] if metrics is None else names_of("metrics", metrics, NAMES)
    for name, source in sources.items():
        if source.outline.test_clients is None and (lacking := set(figures) & set(CLIENT_NAMES)):
            raise ValueError(
                f"--metrics: {', '.join(sorted(lacking))}: expected data that names each test example's "
                f"client (clients and is_test in one file), got {name}"
            )
    spread = {"clients": _single(counts), "partition": _single(laws), "alpha": _single(alphas)}
    settings = {
        **_merged(sources),
        **partition_settings(outlines, spread),
        "noise": noise,
        **({} if numbers is None else {"set": numbers}),
        **({"metrics": figures} if figures else {}),
    }
    if report is not None:
        check_file("report", report, ".html", (dataset, test_file, images, weights, config), out)
    make_folder(out, "compare")
    study = Study(
        sources, places, chosen, chosen_seeds, figures, report is not None, folder=out, settings=settings
    )
    study.check(resume)
    if noise is not None:
        say(f"counts have noise, {noise}, which is not differential privacy: docs/privacy.md")
    with Progress() as progress:
        runs = list(study.runs(progress))
    if not runs:
        cell, error = next(iter(study.failed.items()))
        values = "" if numbers is None else f" with --set {numbers}"
        raise ValueError(f"{cell.method}{values}: {error}")
    asked = {
        "methods": named,
        **({"select": True} if select else {}),
        **({"pooled": True} if pooled else {}),
        "seeds": chosen_seeds if "," in seeds else len(chosen_seeds),
    }
    # `settings` names the weights that were found; the command that repeats the runs needs the typed ones.
    shown = {**settings, **asked}
    present("compare", study, runs, output_format, shown, {**shown, "weights": weights}, report)
    if study.failed:
        raise typer.Exit(1)


def _check_contracts(chosen: Mapping[str, Variant]) -> None:
    """Raise ValueError unless all methods that are not covfree's pass `covfree.testing.check_method`."""
    # Import it here, as few commands check methods.
    from covfree.testing import check_method

    for name, variant in chosen.items():
        if is_own(name):
            try:
                check_method(variant.method)
            except AssertionError as error:
                raise ValueError(f"--check: {name}: {error}") from error
            say(f"{name} passes all checks")


def _values(name: str, text: str | None, kind: Callable[[str], T], expected: str) -> list[T]:
    """Parse the comma-separated values of an option; return its default, as a list, if `text` is None."""
    return [getattr(USUAL, name)] if text is None else values_of(name, text, kind, expected)


def _check_places(name: str, source: Source, places: list[Federation]) -> None:
    """Raise ValueError unless each partition in ``places`` can divide the data set ``name`` among clients."""
    if source.outline.clients is not None and len(places) > 1:
        raise ValueError(
            f"--dataset: {name} has clients of its own; expected one value of --clients, --partition and "
            f"--alpha for the other data sets, got {len(places)} combinations"
        )
    for place in places:
        assigned(place, source.outline, seed=0)


def _single(values: list[Any]) -> Any:
    """Return the value of a list with one element; return any other list as it is."""
    return values[0] if len(values) == 1 else values


def _merged(sources: dict[str, Source]) -> dict[str, Any]:
    """Merge the sources' settings into one dict; a setting whose values differ becomes a list."""
    every = [source.config for source in sources.values()]
    return {name: _single(list(dict.fromkeys(config[name] for config in every))) for name in every[0]}
