"""Define `Machine`, the base class of server and site.

It loads what both need: the federation's description, a key, an algorithm's steps, and a folder, locked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype

from covfree.core.atomic import lock, remove_abandoned
from covfree.deployment.description import Description
from covfree.deployment.envelope import SERVER, Refused, write
from covfree.deployment.private import PrivateSteps
from covfree.deployment.steps import Steps
from covfree.privacy import Private
from covfree.rounds.algorithm import Algorithm

SUFFIX = ".message"


class Unlike(Refused):
    """Raised if the arrays in a valid message are not those expected."""


class Machine:
    """The base class of `Server` and `Client` (a site).

    The machine's own folder, which holds its state, is locked until the ``with`` block ends.

    Attributes:
        description: the federation.
        folder: the machine's own folder, which holds its state.
    """

    def __init__(
        self,
        description: Description,
        folder: str | PathLike[str],
        name: str,
        key: Any,
        algorithm: Algorithm | None,
        now: Callable[[], float],
    ) -> None:
        """Lock the folder, and load the state in it; ``name`` is the site's name, or `SERVER`.

        Raises:
            ValueError: if another process uses the folder, it belongs to another machine or federation, or
                its state is damaged, or of another version or method.
        """
        self.description, self._key, self._now = description, key, now
        self._algorithm = description.make_algorithm() if algorithm is None else algorithm
        self._turns = (self._algorithm.rounds or description.num_rounds) * len(description.steps)
        self._steps: Steps | PrivateSteps
        if isinstance(made := description.noised, Private):
            self._steps = PrivateSteps(made, len(description.class_names), description.dim)
        else:
            sites, most = len(description.sites), description.max_examples
            given = self._algorithm, sites, description.key(), description.example, most
            self._steps = Steps(*given, private=description.private is not None)
        self.folder = Path(folder)
        self._path = self.folder / f"{'state' if name == SERVER else name}{SUFFIX}"
        check_folder(self.folder, description, name)  # before it is made
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.folder)
        self._lock = (self.folder / "lock").open("ab")
        try:
            if not lock(self._lock):
                raise ValueError(f"folder: expected one that no other process uses, got {folder}")
            check_folder(self.folder, description, name)
            write(self.folder / "federation", f"{description.identity} {name}".encode())
            try:
                self._load()
            except (Unlike, KeyError) as error:
                raise ValueError(
                    f"folder: expected the state of this version and method in {folder}, got one written by "
                    f"another version or for another method ({error}); go on with that one, or make a new "
                    "federation"
                ) from error
            except Refused as error:
                raise ValueError(
                    f"folder: expected the state that this machine wrote to {folder}, got a damaged one "
                    f"({error}); restore the folder from a copy, or make a new federation"
                ) from error
        except BaseException:
            self._lock.close()
            raise

    def _load(self) -> None:
        """Load the state that an earlier process wrote to the folder."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        """Return this server or client, for ``with``; at the end of the block, its folder is unlocked."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the folder for another process."""
        self._lock.close()


def check_folder(folder: Path, description: Description, name: str) -> None:
    """Raise ValueError if a folder holds another federation's state, or another machine's than ``name``."""
    if folder.is_file():
        raise ValueError(f"folder: expected a folder for this machine's state, got the file {folder}")
    if not (file := folder / "federation").exists():
        return
    found, _, machine = file.read_text().partition(" ")
    if found != description.identity:
        raise ValueError(
            f"folder: expected a new one, or one of federation {description.identity[:12]}…; "
            f"{folder} holds the state of federation {found[:12]}…: take another folder"
        )
    if machine != name:
        raise ValueError(
            f"folder: expected one of its own for each machine, got {folder}, which holds the state of "
            + (f"another ({machine})" if machine else "a draft of covfree 0.1.0, which cannot go on")
        )


def flattened(tree: Any, name: str) -> dict[str, np.ndarray]:
    """Return a pytree's leaves as a message's arrays ``name.0``, ``name.1``, …."""
    return {f"{name}.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def unflattened(like: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
    """Build a pytree with the structure of ``like`` from the arrays of `flattened`.

    Raises:
        Unlike: if an array is missing, or has another shape or data type.
    """
    leaves, tree = jax.tree.flatten(like)
    found = []
    for i, leaf in enumerate(leaves):
        own = arrays.get(f"{name}.{i}")
        if own is None or own.shape != leaf.shape or own.dtype != leaf.dtype:
            got = None if own is None else f"{own.dtype}{list(own.shape)}"
            raise Unlike(f"{name}.{i}: expected {leaf.dtype}{list(leaf.shape)}, got {got}")
        # JAX would truncate 64-bit numbers, so keep them in NumPy.
        found.append(jnp.asarray(own) if canonicalize_dtype(own.dtype) == own.dtype else own)
    return tree.unflatten(found)
