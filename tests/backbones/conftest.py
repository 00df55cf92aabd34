"""The script that makes expected outputs needs PyTorch, which the tests do without."""

import jax
import pytest

collect_ignore = ["make_expected.py"]


@pytest.fixture(autouse=True, scope="module")
def cheap_compilation():
    """Networks run once on few images here, so that compiling is what takes time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
