"""Where a run in rounds is, saved after a round by orbax, so that it goes on from there to the bit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.optional import optional
from covfree.engine.parts import digest

# Numbers that errors show; of more only the shape.
_FEW = 4


class Mark(NamedTuple):
    """What tells one setting or array of a run from that of another run.

    Attributes:
        shown: how errors show it.
        checksum: of what is too long to show.
    """

    shown: str
    checksum: str = ""

    @classmethod
    def of(cls, array: Any) -> Mark:
        """That of an array: of a few numbers these, else its shape."""
        array = np.asarray(array)
        shown = str(array) if array.size <= _FEW else f"{array.dtype}{list(array.shape)}"
        return cls(shown, digest([array]))

    def beside(self, ours: Mark) -> str:
        """How this differs from ours."""
        if self.shown != ours.shown:
            return f"{self.shown or 'none'} there, {ours.shown or 'none'} here"
        return f"other values of {ours.shown}" if ours.shown else "another there"


class Checkpoints:
    """The folder that holds the newest state of a run.

    Raises:
        ValueError: if the folder holds the state of another run.
    """

    def __init__(self, folder: Path, identity: Callable[[int], Mapping[str, Mark]]) -> None:
        """Take the folder, and what tells a run from others after so many rounds."""
        self._ocp = optional("orbax.checkpoint", "rounds")
        # It tells of each file at the level of warnings.
        logging.getLogger("absl").setLevel(logging.ERROR)
        options = self._ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        self._manager = self._ocp.CheckpointManager(folder.resolve(), options=options)
        self._identity, self._folder = identity, folder

    def save(self, done: int, trees: Any, history: list[dict[str, Any]], items: list[list[int]]) -> None:
        """Save what the run holds after so many rounds: as a whole or not at all.

        Args:
            done: rounds.
            trees: what the run holds.
            history: of the rounds.
            items: how many items the tables of each round had, by which the structure of ``trees`` is known.
        """
        args = self._ocp.args
        leaves = _named(trees)
        # Orbax saves no array without an item.
        empty = {name: leaf for name, leaf in leaves.items() if np.size(leaf) == 0}
        shapes = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in empty.items()}
        kept = {name: leaf for name, leaf in leaves.items() if name not in empty} or {"none": np.zeros(1)}
        about = {"identity": dict(self._identity(done)), "history": history, "items": items, "empty": shapes}
        self._manager.save(
            done, args=args.Composite(arrays=args.StandardSave(kept), about=args.JsonSave(about))
        )

    def load(
        self, rounds: int, structure: Callable[[list[list[int]]], Any]
    ) -> tuple[int, Any, list[dict[str, Any]], list[list[int]]] | None:
        """Rounds that are done, what the run held then, its history and ``items``; None if nothing is saved.

        Args:
            rounds: that the run is to have.
            structure: of what the run holds after rounds of so many ``items``, as a pytree.
        """
        done = self._manager.latest_step()
        if done is None:
            return None
        args = self._ocp.args
        about = self._manager.restore(done, args=args.Composite(about=args.JsonRestore()))["about"]
        if done > rounds:
            raise ValueError(f"rounds: expected at least {done}, as {self._folder} holds, got {rounds}")
        ours, none = self._identity(done), Mark("")
        theirs = {name: Mark(*mark) for name, mark in about["identity"].items()}
        differing = [
            f"{name} ({theirs.get(name, none).beside(ours.get(name, none))})"
            for name in {**ours, **theirs}
            if theirs.get(name) != ours.get(name)
        ]
        if differing:
            raise ValueError(
                f"checkpoint: expected a run of the same algorithm over the same clients; {self._folder} "
                f"is of one that differs in {', '.join(differing)}. Call with what it was started with to go "
                "on; give another folder, or delete this one, to start anew"
            )
        arrays = self._manager.restore(done, args=args.Composite(arrays=args.StandardRestore()))["arrays"]
        for name, (shape, dtype) in about["empty"].items():
            arrays[name] = jnp.zeros(shape, dtype)
        tree = structure(about["items"])
        held = tree.unflatten([arrays[f"leaf{i}"] for i in range(tree.num_leaves)])
        return done, held, about["history"], about["items"]

    def close(self) -> None:
        """Let go of the folder."""
        self._manager.close()


def _named(trees: Any) -> dict[str, Any]:
    """The leaves by number: their tree is known to whoever loads them."""
    return {f"leaf{index}": leaf for index, leaf in enumerate(jax.tree.leaves(trees))}
