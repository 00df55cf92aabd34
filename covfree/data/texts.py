"""Text sets: texts with labels from CSV, TSV and JSON files."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from covfree.data.dataset import StrPath
from covfree.data.labelled import PARTS, Example, LabelledSet, by_number, labelled, read_table

_COLUMNS = ("text", "label", "client", "split")
# A text, None if it is ignored, and what is known of it.
_Item: TypeAlias = tuple[str | None, Example]


@dataclass(frozen=True)
class TextSet(LabelledSet):
    """Texts with their labels, in memory.

    `load_texts` makes one; you may make your own.

    Attributes:
        name: the name of the data in tables.
        ids: [n] distinct names of the texts, for errors and feature files.
        labels: [n] int32, in [0, C).
        class_names: [C], the names of the C classes.
        texts: [n] strings.
        clients: [n], the name or number of each text's client, if the data says so; ``""`` or below 0 for no
            client.
        is_test: [n] booleans, True in the test part, if the data is split.
        ignored: parts of the file that were left out.

    Raises:
        TypeError: if an array is of the wrong type.
        ValueError: if an array is of the wrong length, an id occurs twice or a label has no class name.
    """

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.texts) != len(self.ids):
            raise ValueError(f"{self.name}: texts: expected {len(self.ids)}, got {len(self.texts)}")

    @property
    def fingerprint(self) -> str:
        """A hash of the texts and their order, in hexadecimal."""
        digest = hashlib.sha256()
        for text in self.texts:
            # JSON may contain lone surrogates, which plain UTF-8 refuses to encode.
            digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        return digest.hexdigest()


def load_texts(
    path: StrPath,
    *,
    class_names: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> TextSet:
    r"""Read texts with their labels from a file in UTF-8.

    Args:
        path: the file, one of

            - ``.csv`` or ``.tsv`` with columns ``text`` and ``label``, and perhaps ``client`` and ``split``,
              named in the first line; other columns are ignored. In ``.tsv`` quotation marks are text;
            - ``.jsonl``: on each line an object with these keys; values other than ``text`` may be integers;
            - ``.json``: an object with a list of pairs of text and label for each split, as in CLINC150's
              ``data_full.json``. Its other lists are ignored.
        class_names: all classes, in the order of their numbers. Machines with different files must agree on
            this order. By default the sorted labels of the file, sorted as numbers if all are whole numbers.
        columns: the file's names for ``text``, ``label``, ``client`` and ``split``, if they differ:
            ``{"text": "query", "label": "intent"}``. Not for ``.json``, which has no column names.

    Returns:
        The text set, in the order of the file. An id is a place, as in ``"line 2"`` or, for ``.json``,
        ``"train/0"``.

    Splits are named and used as in `image_folder`: if there is a test split, the validation split is ignored.
    If any text has a client, every training text needs one. Every class needs a training text, unless
    ``class_names`` are given.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is of another kind, or a line is wrong; the message names the line.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "mail.csv"
    ...     content = "text,label,client\nyou have won,spam,ann\nsee you,ham,bob\n"
    ...     length = file.write_text(content)
    ...     texts = load_texts(file)
    >>> texts.texts, texts.labels.tolist(), texts.class_names, texts.clients.tolist()
    (('you have won', 'see you'), [1, 0], ('ham', 'spam'), ['ann', 'bob'])
    """
    path = Path(path)
    kinds = {".csv": _table, ".tsv": _table, ".jsonl": _lines, ".json": _pairs}
    if path.suffix not in kinds:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(kinds)}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    names = {name: name for name in _COLUMNS} | dict(columns or {})
    if unknown := set(names) - set(_COLUMNS):
        raise ValueError(f"columns: expected names for {', '.join(_COLUMNS)}, got {', '.join(unknown)}")
    if len(set(names.values())) < len(names):
        raise ValueError(f"columns: expected a name of its own for each, got {names}")
    if columns and path.suffix == ".json":
        raise ValueError(f"columns: expected none for {path}, whose lists of pairs have no names")
    # Raise the csv module's limit of 131,072 characters for a field.
    before = csv.field_size_limit(2**31 - 1)
    try:
        items = list(kinds[path.suffix](path, names))
    except (ValueError, csv.Error, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    finally:
        csv.field_size_limit(before)
    ignored = tuple(example.id for text, example in items if text is None)
    items = [(text, example) for text, example in items if text is not None]
    if not items:
        raise ValueError(f"{path}: expected texts, found none")
    kept, fields = labelled(path, "texts", [example for _, example in items], class_names, _sorted)
    if len(kept) < len(items):
        ignored += ("validation split",)
    return TextSet(name=path.stem, texts=tuple(items[place][0] for place in kept), ignored=ignored, **fields)


def _sorted(labels: Iterable[str]) -> list[str]:
    # Unlike in `image_table`, labels may be negative numbers.
    return by_number(labels, lambda label: label.isascii() and label.removeprefix("-").isdecimal())


def _table(path: Path, names: Mapping[str, str]) -> Iterator[_Item]:
    hint = "; columns= (--text-column, --label-column) says what the file calls them"
    for place, values in read_table(path, [names["text"], names["label"]], list(names.values()), hint):
        yield _item(place, {name: values[own] for name, own in names.items() if own in values})


def _lines(path: Path, names: Mapping[str, str]) -> Iterator[_Item]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            place = f"line {number}"
            try:
                values = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{place}: expected JSON ({error})") from error
            needed = [names["text"], names["label"]]
            if not isinstance(values, dict) or not set(needed) <= set(values):
                needed = " and ".join(needed)
                raise ValueError(f"{place}: expected an object with {needed}, got {line.strip():.60}")
            yield _item(
                place, {name: values[own] for name, own in names.items() if values.get(own) is not None}
            )


def _pairs(path: Path, _: Mapping[str, str]) -> Iterator[_Item]:
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    expected = "expected lists of pairs [text, label], by split"
    if not isinstance(content, dict):
        raise ValueError(f"{expected}, got a {type(content).__name__}")
    for split, pairs in content.items():
        if not isinstance(pairs, list):
            raise ValueError(f"{split}: {expected}, got a {type(pairs).__name__}")
        if split.lower() not in PARTS:
            yield None, Example(f"{split}/", "")
            continue
        for number, pair in enumerate(pairs):
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError(f"{split}/{number}: {expected}, got {pair!r:.60}")
            yield _item(f"{split}/{number}", {"text": pair[0], "label": pair[1], "split": split})


def _item(place: str, values: dict[str, Any]) -> _Item:
    """Check the values of one line (text, label, client, split), and make an `_Item` of them."""
    if not isinstance(values.get("text"), str) or not values["text"].strip():
        raise ValueError(f"{place}: text: expected a string, got {values.get('text')!r}")
    for name, value in values.items():
        if type(value) not in (str, int):
            raise ValueError(f"{place}: {name}: expected a string or a whole number, got {value!r}")
    label, client = (str(values.get(name, "")).strip() for name in ("label", "client"))
    if not label:
        raise ValueError(f"{place}: label: expected one, got none")
    return values["text"], Example(place, label, client or None, str(values.get("split", "train")).strip())
