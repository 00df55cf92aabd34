"""Read ``.npy``, ``.npz`` and ``.safetensors`` files of arrays; write ``.safetensors``.

In a ``.safetensors`` file, numeric arrays are stored as tensors, and arrays of strings as JSON metadata.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from covfree.core.optional import optional

# Bytes that are read at a time.
_BLOCK = 2**22


def write_safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Encode arrays, by name, as the bytes of a ``.safetensors`` file. It needs the ``safetensors`` extra."""
    texts = {name: json.dumps(array.tolist()) for name, array in arrays.items() if array.dtype.kind == "U"}
    tensors = {name: array.copy(order="C") for name, array in arrays.items() if name not in texts}
    return optional("safetensors.numpy", "safetensors").save(tensors, metadata=texts)


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors of a ``.safetensors`` file, by name, and the file's metadata."""
    safetensors = optional("safetensors", "safetensors")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    # A data type that NumPy lacks, such as float8, raises an AttributeError or a TypeError.
    except (safetensors.SafetensorError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path}: expected a safetensors file of arrays; it is damaged, cut short or of another kind "
            f"({error})"
        ) from error


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a ``.safetensors`` file, by name; arrays of strings come from its metadata."""
    arrays, texts = read_tensors(path)
    for name, text in texts.items():
        # Skip metadata that other programs wrote, such as PyTorch's {"format": "pt"}: "pt" is not JSON.
        with suppress(ValueError):
            arrays[name] = np.asarray(json.loads(text))
    return arrays


def names_in(array: np.ndarray) -> tuple[str, ...]:
    """Convert an array of names, as bytes, strings or numbers, to a tuple of strings."""
    return tuple((np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array.astype(str)).tolist())


def read_npy(path: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file, memory-mapped and read-only."""
    _check_start(path, b"\x93NUMPY", "a .npy file of plain numbers or texts")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path}: expected a .npy file of plain numbers or texts ({error})") from error


def _check_start(path: Path, magic: bytes, expected: str) -> None:
    """Raise an error if a file is missing or does not start with ``magic``; ``expected`` names its format."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with path.open("rb") as stream:
        if (start := stream.read(len(magic))) != magic:
            raise ValueError(f"{path}: expected {expected}, got a file that begins {start!r}")


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an ``.npz`` file, by name, and verify their checksums.

    An uncompressed array ``features`` is memory-mapped, read-only, so it may be larger than memory.
    """
    _check_start(path, b"PK", "an .npz file of plain arrays")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            mapped = _map(stream, file.zip, "features")
            entries = {name: mapped[name] if name in mapped else file[name] for name in file.files}
            # Entries that are not arrays come as bytes; leave them out.
            return {name: entry for name, entry in entries.items() if isinstance(entry, np.ndarray)}
    # Decoders may raise any error on a damaged file, so all are caught.
    except Exception as error:
        raise ValueError(f"{path}: expected an .npz file of plain arrays ({error})") from error


def _map(stream: BinaryIO, archive: ZipFile, name: str) -> dict[str, np.ndarray]:
    """Return ``{name: array}``, the array memory-mapped, or ``{}`` if it cannot be mapped.

    An array cannot be mapped if it is absent, compressed, empty or made of Python objects, or if its header
    is not of version 1.0 or does not match its size. ``stream`` is the open file, ``archive`` its ZIP
    archive.
    """
    info = archive.NameToInfo.get(f"{name}.npy")
    if info is None or info.compress_type != ZIP_STORED:
        return {}
    with archive.open(info) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            return {}
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(member)
        header = member.tell()
        # Read the whole array once: at its end, `ZipFile` verifies the checksum, which a memory map does not.
        while member.read(_BLOCK):
            pass
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or size == 0 or header + size != info.file_size:
        return {}
    # A local ZIP header has 30 bytes, then the name and extra fields; bytes 26 to 29 hold their lengths.
    stream.seek(info.header_offset + 26)
    start = info.header_offset + 30 + sum(struct.unpack("<HH", stream.read(4)))
    order = "F" if fortran_order else "C"
    return {name: np.asarray(np.memmap(stream, dtype, "r", start + header, shape, order))}
