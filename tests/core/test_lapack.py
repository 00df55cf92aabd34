"""LAPACK's routines one matrix at a time: derivatives, and lanes of `vmap` that are loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from precision import x64

from covfree.core import lapack

RNG = np.random.default_rng(0)
STACK = RNG.normal(size=(9, 4))
MATRIX = STACK.T @ STACK
RIGHT = RNG.normal(size=(4, 3))


def eigen(x):
    """Eigenvalues and projections: the signs of eigenvectors are arbitrary."""
    values, vectors = lapack.eigh(x.T @ x)
    return values, jnp.square(vectors)


def triangular(x):
    right = jnp.asarray(RIGHT)
    plain = lapack.triangular_solve(jnp.tril(x[:4]) + 3 * jnp.eye(4), right)
    return plain, lapack.triangular_solve(x[:4] + 3 * jnp.eye(4), right, transposed=True)


ROUTINES = {
    "roots": lambda x: (lapack.cholesky(x.T @ x), lapack.stacked_root(x)),
    "eigen": eigen,
    "triangular": triangular,
}


@pytest.mark.parametrize("name", ROUTINES)
def test_derivatives_and_lanes(name):
    """First and second derivatives are those of finite differences, and lanes those of a loop."""

    def routine(x):
        # `check_grads` hands over NumPy's arrays.
        return ROUTINES[name](jnp.multiply(x, 1))

    with x64():
        check_grads(
            jax.jit(routine), (jnp.asarray(STACK),), order=2, modes=["fwd", "rev"], rtol=1e-4, atol=1e-4
        )
        several = jnp.asarray(RNG.normal(size=(3, *STACK.shape)))

        def squares(x):
            one, other = routine(x)
            return jnp.sum(jnp.square(one)) + 2 * jnp.sum(jnp.square(other))

        def found(x):
            return routine(x), jax.grad(squares)(x)

        lanes, alone = jax.jit(jax.vmap(found))(several), jax.jit(found)
        for k, one in enumerate(several):
            for lane, part in zip(jax.tree.leaves(lanes), jax.tree.leaves(alone(one)), strict=True):
                np.testing.assert_allclose(lane[k], part, rtol=1e-10, atol=1e-12)


def test_roots_and_eigenvectors():
    with x64():
        root = lapack.stacked_root(jnp.asarray(-STACK))
        np.testing.assert_allclose(root, np.linalg.cholesky(MATRIX), rtol=1e-12)
        values, vectors = lapack.eigh(jnp.asarray(MATRIX))
        np.testing.assert_allclose((vectors * values[None, :]) @ vectors.T, MATRIX, rtol=1e-12)


def test_equal_eigenvalues_do_not_turn_into_one_another():
    """Eigenvalues that are equal but for rounding: their vectors do not move at the pace of 1/rounding."""
    turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
    matrix = turn @ np.diag([1.0, 1.0, 3.0]) @ turn.T
    change = RNG.normal(size=(3, 3))
    with x64():
        found = jax.jvp(lapack.eigh, (jnp.asarray(matrix),), (jnp.asarray(change + change.T),))
    (values, _), (moved, turned) = jax.tree.map(np.asarray, found)
    assert values[0] != values[1]  # to the bit
    np.testing.assert_allclose(moved.sum(), 2 * np.trace(change), rtol=1e-9)
    assert np.abs(turned).max() < 10
