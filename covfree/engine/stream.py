"""Run methods over more rows than memory holds: parts are read from files while others are processed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from covfree.core.checks import check_positive, check_type
from covfree.core.forms import Form
from covfree.core.optional import optional
from covfree.core.sums import Compensated
from covfree.core.types import Rows
from covfree.engine.checkpoint import CheckpointFolder, Mark, digest
from covfree.engine.parts import FolderParts, LostMessage, Parts, TableParts
from covfree.engine.reading import add_part, ahead
from covfree.engine.shapes import Passed, passed
from covfree.engine.totals import How, through
from covfree.methods import Method
from covfree.methods.rounds import Round
from covfree.protocol.checks import Bound, Rules
from covfree.protocol.inbox import Inbox

# Seconds between checkpoints: a crash loses about the work of this time.
_EVERY = 30.0

Result = TypeVar("Result")


class Stream(NamedTuple):
    """Rows that do not fit in memory, read part by part from files.

    Each round of a method is one pass over the rows. While one part is processed, the next ones are read and
    checked. All parts have one shape, so each round compiles one function. Only a few parts and the totals
    are in memory. Sums are compensated: their rounding does not grow with the number of parts. If the method
    has a ``feature_map``, the rows must be of features that are already mapped.

    A bad value in a table raises a `ValueError` that names the row. Bad messages in a folder are set aside,
    see `Inbox.rejected`. If a file changes during the run, it is set aside too, and the run starts again
    without it.

    Attributes:
        rows: a table in NumPy arrays or memory maps (``np.load(path, mmap_mode="r")``), or a folder of
            messages. With `Method.whole_clients`, the rows of a client must be adjacent in a table; in a
            folder, each file is a client.
        part_rows: rows of a part; the last part is padded to this number.
        checkpoint: a folder from which an interrupted run is resumed, with the same result to the bit. The
            run is saved there every half minute and on any error, and removed at the end. The checkpoint of
            another run raises a `ValueError`. Needs the ``rounds`` extra.
        progress: whether to show a progress bar on standard error (needs the ``cli`` extra).
        dim: d; by default, the dimension that all rows share.
        max_count: the largest number of examples that a message in a folder may claim, see `collect`.
        max_norm: the largest norm of a feature vector behind a message, see `collect`.
        judge_sites: whether to leave out messages whose sites fail `diagnose_sites`, see `collect`. All
            class means are then in memory at once, in float64.

    >>> import covfree, numpy as np
    >>> table = covfree.Rows(np.array([[0.0], [2.0], [7.0]]), np.ones(3, int), np.array([0, 0, 1]))
    >>> covfree.solve_rows(covfree.fedcof(), Stream(table), num_classes=2)(table.mean).argmax(-1).tolist()
    [0, 0, 1]
    """

    rows: Rows | Inbox
    part_rows: int = 8192
    checkpoint: str | PathLike[str] | None = None
    progress: bool = False
    dim: int | None = None
    max_count: Bound = "derived"
    max_norm: Bound = "derived"
    judge_sites: bool = False


class _State(NamedTuple):
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


def over_stream(
    method: Method[Any], stream: Stream, num_classes: int, finish: Callable[..., Result]
) -> Result:
    """Run a method's rounds over a stream, whose rows are read in parts; return ``finish(*state)``.

    ``state`` is the server's state after the last round. If the stream is a folder of message files and one
    of the files is lost, the run begins again without the file, and without the checkpoint. After any other
    error the checkpoint stays.
    """
    parts = _cut(method, stream, num_classes)
    folder = (
        None
        if stream.checkpoint is None
        else CheckpointFolder(Path(stream.checkpoint), "a run over a Stream")
    )
    try:
        while True:
            try:
                result = _once(method, parts, stream, num_classes, folder, finish)
                break
            except LostMessage as lost:
                if not isinstance(parts, FolderParts):
                    raise
                # Begin again without the message file that was lost.
                parts.leave_out(lost)
                if folder is not None:
                    folder.clear()
        if folder is not None:
            folder.clear()
        return result
    finally:
        if folder is not None:
            folder.close()


@dataclass
class _Reading:
    """A callable that computes the total of a round, the sum over all rows, which it reads part by part.

    Attributes:
        parts: the rows, in parts.
        how: options of the sums over rows, see `How`.
        show: ``(round, part)``, a function that moves the progress bar.
        save: ``(state)``, a function that saves a checkpoint when it is due; called after each part.
        state: the progress of the run: the round, how many parts are added, and their sum.
    """

    parts: Parts
    how: How
    show: Callable[[int, int], None]
    save: Callable[[_State], None]
    state: _State

    def __call__(self, each: Round, params: Any, sent: Any) -> Any:
        """Compute the round ``each`` on all parts of the rows that are not in ``self.state`` yet.

        Return the round's total, the sum over all parts. ``params`` has the method's hyperparameters for the
        round; ``sent`` is the server's broadcast.
        """
        add = partial(add_part, each.client, params, sent)
        read = partial(self.parts.read, check=self.state.round == 0)
        self.show(self.state.round, self.state.part)
        with closing(ahead(read, range(self.state.part, len(self.parts.places) - 1))) as read_ahead:
            for part in read_ahead:
                # Copy this part while the device computes, then wait: otherwise all parts would be on the
                # device.
                rows = jax.device_put(part)
                jax.block_until_ready(self.state.running)
                # Use one statement: an interrupt must not leave sums that disagree with the part number.
                self.state = self.state._replace(
                    running=add(self.state.running, rows, self.how), part=self.state.part + 1
                )
                self.show(self.state.round, self.state.part)
                self.save(self.state)
        return self.state.running.value


def _once(
    method: Method[Any],
    parts: Parts,
    stream: Stream,
    num_classes: int,
    folder: CheckpointFolder | None,
    finish: Callable[..., Result],
) -> Result:
    # Before any row is read, `passed` raises an error if a round uploads a `Table` of rows, not sums.
    forms = passed(method, lambda: parts.padding, num_classes)
    state, identity = _State(0, (), _nothing(forms[0].upload)), {}
    if folder is not None:
        identity = _identity(method, parts, forms, num_classes=num_classes, part_rows=stream.part_rows)
        if found := folder.load(lambda _: identity):
            state = _loaded(*found, forms)
            parts.rejected.update(found[1]["rejected"])
    saved, at = time.monotonic(), (state.round, state.part)

    def save(state: _State, *, now: bool = False) -> None:
        nonlocal saved, at
        place = (state.round, state.part)
        if folder is None or place == at or not (now or time.monotonic() - saved > _EVERY):
            return
        about = {"round": state.round, "part": state.part, "rejected": dict(parts.rejected)}
        folder.save(state.round * len(parts.places) + state.part, state[1:3], about, identity)
        saved, at = time.monotonic(), place

    with _bar(stream.progress, len(forms), parts) as show:
        reading = _Reading(parts, How(num_classes, method.whole_clients), show, save, state)
        try:
            for number in range(state.round, len(forms)):
                one = method.rounds[number : number + 1]
                server = through(one, method.params, reading, reading.state.server)
                left = forms[number + 1 :]
                reading.state = _State(number + 1, server, _nothing(left[0].upload) if left else None)
            return jax.block_until_ready(finish(*reading.state.server))
        except BaseException:
            # `add_part` gives the old sums' memory to the new ones (it donates them). An interrupt within it
            # loses both: then write nothing, so that the folder keeps its earlier state.
            if not any(leaf.is_deleted() for leaf in jax.tree.leaves(reading.state.running)):
                save(reading.state, now=True)
            raise


def _loaded(leaves: list[jax.Array], about: Mapping[str, Any], forms: Sequence[Passed]) -> _State:
    """Restore a run's progress from a checkpoint; ``forms`` has each round's array shapes, see `passed`."""
    left, done = iter(leaves), about["round"]
    server = forms[done - 1].state.filled(left) if done else ()
    running = None
    if done < len(forms):
        running = Compensated(forms[done].upload.filled(left), forms[done].upload.filled(left))
    return _State(done, server, running, about["part"])


def _identity(
    method: Method[Any], parts: Parts, forms: Sequence[Passed], *, num_classes: int, part_rows: int
) -> dict[str, Mark]:
    """Return fingerprints of a run: it is resumed only from a checkpoint with the same ones."""

    def described(value: Any) -> str:
        # Remove the memory addresses in the repr of functions: they differ between processes.
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

    numbers, structure = jax.tree.flatten(method.params)
    uploads = [f"{leaf.dtype}{list(leaf.shape)}" for form in forms for leaf in form.upload.leaves]
    return {
        "method": Mark(method.name),
        "the method's numbers": Mark("", digest(np.asarray(leaf) for leaf in numbers)),
        "the method's parts": Mark("", described((method.rounds, structure))),
        "num_classes": Mark(str(num_classes)),
        "part_rows": Mark(str(part_rows)),
        "data type of floats": Mark(str(jax.dtypes.canonicalize_dtype(np.float64))),
        "totals": Mark("", ", ".join(uploads)),
        **parts.identity(),
    }


def _nothing(form: Form) -> Compensated:
    return Compensated(form.zeros(), form.zeros())


def _cut(method: Method[Any], stream: Stream, num_classes: int) -> Parts:
    check_positive("num_classes", num_classes)
    check_positive("part_rows", stream.part_rows)
    rows, size, whole = stream.rows, stream.part_rows, method.whole_clients
    if isinstance(rows, Rows):
        if stream.judge_sites:
            raise ValueError(
                "judge_sites: expected an Inbox, whose messages are set aside by name; got a table, whose "
                "clients diagnose_sites judges"
            )
        return TableParts(rows, size, num_classes, whole, stream.dim)
    check_type("rows", rows, Inbox)
    method.check_message()
    if method.summary.stays:
        raise ValueError(
            f"method: expected one whose clients send rows alone, got {method.name!r}, which sends "
            f"{method.summary.name}; use collect and solve_message"
        )
    bounds: dict[str, Any] = {"max_count": stream.max_count, "max_norm": stream.max_norm}
    rules = Rules(num_classes, stream.dim, method, judge_sites=stream.judge_sites, **bounds)
    return FolderParts(rows, size, rules, whole)


@contextmanager
def _bar(shown: bool, phases: int, parts: Parts) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar during the ``with`` block; yield the function ``(round, part)`` that moves it.

    If ``shown`` is False, there is no bar, and the function does nothing.
    """
    if not shown:
        yield lambda phase, part: None
        return
    rich = optional("rich.progress", "cli")
    console = optional("rich.console", "cli").Console(stderr=True)
    columns = (*rich.Progress.get_default_columns(), rich.TextColumn("{task.fields[rate]} rows/s"))
    length, begun = int(parts.places[-1]), (-1, 0, 0.0)
    with rich.Progress(*columns, console=console) as bar:

        def show(phase: int, part: int) -> None:
            nonlocal begun
            done, now = int(parts.places[part]), time.monotonic()
            if phase != begun[0]:
                begun = (phase, done, now)
                bar.add_task(f"pass {phase + 1} of {phases}", total=length, completed=done, rate="?")
                return
            rate = (done - begun[1]) / max(now - begun[2], 1e-9)
            bar.update(bar.task_ids[-1], completed=done, rate=f"{rate:,.0f}")

        yield show
