"""The base class of image sets and text sets, and the conversion of examples to labels, clients and split."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covfree.core.registries import nearest

# For each name of a split, in lower case, the part of the data: train, test or validation.
PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
PARTS.update({name: "validation" for name in ("val", "valid", "validation")})


@dataclass(frozen=True)
class LabelledSet:
    """Examples with labels, and perhaps clients: the base class of `ImageSet` and `TextSet`."""

    name: str
    ids: tuple[str, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]
    _: KW_ONLY
    clients: np.ndarray | None = None
    is_test: np.ndarray | None = None
    ignored: tuple[str, ...] = ()
    identities: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        kinds = (
            ("labels", self.labels, "iu", "integers"),
            ("clients", self.clients, "iuU", "strings or integers"),
            ("is_test", self.is_test, "b", "booleans, as of is_test.astype(bool)"),
        )
        for name, array, allowed, text in kinds:
            if array is None:
                continue
            if array.dtype.kind not in allowed:
                raise TypeError(f"{self.name}: {name}: expected {text}, got {array.dtype}")
            if array.shape != (len(self.ids),):
                raise ValueError(
                    f"{self.name}: {name}: expected shape [{len(self.ids)}], got {list(array.shape)}"
                )
        if len(set(self.ids)) < len(self.ids):
            seen: set[str] = set()
            twice = next(name for name in self.ids if name in seen or seen.add(name))
            raise ValueError(f"{self.name}: ids: expected each once, got {twice!r} twice")
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.class_names)))
        if len(wrong):
            raise ValueError(
                f"{self.name}: labels: {self.ids[wrong[0]]} has label {self.labels[wrong[0]]}; "
                f"expected one in [0, {len(self.class_names)})"
            )
        object.__setattr__(self, "labels", self.labels.astype(np.int32, copy=False))

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.ids)


class Example(NamedTuple):
    """An example as a folder, a table or a file of texts describes it.

    Attributes:
        id: its name in the set and in errors.
        label: the name of its class.
        client: the name of its client; "" or None for none.
        split: the name of its split, a key of `PARTS` in any case.
    """

    id: str
    label: str
    client: str | None = None
    split: str = "train"


def labelled(
    where: object,
    noun: str,
    examples: Sequence[Example],
    class_names: Sequence[str] | None,
    order: Callable[[Iterable[str]], list[str]] = sorted,
) -> tuple[list[int], dict[str, Any]]:
    """Number the classes of examples, and leave out the validation split if there is a test split.

    Args:
        where: the file or folder, for errors.
        noun: what the examples are, ``"images"`` or ``"texts"``, for errors.
        examples: the examples. If one has a client that is not None, every training example needs a client.
        class_names: the names of all classes; None for those of the examples, in the order that ``order``
            gives them. Then every class needs a training example.
        order: the function that sorts the names.

    Returns:
        The indices of the examples that are kept, and ``ids``, ``labels``, ``class_names``, ``clients`` and
        ``is_test`` of their `LabelledSet`.
    """
    for example in examples:
        if example.split.lower() not in PARTS:
            raise ValueError(
                f"{where}: {example.id}: split: expected train, test or val, got {example.split!r}"
            )
    parts = [PARTS[example.split.lower()] for example in examples]
    aside = "validation" if "test" in parts else None
    kept = [place for place, part in enumerate(parts) if part != aside]
    examples = [examples[place] for place in kept]
    is_test = np.array([parts[place] != "train" for place in kept])
    clients = np.array([example.client or "" for example in examples])
    has_clients = any(example.client is not None for example in examples)
    for place in np.flatnonzero((clients == "") & ~is_test) if has_clients else []:
        raise ValueError(f"{where}: {examples[place].id}: client: expected one for each training example")
    classes = [example.label for example in examples]
    names = tuple(order(set(classes)) if class_names is None else map(str, class_names))
    number = {name: label for label, name in enumerate(names)}
    if len(number) < len(names):
        raise ValueError(f"class_names: expected each once, got {', '.join(names)}")
    for example in examples:
        if example.label not in number:
            known = f"{few(names)}{nearest(example.label, names)}"
            raise ValueError(
                f"{where}: {example.id}: class {example.label!r} is none of class_names: {known}"
            )
    labels = np.array([number[name] for name in classes], np.int32)
    for label in np.setdiff1d(labels, labels[~is_test]) if class_names is None else []:
        first, *rest = np.flatnonzero(labels == label)
        held = f"class {names[label]!r} has {1 + len(rest)} test {noun}, none to train on"
        raise ValueError(f"{where}: {examples[first].id}: {held}")
    return kept, {
        "ids": tuple(example.id for example in examples),
        "labels": labels,
        "class_names": names,
        "clients": clients if has_clients else None,
        "is_test": is_test if is_test.any() else None,
    }


def by_number(names: Iterable[str], is_number: Callable[[str], bool] = str.isdecimal) -> list[str]:
    """Sort names as numbers if ``is_number`` is True for all of them, else as strings."""
    names = sorted(names)
    if all(map(is_number, names)):
        names.sort(key=int)
    return names


def few(names: Sequence[str]) -> str:
    """List the first five names, as text."""
    return ", ".join(names[:5]) + (f", ... ({len(names)} in all)" if len(names) > 5 else "")


def read_table(
    path: Path, needed: Sequence[str], others: Sequence[str], hint: str = "", *, ragged: bool = False
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield for each line of a CSV or TSV file its place, such as "line 2", and its values by column.

    Args:
        path: the file; in ``.tsv`` quotation marks are text.
        needed: the columns that the file must have.
        others: columns that it may have. Any further columns are ignored.
        hint: the end of the error if a column is missing.
        ragged: whether a line may lack values of the ignored columns, or have additional empty values.
    """
    form: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    # Spreadsheets write a byte order mark before the first name; utf-8-sig drops it.
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream, strict=True, **form)
        names = rows.fieldnames or []
        columns = [name for name in names if name in (*needed, *others)]
        if not set(needed) <= set(columns) or len(set(columns)) < len(columns):
            raise ValueError(f"expected columns {' and '.join(needed)} once each, got {list(names)}{hint}")
        for row in rows:
            place = f"line {rows.line_num}"
            more = row.pop(None, [])
            if (any(more) if ragged else more) or None in map(row.get, columns if ragged else names):
                found = "more" if more else "fewer"
                raise ValueError(f"{place}: expected {len(names)} values, got {found}")
            yield place, {name: row[name] for name in columns}
