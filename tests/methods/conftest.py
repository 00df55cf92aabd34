"""Settings of the tests of methods."""

import pytest
from precision import PRECISIONS


@pytest.fixture
def precision():
    """Formulas in float64: that float32 gives the same is a law of `check_method` (test_contracts)."""
    chosen = PRECISIONS["float64"]
    with chosen.context():
        yield chosen
