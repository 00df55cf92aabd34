"""``python -m experiments``: tables of the papers, run and laid beside what is printed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from covfree.studies import console
from experiments.tables.data import Found, check_overrides
from experiments.tables.figures import figures, find_figure
from experiments.tables.page import PAGE, page, state_of
from experiments.tables.results import Results
from experiments.tables.run import run_cells
from experiments.tables.spec import FROM_DATA, as_value, find_table, read_table, table_files

app = typer.Typer(
    name="experiments",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Tables of the papers, run and laid beside what is printed.",
)


@app.command("run")
def run_command(
    table: Annotated[
        str,
        typer.Argument(help="Name of a table, such as fedcof-table3, or a TOML file.", show_default=False),
    ] = "",
    listed: Annotated[
        bool, typer.Option("--list", help="List every table and figure, and what each needs.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with the data sets; see datasets.toml. Without it that of TFDS."),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(help="BACKBONE=FILE or BACKBONE=owner/name@commit; may be given several times."),
    ] = None,
    only: Annotated[
        str, typer.Option(help="Only cells that all of these words are of: cifar100,squeezenet.")
    ] = "",
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="SETTING=VALUE in place of the paper's; may be given several times."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results. Without it beside the table's file.")
    ] = None,
) -> None:
    """Run a table's cells, as far as data and weights are at hand, and go on where an earlier call stopped.

    Example:
      python -m experiments run fedcof-table3 --data-dir data --weights squeezenet1_1=squeezenet1_1.pth
    """
    if listed:
        _list()
        return
    if not table:
        raise ValueError("table: expected its name; run --list names all")
    found = Found(data_dir, dict(_pair("weights", text) for text in weights or []))
    changed = {key: as_value(value) for key, value in (_pair("set", text) for text in override or [])}
    read = read_table(find_table(table), changed)
    try:
        words = [word.strip() for word in only.split(",") if word.strip()]
        cells = [cell for cell in read.cells if cell.is_meant(words)]
    except ValueError as error:
        raise ValueError(f"--only: {error}") from error
    if not cells:
        raise ValueError(f"--only: expected words that are of some cell of {read.name}, got {only!r}")
    check_overrides(changed, cells)
    folder = read.results if out is None else out
    done = run_cells(cells, found, folder, _say)
    results = Results(folder)
    for cell in cells:
        ours = results.ours(cell)
        if not ours.reason:
            print(f"{cell.grid} | {cell.row} | {cell.column}: {cell.printed}; {ours.shown} {ours.difference}")
    _say(f"{done.computed} runs made, {done.kept} were there; results in {folder}")
    for reason, missed in done.missing.items():
        _say(f"not run: {len(missed)} cell{'s' if len(missed) > 1 else ''}: {reason}")


def _list() -> None:
    """Print each table and figure of the papers, and what it needs."""
    for path in table_files():
        read = read_table(path)
        settings = [cell.settings for cell in read.cells if cell.kind in FROM_DATA]
        needs = {str(each[key]) for each in settings for key in ("data", "backbone") if key in each}
        print(f"{read.name}: {read.title}\n    needs {', '.join(sorted(needs)) or 'nothing'}")
    for figure in figures():
        print(f"{figure.name}: {figure.source}: {figure.title}\n    needs {figure.needs}")
    _say("`run TABLE` runs a table, `draw FIGURE` draws a figure on data of your own")


@app.command(
    "draw",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def draw_command(
    context: typer.Context,
    figure: Annotated[str, typer.Argument(help="Name of a figure, such as fed3r-figure2.")],
    without: Annotated[
        str, typer.Option(help="Options of the figure that the data decides: clients,alpha.")
    ] = "",
) -> None:
    """Draw a figure of the papers by a command, whose options follow, and win.

    Example:
      python -m experiments draw fed3r-figure2 --dataset features.npz --out figure2
    """
    dropped = [name.strip() for name in without.split(",") if name.strip()]
    arguments = find_figure(figure).arguments(context.args, dropped)
    if arguments[0].endswith(".py"):
        arguments[0] = str(Path(__file__).parent / arguments[0])
        program, called = "python", ()
    else:
        program, called = "covfree", ("-m", "covfree.cli")
    _say(f"{program} {shlex.join(arguments)}")
    if code := subprocess.run([sys.executable, *called, *arguments], check=False).returncode:
        raise typer.Exit(code)


@app.command("status")
def status_command() -> None:
    """Print for each table how many of its cells are there."""
    print(f"{'table':<26}{'cells':>6}{'without data':>14}{'run':>6}{'not run':>9}")
    for path in table_files():
        read = read_table(path)
        results = Results(read.results)
        counted: Counter[str] = Counter()
        for cell in read.cells:
            state = state_of(results.ours(cell))
            group = "not run" if state == "not run" else "run" if cell.kind in FROM_DATA else "without data"
            counted[group] += 1
        numbers = "".join(
            f"{counted[group]:>{width}}"
            for group, width in (("without data", 14), ("run", 6), ("not run", 9))
        )
        print(f"{read.name:<26}{counted.total():>6}{numbers}")
    _say("`run TABLE --data-dir FOLDER` says what cells that were not run need, and where it is looked for")


@app.command("page")
def page_command() -> None:
    """Write experiments/papers/README.md anew."""
    PAGE.write_text(page(), encoding="utf-8")
    _say(f"wrote {PAGE}")


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--{option}: expected NAME=VALUE, got {text!r}")
    return name.strip(), value.strip()


def _say(text: str) -> None:
    print(f"experiments: {text}", file=sys.stderr)


if __name__ == "__main__":
    console.main(app)
