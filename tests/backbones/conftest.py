"""The script that makes expected outputs needs PyTorch, which the tests do without."""

import pytest

collect_ignore = ["make_expected.py"]


@pytest.fixture(autouse=True, scope="module")
def networks_run_once(cheap_compilation):
    """On few images."""
