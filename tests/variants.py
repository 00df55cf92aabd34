"""Variants that only ``make test-slow`` runs: they take long to compile, and others check the same law."""

from typing import Any

import pytest


def slow(*variants: Any) -> list[Any]:
    """Mark what `pytest.mark.parametrize` takes, a value or a tuple of several, as slow."""
    tuples = [each if isinstance(each, tuple) else (each,) for each in variants]
    return [pytest.param(*each, marks=pytest.mark.slow) for each in tuples]
