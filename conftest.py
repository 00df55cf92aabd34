"""What the tests and the pages share. Imports nothing that must be set up first."""

import os

import pytest

# Two processes test at once: OpenBLAS's threads would wait for cores that the other process has. Read by
# SciPy when jax first factorises, and by what the tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nearly all tests run once on small data: what takes time is compiling. XLA's costly optimisations
# matter where rounding is the subject, as they put operations together: see `optimised`.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


@pytest.fixture(scope="module")
def optimised():
    """For a module in which it matters how XLA compiles."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    jax.clear_caches()
