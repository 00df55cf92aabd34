"""What the tests and the pages share. Imports nothing that must be set up first."""

import os

import pytest

# Two processes test at once: OpenBLAS's threads would wait for cores that the other process has. Read by
# SciPy when jax first factorises, and by what the tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def cheap_compilation():
    """For what runs once on small data, so that compiling is what takes time."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
