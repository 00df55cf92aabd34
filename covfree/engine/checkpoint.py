"""The checkpoint of a run over rows that are read part by part: a file from which the run can be resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.atomic import remove_abandoned, replacing
from covfree.core.sums import Compensated
from covfree.engine.parts import Parts, digest
from covfree.engine.shapes import Passed
from covfree.methods import Method


class StreamState(NamedTuple):
    """The progress of a run.

    Attributes:
        round: the number of rounds that are done.
        server: the server's state after these rounds.
        running: the sums of the current round so far (`Compensated`); None if all rounds are done.
        part: the index of the part of the rows that the current round adds next.
    """

    round: int
    server: tuple[Any, ...]
    running: Any
    part: int = 0


def identity_of(
    method: Method[Any], parts: Parts, forms: Sequence[Passed], *, num_classes: int, part_rows: int
) -> dict[str, str]:
    """Return named values that identify a run: it is resumed only from a checkpoint with the same values."""

    def described(value: Any) -> str:
        # Remove the memory addresses in the repr of functions: they differ between processes.
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

    structure = jax.tree.structure(method.params)
    return {
        "method": method.name,
        "the method's numbers": digest(np.asarray(leaf) for leaf in jax.tree.leaves(method.params)),
        "the method's parts": described((method.rounds, structure)),
        "num_classes": str(num_classes),
        "part_rows": str(part_rows),
        "totals": ", ".join(
            f"{leaf.dtype}{list(leaf.shape)}" for form in forms for leaf in form.upload.leaves
        ),
        **parts.identity(),
    }


def save_state(
    path: Path, state: StreamState, rejected: Mapping[str, str], identity: Mapping[str, str]
) -> None:
    """Write a run's progress ``state``, the reasons for rejected files, and the run's identity to a file.

    The file is replaced as a whole or not at all.
    """
    about = {
        "identity": identity,
        "rejected": dict(rejected),
        "round": state.round,
        "part": state.part,
    }
    leaves = jax.tree.leaves((state.server, state.running))
    arrays = {f"leaf{index}": np.asarray(leaf) for index, leaf in enumerate(leaves)}
    remove_abandoned(path.parent)
    with replacing(path) as file:
        np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)  # pyright: ignore[reportArgumentType]


def load_state(
    path: Path, identity: Mapping[str, str], forms: Sequence[Passed]
) -> tuple[StreamState, dict[str, str]] | None:
    """Read a run's progress from the file of `save_state`; return None if there is no such file.

    Args:
        path: the file.
        identity: the run's `identity_of`.
        forms: for each round, the shapes of what clients and server exchange.

    Returns:
        The progress, and for each message file that was rejected, the reason.

    Raises:
        ValueError: if the file is no checkpoint, or is of another run: its values differ from ``identity``.
    """
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            leaves = [jnp.asarray(file[f"leaf{index}"]) for index in range(len(file.files) - 1)]
            theirs, done = about["identity"], about["round"]
    except (BadZipFile, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"checkpoint: expected the saved state of a run, which {path} is not") from error
    differing = [name for name in {**identity, **theirs} if identity.get(name) != theirs.get(name)]
    if differing:
        name = differing[0]
        raise ValueError(
            f"checkpoint: expected a run of the same method over the same rows; {path} is of one that "
            f"differs in {', '.join(differing)} ({name}: {theirs.get(name)} there, {identity.get(name)} "
            "here); delete it to start anew"
        )
    left = iter(leaves)
    server = forms[done - 1].state.filled(left) if done else ()
    running = None
    if done < len(forms):
        running = Compensated(forms[done].upload.filled(left), forms[done].upload.filled(left))
    return StreamState(done, server, running, about["part"]), about["rejected"]
