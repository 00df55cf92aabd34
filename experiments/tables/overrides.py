"""Settings that a command gives in place of a table's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.tables.data import datasets
from experiments.tables.settings import OF_DATA
from experiments.tables.spec import Cell


def check_overrides(overrides: Mapping[str, Any], cells: Iterable[Cell]) -> None:
    """Raise if an override makes no difference to any of these cells, which have it already.

    Raises:
        ValueError: naming it, and what would make one.
    """
    read = frozenset[str]().union(*map(_read, cells))
    for name in overrides:
        if name not in read:
            known = ", ".join(sorted(read)) or "none, as what is counted is of the printed numbers"
            raise ValueError(f"{name}: expected a setting that the chosen cells depend on: {known}")


def _read(cell: Cell) -> frozenset[str]:
    # Features that are there are taken as they are.
    is_of_features = "features" in datasets().get(cell.settings.get("data", ""), {})
    return cell.read - (set(OF_DATA) - {"data"} if is_of_features else set())
