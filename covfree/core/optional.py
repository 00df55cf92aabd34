"""Importing optional dependencies."""

from __future__ import annotations

import importlib
from typing import Any


def how_to_get(extra: str) -> str:
    """Return the command that installs an extra from a clone, as covfree is on no registry."""
    return f"pip install '.[{extra}]' in covfree's clone"


def optional(module: str, extra: str) -> Any:
    """Import a module of an optional dependency; the error says which extra installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{package} is needed for this: {how_to_get(extra)}") from error
