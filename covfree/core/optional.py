"""Importing what only some users need."""

from __future__ import annotations

import importlib
from typing import Any


def how_to_get(extra: str) -> str:
    """The command that installs an extra, from a clone: covfree is on no registry."""
    return f"pip install '.[{extra}]' in covfree's clone"


def optional(module: str, extra: str) -> Any:
    """Import a module of an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{package} is needed for this: {how_to_get(extra)}") from error
