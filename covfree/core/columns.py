"""Read features, labels and clients from NumPy, PyTorch, safetensors, Arrow, Parquet or CSV files."""

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

# The arrays to read from a file, each with a second name under which it may be stored, or None.
COLUMNS: dict[str, str | None] = {"features": None, "labels": "label", "clients": "client", "is_test": None}
_ARROW = "tables"
# Names of pandas' index columns in Parquet; names of columns that are features only if a caller names them.
_INDEX, _DOUBTFUL = re.compile(r"__index_level_\d+__"), re.compile(r"|Unnamed: \d+|labels?|clients?|is_test")
# Names of columns that may hold ids of the examples.
_ID = re.compile(r"(?i).*(id|ids|idx|index|row|nr|no|number)")


class Columns(Mapping[str, np.ndarray]):
    """The columns of a file, by name. A column is read, by the function ``read``, when it is accessed."""

    def __init__(
        self, path: Path, names: Sequence[str], read: Callable[[str], np.ndarray], schema: Any = None
    ) -> None:
        self.path, self._names, self._read = path, list(names), read
        # The schema of an Arrow table; None for other files.
        self.schema = schema

    def __getitem__(self, name: str) -> np.ndarray:
        """Read the column ``name``."""
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the columns' names."""
        return iter(self._names)

    def __len__(self) -> int:
        """The number of columns."""
        return len(self._names)

    @property
    def wide(self) -> bool:
        """Whether this is an Arrow table, in which each feature may have a column of its own."""
        return self.schema is not None

    def is_number(self, name: str) -> bool:
        """Return whether a column of an Arrow table contains numbers or booleans."""
        types, own = optional("pyarrow", _ARROW).types, self.schema.field(name).type
        return types.is_integer(own) or types.is_floating(own) or types.is_boolean(own)

    @property
    def index(self) -> set[str]:
        """Names of the columns of an Arrow table that store the index of a pandas data frame."""
        named = self._about(b"pandas").get("index_columns", [])
        return {name for name in self if name in named or _INDEX.fullmatch(name)}

    def class_names(self, labels: str) -> Any:
        """Return the class names that the file stores for its column ``labels``; None if there are none."""
        if not self.wide:
            return self.get("class_names")
        # The package `datasets` writes class names in its type `ClassLabel`.
        try:
            return np.array(self._about(b"huggingface")["info"]["features"][labels]["names"], str)
        except (KeyError, TypeError):
            return None

    def _about(self, package: bytes) -> dict[str, Any]:
        """Return the metadata that a package wrote into the Arrow schema; an empty dict if there is none."""
        try:
            about = json.loads((self.schema.metadata or {})[package])
        except (KeyError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}

    @property
    def listed(self) -> str:
        """The column names as text; of more than 20 names, the first 17 and the last two."""
        names = self._names if len(self) <= 20 else [*self._names[:17], "…", *self._names[-2:]]
        return ", ".join(names)


def open_table(path: Path) -> Columns:
    """Open, as `Columns`, a file with a suffix in `READABLE` or a saved split of a Hugging Face data set.

    Raises:
        ValueError: if the file has another format or is damaged.
        FileNotFoundError: if there is no such file or folder.
        ImportError: if pyarrow or safetensors is needed and not installed.
    """
    kind = "" if path.is_dir() else path.suffix
    if kind not in _READERS or not path.name:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(READABLE)}, got {path.name!r}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    return _READERS[kind](path)


def read_columns(path: Path, columns: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Read features and labels and, if present, clients, ``is_test`` and ``class_names`` from a file.

    Args:
        path: see `open_table`. If a table has no column ``features``, each column except labels, clients and
            ``is_test`` is one feature; their names are returned as ``feature_names``. The index of a pandas
            data frame is left out.
        columns: for each of the keys ``features``, ``labels``, ``clients`` and ``is_test``, the name of a
            column in the file. Without an entry, the key itself is the name; for labels and clients also
            ``label`` and ``client``. For features there may be several names, such as ``"age+weight"``, or a
            pattern, such as ``"f*"``. For a ``.npy`` file of features, an entry is the path of another
            ``.npy`` file.

    Returns:
        The arrays by these keys, and perhaps ``class_names``, ``feature_names`` and, if `covfree extract`
        wrote it, ``key`` (`Extractor.key`).

    Raises:
        ValueError: if `open_table` raises one; if ``columns`` has another key; if the file lacks features, or
            a column that ``columns`` names (the message lists the columns that exist); if a table or ``.npy``
            file comes without labels. Also if a column that would be a feature is not numeric or, unless
            ``columns`` names the features, looks like labels, clients, an index or ids of the examples.
        FileNotFoundError: if there is no such file.
        ImportError: if `open_table` raises one.
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
    if not table.wide:
        found.update((name, table[name]) for name in ("key", "feature_names") if name in table)
    if (names := table.class_names(own["labels"])) is not None:
        found["class_names"] = names
    return found


def _names(table: Columns, pattern: str | None, used: set[str]) -> list[str]:
    """Return the columns that each hold a feature: those that ``pattern`` names, else all but ``used``.

    Raises:
        ValueError: if no column matches, or if one is refused as a feature (see `read_columns`).
    """
    left = [name for name in table if name not in used]
    expected = "columns of numbers" if table.wide else "an array features"
    wrong = f"{table.path}: features: expected {expected}, or the name of one of {table.listed}, got"
    if not table.wide:
        if pattern is not None:
            raise ValueError(f"{wrong} {pattern!r}")
        if {"format", "version", "kind"} <= set(table):
            raise ValueError(f"{table.path}: expected features and labels, got a saved head")
        raise ValueError(
            f"{table.path}: has no array 'features' (it has {table.listed or 'none'}); name it, such as "
            f"{table.path}:features={next(iter(left), 'NAME')}"
        )
    index = table.index
    columns = [name for name in left if name not in index]
    if pattern is None:
        if others := [own for own in columns if _is_doubtful(table, own)]:
            kinds = ", ".join(f"{name!r} ({table.schema.field(name).type})" for name in others[:20])
            raise ValueError(
                f"{table.path}: features: expected columns of features alone, got also {kinds}; name the "
                f"features, such as {table.path}:features=a+b or features=f*, or leave these columns out"
            )
        chosen = columns
    else:
        chosen = list[str]()
        for part in pattern.split("+"):
            matched = [part] if part in left else [name for name in columns if fnmatchcase(name, part)]
            if not matched:
                raise ValueError(f"{wrong} {part!r}")
            chosen += matched
    if not chosen:
        raise ValueError(f"{wrong} {pattern!r}")
    if texts := [name for name in chosen if not table.is_number(name)]:
        raise ValueError(f"{table.path}: features: expected columns of numbers, got {texts[0]!r}")
    return [name for name in table if name in chosen]


def _is_doubtful(table: Columns, name: str) -> bool:
    """Return whether a column is probably no feature: strings, labels, clients, an index, or ids."""
    if not table.is_number(name) or _DOUBTFUL.fullmatch(name):
        return True
    if not _ID.fullmatch(name):
        return False
    values = table[name]
    return values.dtype.kind in "iu" and len(values) > 1 and bool((values[1:] > values[:-1]).all())


def _held(path: Path, arrays: Mapping[str, np.ndarray]) -> Columns:
    """Make a `Columns` of arrays in memory, which were read from ``path``."""
    return Columns(path, list(arrays), arrays.__getitem__)


def _torch(path: Path) -> Columns:
    # Convert bfloat16, which NumPy lacks, to float32.
    arrays = read_torch(path)
    return _held(path, {k: v if v.dtype.kind in "biuf" else v.astype(np.float32) for k, v in arrays.items()})


def _parquet(path: Path) -> Columns:
    parquet, arrow = optional("pyarrow.parquet", _ARROW), optional("pyarrow", _ARROW)
    try:
        file = parquet.ParquetFile(path)
    except arrow.ArrowException as error:
        raise ValueError(f"{path}: expected a Parquet file ({error})") from error
    return _table(path, file.schema_arrow, lambda name: file.read([name]).column(0))


def _csv(path: Path) -> Columns:
    csv, arrow = optional("pyarrow.csv", _ARROW), optional("pyarrow", _ARROW)
    tab = csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
    try:
        table = csv.read_csv(path, parse_options=tab)
    except arrow.ArrowException as error:
        raise ValueError(f"{path}: expected a table with a line of names ({error})") from error
    return _table(path, table.schema, table.column)


def _arrow(path: Path) -> Columns:
    table = _stream(path)
    return _table(path, table.schema, table.column)


def splits_in(path: Path) -> tuple[Path, Path] | None:
    """Return the train and test folders of a ``DatasetDict`` saved in ``path``; None for any other folder.

    Raises:
        ValueError: if the data set lacks the split named train or the one named test.
    """
    if not (path / "dataset_dict.json").is_file():
        return None
    splits = json.loads((path / "dataset_dict.json").read_bytes())["splits"]
    if not {"train", "test"} <= set(splits):
        raise ValueError(f"{path}: expected the splits train and test, or the folder of one, got {splits}")
    return path / "train", path / "test"


def _folder(path: Path) -> Columns:
    """Open one split of a Hugging Face data set, as written by ``save_to_disk``."""
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
    """Open a file in Arrow's stream or file format as an Arrow table, memory-mapped."""
    arrow = optional("pyarrow", _ARROW)
    try:
        with arrow.memory_map(str(path)) as source:
            opened = arrow.ipc.open_file if source.read(6) == b"ARROW1" else arrow.ipc.open_stream
            source.seek(0)
            return opened(source).read_all()
    except arrow.ArrowException as error:
        raise ValueError(f"{path}: expected an Arrow file ({error})") from error


def _table(path: Path, schema: Any, column: Callable[[str], Any]) -> Columns:
    """Make a `Columns` of Arrow columns; ``column`` reads a column, by its name, when it is needed."""
    name, count = (Counter(schema.names).most_common(1) or [("", 0)])[0]
    if count > 1:
        raise ValueError(f"{path}: expected a name of its own for each column, got {name!r} {count} times")
    return Columns(path, schema.names, lambda name: _array(column(name), f"{path}: {name}"), schema)


def _array(column: Any, where: str) -> np.ndarray:
    """Convert an Arrow column to an array; lists of equal length become the rows of a matrix."""
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


_READERS: dict[str, Callable[[Path], Columns]] = {
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
