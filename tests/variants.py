"""Variants of a law that `make test-slow` alone runs: compiling them costs more than they find beside the others."""

from typing import Any

import pytest


def slow(*variants: Any) -> list[Any]:
    """Mark what `pytest.mark.parametrize` takes, a value or a tuple of several, as slow."""
    tuples = [each if isinstance(each, tuple) else (each,) for each in variants]
    return [pytest.param(*each, marks=pytest.mark.slow) for each in tuples]
