"""The history of a training: a record for each round, which is written and reported immediately."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from covfree.studies.progress import Listener
from covfree.studies.result import Record
from covfree.studies.table import as_bytes


class History:
    """The records of a run, one for each round. Each is at once written to a file and reported to a listener.

    A record is a dict of a round's number, costs and, if measured, accuracy. Rounds of training count from 1,
    so the record numbered r has the accuracy after r rounds. A closed-form stage, in which clients send
    statistics and the server solves for the head, comes before the training: its last round has number 0,
    earlier ones have numbers below 0. A later stage, between rounds of training, counts as one round.
    """

    def __init__(self, name: str, rounds: int, path: Path | None, listener: Listener) -> None:
        self.records: list[Record] = []
        self._name, self._rounds, self._path, self._listener = name, rounds, path, listener
        self._written, self._first, self._flops = 0, 0, np.zeros(0)

    def begin(self, records: list[Record], flops: np.ndarray) -> None:
        """Start the history with ``records``; the last is of a closed-form stage or a random head.

        ``flops`` has the operations of all clients together in each round of training that follows.
        """
        self.records, self._flops = list(records), flops
        self._first = self.records[-1]["round"]

    def __call__(self, rounds: list[Record]) -> bool:
        """Add the records of new rounds to the history, write them to the file, and report them.

        `covfree.rounds.run` calls this as its ``stop``. ``rounds`` are the records of all rounds since the
        last closed-form stage, including those added before.

        Returns:
            False, so that the run goes on.
        """
        for record in rounds[self.records[-1]["round"] - self._first :]:
            number, flops = self._first + record["round"] + 1, float(self._flops[record["round"]])
            self.records.append({**record, "round": number, "flops": flops})
        if len(self.records) == self._written:
            return False
        if self._path is not None:
            # Rewrite the file: an earlier run may have written lines after its last checkpoint.
            with self._path.open("a" if self._written else "w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(record)}\n" for record in self.records[self._written :])
        self._written = len(self.records)
        self._tell()
        return False

    def _tell(self) -> None:
        accuracy = [record["accuracy"] for record in self.records if "accuracy" in record][-1]
        up, down, seconds = (
            sum(record[key] for record in self.records) for key in ("bytes_up", "bytes_down", "seconds")
        )
        now, share, sent = self.records[-1]["round"], f"{100 * accuracy:.2f} %", f"{as_bytes(up)} up"
        line = f"{self._name}: round {now}/{self._rounds}, {share}, {seconds:.1f} s, {sent}, "
        line = f"{line}{as_bytes(down)} down" if "accuracy" in self.records[-1] else ""
        self._listener.step(f"{self._name}: {share}, {sent}", now, self._rounds, line)
