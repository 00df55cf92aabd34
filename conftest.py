"""What the tests and the pages share. Imports nothing that must be set up first."""

import pytest


@pytest.fixture(scope="module")
def cheap_compilation():
    """For what runs once on small data, so that compiling is what takes time."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
