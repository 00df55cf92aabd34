"""Features, labels and clients of a file by names of columns: NumPy, PyTorch, Arrow, Parquet, CSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from covfree.core.array_file import read_npz, read_safetensors
from covfree.core.optional import optional
from covfree.core.torch_file import read_torch

# What a file holds of each example, with the other name that it may have.
COLUMNS: dict[str, str | None] = {"features": None, "labels": "label", "clients": "client", "is_test": None}
_ARROW = "tables"


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

    def class_names(self, labels: str) -> Any:
        """The names of the classes that a column of labels numbers; None if the file does not say."""
        if not self.wide:
            return self.get("class_names")
        # What the package `datasets` writes: its type `ClassLabel` has the names.
        try:
            about = json.loads((self.schema.metadata or {})[b"huggingface"])
            return np.array(about["info"]["features"][labels]["names"], str)
        except (KeyError, TypeError, ValueError):
            return None

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
            numbers.
        columns: the file's own names of `COLUMNS`. Of features also several, such as ``"age+weight"``, or a
            pattern, such as ``"f*"``. Of ``.npy``, a file for each other part.

    Raises:
        ValueError: as `open_table`, or if there is no such column; the message lists those that there are.
        FileNotFoundError: if there is no such file.
        ImportError: as `open_table`.
    """
    if wrong := sorted(set(columns) - set(COLUMNS)):
        raise ValueError(f"columns: expected names of {', '.join(COLUMNS)}, got {wrong[0]!r}")
    table, found, used = open_table(path), dict[str, np.ndarray](), set[str]()
    chosen_labels = "labels"
    if path.suffix == ".npy":
        files = {name: Path(own) for name, own in columns.items() if name != "features"}
        return {"features": table["features"], **{name: _npy(file) for name, file in files.items()}}
    for name, other in COLUMNS.items():
        default = other if other and other in table and name not in table else name
        chosen = columns.get(name, default)
        if chosen in table:
            found[name] = table[chosen]
            used.add(chosen)
            chosen_labels = chosen if name == "labels" else chosen_labels
        elif name in columns and name != "features":
            raise ValueError(f"{path}: {name}: expected one of {table.listed}, got {chosen!r}")
    if "features" not in found:
        found["features"] = _several(table, columns.get("features"), used)
    if (names := table.class_names(chosen_labels)) is not None:
        found["class_names"] = names
    return found


def _several(table: Table, pattern: str | None, used: set[str]) -> np.ndarray:
    """Features [n, d] whose numbers lie in a column each: of these names, or all columns of numbers."""
    wanted = ["*"] if pattern is None else pattern.split("+")
    names = [each for each in table if any(fnmatchcase(each, own) for own in wanted) and each not in used]
    read = {each: table[each] for each in names} if table.wide else {}
    if pattern is None:
        read = {each: own for each, own in read.items() if own.dtype.kind in "fiu" and own.ndim == 1}
    if not read:
        expected = "columns of numbers" if table.wide else "an array features"
        raise ValueError(
            f"{table.path}: features: expected {expected}, or the name of one of {table.listed}, "
            f"got {pattern!r}"
        )
    if wrong := [each for each, own in read.items() if own.dtype.kind not in "fiub" or own.ndim != 1]:
        raise ValueError(f"{table.path}: features: expected columns of numbers, got {wrong[0]!r}")
    single = all(own.dtype == np.float32 for own in read.values())
    return np.stack(list(read.values()), 1).astype(np.float32 if single else np.float64)


def _held(path: Path, arrays: Mapping[str, np.ndarray]) -> Table:
    """The arrays of a file that has been read."""
    return Table(path, list(arrays), arrays.__getitem__)


def _npy(path: Path) -> np.ndarray:
    """The array of a ``.npy`` file, which stays on disk."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path}: expected a .npy file of plain numbers or texts ({error})") from error


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
    schema = file.schema_arrow
    return Table(
        path, schema.names, lambda name: _array(file.read([name]).column(0), f"{path}: {name}"), schema
    )


def _csv(path: Path) -> Table:
    csv, arrow = optional("pyarrow.csv", _ARROW), optional("pyarrow", _ARROW)
    tab = csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
    try:
        return _arrow_table(csv.read_csv(path, parse_options=tab), path)
    except arrow.ArrowException as error:
        raise ValueError(f"{path}: expected a table with a line of names ({error})") from error


def _arrow(path: Path) -> Table:
    return _arrow_table(_stream(path), path)


def _folder(path: Path) -> Table:
    """A data set of Hugging Face as ``save_to_disk`` leaves it: one split, or train and test."""
    if not (path / "dataset_dict.json").is_file():
        return _arrow_table(_split(path), path)
    splits = json.loads((path / "dataset_dict.json").read_bytes())["splits"]
    if not {"train", "test"} <= set(splits):
        raise ValueError(f"{path}: expected the splits train and test, or the folder of one, got {splits}")
    parts = [_split(path / name) for name in ("train", "test")]
    table = optional("pyarrow", _ARROW).concat_tables(parts)
    if "is_test" not in table.column_names:
        table = table.append_column("is_test", [np.repeat([False, True], [len(part) for part in parts])])
    return _arrow_table(table, path)


def _split(path: Path) -> Any:
    """The table of one split."""
    if not (path / "state.json").is_file():
        raise ValueError(f"{path}: expected a folder that save_to_disk of datasets wrote, without state.json")
    files = json.loads((path / "state.json").read_bytes())["_data_files"]
    return optional("pyarrow", _ARROW).concat_tables([_stream(path / file["filename"]) for file in files])


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


def _arrow_table(table: Any, path: Path) -> Table:
    names, schema = table.column_names, table.schema
    return Table(path, names, lambda name: _array(table.column(name), f"{path}: {name}"), schema)


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
    ".npy": lambda path: _held(path, {"features": _npy(path)}),
    **dict.fromkeys((".pt", ".pth"), _torch),
    ".safetensors": lambda path: _held(path, read_safetensors(path)),
    ".parquet": _parquet,
    ".arrow": _arrow,
    **dict.fromkeys((".csv", ".tsv"), _csv),
    "": _folder,
}
READABLE = tuple(kind for kind in _READERS if kind)
