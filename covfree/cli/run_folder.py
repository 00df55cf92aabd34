"""The folder of a run: what it was started with, so that it goes on with the same, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import covfree
from covfree.atomic import remove_abandoned, replacing
from covfree.data import FeatureSet
from covfree.finetune.registry import Rates
from covfree.heads import MappedHead
from covfree.types import LinearHead


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its settings, its history and its checkpoints.

    Attributes:
        path: the folder.
        settings: what the run is started with, by the names of options.
    """

    path: Path
    settings: Mapping[str, Any]

    def check(self, resume: bool) -> None:
        """Raise if another run lies here, or one that shall not go on."""
        earlier = self._earlier()
        if earlier is None:
            return
        if not resume:
            raise ValueError(
                f"--out: {self.path} holds a run; --resume goes on with it, or give another folder"
            )
        theirs = earlier["settings"]
        for name in sorted({*self.settings, *theirs}):
            if theirs.get(name) != self.settings.get(name):
                raise ValueError(
                    f"--resume: {self.path} holds a run with --{name.replace('_', '-')} "
                    f"{_shown(theirs.get(name))}, got {_shown(self.settings.get(name))}"
                )

    def rates(self) -> tuple[Rates, list[dict[str, Any]] | None] | None:
        """The rates of the run that lies here, and what was tried for them; None if there is no run."""
        earlier = self._earlier()
        return None if earlier is None else (Rates(*earlier["rates"]), earlier["tried"])

    def begin(self, rates: Rates, tried: list[dict[str, Any]] | None) -> None:
        """Write down what the run is started with."""
        self.path.mkdir(parents=True, exist_ok=True)
        content = {"settings": dict(self.settings), "rates": list(rates), "tried": tried}
        # As a whole or not at all: a run that is killed here can be started again.
        draft = self._file.with_suffix(".part")
        draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        draft.replace(self._file)

    @property
    def _file(self) -> Path:
        return self.path / "settings.json"

    def _earlier(self) -> dict[str, Any] | None:
        if not self._file.exists():
            return None
        try:
            earlier = json.loads(self._file.read_text(encoding="utf-8"))
            return {name: earlier[name] for name in ("settings", "rates", "tried")}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"--resume: {self._file}: expected the settings of a run ({error})") from error


def _shown(value: Any) -> str:
    return "its default" if value is None else str(value)


def save_result(folder: Path, result: Any, data: FeatureSet) -> None:
    """The trained head, and a network's parameters, in files that need nothing but NumPy to be read."""
    from flax.traverse_util import flatten_dict

    remove_abandoned(folder)
    head = result
    if not isinstance(result, LinearHead | MappedHead):
        params, head = result
        arrays: Any = {name: np.asarray(leaf) for name, leaf in flatten_dict(params, sep="/").items()}
        with replacing(folder / "backbone.npz") as file:
            np.savez(file, **arrays)
    dim = data.train_features.shape[1]
    covfree.save_head(head, folder / "head.npz", class_names=data.class_names, dim=dim)
