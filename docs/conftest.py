"""Settings of the pages' examples."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def examples_run_once(cheap_compilation):
    """Each example compiles, and is called once or twice."""
