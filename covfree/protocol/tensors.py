"""Read safetensors files from untrusted senders: every length is checked before it is used."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

# The data types that NumPy can read; safetensors has more.
DTYPES = {
    **{"BF16": jnp.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64},
    **{"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64},
    **{"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64, "BOOL": np.bool_},
}
# The largest number of bytes of a header, which contains all class names.
_MOST_HEADER = 2**24


def read_header(
    file: io.RawIOBase | io.BufferedIOBase, size: int
) -> tuple[dict[str, Any], dict[str, str], int]:
    """Read a safetensors header of a file of ``size`` bytes.

    Returns:
        Each tensor's entry (data type, shape and byte offsets), the metadata, and how many bytes follow.

    Raises:
        ValueError: if the header is too long, or an entry or the metadata are not valid; other errors if the
            header has another structure.
    """
    (length,) = struct.unpack("<Q", _read_exactly(file, 8))
    if length > min(size - 8, _MOST_HEADER):
        raise ValueError(f"its header is of {length} bytes")
    header = json.loads(bytes(_read_exactly(file, length)))
    metadata = header.pop("__metadata__", None) or {}
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are not strings")
    for name, about in header.items():
        numbers = [*about["shape"], *about["data_offsets"]]
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise ValueError(f"{name} has the shape {about['shape']}")
        if not isinstance(about["dtype"], str) or len(about["data_offsets"]) != 2:
            raise ValueError(f"{name} has no data type or place")
    return header, metadata, size - 8 - length


def read_tensors(
    file: io.RawIOBase | io.BufferedIOBase, header: Mapping[str, Any], length: int
) -> dict[str, np.ndarray]:
    """Read the tensors of a safetensors file; ``header`` and ``length`` are those of `read_header`.

    Data types must be among `DTYPES`.

    Raises:
        ValueError: unless the tensors exactly fill the ``length`` bytes after the header. Each tensor must
            have as many bytes as its shape and data type need. The first must begin at 0, and each other
            tensor where the one before it ends.
    """
    end = 0
    for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = about["data_offsets"]
        size = math.prod(about["shape"]) * np.dtype(DTYPES[about["dtype"]]).itemsize
        if begin != end or stop - begin != size:
            raise ValueError(f"{name} lies at {begin} to {stop}; expected {size} bytes from {end} on")
        end = stop
    if end != length:
        raise ValueError(f"{length} bytes of tensors; expected {end}")
    body = _read_exactly(file, length)
    return {name: _tensor(body, about) for name, about in header.items()}


def _read_exactly(file: io.RawIOBase | io.BufferedIOBase, size: int) -> bytearray:
    """Read exactly ``size`` bytes; raise a ValueError if the file ends before."""
    content, done = bytearray(size), 0
    view = memoryview(content)
    while done < size:
        read = file.readinto(view[done:])
        if not read:
            raise ValueError(f"it ends after {done} of {size} bytes")
        done += read
    return content


def _tensor(body: bytearray, about: Mapping[str, Any]) -> np.ndarray:
    """Return the tensor with the entry ``about`` in the header; ``body`` has the bytes after the header."""
    dtype, shape = np.dtype(DTYPES[about["dtype"]]), about["shape"]
    if 0 in shape:
        return np.zeros(shape, dtype)
    read = np.uint8 if dtype == np.bool_ else dtype
    values = np.frombuffer(body, read, math.prod(shape), about["data_offsets"][0])
    if dtype == np.bool_:
        # Bools in a stranger's file may have bytes other than 0 and 1, so read them as integers.
        values = values != 0
    return (values if values.flags.aligned else values.copy()).reshape(shape)
