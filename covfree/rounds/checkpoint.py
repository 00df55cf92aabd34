"""Checkpoints of a run, saved by orbax after a round; a resumed run has the same result to the bit."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.atomic import lock, replacing
from covfree.core.checks import check_positive
from covfree.core.optional import optional
from covfree.engine.parts import digest

# Errors show the values of arrays with at most this many numbers, and only the shapes of larger ones.
_FEW = 4


@dataclass(frozen=True)
class Checkpoint:
    """A folder in which a run is saved. If the run was saved there before, it is resumed.

    After each round, a line of JSON is appended to ``history.jsonl`` in the folder, with null for numbers
    that are not finite. Needs the ``rounds`` extra.

    Attributes:
        folder: the folder.
        every: rounds between saves; the end of the run is always saved.
    """

    folder: str | PathLike[str]
    every: int = 1

    def __post_init__(self) -> None:
        check_positive("checkpoint: every", self.every)


class Mark(NamedTuple):
    """A fingerprint of one setting or array of a run; if it differs, a saved run cannot be resumed.

    Attributes:
        shown: the text that errors show.
        checksum: a checksum of the values; empty if ``shown`` identifies the setting.
    """

    shown: str
    checksum: str = ""

    @classmethod
    def of(cls, array: Any) -> Mark:
        """Make the fingerprint of an array. ``shown`` has its values if they are few, else type and shape."""
        array = np.asarray(array)
        shown = str(array) if array.size <= _FEW else f"{array.dtype}{list(array.shape)}"
        return cls(shown, digest([array]))

    def beside(self, ours: Mark) -> str:
        """Return a text on how this mark, of a saved run, differs from ``ours``, the mark of the present run.

        An example is "0.1 there, 0.2 here".
        """
        if self.shown != ours.shown:
            return f"{self.shown or 'none'} there, {ours.shown or 'none'} here"
        return f"other values of {ours.shown}" if ours.shown else "not the same as in the checkpoint"


class Saved(NamedTuple):
    """What a checkpoint stores after a round, besides the arrays of the run's state.

    Attributes:
        done: the number of finished rounds.
        delays: the number of possible delays of an upload: 0 to ``delays`` − 1 rounds.
        items: for each finished round, the lengths of the tables in its total, see `Book.items`; they
            determine the structure of the saved arrays.
        record: the last round's record in the history; its evaluation may be missing.
    """

    done: int
    delays: int
    items: list[list[int]]
    record: dict[str, Any]


class CheckpointFolder:
    """The folder of a `Checkpoint`, which only one run at a time may open.

    Raises:
        ValueError: if another run has opened the folder.
    """

    def __init__(self, folder: Path, identity: Callable[[int], Mapping[str, Mark]]) -> None:
        """Make the folder if needed, and lock it until `close`.

        ``identity(n)`` describes this run after n rounds: fingerprints of its algorithm, examples and key,
        which must equal those in the checkpoint.
        """
        self._ocp = optional("orbax.checkpoint", "rounds")
        # Silence orbax, which logs a warning for each file.
        logging.getLogger("absl").setLevel(logging.ERROR)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("ab")
        if not lock(self._lock):
            self._lock.close()
            raise ValueError(f"checkpoint: expected a folder of no other run, but one writes to {folder} now")
        options = self._ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        self._manager = self._ocp.CheckpointManager(folder.resolve(), options=options)
        self._identity, self._folder, self._lines = identity, folder, folder / "history.jsonl"

    def tell(self, record: Mapping[str, Any]) -> None:
        """Add a round's record to the history."""
        with self._lines.open("a") as file:
            file.write(f"{json.dumps(_each(_finite, record), allow_nan=False)}\n")

    def save(self, trees: Any, saved: Saved) -> None:
        """Save the run's arrays and ``saved``, as a whole or not at all."""
        args = self._ocp.args
        leaves = {f"leaf{index}": leaf for index, leaf in enumerate(jax.tree.leaves(trees))}
        # Save only the shapes of arrays of size 0, which orbax cannot save.
        empty = {name: leaf for name, leaf in leaves.items() if np.size(leaf) == 0}
        shapes = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in empty.items()}
        kept = {name: leaf for name, leaf in leaves.items() if name not in empty} or {"none": np.zeros(1)}
        about = {"identity": dict(self._identity(saved.done)), **saved._asdict(), "empty": shapes}
        self._manager.save(
            saved.done, args=args.Composite(arrays=args.StandardSave(kept), about=args.JsonSave(about))
        )

    def load(
        self, rounds: int, structure: Callable[[Saved], Any]
    ) -> tuple[Any, Saved, list[dict[str, Any]]] | None:
        """Return the arrays, the `Saved` data and the rounds' records; None if nothing is saved.

        Lines of rounds after the saved one are removed from ``history.jsonl``. The saved round's own record
        is missing if the round was saved before its evaluation.

        Args:
            rounds: the number of rounds that the run is to have.
            structure: function from `Saved` to the pytree structure of the saved arrays.
        """
        done, args = self._manager.latest_step(), self._ocp.args
        if done is None:
            self._lines.write_text("")
            return None
        about = self._manager.restore(done, args=args.Composite(about=args.JsonRestore()))["about"]
        if done > rounds:
            raise ValueError(f"rounds: expected at least {done}, as {self._folder} holds, got {rounds}")
        self._check(about["identity"], done)
        saved = Saved(**{name: about[name] for name in Saved._fields})
        lines = self._lines.read_text().splitlines()[:done] if self._lines.exists() else []
        if len(lines) < done - 1:
            raise ValueError(f"checkpoint: expected {done} lines in {self._lines}, got {len(lines)}")
        with replacing(self._lines) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        arrays = self._manager.restore(done, args=args.Composite(arrays=args.StandardRestore()))["arrays"]
        for name, (shape, dtype) in about["empty"].items():
            arrays[name] = jnp.zeros(shape, dtype)
        tree = structure(saved)
        # Orbax commits arrays to a device, so that `jit` would compile every function again: uncommit them.
        held = tree.unflatten([jnp.asarray(np.asarray(arrays[f"leaf{i}"])) for i in range(tree.num_leaves)])
        return held, saved, [_each(_number, json.loads(line)) for line in lines]

    def _check(self, identity: Mapping[str, list[str]], done: int) -> None:
        ours, none = self._identity(done), Mark("")
        theirs = {name: Mark(*mark) for name, mark in identity.items()}
        differing = [
            f"{name} ({theirs.get(name, none).beside(ours.get(name, none))})"
            for name in {**ours, **theirs}
            if theirs.get(name) != ours.get(name)
        ]
        if differing:
            raise ValueError(
                f"checkpoint: expected a run of the same algorithm over the same clients; {self._folder} "
                f"is of one that differs in {', '.join(differing)}. Call with the arguments of that run, in "
                "its version of covfree, to go on; give another folder, or delete this one, to start anew"
            )

    def close(self) -> None:
        """Unlock the folder."""
        self._manager.close()
        self._lock.close()


def _finite(value: Any) -> Any:
    """Replace a number that is not finite by None, as JSON cannot represent it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    """Replace None, read from JSON, by NaN."""
    return math.nan if value is None else value


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert all entries of nested dicts and lists."""
    if isinstance(value, Mapping):
        return {name: _each(convert, part) for name, part in value.items()}
    return [_each(convert, part) for part in value] if isinstance(value, list) else convert(value)
