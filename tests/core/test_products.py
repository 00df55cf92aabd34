"""The symmetric product is the product, and exactly symmetric."""

import jax.numpy as jnp
import numpy as np
import pytest

from covfree.core.products import symmetric_product


@pytest.mark.parametrize("dim", [1, 255, 256, 300, 600, 1000])
def test_symmetric_product(dim):
    """Below one block, and with halves of uneven size at every level."""
    factor = np.random.default_rng(dim).normal(size=(40, dim)).astype(np.float32)
    got = np.asarray(symmetric_product(jnp.asarray(factor)))
    expected = factor.T.astype(np.float64) @ factor.astype(np.float64)
    # 40 products of order one: a few eps of their size each.
    np.testing.assert_allclose(got, expected, atol=5e-5)
    np.testing.assert_array_equal(got, got.T)
