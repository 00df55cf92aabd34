"""What `diagnose` says of rows: against its formulas, against what really happens, and in words."""

import dataclasses
import math
from functools import partial

import federations
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from federations import ABSENT, ALONE, CLASSES
from precision import FLOAT32

import covfree

KEY = jax.random.key(0)
# Where the strength of shrinkage does not matter: the automatic rule takes long to compile.
FIXED = covfree.fedcof(shrinkage=0.1)


def rows_of(method, federation):
    return covfree.summarise(method, *map(FLOAT32.array, federation), key=KEY)


def gaussian_rows(draws, clients, classes, root, seed=0, shift=0.0):
    """Means of 50 examples of a class at each client; ``shift`` moves clients, in standard deviations."""
    rng = np.random.default_rng(seed)
    dim = len(root)
    noise = rng.normal(size=(draws, clients, classes, dim)) @ root.T / math.sqrt(50)
    moves = shift * rng.normal(size=(draws, clients, 1, dim))
    mean = (noise + moves).reshape(draws, clients * classes, dim).astype(np.float32)
    label = np.tile(np.arange(classes), clients)
    client = np.repeat(np.arange(clients), classes)
    count = np.full(len(label), 50)
    return [covfree.Rows(*map(jnp.asarray, (one, count, label, client))) for one in mean]


def test_counts_and_degrees():
    federation = federations.make(1)
    found = covfree.diagnose(rows_of(FIXED, federation), num_classes=CLASSES, method=FIXED)
    expected = oracle.client_rows(*federation.clean)
    count, held, _ = oracle.moments(expected, CLASSES)
    np.testing.assert_array_equal(found.num_rows, held)
    np.testing.assert_array_equal(found.count, count)
    np.testing.assert_array_equal(found.class_degrees, np.maximum(held - 1, 0))
    assert (found.absent, found.without_spread) == (1, 1)
    assert "1 have no example: they are never predicted." in str(found)
    assert np.isinf(np.asarray(found.class_error)[[ABSENT, ALONE]]).all()
    # Satterthwaite's degrees, from the weights (N_c − 1)/(K_c − 1).
    seen = held > 1
    weight = (count[seen] - 1) / (held[seen] - 1)
    degrees = (weight * (held[seen] - 1)).sum() ** 2 / (weight**2 * (held[seen] - 1)).sum()
    np.testing.assert_allclose(found.degrees, degrees, rtol=1e-5)


def test_the_expected_error_is_the_error():
    """Over 200 federations the squared relative error is (1 + r)/ν, and the rank is told from Σ̂ alone."""
    root = np.diag([3.0, 2.0, 1.0, 1.0, 0.5])
    sigma = root @ root.T
    rank = np.trace(sigma) ** 2 / np.trace(sigma @ sigma)

    @jax.jit
    def estimated(rows):
        moments = covfree.first_moments(rows, 2)
        return covfree.within_scatter(rows, moments) / moments.within_degrees

    squares, errors, ranks = [], [], []
    for rows in gaussian_rows(200, 15, 2, root):
        found = covfree.diagnose(rows, num_classes=2, method=FIXED)
        squares.append(np.linalg.norm(estimated(rows) - sigma) ** 2 / np.linalg.norm(sigma) ** 2)
        errors.append(float(found.error))
        ranks.append(float(found.effective_rank))
    np.testing.assert_allclose(found.degrees, 28, rtol=1e-5)
    theory, mean = (1 + rank) / 28, np.mean(squares)
    assert abs(mean - theory) < 4.5 * np.std(squares) / math.sqrt(200)
    # Without the correction for ν the rank would be told 12 % too low, and the error with it.
    np.testing.assert_allclose(np.mean(ranks), rank, rtol=0.06)
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(errors))), math.sqrt(theory), rtol=0.05)
    np.testing.assert_allclose(found.class_error, np.sqrt((1 + found.effective_rank) / 14), rtol=1e-5)


def test_condition_numbers_before_and_after_shrinkage():
    federation = federations.make(1)
    method = covfree.fedcof(shrinkage=0.3)
    found = covfree.diagnose(rows_of(method, federation), num_classes=CLASSES, method=method)
    expected = oracle.client_rows(*federation.clean)
    count, held, _ = oracle.moments(expected, CLASSES)
    # Classes of one row show nothing, and do not count.
    degrees = sum(n - 1 for n, k in zip(count, held, strict=True) if k > 1)
    covariance = oracle.within_scatter(expected, CLASSES) / degrees
    np.testing.assert_allclose(found.condition_before, np.linalg.cond(covariance), rtol=1e-3)
    shrunk = oracle.diagonal_loading(covariance, 0.3)
    np.testing.assert_allclose(found.system.condition, np.linalg.cond(shrunk), rtol=1e-3)
    assert covfree.linalg.Route(int(found.system.route)).name == "CHOLESKY"


def test_fewer_rows_than_dimensions_are_singular():
    rows = gaussian_rows(1, 4, 2, np.eye(20))[0]
    found = covfree.diagnose(rows, num_classes=2, method=FIXED)
    assert np.isinf(found.condition_before)
    assert np.isfinite(found.system.condition)
    assert "infinite as estimated, but " in str(found)
    assert "as shrinkage (or a ridge) is added." in str(found)
    unshrunk = covfree.fedcof(0.0)
    assert "added" not in str(covfree.diagnose(rows, num_classes=2, method=unshrunk))


@pytest.mark.slow
def test_methods_with_other_estimates_have_other_degrees():
    federation = federations.make(2)
    found = {}
    for name, method in {
        "fedcof": FIXED,
        "residuals": covfree.fedcof_residuals(4, shrinkage=0.1),
        "fedncm": covfree.fedncm(),
    }.items():
        found[name] = covfree.diagnose(rows_of(method, federation), num_classes=CLASSES, method=method)
    assert found["fedncm"].system is None
    assert found["fedncm"].degrees == found["fedcof"].degrees
    assert found["residuals"].degrees > found["fedcof"].degrees


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("plain", ["2 classes, 30 means of 1500 examples.", "28 degrees of freedom", "about 84 more"]),
        ("alone", ["No covariance is seen", "cannot be told"]),
        ("same", ["cannot be told from these means"]),
    ],
)
def test_verdict(case, words):
    rows = gaussian_rows(1, 15, 2, np.eye(5), seed=3)[0]
    if case == "alone":
        rows = dataclasses.replace(rows, count=jnp.where(rows.client == 0, rows.count, 0))
    text = str(covfree.diagnose(rows, num_classes=2, method=FIXED))
    for word in words:
        assert word in text, text


def test_a_verdict_without_a_share_of_the_shift_and_on_few_means():
    rows = gaussian_rows(1, 2, 1, np.eye(5), seed=3)[0]
    found = covfree.diagnose(rows, num_classes=1, method=FIXED)
    assert found.error > 0.5
    assert "Fed3R and refinement (covfree.refined) need no estimate." in str(found)
    told = found.shift._replace(informative=True, p_value=1e-5, relative_shift=np.float32(np.inf))
    text = str(dataclasses.replace(found, shift=told))
    assert "the variances are mostly the differences of clients, and too large" in text


@pytest.mark.parametrize(
    ("shift", "words"), [(0.0, "No sign that clients"), (0.5, "Clients' features differ")]
)
def test_verdict_on_client_shift(shift, words):
    # Two means of a client's class: the same move, noise of their own.
    first, second = (gaussian_rows(1, 15, 2, np.eye(5), seed=seed)[0] for seed in (4, 5))
    moved = gaussian_rows(1, 15, 2, 1e-6 * np.eye(5), seed=6, shift=shift)[0].mean
    both = jax.tree.map(lambda *x: jnp.concatenate(x), first, second)
    rows = dataclasses.replace(both, mean=both.mean + jnp.concatenate([moved, moved]))
    text = str(covfree.diagnose(rows, num_classes=2, method=covfree.fedcof_components(shrinkage=0.1)))
    assert words in text, text


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "known"), [(4, False), (100, True)])
def test_few_means_are_said_to_hide_a_shift(clients, known):
    """Four sites, each moved by three standard deviations: the test sees nothing, and the verdict says so."""
    rng, size = np.random.default_rng(3), clients * 2
    owner, label, count = np.arange(size) // 2, np.arange(size) % 2, rng.integers(20, 200, size)
    moved = 0 if known else 3 * rng.normal(size=(clients, 5))[owner]
    means = rng.normal(size=(size, 5)) / np.sqrt(count)[:, None] + moved
    rows = covfree.Rows(*map(jnp.asarray, (means, count, label, owner)))
    text = str(covfree.diagnose(rows, num_classes=2, method=FIXED))
    assert "No sign that clients' features differ" in text, text
    assert ("too few to show it" in text and "Fed3R and refinement" in text.split("show it")[1]) != known, (
        text
    )


def test_a_share_of_the_shift_is_told():
    moved = gaussian_rows(1, 60, 2, np.eye(5), seed=7, shift=0.5)[0]
    other = gaussian_rows(1, 60, 2, np.eye(5), seed=8)[0]
    moves = gaussian_rows(1, 60, 2, 1e-6 * np.eye(5), seed=7, shift=0.5)[0].mean
    # Same clients, same moves, other examples.
    other = dataclasses.replace(other, mean=other.mean + moves)
    moved = dataclasses.replace(moved, mean=gaussian_rows(1, 60, 2, np.eye(5), seed=9)[0].mean + moves)
    rows = jax.tree.map(lambda *x: jnp.concatenate(x), moved, other)
    found = covfree.diagnose(rows, num_classes=2, method=FIXED)

    @jax.jit
    def total_variance(rows):
        moments = covfree.first_moments(rows, 2)
        return jnp.trace(covfree.within_scatter(rows, moments)) / moments.within_degrees

    trace = float(total_variance(rows))
    np.testing.assert_allclose(found.shift.relative_shift, trace / 5 - 1, rtol=0.15)


def test_a_scale_changes_no_rank():
    rows = gaussian_rows(1, 15, 2, np.diag([3.0, 2.0, 1.0, 1.0, 0.5]))[0]
    expected = covfree.diagnose(rows, num_classes=2, method=FIXED)
    assert 1.5 < expected.effective_rank < 4
    for scale in (2.0**34, 2.0**-34):
        scaled = dataclasses.replace(rows, mean=scale * rows.mean)
        found = covfree.diagnose(scaled, num_classes=2, method=FIXED)
        FLOAT32.assert_close(found.effective_rank, expected.effective_rank)
        FLOAT32.assert_close(found.error, expected.error)


def test_features_far_from_zero():
    rows = gaussian_rows(1, 15, 2, np.eye(5), seed=3)[0]
    run = partial(covfree.diagnose, num_classes=2, method=FIXED)
    # What a head about the origin makes of float32 is in tests/methods/test_contracts.py.
    for offset, words, others in (
        (10.0, "Features lie", ("do not trust", "too few digits")),
        (100.0, "do not trust heads about the origin there (Fed3R, AFL)", ("too few digits",)),
        (1e4, "do not trust heads about the origin", ("too few digits",)),
        (1e6, "hold too few digits for any method", ("do not trust",)),
    ):
        moved = dataclasses.replace(rows, mean=rows.mean + jnp.float32(offset))
        found = run(moved)
        if offset < 1e6:  # there the spread is that of rounding
            # 50 examples a mean, and unit variances.
            np.testing.assert_allclose(found.offset, offset, rtol=0.1)
        text = str(found)
        assert words in text, text
        assert not any(other in text for other in others), text
    # Rounded, they are equal.
    text = str(run(dataclasses.replace(rows, mean=jnp.full_like(rows.mean, 1e9))))
    assert "hold too few digits for any method" in text
    assert not any(word in text for word in ("relative error", "No sign", "rank of")), text
    found = run(dataclasses.replace(rows, count=jnp.where(rows.client == 0, rows.count, 0)))
    assert np.isinf(found.offset)
    assert "from zero" not in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["diagonal", "spherical"])
def test_what_clients_sent_of_their_variances_counts(covariance):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 6)).astype(np.float32)
    labels, clients = rng.integers(0, 2, 600), rng.integers(0, 10, 600)
    method = covfree.fedcof_oracle(0.1, covariance=covariance)
    rows = covfree.summarise(method, features, labels, clients)
    found = covfree.diagnose(rows, num_classes=2, method=method)
    # Σ = I: the whole of it is seen, with 598 degrees of freedom.
    np.testing.assert_allclose(found.degrees, 598, rtol=1e-5)
    np.testing.assert_allclose(found.effective_rank, 6, rtol=0.02)
    assert found.condition_before < 1.6
