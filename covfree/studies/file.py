"""The file of a sweep's runs: one line a run, added when the run is done."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covfree
from covfree.core.json_lines import JsonLines
from covfree.methods import Method
from covfree.studies.federation import Federation, LeftOut
from covfree.studies.one_run import Run
from covfree.studies.predictions import Predictions


class RunFile:
    """Runs in a file of JSON lines, each with its method's fingerprint; see `JsonLines`.

    Args:
        path: the file.

    Raises:
        ValueError: if a line that is not the last cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLines(path, _from_record, "a run")

    @property
    def runs(self) -> list[tuple[Run, str]]:
        """The runs, and the fingerprints of their methods."""
        return self._lines.records

    def add(self, run: Run, method: str) -> None:
        """Add a run of a method with this fingerprint."""
        record = {**asdict(run), "sent": run.sent._asdict(), "fingerprint": method}
        if run.predictions is None:
            del record["predictions"]
        else:
            record["predictions"] = run.predictions._asdict()
        self._lines.add((run, method), record)


def _from_record(record: dict[str, Any]) -> tuple[Run, str]:
    fingerprint = record.pop("fingerprint")
    sent, federation = covfree.SentBytes(**record.pop("sent")), Federation(**record.pop("federation"))
    left_out = LeftOut(*record.pop("left_out"))
    counts = {name: tuple(map(tuple, rows)) for name, rows in record.pop("predictions", {}).items()}
    predictions = Predictions(**counts) if counts else None
    parts = {"sent": sent, "federation": federation, "left_out": left_out, "predictions": predictions}
    return Run(**record, **parts), fingerprint


def fingerprint(method: Method) -> str:
    """Tell methods apart: equal for two whose functions and numbers are equal, in any process.

    >>> import covfree
    >>> fingerprint(covfree.fed3r(1.0)) == fingerprint(covfree.fed3r(1.0))
    True
    >>> fingerprint(covfree.fed3r(1.0)) == fingerprint(covfree.fed3r(2.0))
    False
    """
    leaves, structure = jax.tree.flatten(method)
    # A function shows the place in memory where it lies.
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", str(structure)).encode())
    for leaf in leaves:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]
