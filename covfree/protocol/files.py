"""Write and read files of messages. No file is memory-mapped, as strangers may have written it."""

from __future__ import annotations

import json
import math
import os
import stat
import uuid
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covfree.core.atomic import replacing
from covfree.core.checks import check_row_structure, check_type
from covfree.core.optional import optional
from covfree.core.types import Message, Rows
from covfree.protocol.messages import ROWS, digest
from covfree.protocol.tensors import DTYPES, read_header, read_tensors

SUFFIX = ".safetensors"
_FORMAT = "covfree.Message"
# The earliest files name no version; they count as this version.
_VERSION = "1"
_NEEDED = ("mean", "count", "label")
# O_NONBLOCK: do not wait for the writer of a pipe. O_NOFOLLOW: a link may lead to another client's message.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class MessageFile(NamedTuple):
    """The content of a message file.

    Attributes:
        message: the message.
        name: the name under which the file was written; None if the file does not say.
        receipt: the digest (hash) of the message, followed by the random number that `save_message` wrote
            into the file. So a copy of the file has the same receipt, but another client's equal message does
            not.
    """

    message: Message
    name: str | None
    receipt: str


def shown(path: str | PathLike[str]) -> str:
    """Format a path or name for errors: quoted if a character is not printable, such as a new line."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)


def save_message(message: Message, path: str | PathLike[str]) -> None:
    """Write a message to a safetensors file (needs the ``safetensors`` extra).

    An interrupted call leaves no file, or the earlier one. Each call writes the file's name and a random
    number into the file, so that `Inbox` can distinguish a copy of the file from another equal message.

    Args:
        message: from `client_message`, or from `collect`.
        path: the file, which is replaced if it exists. Its name without the ending is the client's name in an
            `Inbox`; the ending should be ``.safetensors``, as `Inbox` skips other files by default.
    """
    check_type("message", message, Message)
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "identity": uuid.uuid4().hex,
        "client": Path(path).name.removesuffix(SUFFIX),
    }
    write(path, message, metadata)


def write(path: str | PathLike[str], message: Message, metadata: Mapping[str, str]) -> None:
    """Write a message's arrays and metadata to a safetensors file."""
    rows = {name: getattr(message.rows, name) for name in ROWS}
    # safetensors copies the raw memory, so arrays must be contiguous.
    tensors = {
        name: np.ascontiguousarray(value)
        for name, value in {**rows, "matrix": message.matrix}.items()
        if value is not None
    }
    about = {**metadata, "solved": str(message.solved).lower()}
    if message.sends is not None:
        about["sends"] = message.sends
    if message.class_names is not None:
        about["class_names"] = json.dumps(message.class_names)
    if message.extractor is not None:
        about["extractor"] = message.extractor
    # Serialise to bytes and write them here: other users cannot read files that safetensors itself writes.
    content = optional("safetensors.numpy", "safetensors").save(tensors, metadata=about)
    with replacing(Path(path)) as file:
        file.write(content)


def load_message(path: str | PathLike[str]) -> Message:
    """Read a message written by `save_message`.

    Args:
        path: the file.

    Returns:
        The message, in NumPy arrays. `collect` checks its values.

    Raises:
        ValueError: if the file is cut short, is no message, or its arrays have inconsistent shapes; the error
            names the path.

    >>> import covfree, numpy as np, tempfile
    >>> sent = covfree.Message(covfree.Rows(np.ones((1, 2)), np.array([3]), np.array([0])))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_message(sent, f"{folder}/a.safetensors")
    ...     load_message(f"{folder}/a.safetensors").rows.mean.tolist()
    [[1.0, 1.0]]
    """
    message = read_message(path, links=True).message
    try:
        check_row_structure(message.rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"path: {shown(path)}: expected a message that is sound, got {error}") from error
    return message


def read_message(
    path: str | PathLike[str],
    *,
    max_bytes: int | float = math.inf,
    max_rows: int | float = math.inf,
    links: bool = False,
) -> MessageFile:
    """Return the content of an untrusted message file.

    Raises:
        ValueError: if the file is invalid, has more bytes or rows than allowed, or is a link and ``links`` is
            False.
    """
    message, metadata = read(path, _FORMAT, (_VERSION,), max_bytes, max_rows, links)
    receipt = digest(message)
    if (identity := metadata.get("identity")) is not None:
        receipt = f"{receipt}-{identity}"
    return MessageFile(message, metadata.get("client"), receipt)


def read(
    path: str | PathLike[str],
    form: str,
    versions: tuple[str, ...],
    max_bytes: int | float = math.inf,
    max_rows: int | float = math.inf,
    links: bool = True,
) -> tuple[Message, dict[str, str]]:
    """Return the message and metadata from a file of the format ``form`` and one of the ``versions``.

    With ``links``, the path may also be a symbolic link.

    Raises:
        ValueError: as `read_message`.
    """
    where = f"path: {shown(path)}:"
    expected = f"{where} expected a message written by save_message"
    broken = f"{expected}, got a file that is cut short or no safetensors:"
    with os.fdopen(open_regular(path, where, links), "rb", 0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ValueError(f"{expected}, of at most {max_bytes} bytes, got {size}")
        try:
            header, metadata, length = read_header(file, size)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{broken} {error}") from error
        if metadata.get("format") != form:
            raise ValueError(f"{expected}, got format {metadata.get('format')!r} with {sorted(header)}")
        if (version := metadata.get("version", _VERSION)) not in versions:
            raise ValueError(f"{expected} in version {versions[-1]}, got version {version!r}")
        if not set(_NEEDED) <= set(header) <= {*ROWS, "matrix"}:
            raise ValueError(
                f"{expected}, with {', '.join(_NEEDED)} and no other tensors than client, covariance, "
                f"sketch and matrix, got {sorted(header)}"
            )
        dtypes = {name: about["dtype"] for name, about in header.items()}
        if strange := {name: dtype for name, dtype in dtypes.items() if dtype not in DTYPES}:
            raise ValueError(f"{expected}, in data types among {', '.join(DTYPES)}, got {strange}")
        if (rows := max((about["shape"] or [1])[0] for about in header.values())) > max_rows:
            raise ValueError(f"{expected}, of at most {max_rows} rows, got {rows}")
        try:
            tensors = read_tensors(file, header, length)
            names = json.loads(metadata["class_names"]) if "class_names" in metadata else None
            if names is not None and not all(isinstance(name, str) for name in names):
                raise ValueError("its class names are not strings")
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{broken} {error}") from error
    parts = {name: tensors.get(name) for name in ROWS}
    message = Message(
        Rows(**parts),  # pyright: ignore[reportArgumentType]
        tensors.get("matrix"),
        metadata.get("solved") == "true",
        metadata.get("sends"),
        None if names is None else tuple(names),
        metadata.get("extractor"),
    )
    return message, metadata


def open_regular(path: str | PathLike[str], where: str, links: bool) -> int:
    """Open a regular file, or with ``links`` a link to one; return the file's descriptor.

    Raises:
        ValueError: if the path is something else; the error begins with ``where``.
    """
    try:
        descriptor = os.open(path, _FLAGS if links else _FLAGS | _NO_LINK)
    except OSError as error:
        if not links and Path(path).is_symlink():
            raise ValueError(f"{where} expected a regular file, got a symbolic link") from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise ValueError(f"{where} expected a regular file, got {kind}")
    return descriptor
