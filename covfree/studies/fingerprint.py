"""A fingerprint that distinguishes methods of one name by their functions, numbers and the user's code."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import LIBRARIES
from covfree.methods import Method


def fingerprint(method: Method) -> str:
    """Return a digest of a method's functions and numbers, which is the same in every process.

    The digest also covers the files of a user's own functions and classes, and the user's files that these
    files import. For a function without a file, as in a notebook, it covers the compiled code.

    >>> import covfree
    >>> fingerprint(covfree.fed3r(1.0)) == fingerprint(covfree.fed3r(1.0))
    True
    >>> fingerprint(covfree.fed3r(1.0)) == fingerprint(covfree.fed3r(2.0))
    False
    """
    leaves, structure = jax.tree.flatten(method)
    # Remove memory addresses, which the text of a function contains.
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", str(structure)).encode())
    for leaf in leaves:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    for text in dict.fromkeys(_own_code(method, set())):
        digest.update(text)
    return digest.hexdigest()[:16]


def _own_code(part: Any, seen: set[int]) -> Iterator[bytes]:
    """Yield the code that a user wrote for ``part``, a method or an object within one, to hash it.

    This is the code of functions and classes that belong to neither covfree nor jax.
    ``seen`` holds the ids of functions and modules that were visited before.
    """
    yield from _files(sys.modules.get(type(part).__module__), seen)
    if isinstance(part, FunctionType):
        if id(part) in seen:
            return
        seen.add(id(part))
        enclosed = [cell.cell_contents for cell in part.__closure__ or ()]
        if part.__module__.partition(".")[0] not in ("covfree", "jax"):
            file = Path(part.__code__.co_filename)
            yield file.read_bytes() if file.is_file() else _code(part.__code__)
            yield repr([each for each in enclosed if isinstance(each, bool | int | float | str)]).encode()
            yield from _files(sys.modules.get(part.__module__), seen)
        yield from _own_code(enclosed, seen)
    elif isinstance(part, partial):
        yield from _own_code((part.func, part.args, part.keywords), seen)
    elif isinstance(part, MethodType):
        yield from _own_code((part.__func__, part.__self__), seen)
    elif isinstance(part, type):
        yield from _files(sys.modules.get(part.__module__), seen)
    elif is_dataclass(part):
        yield from _own_code([getattr(part, own.name) for own in fields(part)], seen)
    elif isinstance(part, dict):
        yield from _own_code(list(part.values()), seen)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _own_code(each, seen)
    elif hasattr(part, "__wrapped__"):
        # Visit the function that jax.jit or functools.cache wraps.
        yield from _own_code(part.__wrapped__, seen)


def _files(module: ModuleType | None, seen: set[int]) -> Iterator[bytes]:
    """Yield the source of a user's module, and of the user's other modules from which it imports."""
    path = getattr(module, "__file__", None) or ""
    if id(module) in seen or not path.endswith(".py") or path.startswith(LIBRARIES):
        return
    assert module is not None
    if module.__name__.partition(".")[0] in ("covfree", "jax"):
        return
    seen.add(id(module))
    yield Path(path).read_bytes()
    for each in list(vars(module).values()):
        name = getattr(each, "__module__", None)
        home = (
            each if isinstance(each, ModuleType) else sys.modules.get(name if isinstance(name, str) else "")
        )
        yield from _files(home, seen)


def _code(code: CodeType) -> bytes:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    plain = [each for each in code.co_consts if not isinstance(each, CodeType)]
    own = code.co_code + repr((plain, code.co_names)).encode()
    return own + b"".join(map(_code, inner))
