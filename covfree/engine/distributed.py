"""Fit heads to shards (parts of a data set), or compute the features of shards, on a Dask cluster."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from covfree.core.atomic import replacing
from covfree.core.checks import check_positive
from covfree.core.columns import open_table
from covfree.core.optional import optional
from covfree.core.types import H
from covfree.engine.aggregate import Aggregate, add, finish, merge, zero
from covfree.methods import Method

# Names of the columns of features, labels and clients in a shard; None for a missing column.
Columns: TypeAlias = tuple[str, str | None, str | None]
# A function from a shard to a mapping of its columns.
Read: TypeAlias = Callable[[Any], Any]
StrPath: TypeAlias = str | os.PathLike[str]

_COLUMNS: Columns = ("features", "labels", "clients")
# Tasks for each thread of the cluster. More tasks balance the load better, but leave more totals to merge.
_TASKS = 4
# One task merges this many totals.
_MERGED = 4


def fit(
    method: Method[H],
    shards: Any,
    *,
    num_classes: int,
    columns: Columns = _COLUMNS,
    read: Read | None = None,
    client: Any = None,
    retries: int = 3,
) -> H:
    """Solve for the head from shards of examples, which stay on the workers of a Dask cluster.

    A task adds the examples of several shards to one total (`covfree.aggregate`), and a tree of tasks merges
    the totals. A worker needs memory for one shard and a few totals. If a worker is lost, Dask repeats its
    tasks on other workers. A client's examples may be in several shards.

    Args:
        method: a method that `covfree.aggregate.zero` accepts.
        shards: paths of files that all workers can reach, in a format of `covfree.data.load`, or other items
            that ``read`` accepts. Or a Dask collection with partitions, such as a DataFrame with ``columns``.
        num_classes: C.
        columns: names of the features (in Parquet a list of numbers for each example), labels and clients. If
            the method does not tell clients apart, shards need no ``"clients"`` column. With None as the
            name of the clients, that column is not read.
        read: a function from a shard to a mapping of column names to arrays, or to an Arrow table; needed for
            other file formats or an object store. By default, files are read according to their suffix.
        client: a ``distributed.Client``; by default the current one, or else Dask's threaded scheduler.
        retries: how often a task that raised is tried again; used only with a ``distributed.Client``. Tasks
            of lost workers run again as Dask's ``distributed.scheduler.allowed-failures`` says.

    Returns:
        The method's head.

    Raises:
        ImportError: if Dask is not installed (extra ``dask``).
        ValueError: if there are no shards, if a path occurs twice, or if `covfree.aggregate` raises.
        KeyError: if a shard lacks a column.
    """
    more = {"num_classes": num_classes, "columns": columns, "read": read, "client": client}
    return finish(total(method, shards, retries=retries, **more))


def total(
    method: Method[H],
    shards: Any,
    *,
    num_classes: int,
    columns: Columns = _COLUMNS,
    read: Read | None = None,
    client: Any = None,
    retries: int = 3,
) -> Aggregate[H]:
    """Return the total of all shards' examples; it can be saved, or merged with the total of later shards.

    The arguments and errors are the same as for `fit`. `covfree.aggregate.finish` solves for the head.
    """
    empty = zero(method, num_classes=num_classes)
    dask = optional("dask", "dask")
    parts = _parts(shards)
    client = _current(client)
    threads = (os.cpu_count() or 1) if client is None else sum(client.nthreads().values())
    groups = np.array_split(np.arange(len(parts)), min(len(parts), _TASKS * max(1, threads)))
    # With traverse=True, Dask would take the dataclass apart in search of tasks.
    start = dask.delayed(empty, traverse=False)
    totals = [
        dask.delayed(_folded, pure=False)(start, [parts[i] for i in group], columns, read) for group in groups
    ]
    while len(totals) > 1:
        totals = [
            dask.delayed(reduce, pure=False)(merge, totals[i : i + _MERGED])
            for i in range(0, len(totals), _MERGED)
        ]
    return _computed(totals[0], client, retries)


def extract(
    function: Callable[[np.ndarray], Any],
    shards: Any,
    folder: StrPath,
    *,
    batch_size: int = 64,
    columns: Columns = ("images", "labels", "clients"),
    read: Read | None = None,
    client: Any = None,
    retries: int = 3,
) -> list[str]:
    """Compute features of shards on a Dask cluster, and write a file for each shard, which `fit` can read.

    Files are written atomically, so repeating a task of a lost worker does no harm.

    Args:
        function: a function from a batch of inputs to features [batch, dim], sent once to each worker. It
            gets texts, and images of different shapes, as a list. If it is an `Extractor`, its ``key`` is
            written to the files.
        shards: see `fit`.
        folder: the folder for the files; all workers must reach it.
        batch_size: inputs in a batch; the last batch is padded, so that one shape is compiled.
        columns: names of the inputs, labels and clients in the shards; None for missing columns. A
            column ``"clients"`` may be missing.
        read: see `fit`.
        client: see `fit`.
        retries: see `fit`.

    Returns:
        The paths of the files, in the order of the shards: ``.npz`` with ``features`` and, if the shards have
        them, ``labels`` and ``clients``. An empty shard has features [0, 0], which `fit` ignores.

    Raises:
        ImportError: if Dask is not installed (extra ``dask``).
        ValueError: if there are no shards, if a path occurs twice, or if ``batch_size`` is below 1.
        KeyError: if a shard lacks a column.
    """
    check_positive("batch_size", batch_size)
    dask = optional("dask", "dask")
    parts = _parts(shards)
    Path(folder).mkdir(parents=True, exist_ok=True)
    network = dask.delayed(function, traverse=False)
    written = [
        dask.delayed(_extracted, pure=False)(
            network, part, str(Path(folder) / f"{number:06d}.npz"), batch_size, columns, read
        )
        for number, part in enumerate(parts)
    ]
    return _computed(dask.delayed(list, pure=False)(written), _current(client), retries)


def _parts(shards: Any) -> list[Any]:
    """Return the shards, or a Dask collection's partitions, as a list; raise if a path occurs twice."""
    if hasattr(shards, "to_delayed"):
        parts = list(np.ravel(shards.to_delayed()))
    elif isinstance(shards, (str, os.PathLike)) or not isinstance(shards, Iterable):
        raise TypeError(f"shards: expected a list of paths or a Dask collection, got {shards!r}")
    else:
        parts = [os.fspath(shard) if isinstance(shard, os.PathLike) else shard for shard in shards]
    if not parts:
        raise ValueError("shards: expected one at least, got none")
    paths = Counter(os.path.normpath(part) for part in parts if isinstance(part, str))
    if (twice := next((path for path, count in paths.items() if count > 1), None)) is not None:
        raise ValueError(f"shards: expected each once, as examples would count twice; got {twice!r} twice")
    return parts


def _columns_of(
    shard: Any, columns: Columns, read: Read | None, clients_needed: bool
) -> list[np.ndarray | None]:
    """Return a shard's ``columns`` as arrays, with None for clients if they are missing and not needed."""
    found = read(shard) if read else open_table(Path(shard)) if isinstance(shard, str) else shard
    # Tables of Arrow or Hugging Face are not mappings: they list their columns in ``column_names``.
    known = set(getattr(found, "column_names", None) or found.keys())
    if not clients_needed and columns[2] == _COLUMNS[2] and columns[2] not in known:
        columns = (*columns[:2], None)
    if missing := [name for name in columns if name is not None and name not in known]:
        needed = (
            "the method needs the client of each example"
            if clients_needed
            else "give None in its place for shards without clients"
        )
        hint = f"; {needed}" if missing[0] == columns[2] else ""
        raise KeyError(f"columns: expected {missing[0]!r} in each shard, got one of {sorted(known)}{hint}")
    return [None if name is None else _array(found[name]) for name in columns]


def _array(column: Any) -> np.ndarray:
    """Convert a column to an array; a column of equally long arrays becomes a matrix."""
    array = np.asarray(column)
    if array.dtype != object or not len(array):
        return array
    try:
        return np.stack(array.tolist())
    except ValueError:
        # Images of different shapes cannot be stacked: keep the array of objects.
        return array


def _folded(
    start: Aggregate[Any], shards: Sequence[Any], columns: Columns, read: Read | None
) -> Aggregate[Any]:
    """Return the total ``start`` with the examples in ``shards`` added, as one Dask task does.

    ``columns`` and ``read`` say how to read a shard, see `fit`.
    """
    total = start
    for shard in shards:
        features, labels, clients = _columns_of(shard, columns, read, start.layout.by_client)
        # Skip an empty shard, whose features may lack a dimension.
        if features is not None and len(features):
            total = add(total, features, labels, clients)  # pyright: ignore[reportArgumentType]
    return total


def _extracted(
    function: Any, shard: Any, path: str, batch_size: int, columns: Columns, read: Read | None
) -> str:
    """Compute the features of one shard by ``function``; return the ``path`` of the file with the result.

    The file holds the features and the shard's labels and clients.
    """
    inputs, labels, clients = _columns_of(shard, columns, read, False)
    assert inputs is not None
    features = []
    for start in range(0, len(inputs), batch_size):
        batch = inputs[start : start + batch_size]
        padding = np.repeat(batch[-1:], batch_size - len(batch), 0)
        padded = np.concatenate([batch, padding])
        given = padded.tolist() if padded.dtype.kind in "USO" else padded
        features.append(np.asarray(function(given))[: len(batch)])
    features = np.concatenate(features) if features else np.empty((0, 0), np.float32)
    kept = {"features": features, "labels": labels, "clients": clients}
    kept = {name: array for name, array in kept.items() if array is not None}
    if isinstance(key := getattr(function, "key", None), dict):
        kept["key"] = np.array(json.dumps(key))
    with replacing(Path(path)) as file:
        np.savez(file, **kept)  # pyright: ignore[reportArgumentType]
    return path


def _current(client: Any) -> Any:
    """Return ``client`` or else this process's current Dask client; None if there is none."""
    if client is not None:
        return client
    try:
        return optional("distributed", "dask").get_client()
    except (ImportError, ValueError):
        return None


def _computed(task: Any, client: Any, retries: int) -> Any:
    """Return the result of a Dask task, computed on the client's cluster, or in this process without one."""
    return task.compute() if client is None else client.compute(task, retries=retries).result()
