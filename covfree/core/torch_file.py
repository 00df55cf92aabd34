"""Read tensors from files of ``torch.save``, without PyTorch and without running code from the files.

Such a file contains a pickle: a program that may call any function by name. The reader here knows the few
names that tensors need, and replaces them by inert objects; any other name is refused.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_STORAGES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": jnp.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


class _WrongFile(Exception):
    """The file has no readable weights; the message says why."""


class _Storage(NamedTuple):
    """A reference to ``length`` numbers that are stored in the file under ``key``."""

    key: str
    dtype: np.dtype
    length: int


class _Tensor(NamedTuple):
    """A tensor as a view of a storage; offset and strides count numbers, not bytes."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Read a state dict, a mapping from names to tensors, from a file that ``torch.save`` wrote."""
    with path.open("rb") as file:
        try:
            return _from_zip(file) if zipfile.is_zipfile(file) else _from_legacy(file)
        except _WrongFile as error:
            raise ValueError(f"path: {path}: {error}") from None
        # A damaged pickle may raise any error, but no code in the file runs.
        except Exception as error:
            raise ValueError(
                f"path: {path}: expected weights written by torch.save; the file is damaged, cut short or "
                f"of another kind ({type(error).__name__}: {error})"
            ) from error


def _from_zip(file: io.BufferedIOBase) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        pickles = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
        if len(pickles) != 1:
            raise _WrongFile(f"expected one data.pkl in the archive, got {len(pickles)}")
        folder = pickles[0].split("/")[0]
        if f"{folder}/byteorder" in archive.namelist():
            _check_order(archive.read(f"{folder}/byteorder") == b"little")
        tensors = _load(io.BytesIO(archive.read(pickles[0])))
        read: dict[str, bytes] = {}

        def content(storage: _Storage) -> bytes:
            if storage.key not in read:
                read[storage.key] = archive.read(f"{folder}/data/{storage.key}")
            return read[storage.key]

        return {name: _array(name, tensor, content) for name, tensor in tensors.items()}


def _from_legacy(file: io.BufferedIOBase) -> dict[str, np.ndarray]:
    file.seek(0)
    start = file.read(8)
    if not start.startswith((b"\x80", b"PK")):  # how a pickle, or a truncated archive, starts
        raise _WrongFile(
            f"expected weights written by torch.save, got another format, which starts with {start!r}"
        )
    file.seek(0)
    magic, protocol = _Reader(file).load(), _Reader(file).load()
    if magic != _LEGACY_MAGIC or protocol != _LEGACY_PROTOCOL:
        raise _WrongFile("expected weights written by torch.save")
    system = _Reader(file).load()
    _check_order(system["little_endian"] is True)
    tensors = _load(file)
    lengths = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    read: dict[str, bytes] = {}
    for key in _Reader(file).load():
        if key not in lengths:
            raise _WrongFile(f"expected storages of tensors alone, got {key!r}")
        size = file.read(8)
        count = int.from_bytes(size, "little")
        if len(size) != 8 or count != lengths[key].length:
            raise _WrongFile(
                f"expected {lengths[key].length} numbers in storage {key}, got {count}; "
                "the file is damaged or cut short"
            )
        read[key] = file.read(count * lengths[key].dtype.itemsize)
    return {name: _array(name, tensor, lambda s: read[s.key]) for name, tensor in tensors.items()}


def _check_order(little: bool) -> None:
    if not little:
        raise _WrongFile("expected numbers in little-endian order")


def _load(file: io.BufferedIOBase) -> dict[str, _Tensor]:
    tensors = _Reader(file).load()
    if not isinstance(tensors, Mapping):
        raise _WrongFile(f"expected tensors by name, got {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not (isinstance(name, str) and isinstance(tensor, _Tensor)):
            raise _WrongFile(f"expected tensors by name, got {type(tensor).__name__} under {name!r}")
    return dict(tensors)


class _Reader(pickle.Unpickler):
    """An unpickler that loads only tensors, storages and ``OrderedDict``; any other name is an error."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for ``module.name``, a class or function that the pickle names.

        Only names that tensors need are known; their stand-ins are harmless, such as a NumPy dtype for a
        torch storage. Any other name raises an error, before any code from the file runs.
        """
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _STORAGES:
            return np.dtype(_STORAGES[name])
        if module == "torch._utils" and name in _REBUILD:
            # A new function each time: a pickle may set attributes of a shared one.
            return _REBUILD[name]()
        raise _WrongFile(
            f"expected tensors alone, got {module}.{name}; the file was not loaded, and no code in it was run"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        """Convert a persistent id in the pickle to a reference to a storage; other ids raise an error."""
        kind, dtype, key, _, length = pid[:5]
        if kind != "storage" or not isinstance(dtype, np.dtype) or any(pid[5:]):
            raise _WrongFile(f"expected storages of tensors, got {pid!r}")
        return _Storage(str(key), dtype, int(length))


def _tensor_maker() -> Callable[..., _Tensor]:
    def rebuild(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> _Tensor:
        if not isinstance(storage, _Storage):
            raise TypeError(f"expected a storage, got {type(storage).__name__}")
        return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, stride)))

    return rebuild


def _parameter_maker() -> Callable[..., Any]:
    return lambda tensor, *_: tensor


_REBUILD: dict[str, Callable[[], Callable[..., Any]]] = {
    "_rebuild_tensor": _tensor_maker,
    "_rebuild_tensor_v2": _tensor_maker,
    "_rebuild_parameter": _parameter_maker,
}


def _array(name: str, tensor: _Tensor, content: Callable[[_Storage], bytes]) -> np.ndarray:
    storage, offset, shape, stride = tensor
    data = content(storage)
    if len(data) != storage.length * storage.dtype.itemsize:
        raise _WrongFile(
            f"{name}: expected {storage.length} numbers of {storage.dtype}, got "
            f"{len(data)} bytes; the file is damaged or cut short"
        )
    inside = len(shape) == len(stride) and min((offset, *shape, *stride)) >= 0
    # The index of the last number in the view; meaningless for an empty view.
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=False))
    if not inside or (0 not in shape and last >= storage.length):
        raise _WrongFile(f"{name}: expected a view inside its storage, got {tensor}")
    if 0 in shape:
        return np.zeros(shape, storage.dtype)
    numbers = np.frombuffer(data, storage.dtype)[offset:]
    steps = tuple(step * storage.dtype.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(numbers, shape, steps, writeable=False)
