"""Float32 and float64 runs of one test, and how near is near."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import jax
import numpy as np

from covfree.core.row_types import double as x64


class Precision(NamedTuple):
    """A data type and the relative Frobenius error that is allowed in it.

    float32: eps is 6e-8; sums over the tests' 10 to 100 rows and solves of condition below 1e3 may lose
    two to three digits of it, so 1e-4 holds with a margin while any wrong term (a divisor off by one
    among tens) shows as 1e-2. float64: the same digits above eps 1e-16, and 1e-9 as promised.
    """

    name: str
    tolerance: float

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.name)

    def context(self) -> AbstractContextManager:
        return x64() if self.name == "float64" else nullcontext()

    def array(self, values) -> jax.Array:
        """As a jax array: floats in this precision, integers in int32."""
        values = np.asarray(values)
        # Converted by NumPy and put there as it is: `jnp.asarray` compiles a copy for each shape.
        return jax.device_put(values.astype(self.dtype if values.dtype.kind == "f" else np.int32))

    def assert_close(self, actual, expected, factor: float = 1.0) -> None:
        assert np.asarray(actual).dtype == self.dtype
        assert_close(actual, expected, self.tolerance * factor)


PRECISIONS = {p.name: p for p in (Precision("float32", 1e-4), Precision("float64", 1e-9))}
FLOAT32 = PRECISIONS["float32"]


def relative_error(actual, expected) -> float:
    """Frobenius norm of the difference over that of what is expected; infinities must be in their places."""
    actual, expected = (np.asarray(x).astype(np.float64) for x in (actual, expected))
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    np.testing.assert_array_equal(np.isinf(actual), np.isinf(expected))
    finite = np.isfinite(expected)
    assert np.isfinite(actual[finite]).all(), "not finite"
    size = np.linalg.norm(expected[finite])
    return float(np.linalg.norm(actual[finite] - expected[finite]) / (size if size > 0 else 1.0))


def assert_close(actual, expected, tolerance: float) -> None:
    error = relative_error(actual, expected)
    assert error <= tolerance, f"relative error {error:.2e} above {tolerance:.0e}"


def assert_heads_close(actual, expected, tolerance: float) -> None:
    """Compare heads or (weight, bias) pairs, with −∞ in the place of an absent class's bias."""
    for ours, theirs in zip(_marked(actual), _marked(expected), strict=True):
        assert_close(ours, theirs, tolerance)


def _marked(head):
    parts = head if isinstance(head, tuple) else (head.weight, head.bias, head.present)
    weight, bias, present = (*parts, None)[:3]
    present = np.ones(np.shape(bias)) if present is None else present
    return weight, np.where(np.asarray(present) > 0, bias, np.asarray(-np.inf, np.asarray(bias).dtype))
