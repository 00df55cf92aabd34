"""Solves: every route against float64, accuracy against LAPACK in float32, diagnostics, derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.test_util import check_grads
from precision import FLOAT32, PRECISIONS, assert_close, x64

import covfree
from covfree import linalg
from covfree.core.linalg import Route, Scatter
from covfree.core.products import product

FLOAT64 = PRECISIONS["float64"]


@jax.jit
def solved(matrix, right):
    return linalg.solve(linalg.factorise(matrix), right)


@jax.jit
def diagnosed(matrix):
    return linalg.diagnostics(linalg.factorise(matrix))


@functools.cache
def basis_of(dim, seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]


def matrix_of(values, seed=0):
    """A symmetric matrix of these eigenvalues, float64, and its eigenvectors."""
    basis = basis_of(len(values), seed)
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2, basis


def spectrum(kind, condition, dim=512):
    if kind == "geometric":
        return np.geomspace(1 / condition, 1, dim)
    if kind == "linear":
        return np.linspace(1 / condition, 1, dim)
    values = np.ones(dim)
    values[: dim // 2 if kind == "half small" else 1 if kind == "one small" else dim - 1] = 1 / condition
    return values


SPECTRA = ["geometric", "linear", "half small", "one small", "one large"]


def residual(matrix, x, right):
    """Backward error ‖Ax − b‖/(‖A‖‖x‖ + ‖b‖) of a solve, in float64."""
    matrix, x, right = (np.asarray(a, np.float64) for a in (matrix, x, right))
    error = np.linalg.norm(matrix @ x - right)
    return error / (np.linalg.norm(matrix) * np.linalg.norm(x) + np.linalg.norm(right))


def lapack(matrix, right):
    """LAPACK's sposv on the same float32 system; None where it finds the matrix not definite."""
    _, x, info = scipy.linalg.lapack.sposv(matrix, right)
    return None if info else x


@pytest.mark.parametrize("condition", [1e2, 1e3, 1e4, 1e5, 1e6, 1e7])
@pytest.mark.parametrize("kind", SPECTRA)
def test_residual_is_within_ten_times_lapack(kind, condition):
    matrix = matrix_of(spectrum(kind, condition))[0].astype(np.float32)
    right = np.random.default_rng(1).normal(size=(512, 5)).astype(np.float32)
    x, peer = np.asarray(solved(matrix, right)), lapack(matrix, right)
    if peer is None:
        # Half of the eigenvalues are below rounding: LAPACK gives up, the minimum-norm solution is left.
        assert (kind, condition) == ("half small", 1e7)
        assert diagnosed(matrix).route == Route.EIGH
        assert_close(x, np.linalg.pinv(matrix.astype(np.float64), rcond=1e-5, hermitian=True) @ right, 1e-4)
        return
    assert residual(matrix, x, right) <= 10 * residual(matrix, peer, right)
    plain = [np.linalg.norm(matrix.astype(np.float64) @ s - right) for s in (x, peer)]
    assert plain[0] <= 10 * plain[1]


@pytest.mark.parametrize("condition", [1e2, 1e5, 1e7])
@pytest.mark.parametrize("kind", SPECTRA)
def test_reported_condition_is_near_or_a_lower_bound(kind, condition):
    matrix = matrix_of(spectrum(kind, condition))[0].astype(np.float32)
    reported = float(diagnosed(matrix).condition)
    # λ_min is known to eps·λ_max·√d or so: near 1/eps only the order of magnitude from below is left.
    if condition < 1e6:
        np.testing.assert_allclose(reported, condition, rtol=0.3)
    elif diagnosed(matrix).route == Route.CHOLESKY:
        assert reported > 1e5


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("spread", [2, 6])
def test_badly_scaled_features_lose_no_accuracy(condition, spread):
    # Features in units that differ by 10^spread: the scaled condition is what counts.
    scale = 10 ** np.random.default_rng(2).uniform(-spread / 2, spread / 2, 512)
    matrix = (matrix_of(spectrum("geometric", condition))[0] * scale * scale[:, None]).astype(np.float32)
    right = (np.random.default_rng(1).normal(size=(512, 5)) * scale[:, None]).astype(np.float32)
    x, peer = np.asarray(solved(matrix, right)), lapack(matrix, right)
    exact = np.linalg.solve(matrix.astype(np.float64), right.astype(np.float64))

    def error(x):  # in the units in which the features have equal spread
        return np.linalg.norm((x - exact) * scale[:, None]) / np.linalg.norm(exact * scale[:, None])

    assert diagnosed(matrix).route == Route.CHOLESKY
    assert error(x) <= 10 * error(peer)
    assert residual(matrix / np.outer(scale, scale), x * scale[:, None], right / scale[:, None]) <= 1e-6


# Routes against float64. Sizes: primal 6; factor of 4 rows in 20 dimensions.


def factor_of(rank, seed=0, rows=4, dim=20):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, dim))


def right_of(dim, seed=9, columns=3):
    return np.random.default_rng(seed).normal(size=(dim, columns))


def test_cholesky_route(precision):
    matrix, right = matrix_of(np.geomspace(0.1, 1, 6))[0], right_of(6)
    precision.assert_close(
        solved(precision.array(matrix), precision.array(right)), np.linalg.solve(matrix, right)
    )
    report = diagnosed(precision.array(matrix))
    assert report.route == Route.CHOLESKY
    assert report.rank == 6
    np.testing.assert_allclose(report.condition, 10, rtol=1e-4)
    assert 0 < report.smallest_pivot <= 2


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_eigh_route_gives_the_solution_of_minimum_norm(precision, rank):
    values = np.concatenate([np.zeros(6 - rank), np.geomspace(0.1, 1, rank)])
    matrix, basis = matrix_of(values, seed=rank)
    right = right_of(6)
    expected = np.linalg.pinv(matrix, rcond=1e-10, hermitian=True) @ right
    x = solved(precision.array(matrix), precision.array(right))
    precision.assert_close(x, expected)
    assert (
        np.abs(basis[:, : 6 - rank].T @ np.asarray(x)).max() < precision.tolerance
    )  # nothing in the null space
    report = diagnosed(precision.array(matrix))
    assert report.route == Route.EIGH
    assert report.rank == rank
    np.testing.assert_allclose(report.condition, 10 if rank > 1 else 1, rtol=1e-3)


@pytest.mark.parametrize("shift", [1e-2, 1.0, 100.0])
@pytest.mark.parametrize("rank", [2, 4])
def test_dual_route_equals_the_primal(precision, shift, rank):
    factor, right = factor_of(rank), right_of(20)
    matrix = factor.T @ factor + shift * np.eye(20)
    dual = Scatter.from_factor(precision.array(factor)).shifted(shift)
    assert dual.factored
    # Conditions reach 1e4.
    expected = np.linalg.solve(matrix, right)
    precision.assert_close(solved(dual, precision.array(right)), expected, 10)
    precision.assert_close(solved(precision.array(matrix), precision.array(right)), expected, 10)
    precision.assert_close(dual.dense(), matrix)
    precision.assert_close(dual.times(precision.array(right)), matrix @ right)
    report = diagnosed(dual)
    values = np.linalg.eigvalsh(matrix)
    assert report.route == Route.DUAL_CHOLESKY
    assert report.rank == 20
    np.testing.assert_allclose(report.condition, values[-1] / values[0], rtol=1e-3)


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_dual_route_without_shift_gives_the_solution_of_minimum_norm(precision, rank):
    # Rank 4: the dual system itself is regular, the matrix of size 20 is not.
    factor, right = factor_of(rank, seed=rank), right_of(20)
    expected = np.linalg.pinv(factor.T @ factor, rcond=1e-10, hermitian=True) @ right
    dual = Scatter.from_factor(precision.array(factor))
    precision.assert_close(solved(dual, precision.array(right)), expected, 10)
    report = diagnosed(dual)
    assert report.rank == rank
    values = np.linalg.eigvalsh(factor @ factor.T)[-rank:]
    np.testing.assert_allclose(report.condition, values[-1] / values[0], rtol=1e-2)


@pytest.mark.parametrize("shift", [1e-3, 1e-5, 1e-7, 1e-9])
def test_dual_route_with_a_small_shift(precision, shift):
    # λ_max is about 50. The reference by singular vectors: the matrix itself, once added up, has lost the
    # shift's digits.
    factor, right = factor_of(4), right_of(20)
    _, values, vectors = np.linalg.svd(factor, full_matrices=False)
    inner = vectors @ right
    expected = vectors.T @ (inner / (values**2 + shift)[:, None]) + (right - vectors.T @ inner) / shift
    dual = Scatter.from_factor(precision.array(factor)).shifted(shift)
    # At 1e-9 the dual system has lost the shift entirely, and a refinement repairs what it can: 1e-3, more or
    # less, as the libraries beneath jax differ.
    precision.assert_close(solved(dual, precision.array(right)), expected, 20 if shift < 1e-8 else 1)


@pytest.mark.parametrize("shift", [1e-1, 1e-2, 1e-3])
def test_dual_route_keeps_what_lies_in_the_range(precision, shift):
    # Class means lie near the rows' span: rounding over the shift must not drown them.
    factor = factor_of(4)
    right = factor.T @ right_of(4)
    _, values, vectors = np.linalg.svd(factor, full_matrices=False)
    expected = vectors.T @ (vectors @ right / (values**2 + shift)[:, None])
    dual = Scatter.from_factor(precision.array(factor)).shifted(shift)
    # With one thread of LAPACK another order of sums, which the shift of 10⁻³ makes a difference of 1.04e-3.
    precision.assert_close(solved(dual, precision.array(right)), expected, 20)


def test_parts_of_a_scatter(precision):
    factor, more = factor_of(4), factor_of(2, seed=5, rows=3)
    scatter = Scatter.from_factor(precision.array(factor)).shifted(0.5).scaled(2.0)
    expected = 2 * (factor.T @ factor + 0.5 * np.eye(20))
    precision.assert_close(scatter.dense(), expected)
    assert scatter.dim == 20
    larger = scatter.with_factor(precision.array(more))
    assert larger.factored
    precision.assert_close(larger.dense(), expected + more.T @ more)
    # So many rows that the matrix itself is smaller.
    many = scatter.with_factor(precision.array(factor_of(8, seed=6, rows=30)))
    assert not many.factored
    precision.assert_close(
        many.dense(), expected + factor_of(8, seed=6, rows=30).T @ factor_of(8, seed=6, rows=30)
    )
    np.testing.assert_allclose(np.trace(scatter.core()), 2 * np.trace(factor.T @ factor), rtol=1e-4)
    full = Scatter.from_matrix(precision.array(expected))
    assert linalg.as_scatter(full) is full
    precision.assert_close(full.times(precision.array(right_of(20))), expected @ right_of(20))


def test_one_dimension(precision):
    precision.assert_close(solved(precision.array([[4.0]]), precision.array([[2.0]])), [[0.5]])
    zero = Scatter.from_matrix(precision.array([[0.0]]))
    precision.assert_close(solved(zero.shifted(0.5), precision.array([[1.0]])), [[2.0]])


@pytest.mark.parametrize("scatter", ["matrix", "factor"])
def test_zero_matrix(scatter):
    zero = jnp.zeros((6, 6)) if scatter == "matrix" else Scatter.from_factor(jnp.zeros((2, 6)))
    np.testing.assert_array_equal(solved(zero, jnp.ones((6, 2))), 0)
    report = diagnosed(zero)
    assert report.route == (Route.EIGH if scatter == "matrix" else Route.DUAL_EIGH)
    assert report.rank == 0
    assert report.condition == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_gives_nan(value):
    size = 200
    matrix = np.eye(size, dtype=np.float32)
    matrix[2, 3] = matrix[3, 2] = value
    assert np.isnan(np.asarray(solved(matrix, jnp.ones((size, 1))))).all()
    assert np.isnan(diagnosed(matrix).smallest_pivot)
    factor = Scatter.from_factor(jnp.full((3, size), value))
    for some in (factor, factor.shifted(1.0)):
        assert np.isnan(np.asarray(solved(some, jnp.ones((size, 1))))).any()
    right = jnp.ones((size, 2)).at[0, 0].set(value)
    x = np.asarray(solved(jnp.eye(size), right))
    assert not np.isfinite(x[0, 0])
    np.testing.assert_array_equal(x[:, 1], 1)  # the other column is sound


def test_very_large_and_very_small_matrices():
    matrix = matrix_of(np.geomspace(0.1, 1, 6))[0].astype(np.float32)
    expected = np.asarray(solved(matrix, jnp.ones((6, 1))))
    for exponent in (-100, -40, 40, 100):
        scaled = np.ldexp(matrix, exponent)
        np.testing.assert_allclose(
            np.ldexp(np.asarray(solved(scaled, jnp.ones((6, 1)))), exponent), expected, rtol=1e-5
        )
        assert diagnosed(scaled).route == Route.CHOLESKY


def test_a_feature_that_never_varies(precision):
    # A row and column of zeros, as a pixel that is always black gives.
    matrix = np.zeros((6, 6))
    matrix[1:, 1:] = matrix_of(np.geomspace(0.1, 1, 5))[0]
    right = right_of(6)
    expected = np.linalg.pinv(matrix, rcond=1e-10) @ right
    precision.assert_close(solved(precision.array(matrix), precision.array(right)), expected)


def test_one_factorisation_serves_many_solves(precision):
    matrix = matrix_of(np.geomspace(0.1, 1, 6))[0]
    factorisation = linalg.factorise(precision.array(matrix))
    for seed in range(3):
        right = right_of(6, seed=seed)
        precision.assert_close(
            linalg.solve(factorisation, precision.array(right)), np.linalg.solve(matrix, right)
        )
    # It is a pytree, so that it may cross a jit's border.
    right = right_of(6)
    x = jax.jit(linalg.solve)(factorisation, precision.array(right))
    precision.assert_close(x, np.linalg.solve(matrix, right))


@pytest.mark.usefixtures("untyped")
def test_vmap_over_sound_and_singular_matrices():
    precision = FLOAT32
    spectra = [np.geomspace(0.1, 1, 6), np.array([0, 0, 0, 0.1, 0.5, 1.0]), np.zeros(6)]
    matrices = np.stack([matrix_of(v, seed)[0] for seed, v in enumerate(spectra)])
    right = right_of(6)

    def both(matrix, right):
        factorisation = linalg.factorise(matrix)
        return linalg.solve(factorisation, right), linalg.diagnostics(factorisation).route

    run = jax.jit(jax.vmap(both, in_axes=(0, None)))
    batched, routes = run(precision.array(matrices), precision.array(right))
    for k, matrix in enumerate(matrices):
        precision.assert_close(batched[k], np.linalg.pinv(matrix, rcond=1e-10, hermitian=True) @ right)
    assert routes.tolist() == [Route.CHOLESKY, Route.EIGH, Route.EIGH]


# Derivatives


def test_gradients_of_the_primal_against_finite_differences():
    with x64():
        matrix, right = FLOAT64.array(matrix_of(np.geomspace(0.1, 1, 6))[0]), FLOAT64.array(right_of(6))

        @jax.jit
        def loss(matrix, right, shift):
            symmetric = (matrix + matrix.T) / 2
            return jnp.sin(
                linalg.solve(linalg.factorise(Scatter.from_matrix(symmetric).shifted(shift)), right)
            )

        check_grads(loss, (matrix, right, 0.3), order=1, modes=("fwd", "rev"), atol=1e-5, rtol=1e-5)


def test_gradients_of_the_dual_against_finite_differences():
    with x64():
        factor, right = FLOAT64.array(factor_of(4)), FLOAT64.array(right_of(20))

        @jax.jit
        def loss(factor, right, shift):
            return jnp.sin(linalg.solve(linalg.factorise(Scatter.from_factor(factor).shifted(shift)), right))

        check_grads(loss, (factor, right, 0.3), order=1, modes=("fwd", "rev"), atol=1e-5, rtol=1e-5)


def test_gradients_to_the_right_hand_side_of_singular_systems():
    with x64():
        matrix = FLOAT64.array(matrix_of(np.array([0, 0, 0.1, 0.2, 0.5, 1.0]))[0])
        function = jax.jit(lambda right: linalg.solve(linalg.factorise(matrix), right))
        check_grads(
            function, (FLOAT64.array(right_of(6)),), order=1, modes=("fwd", "rev"), atol=1e-5, rtol=1e-5
        )


@pytest.mark.usefixtures("untyped")
def test_gradients_under_vmap():
    with x64():
        matrix, right = FLOAT64.array(matrix_of(np.geomspace(0.1, 1, 6))[0]), FLOAT64.array(right_of(6))

        def slope(shift):
            return jax.grad(
                lambda s: jnp.sum(
                    linalg.solve(linalg.factorise(Scatter.from_matrix(matrix).shifted(s)), right)
                )
            )(shift)

        shifts = jnp.array([0.1, 0.2, 1.0])
        batched = jax.jit(jax.vmap(slope))(shifts)
        for k in range(3):
            inverse = np.linalg.inv(np.asarray(matrix) + float(shifts[k]) * np.eye(6))
            np.testing.assert_allclose(batched[k], -(inverse @ inverse @ np.asarray(right)).sum(), rtol=1e-9)


def test_product_is_in_full_precision():
    x = jax.random.normal(jax.random.key(0), (64, 64))
    text = str(jax.make_jaxpr(product)(x, x))
    assert "HIGHEST" in text
    exact = np.asarray(x, np.float64)
    assert_close(product(x, x), exact @ exact, 1e-6)


def products(value):
    """Precisions of all products in a jaxpr, however deep."""
    if hasattr(value, "eqns"):
        for equation in value.eqns:
            if equation.primitive.name == "dot_general":
                yield equation.params["precision"]
            for inner in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")
            ):
                yield from products(getattr(inner, "jaxpr", inner))


@pytest.mark.usefixtures("untyped")  # tracing puts descriptions of arrays into the records
@pytest.mark.parametrize("head", ["lda", "ridge"])
@pytest.mark.parametrize("shrinkage", ["auto", 0.3])
@pytest.mark.parametrize("dim", [4, 30])
def test_every_product_of_a_solve_is_in_full_precision(head, shrinkage, dim):
    # On accelerators the default precision keeps three digits.
    rows = covfree.Rows(jnp.ones((9, dim)), jnp.ones(9), jnp.zeros(9, jnp.int32))
    method = covfree.fedcof(shrinkage=shrinkage, head=head)
    jaxpr = jax.make_jaxpr(lambda rows: covfree.solve_rows(method, rows, num_classes=2))(rows)
    found = list(products(jaxpr.jaxpr))
    assert found
    highest = jax.lax.Precision.HIGHEST
    assert all(precision in (highest, (highest, highest)) for precision in found), found
