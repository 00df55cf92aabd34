"""Import optional dependencies."""

from __future__ import annotations

import importlib
from typing import Any


def how_to_get(extra: str) -> str:
    """Return the command, as text, that installs an extra from a clone (covfree is not on PyPI)."""
    return f"pip install '.[{extra}]' in covfree's clone"


def optional(module: str, extra: str) -> Any:
    """Import and return a module; if it is missing, the ImportError names the ``extra`` that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{package} is needed for this: {how_to_get(extra)}") from error
