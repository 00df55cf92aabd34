"""The history of a run of ``covfree finetune``: a line a round."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A line of history: a round, what it came to and what it took.
Record = dict[str, Any]
Tell = Callable[[list[Record]], None]


class History:
    """The lines of a run as they come: written to a file, and told.

    A round is counted from 1; line 0 is the start. So line r holds the accuracy after r rounds.
    """

    def __init__(self, start: Record, path: Path | None, tell: Tell) -> None:
        self.records = [start]
        self._path, self._tell, self._written = path, tell, 0

    def __call__(self, rounds: list[Record]) -> bool:
        """Take in what a run has recorded so far; never stops it."""
        for record in rounds[len(self.records) - 1 :]:
            self.records.append({**record, "round": record["round"] + 1})
        if len(self.records) == self._written:
            return False
        if self._path is not None:
            # What an earlier run wrote after its last checkpoint is written again.
            with self._path.open("a" if self._written else "w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(record)}\n" for record in self.records[self._written :])
        self._written = len(self.records)
        self._tell(self.records)
        return False
