"""Shrinkage rules against the oracle and scikit-learn."""

from functools import partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import CLASSES, DIM
from precision import FLOAT32, PRECISIONS, assert_close
from sklearn.covariance import OAS, LedoitWolf

import covfree
from covfree.core.linalg import Scatter
from covfree.estimators.automatic import as_shrinkage
from covfree.estimators.scatter import Freedom, centred_rows, class_weights

FLOAT64 = PRECISIONS["float64"]

RULES = {
    "diagonal_loading": lambda: covfree.diagonal_loading(0.3),
    "relative": lambda: covfree.relative(0.3),
    "oas": covfree.oas,
    "ledoit_wolf": covfree.ledoit_wolf,
    "pseudo_observations": covfree.pseudo_observations,
    "empirical_bayes": covfree.empirical_bayes,
    "auto": lambda: "auto",
}


FORMULAS = [rule for rule in RULES if rule != "auto"]


@partial(jax.jit, static_argnames="num_classes")
def shrunk(rows, num_classes=CLASSES):
    """The covariance as each of the rules shrinks it: one compiled function for all of them."""
    moments = covfree.first_moments(rows, num_classes)
    weight = class_weights(moments, "pooled") / moments.within_degrees
    factor, freedom = centred_rows(rows, moments, weight), Freedom.of_classes(moments, weight)

    def one(rule):
        statistics = rule.statistics(factor, rows, moments, weight)
        return rule.apply(Scatter.from_factor(factor), moments, freedom, statistics).dense()

    return {name: one(as_shrinkage(make())) for name, make in RULES.items()}


@jax.jit
def estimated(means, counts):
    """The covariance of one class by each formula."""
    return {name: covfree.estimate_covariance(means, counts, shrinkage=RULES[name]()) for name in FORMULAS}


def padded(seed, precision=FLOAT32, most=None):
    """The oracle's rows of a federation, and the library's in one shape for all tests."""
    expected_rows = oracle.client_rows(*federations.make(seed))[:most]
    padding = 48 - len(expected_rows)
    return expected_rows, federations.rows(federations.make(seed), precision, expected_rows, padding=padding)


def observations(rows, num_classes):
    """√n_r (x_r − μ_c) of all classes, and the same rotated within each class to its K_c − 1 rows.

    Helmert's rotation: the rows of a class are orthogonal to (√n_r), so an orthonormal basis whose last
    vector is that one has nothing left there. Their number is then the degrees of freedom, ν.
    """
    mean = oracle.moments(rows, num_classes)[2]
    plain, rotated = [], []
    for c in range(num_classes):
        mine = oracle.of_class(rows, c)
        if len(mine) > 1:
            root = np.sqrt([n for _, n in mine])
            centred = np.stack([s * (x - mean[c]) for s, (x, _) in zip(root, mine, strict=True)])
            basis = np.linalg.svd(root[None, :])[2][1:]  # orthonormal, orthogonal to the root
            plain.append(centred)
            rotated.append(basis @ centred)
    return np.concatenate(plain), np.concatenate(rotated)


def expected_covariance(rows, num_classes, rule, strength=0.3):
    degrees = oracle.spread_degrees(rows, num_classes)
    plain, _ = observations(rows, num_classes)
    covariance = plain.T @ plain / degrees
    if rule in ("diagonal_loading", "relative"):
        return getattr(oracle, rule)(covariance, strength)
    if rule == "pseudo_observations":
        return oracle.relative(covariance, min(1, len(covariance) / degrees))
    if rule == "empirical_bayes":
        dim = len(covariance)
        return (degrees * covariance + np.trace(covariance) * np.eye(dim)) / dim
    if rule == "oas":
        return oracle.oas(covariance, degrees)
    return oracle.ledoit_wolf(covariance, degrees, plain)


def as_head(covariance, moments):
    """Shows what a head receives."""
    return covfree.LinearHead(covariance.dense(), jnp.zeros(covariance.dim, covariance.value.dtype))


@pytest.mark.parametrize("rule", ["diagonal_loading", "empirical_bayes", "ledoit_wolf"])
def test_a_head_receives_the_shrunk_covariance(rule):
    expected_rows, rows = padded(0)
    method = covfree.fedcof(shrinkage=RULES[rule](), weighting="pooled", head=as_head)
    received = covfree.solve_rows(method, rows, num_classes=CLASSES).weight
    FLOAT32.assert_close(received, expected_covariance(expected_rows, CLASSES, rule))


def test_rules_equal_the_oracle(precision):
    for seed in (0, 1):
        expected_rows, rows = padded(seed, precision)
        actual = shrunk(rows)
        for rule in FORMULAS:
            precision.assert_close(actual[rule], expected_covariance(expected_rows, CLASSES, rule))


def test_rules_equal_the_oracle_in_the_dual(precision):
    # 6 rows of 20 features: the covariance is held by its factor.
    rng = np.random.default_rng(0)
    expected_rows = [(rng.normal(size=20) * np.arange(1, 21), 3 + r, r % 2) for r in range(6)]
    rows = covfree.Rows(*(precision.array(np.array(column)) for column in zip(*expected_rows, strict=True)))
    actual = shrunk(rows, num_classes=20)
    for rule in FORMULAS:
        precision.assert_close(actual[rule], expected_covariance(expected_rows, 20, rule))


def test_estimate_covariance_shrinks_one_class(precision):
    rng = np.random.default_rng(1)
    expected_rows = [(rng.normal(size=DIM), int(n), 0) for n in rng.integers(1, 9, 15)]
    means, counts, _ = (np.array(column) for column in zip(*expected_rows, strict=True))
    actual = estimated(precision.array(means), precision.array(counts))
    for rule in FORMULAS:
        precision.assert_close(actual[rule], expected_covariance(expected_rows, 1, rule))


def test_oas_equals_scikit_learn_on_as_many_observations_as_degrees(precision):
    expected_rows, rows = padded(2, precision)
    _, rotated = observations(expected_rows, CLASSES)
    assert len(rotated) == oracle.spread_degrees(expected_rows, CLASSES)
    peer = OAS(assume_centered=True).fit(rotated)
    assert 0.01 < peer.shrinkage_ < 0.99  # the test would see nothing at the ends
    precision.assert_close(shrunk(rows)["oas"], peer.covariance_)


@pytest.mark.parametrize(("rule", "peer"), [("oas", OAS), ("ledoit_wolf", LedoitWolf)])
def test_rules_equal_scikit_learn_where_one_row_sits_at_the_mean(precision, rule, peer):
    # Observations that sum to 0, and a row at their mean: it adds no scatter, and ν = K − 1 is their number.
    rng = np.random.default_rng(3)
    z = rng.normal(size=(14, DIM)) * np.arange(1, DIM + 1)
    z = z - z.mean(0)
    means = np.concatenate([z, np.zeros((1, DIM))]) + 2.0
    fitted = peer(assume_centered=True).fit(z)
    assert 0.01 < fitted.shrinkage_ < 0.99
    actual = estimated(precision.array(means), precision.array(np.ones(15, int)))
    precision.assert_close(actual[rule], fitted.covariance_)


def test_ledoit_wolf_differs_from_scikit_learn_by_the_degrees_alone():
    # On the unrotated rows scikit-learn counts each of them as an observation.
    expected_rows = oracle.client_rows(*federations.make(4))
    plain, rotated = observations(expected_rows, CLASSES)
    peer = LedoitWolf(assume_centered=True).fit(plain)
    number = len(plain)
    assert_close(oracle.ledoit_wolf(plain.T @ plain / number, number, plain), peer.covariance_, 1e-9)
    assert number > len(rotated)


def test_shrunk_covariances_are_definite():
    _, rows = padded(7, most=6)  # fewer rows than spread over 5 features
    for name, covariance in shrunk(rows).items():
        values = np.linalg.eigvalsh(np.asarray(covariance, np.float64))
        assert values[0] > 1e-3 * values[-1], name


@pytest.mark.parametrize(("dim", "size", "num_classes"), [(1, 6, CLASSES), (DIM, 48, CLASSES), (20, 6, 20)])
def test_rules_on_degenerate_input(dim, size, num_classes):
    """In one dimension, in full and by the factor; the rows are padded to what other tests compile."""
    for case in ("equal", "one row each", "no row", "two rows"):
        label = {"two rows": [0, 0, 1]}.get(case, [0, 1, 2] if case == "one row each" else [0, 0, 0])
        mean = np.ones((3, dim)) if case == "equal" else np.arange(3.0 * dim).reshape(3, dim)
        count = np.array([0, 0, 0] if case == "no row" else [3, 2, 1])
        more = np.zeros(size - 3, int)
        columns = (np.r_[mean, np.zeros((size - 3, dim))], np.r_[count, more], np.r_[label, more])
        rows = covfree.Rows(*map(FLOAT32.array, columns))
        for name, covariance in shrunk(rows, num_classes=num_classes).items():
            assert np.isfinite(covariance).all(), (case, name)
            assert (np.linalg.eigvalsh(covariance) >= -1e-3).all(), (case, name)
            # Nothing was observed: nothing but the absolute shrinkage is left ("auto" may take another unit).
            if case != "two rows" and name != "auto":
                expected = (0.3 if name == "diagonal_loading" else 0) * np.eye(dim)
                np.testing.assert_allclose(covariance, expected, atol=1e-9, err_msg=f"{case}, {name}")


@pytest.mark.parametrize("name", ["diagonal_loading", "relative"])
def test_strength_can_be_swept_and_differentiated(name):
    make = getattr(covfree, name)
    means = np.random.default_rng(8).normal(size=(15, DIM)).astype(np.float32)
    one = jax.jit(lambda s: covfree.estimate_covariance(means, jnp.ones(15), shrinkage=make(s)))
    strengths = jnp.array([0.0, 0.1, 3.0])
    swept = jax.jit(jax.vmap(one))(strengths)
    plain = np.asarray(one(0.0))
    unit = 1 if name == "diagonal_loading" else np.trace(plain) / DIM
    for k, s in enumerate(strengths.tolist()):
        assert_close(swept[k], one(s), 1e-6)
        assert_close(swept[k], plain + s * unit * np.eye(DIM), 1e-6)
    slope = jax.jit(jax.grad(lambda s: jnp.trace(one(s))))(0.1)
    np.testing.assert_allclose(slope, DIM * unit, rtol=1e-5)


@pytest.mark.parametrize("dim", [3, 30])  # in full, and by the factor
def test_gradients_are_finite(dim):
    # A class with one row, padding, few rows; with equal features even the data-driven rules must not
    # divide nothing by nothing in their derivatives.
    count, label = jnp.array([5, 2, 3, 1, 4, 2, 0, 3]), jnp.array([0, 0, 0, 1, 1, 2, 1, -1])

    @jax.jit
    @jax.jacrev
    def gradients(mean):
        found = shrunk(covfree.Rows(mean, count, label), num_classes=dim)
        return jnp.stack([jnp.sin(found[name]).sum() for name in RULES])

    for mean in (np.ones((8, dim)), np.random.default_rng(0).normal(size=(8, dim))):
        mean = mean.astype(np.float32)
        mean[6:] = np.nan
        found = np.asarray(gradients(mean))
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(found[:, 6:], 0)


# Errors


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-0.1, ValueError, r"shrinkage: expected a finite number of at least 0, got -0\.1"),
        (float("nan"), ValueError, "shrinkage: expected a finite number of at least 0, got nan"),
        (float("inf"), ValueError, "shrinkage: expected a finite number of at least 0, got inf"),
        (np.float32(-0.5), ValueError, "shrinkage: expected a finite number of at least 0, got .*-0.5"),
        ("best", ValueError, "shrinkage: expected a number, a share .* '10%', 'auto' or a rule, got 'best'"),
        ("-1%", ValueError, r"shrinkage: expected a finite number of at least 0, got -0\.01"),
        ("ten%", ValueError, "shrinkage: expected a number, a share .* got 'ten%'"),
        ("oas", ValueError, r"got 'oas'; the rule is covfree\.oas\(\)"),
        (covfree.oas, TypeError, "shrinkage: expected .* a rule, got the function oas; call it"),
        (True, TypeError, "shrinkage: expected a number, got True"),
        (None, TypeError, "shrinkage: expected a number, got None"),
        ([0.1], TypeError, r"shrinkage: expected a number, got an array of shape \[1\]"),
        (
            np.array([0.1, 0.2]),
            TypeError,
            r"shrinkage: expected a number, got an array of shape \[2\].*jax\.vmap",
        ),
    ],
    ids=[
        "negative",
        "nan",
        "infinite",
        "numpy",
        "string",
        "negative share",
        "no share",
        "name",
        "function",
        "bool",
        "none",
        "list",
        "array",
    ],
)
def test_wrong_strengths(value, error, message):
    with pytest.raises(error, match=message):
        covfree.fedcof(shrinkage=value)
    with pytest.raises(error, match=message):
        covfree.estimate_covariance(jnp.ones((2, 2)), jnp.ones(2), shrinkage=value)
    if not isinstance(value, str) and not callable(value):
        for rule in (covfree.diagonal_loading, covfree.relative):
            with pytest.raises(error, match=message.replace("shrinkage", "gamma")):
                rule(value)


@pytest.mark.parametrize("rule", [covfree.relative(0.3), covfree.oas()])
def test_a_multiple_of_the_identity_in_the_covariance_counts(rule):
    """Kept apart as a shift, as where clients send one variance for all directions, or in the matrix."""
    factor = jnp.asarray(np.random.default_rng(0).normal(size=(30, 4)), jnp.float32)
    matrix = factor.T @ factor / 30
    moments = covfree.Moments(jnp.array([40]), jnp.array([31]), jnp.zeros((1, 4)))
    freedom = covfree.Freedom.of_classes(moments, jnp.full(1, 1 / 30))
    whole = covfree.linalg.Scatter.from_matrix(matrix + 0.7 * jnp.eye(4))
    apart = covfree.linalg.Scatter.from_matrix(matrix).shifted(0.7)
    expected = rule.apply(whole, moments, freedom, None).dense()
    FLOAT32.assert_close(rule.apply(apart, moments, freedom, None).dense(), expected)


def test_degrees_of_no_weight_have_a_derivative():
    zero = jnp.zeros(2)
    gradient = jax.grad(lambda weight: covfree.Freedom(jnp.ones(2), weight).effective)(zero)
    np.testing.assert_array_equal(gradient, 0)


def test_rules_do_not_depend_on_the_scale():
    """From 1e-15 to 1e18 in float32, where fourth powers are far outside its range."""
    _, rows = padded(0)

    def relative(scale):
        found = shrunk(covfree.Rows(rows.mean * jnp.float32(scale), rows.count, rows.label))
        return {
            name: np.asarray(covariance, np.float64) / scale / scale for name, covariance in found.items()
        }

    expected = relative(1.0)
    for scale in (1e-15, 1e-11, 1e-6, 1e-4, 1e4, 1e6, 1e11, 1e15, 1e18):
        found = relative(scale)
        for name in RULES:
            if name != "diagonal_loading":
                assert_close(found[name], expected[name], 1e-5)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_sums_of_ledoit_wolf_stay_finite_for_many_rows(scale):
    """A round whose state is not finite is undone; sums in a scale that is not used were infinite."""
    rng = np.random.default_rng(0)
    rows = covfree.Rows(
        (scale * rng.normal(size=(900, 3))).astype(np.float32), np.full(900, 4, np.int32), np.arange(900) % 2
    )
    method = covfree.fedcof(shrinkage=covfree.ledoit_wolf())
    _, spread = covfree.accumulate(method, rows, num_classes=2)
    assert np.isfinite(np.asarray(spread.statistics)).all()


def test_rules_of_one_class_do_not_depend_on_the_scale():
    """With a share of the covariance in the result: were the weight 1, all off the diagonal would be 0."""
    rng = np.random.default_rng(0)
    means, counts = rng.normal(size=(15, DIM)).astype(np.float32), rng.integers(1, 9, 15)
    means[:, 1] += 2 * means[:, 0]

    def relative(scale):
        found = estimated(FLOAT32.array(means * np.float32(scale)), FLOAT32.array(counts))
        return {name: np.asarray(found[name], np.float64) / scale / scale for name in ("oas", "ledoit_wolf")}

    expected = relative(1.0)
    for scale in (1e-15, 1e-11, 1e-6, 1e-4, 1e4, 1e6, 1e11, 1e15):
        found = relative(scale)
        for name in expected:
            assert abs(expected[name][0, 1]) > 1e-3
            assert_close(found[name], expected[name], 1e-5)
