"""Messages in files: one a client."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from covfree.core.atomic import replacing
from covfree.core.checks import check_row_structure, check_type
from covfree.core.optional import optional
from covfree.core.types import Message, Rows

_FORMAT = "covfree.Message"
# Files of before there were versions have none, and are of this one.
_VERSION = "1"
_NEEDED = ("mean", "count", "label")
_ROWS = (*_NEEDED, "client", "covariance", "sketch")
# What NumPy can read; safetensors has more of them.
_DTYPES = ("BF16", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL")


def shown(path: str | PathLike[str]) -> str:
    """A path or name as errors show it: in quotes if it holds what does not print, such as a new line."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)


def save_message(message: Message, path: str | PathLike[str]) -> None:
    """Write a message to a safetensors file (needs the ``safetensors`` extra).

    An interrupted call leaves no file, or the earlier one. Each call writes a random identity into the file,
    by which `MessageFolder` tells a copy of a file from another message with the same numbers.

    Args:
        message: from `client_message`, or from `collect`.
        path: the file, which is replaced if it is there. Its name, up to the ending, is what `collect_files`
            calls the client; the ending should be ``.safetensors``, as `MessageFolder` passes over others.
    """
    check_type("message", message, Message)
    rows = {name: getattr(message.rows, name) for name in _ROWS}
    # Contiguous: the writer takes the memory as it lies.
    tensors = {
        name: np.ascontiguousarray(value)
        for name, value in {**rows, "matrix": message.matrix}.items()
        if value is not None
    }
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "identity": uuid.uuid4().hex,
        "solved": str(message.solved).lower(),
    }
    if message.sends is not None:
        metadata["sends"] = message.sends
    # As bytes: the library's own writing to files gives them a mode that shuts other users out.
    content = optional("safetensors.numpy", "safetensors").save(tensors, metadata=metadata)
    with replacing(Path(path)) as file:
        file.write(content)


@contextmanager
def _opened(path: str | PathLike[str]) -> Iterator[Any]:
    """Open a message file and check its header; no tensor is read."""
    safetensors = optional("safetensors", "safetensors")
    expected = f"path: {shown(path)}: expected a message written by save_message"
    # The library calls a file that it may not read one that is not there.
    Path(path).open("rb").close()
    try:
        with safetensors.safe_open(path, framework="numpy") as opened:
            names, metadata = set(opened.keys()), opened.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError(f"{expected}, got format {metadata.get('format')!r} with {sorted(names)}")
            if (version := metadata.get("version", _VERSION)) != _VERSION:
                raise ValueError(f"{expected} in version {_VERSION}, got version {version!r}")
            if not set(_NEEDED) <= names <= {*_ROWS, "matrix"}:
                raise ValueError(
                    f"{expected}, with {', '.join(_NEEDED)} and no other tensors than client, covariance, "
                    f"sketch and matrix, got {sorted(names)}"
                )
            dtypes = {name: opened.get_slice(name).get_dtype() for name in names}
            if strange := {name: dtype for name, dtype in dtypes.items() if dtype not in _DTYPES}:
                raise ValueError(f"{expected}, in data types among {', '.join(_DTYPES)}, got {strange}")
            yield opened
    except safetensors.SafetensorError as error:
        raise ValueError(f"{expected}, got a file that is cut short or no safetensors: {error}") from error


def _as_message(opened: Any, tensors: Mapping[str, np.ndarray]) -> Message:
    rows = Rows(**{name: tensors.get(name) for name in _ROWS})  # pyright: ignore[reportArgumentType]
    metadata = opened.metadata()
    return Message(rows, tensors.get("matrix"), metadata.get("solved") == "true", metadata.get("sends"))


def load_message(path: str | PathLike[str]) -> Message:
    """Read a message written by `save_message`.

    Args:
        path: the file.

    Returns:
        The message, in NumPy arrays. `collect` checks its values.

    Raises:
        ValueError: if the file is cut short, no message, or holds arrays that do not fit together; it names
            the path.

    >>> import covfree, numpy as np, tempfile
    >>> sent = covfree.Message(covfree.Rows(np.ones((1, 2)), np.array([3]), np.array([0])))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_message(sent, f"{folder}/a.safetensors")
    ...     load_message(f"{folder}/a.safetensors").rows.mean.tolist()
    [[1.0, 1.0]]
    """
    with _opened(path) as opened:
        message = _as_message(opened, {name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
    try:
        check_row_structure(message.rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"path: {shown(path)}: expected a message that is sound, got {error}") from error
    return message


def read_header(path: Path) -> tuple[Message, np.ndarray, str | None]:
    """Read the header of a message file: zero-filled views with the file's shapes and data types.

    No tensor but the counts is read.

    Returns:
        The message, its counts, and the identity of the writing; None if the file has none.
    """

    def zeros(opened: Any, name: str) -> np.ndarray:
        tensor = opened.get_slice(name)
        shape = tensor.get_shape()
        empty = tensor[:0] if shape and shape[0] else opened.get_tensor(name)
        return np.broadcast_to(np.zeros((), empty.dtype), shape)

    with _opened(path) as opened:
        message = _as_message(opened, {name: zeros(opened, name) for name in opened.keys()})  # noqa: SIM118
        return message, opened.get_tensor("count"), opened.metadata().get("identity")


def read_rows(path: str | PathLike[str], start: int, stop: int) -> Rows:
    """Rows ``start`` to ``stop`` alone of the message in a file; there must be some."""
    with _opened(path) as opened:
        names = set(opened.keys()) - {"matrix"}
        return _as_message(opened, {name: opened.get_slice(name)[start:stop] for name in names}).rows
