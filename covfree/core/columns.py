"""Features, labels and clients of a file by names of columns: NumPy, PyTorch, Arrow, Parquet, CSV."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from covfree.core.array_file import read_npy, read_npz, read_safetensors
from covfree.core.optional import optional
from covfree.core.torch_file import read_torch

# What a file holds of each example, with the other name that it may have.
COLUMNS: dict[str, str | None] = {"features": None, "labels": "label", "clients": "client", "is_test": None}
_ARROW = "tables"
# What pandas calls its index in Parquet; and columns of numbers that are features only if they are named.
_INDEX, _DOUBTFUL = re.compile(r"__index_level_\d+__"), re.compile(r"|Unnamed: \d+|labels?|clients?|is_test")
# What a column that numbers the examples is called.
_ID = re.compile(r"(?i).*(id|ids|idx|index|row|nr|no|number)")


class Table(Mapping[str, np.ndarray]):
    """The columns of a file by their names, each read when it is asked for."""

    def __init__(
        self, path: Path, names: Sequence[str], read: Callable[[str], np.ndarray], schema: Any = None
    ) -> None:
        self.path, self._names, self._read = path, list(names), read
        # Arrow's schema: then a column may hold one number of each example's features.
        self.schema = schema

    def __getitem__(self, name: str) -> np.ndarray:
        """Read a column."""
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """The number of columns."""
        return len(self._names)

    @property
    def wide(self) -> bool:
        """Whether a column may hold one number of each example's features."""
        return self.schema is not None

    def is_number(self, name: str) -> bool:
        """Whether a column of a wide table holds a number or a boolean of each example."""
        types, own = optional("pyarrow", _ARROW).types, self.schema.field(name).type
        return types.is_integer(own) or types.is_floating(own) or types.is_boolean(own)

    @property
    def index(self) -> set[str]:
        """The columns of a wide table that are the index of a data frame of pandas."""
        named = self._about(b"pandas").get("index_columns", [])
        return {name for name in self if name in named or _INDEX.fullmatch(name)}

    def class_names(self, labels: str) -> Any:
        """The names of the classes that a column of labels numbers; None if the file does not say."""
        if not self.wide:
            return self.get("class_names")
        # What the package `datasets` writes: its type `ClassLabel` has the names.
        try:
            return np.array(self._about(b"huggingface")["info"]["features"][labels]["names"], str)
        except (KeyError, TypeError):
            return None

    def _about(self, package: bytes) -> dict[str, Any]:
        """What a package has written about the columns."""
        try:
            about = json.loads((self.schema.metadata or {})[package])
        except (KeyError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}

    @property
    def listed(self) -> str:
        """The first names, as text."""
        return ", ".join(self._names[:20]) + (" …" if len(self) > 20 else "")


def open_table(path: Path) -> Table:
    """Open a file of one of `READABLE`, or a folder that ``save_to_disk`` of ``datasets`` wrote.

    Raises:
        ValueError: if the file is of another kind or damaged.
        FileNotFoundError: if there is no such file.
        ImportError: if pyarrow or safetensors is needed and not installed.
    """
    kind = "" if path.is_dir() else path.suffix
    if kind not in _READERS or not path.name:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(READABLE)}, got {path.name!r}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    return _READERS[kind](path)


def read_columns(path: Path, columns: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Read features, labels and, if they are there, clients, ``is_test`` and ``class_names`` from a file.

    Args:
        path: see `open_table`. Tables without a column ``features`` have a number of it in each column of
            numbers or booleans; their names are returned as ``feature_names``. The index of a data frame of
            pandas is none of them.
        columns: the file's own names of `COLUMNS`. Of features also several, such as ``"age+weight"``, or a
            pattern, such as ``"f*"``. Of ``.npy``, a file for each other part.

    Returns:
        The arrays by these names; also ``key``, by which `covfree extract` says what made the features.

    Raises:
        ValueError: as `open_table`, or if there is no such column; the message lists those that there are.
            Also if features are not named and a column is neither a number nor one of the other parts, or is
            called ``id``, ``index`` or so and numbers the examples.
        FileNotFoundError: if there is no such file.
        ImportError: as `open_table`.
    """
    if wrong := sorted(set(columns) - set(COLUMNS)):
        raise ValueError(f"columns: expected names of {', '.join(COLUMNS)}, got {wrong[0]!r}")
    table, found, own = open_table(path), dict[str, np.ndarray](), dict[str, str]()
    if path.suffix == ".npy":
        if "labels" not in columns:
            raise ValueError(f"{path}: expected the file of its labels too, such as {path}:labels=labels.npy")
        files = {name: Path(file) for name, file in columns.items() if name != "features"}
        return {"features": table["features"], **{name: read_npy(file) for name, file in files.items()}}
    for name, other in COLUMNS.items():
        default = other if other and other in table and name not in table else name
        own[name] = columns.get(name, default)
        if name == "features" and table.wide and own[name] in table and table.is_number(own[name]):
            continue
        if own[name] in table:
            found[name] = table[own[name]]
        elif name in columns and name != "features":
            raise ValueError(f"{path}: {name}: expected one of {table.listed}, got {own[name]!r}")
        elif name == "labels" and table.wide:
            raise ValueError(
                f"{path}: expected a column labels; say {path}:labels=COLUMN, one of {table.listed}"
            )
    if "features" not in found:
        names = _names(table, columns.get("features"), {own[name] for name in found})
        found["features"] = np.stack([table[name] for name in names], 1)
        found["feature_names"] = np.array(names)
    if table.wide and found["features"].dtype.kind in "iub":
        found["features"] = found["features"].astype(np.result_type(np.float32, found["features"].dtype))
    if "key" in table and not table.wide:
        found["key"] = table["key"]
    if (names := table.class_names(own["labels"])) is not None:
        found["class_names"] = names
    return found


def _names(table: Table, pattern: str | None, used: set[str]) -> list[str]:
    """The columns that hold a number of the features each: those of a pattern, or all columns of numbers."""
    expected = "columns of numbers" if table.wide else "an array features"
    wrong = f"{table.path}: features: expected {expected}, or the name of one of {table.listed}, got"
    left = [name for name in table if name not in used]
    index = table.index if table.wide else set()
    columns = [name for name in left if name not in index]
    if pattern is None and table.wide:
        if others := [own for own in columns if _is_doubtful(table, own)]:
            kinds = ", ".join(f"{name!r} ({table.schema.field(name).type})" for name in others[:20])
            raise ValueError(
                f"{table.path}: features: expected columns of features alone, got also {kinds}; name the "
                f"features, such as {table.path}:features=a+b or features=f*, or leave these columns out"
            )
        chosen = columns
    else:
        chosen = list[str]()
        for part in (pattern or "").split("+"):
            matched = [part] if part in left else [name for name in columns if fnmatchcase(name, part)]
            if not matched:
                raise ValueError(f"{wrong} {pattern and part!r}")
            chosen += matched
    if not chosen or not table.wide:
        raise ValueError(f"{wrong} {pattern!r}")
    if texts := [name for name in chosen if not table.is_number(name)]:
        raise ValueError(f"{table.path}: features: expected columns of numbers, got {texts[0]!r}")
    return [name for name in table if name in chosen]


def _is_doubtful(table: Table, name: str) -> bool:
    """Whether a column is no feature, as far as its kind, its name and, of an id, its values tell."""
    if not table.is_number(name) or _DOUBTFUL.fullmatch(name):
        return True
    if not _ID.fullmatch(name):
        return False
    values = table[name]
    return values.dtype.kind in "iu" and len(values) > 1 and bool((values[1:] > values[:-1]).all())


def _held(path: Path, arrays: Mapping[str, np.ndarray]) -> Table:
    """The arrays of a file that has been read."""
    return Table(path, list(arrays), arrays.__getitem__)


def _torch(path: Path) -> Table:
    # Bfloat16 is no type of NumPy.
    arrays = read_torch(path)
    return _held(path, {k: v if v.dtype.kind in "biuf" else v.astype(np.float32) for k, v in arrays.items()})


def _parquet(path: Path) -> Table:
    parquet, arrow = optional("pyarrow.parquet", _ARROW), optional("pyarrow", _ARROW)
    try:
        file = parquet.ParquetFile(path)
    except arrow.ArrowException as error:
        raise ValueError(f"{path}: expected a Parquet file ({error})") from error
    return _table(path, file.schema_arrow, lambda name: file.read([name]).column(0))


def _csv(path: Path) -> Table:
    csv, arrow = optional("pyarrow.csv", _ARROW), optional("pyarrow", _ARROW)
    tab = csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
    try:
        table = csv.read_csv(path, parse_options=tab)
    except arrow.ArrowException as error:
        raise ValueError(f"{path}: expected a table with a line of names ({error})") from error
    return _table(path, table.schema, table.column)


def _arrow(path: Path) -> Table:
    table = _stream(path)
    return _table(path, table.schema, table.column)


def splits_in(path: Path) -> tuple[Path, Path] | None:
    """The folders of train and test in one that ``save_to_disk`` wrote of a ``DatasetDict``; None in others.

    Raises:
        ValueError: if it has other splits.
    """
    if not (path / "dataset_dict.json").is_file():
        return None
    splits = json.loads((path / "dataset_dict.json").read_bytes())["splits"]
    if not {"train", "test"} <= set(splits):
        raise ValueError(f"{path}: expected the splits train and test, or the folder of one, got {splits}")
    return path / "train", path / "test"


def _folder(path: Path) -> Table:
    """A split of a data set of Hugging Face as ``save_to_disk`` leaves it."""
    if not (path / "state.json").is_file():
        raise ValueError(
            f"{path}: expected the folder of one split that save_to_disk of datasets wrote, with state.json"
        )
    files = json.loads((path / "state.json").read_bytes())["_data_files"]
    arrow, parts = optional("pyarrow", _ARROW), [_stream(path / file["filename"]) for file in files]
    try:
        table = arrow.concat_tables(parts)
    except arrow.ArrowException as error:
        raise ValueError(f"{path}: expected files with the same columns, one at least ({error})") from error
    return _table(path, table.schema, table.column)


def _stream(path: Path) -> Any:
    """A table in Arrow's format of streams or files."""
    arrow = optional("pyarrow", _ARROW)
    try:
        with arrow.memory_map(str(path)) as source:
            opened = arrow.ipc.open_file if source.read(6) == b"ARROW1" else arrow.ipc.open_stream
            source.seek(0)
            return opened(source).read_all()
    except arrow.ArrowException as error:
        raise ValueError(f"{path}: expected an Arrow file ({error})") from error


def _table(path: Path, schema: Any, column: Callable[[str], Any]) -> Table:
    """A table of Arrow, whose columns are read when they are asked for."""
    name, count = (Counter(schema.names).most_common(1) or [("", 0)])[0]
    if count > 1:
        raise ValueError(f"{path}: expected a name of its own for each column, got {name!r} {count} times")
    return Table(path, schema.names, lambda name: _array(column(name), f"{path}: {name}"), schema)


def _array(column: Any, where: str) -> np.ndarray:
    """A column of Arrow as an array; lists of one length as the rows of a matrix."""
    arrow = optional("pyarrow", _ARROW)
    flat = column.combine_chunks()
    flat = arrow.concat_arrays(flat.chunks) if isinstance(flat, arrow.ChunkedArray) else flat
    if isinstance(flat, arrow.ExtensionArray):
        flat = flat.storage
    if arrow.types.is_dictionary(flat.type):
        flat = flat.dictionary_decode()
    if flat.null_count:
        raise ValueError(f"{where}: expected a value for each example, got {flat.null_count} without one")
    if not hasattr(flat, "flatten") or not hasattr(flat.type, "value_type"):
        array = flat.to_numpy(zero_copy_only=False)
        return array.astype(str) if array.dtype == object else array
    inner = flat.flatten()
    width = len(inner) // max(len(flat), 1)
    if (np.asarray(flat.value_lengths()) != width).any():
        raise ValueError(f"{where}: expected a list of the same length for each example")
    values = _array(arrow.chunked_array([inner]), where)
    return values.reshape(len(flat), width, *values.shape[1:])


_READERS: dict[str, Callable[[Path], Table]] = {
    ".npz": lambda path: _held(path, read_npz(path)),
    ".npy": lambda path: _held(path, {"features": read_npy(path)}),
    **dict.fromkeys((".pt", ".pth"), _torch),
    ".safetensors": lambda path: _held(path, read_safetensors(path)),
    ".parquet": _parquet,
    ".arrow": _arrow,
    **dict.fromkeys((".csv", ".tsv"), _csv),
    "": _folder,
}
READABLE = tuple(kind for kind in _READERS if kind)
