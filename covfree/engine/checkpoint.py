"""Checkpoints of a run, saved by orbax in a folder; a resumed run has the same result to the bit."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.atomic import lock
from covfree.core.optional import optional

# Errors show the values of arrays with at most this many numbers, and only the shapes of larger ones.
_FEW = 4


def digest(arrays: Iterable[np.ndarray]) -> str:
    """Compute a checksum of the arrays' values, data types and shapes."""
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(f"{array.dtype}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


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


class CheckpointFolder:
    """A folder in which a run saves its progress, and which only one run at a time may open.

    Args:
        folder: the folder; it is made if needed, and locked until `close`. Other files in it are kept.
        kind: what is saved, in words, such as "a run of rounds".

    Raises:
        ValueError: if another run has opened the folder, or a file has its name.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._ocp = optional("orbax.checkpoint", "rounds")
        # Silence orbax, which logs a warning for each file.
        logging.getLogger("absl").setLevel(logging.ERROR)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"checkpoint: expected a folder, but {folder} is a file")
        # Orbax names its folders by numbers: a subfolder keeps them apart from a user's folders.
        self.folder, self._kind, self._saved = folder, kind, folder / "saved"
        self._saved.mkdir(parents=True, exist_ok=True)
        self._lock = (self._saved / "lock").open("ab")
        if not lock(self._lock):
            self._lock.close()
            raise ValueError(f"checkpoint: expected a folder of no other run, but one writes to {folder} now")
        options = self._ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        self._manager = self._ocp.CheckpointManager(self._saved.resolve(), options=options)

    def save(self, step: int, tree: Any, about: Mapping[str, Any], identity: Mapping[str, Mark]) -> None:
        """Save the arrays in ``tree`` atomically, in place of those saved before.

        Args:
            step: a number that grows from one save to the next.
            tree: a pytree of arrays.
            about: other data of the run, which must be valid JSON.
            identity: fingerprints of the run, which `load` compares.
        """
        args = self._ocp.args
        leaves = {f"leaf{index}": leaf for index, leaf in enumerate(jax.tree.leaves(tree))}
        # Save only the shapes of arrays of size 0, which orbax cannot save.
        empty = {name: leaf for name, leaf in leaves.items() if np.size(leaf) == 0}
        shapes = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in empty.items()}
        kept = {name: leaf for name, leaf in leaves.items() if name not in empty} or {"none": np.zeros(1)}
        about = {**about, "kind": self._kind, "identity": dict(identity), "empty": shapes}
        self._manager.save(
            step, args=args.Composite(arrays=args.StandardSave(kept), about=args.JsonSave(about))
        )

    def load(
        self, identity: Callable[[Mapping[str, Any]], Mapping[str, Mark]]
    ) -> tuple[list[jax.Array], dict[str, Any]] | None:
        """Return the saved leaves of the tree, and ``about``; None if nothing is saved.

        Args:
            identity: function from ``about`` to the fingerprints of the present run.

        Raises:
            ValueError: if the saved run has other fingerprints, or the folder holds other data.
        """
        step, args = self._manager.latest_step(), self._ocp.args
        if step is None:
            return None
        try:
            about = self._manager.restore(step, args=args.Composite(about=args.JsonRestore()))["about"]
            theirs = {name: Mark(*mark) for name, mark in about["identity"].items()}
            kind = about["kind"]
        except (KeyError, ValueError, TypeError, OSError) as error:
            raise ValueError(
                f"checkpoint: expected the saved state of a run, which {self._saved / str(step)} is not"
            ) from error
        if kind != self._kind:
            raise ValueError(f"checkpoint: expected {self._kind}, {self.folder} holds {kind}")
        self._check(theirs, identity(about))
        arrays = self._manager.restore(step, args=args.Composite(arrays=args.StandardRestore()))["arrays"]
        arrays.pop("none", None)
        for name, (shape, dtype) in about["empty"].items():
            arrays[name] = jnp.zeros(shape, dtype)
        # Orbax commits arrays to a device, so that `jit` would compile every function again: uncommit them.
        return [jnp.asarray(np.asarray(arrays[f"leaf{index}"])) for index in range(len(arrays))], about

    def _check(self, theirs: Mapping[str, Mark], ours: Mapping[str, Mark]) -> None:
        differing = [
            f"{name} ({theirs.get(name, Mark('')).beside(ours.get(name, Mark('')))})"
            for name in {**ours, **theirs}
            if theirs.get(name) != ours.get(name)
        ]
        if differing:
            raise ValueError(
                f"checkpoint: expected the same run as before; {self.folder} is of one that differs in "
                f"{', '.join(differing)}. Call with the arguments of that run, in its version of covfree, to "
                "go on; give another folder, or delete this one, to start anew"
            )

    def clear(self) -> None:
        """Delete what is saved."""
        for step in self._manager.all_steps():
            self._manager.delete(step)

    def close(self) -> None:
        """Unlock the folder; if nothing is saved, delete it, unless it contains other files."""
        nothing = self._manager.latest_step() is None
        self._manager.close()
        if nothing:
            (self._saved / "lock").unlink(missing_ok=True)
            with suppress(OSError):
                self._saved.rmdir()
                self.folder.rmdir()
        self._lock.close()
