"""The sensitivities that docs/privacy.md derives, on integers, exactly."""

import math

import numpy as np
import pytest

from covfree.privacy import Upload
from covfree.privacy.clipping import bounded, clipped, on_grid
from covfree.privacy.uploads import Grid, added, diagonal_places, full_matrix

RNG = np.random.default_rng(0)
DIM, CLASSES, CLIP = 5, 3, 2.0


def grid(kind, neighbours="add_remove", weight=None, log=13, rho=0.02):
    return Grid.of(kind, log, rho, 1, CLIP, weight, neighbours)


def weighted_norm(upload, other=None):
    """Of integers, off-diagonal ones of the matrix counted twice, in exact integers."""
    values = [int(v) for v in (upload.values - (0 if other is None else other.values)).ravel()]
    twice = [1] * len(values)
    if upload.kind == "matrix":
        diagonal = set(diagonal_places(DIM).tolist())
        twice = [1 if place in diagonal else 2 for place in range(len(values))]
    return math.sqrt(sum(w * v * v for w, v in zip(twice, values, strict=True)))


def extreme_examples():
    """Vectors at, near and far past the bound, along an axis, the diagonal and at random."""
    axis, diagonal = np.eye(DIM)[:2], np.ones((1, DIM)) / math.sqrt(DIM)
    random = RNG.normal(size=(20, DIM))
    random /= np.linalg.norm(random, axis=1, keepdims=True)
    unit = np.concatenate([axis, diagonal, random])
    scales = CLIP * np.array([1.0, 1 - 1e-16, 1 + 1e-12, 1e6, 0.5, 0.0])
    return np.concatenate([s * unit for s in scales] + [-CLIP * unit])


def one(g, example, label):
    return g.upload(example[None], np.array([label]), CLASSES)


@pytest.mark.parametrize("kind", ["sums", "matrix"])
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_no_example_moves_the_sum_by_more_than_the_sensitivity(kind, neighbours):
    g, examples = grid(kind, neighbours), extreme_examples()
    most = g.sensitivity(neighbours)
    made = [one(g, example, label) for label in (0, 1) for example in examples]
    if neighbours == "add_remove":
        distances = [weighted_norm(each) for each in made]
    else:
        distances = [weighted_norm(a, b) for a in made[::4] for b in made[1::3]]
        distances += [weighted_norm(one(g, x, 0), one(g, -x, 0)) for x in examples]
    assert max(distances) <= most * (1 + 1e-12)
    assert max(distances) > 0.97 * most  # so the bound is not wasted


@pytest.mark.parametrize("kind", ["sums", "matrix"])
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_no_client_moves_the_sum_by_more_than_the_sensitivity(kind, neighbours):
    g = grid(kind, neighbours, weight=10.0)
    bound = g.sensitivity(neighbours) / (1 if neighbours == "add_remove" else 2)
    large = g.upload(1e3 * RNG.normal(size=(500, DIM)), RNG.integers(0, CLASSES, 500), CLASSES)
    assert weighted_norm(large) <= bound
    # So many examples of one class weigh as much as one of 10 may; in the matrix, half of that.
    for number, share in ((500, 1.0), (5, 0.5)):
        same = g.upload(np.tile(CLIP * np.eye(DIM)[0], (number, 1)), np.zeros(number, int), CLASSES)
        expected = share * bound / (1 if kind == "sums" else 2)
        assert 0.99 * expected < weighted_norm(same) <= expected * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["sums", "matrix"])
@pytest.mark.parametrize("weight", [None, 10.0])
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("noises", [1, 50])
def test_a_grid_costs_at_most_its_rho(kind, weight, neighbours, noises):
    g = Grid.of(kind, 14, 0.02, noises, CLIP, weight, neighbours)
    assert 0.97 * 0.02 < g.rho(noises, neighbours) <= 0.02


def test_noise_has_the_packed_law_and_reaches_absent_classes():
    draws = np.random.default_rng(3).bytes
    g, dim = grid("matrix"), 300
    noisy = g.noised(g.upload(np.zeros((0, dim)), np.zeros(0, int), CLASSES), 3, draws).values
    diagonal = np.isin(np.arange(noisy.size), diagonal_places(dim))
    for place, variance in ((diagonal, 2.0), (~diagonal, 1.0)):
        z = ((noisy[place] / 2.0**13) ** 2 / 3 / variance - 1).mean() * np.sqrt(place.sum() / 2)
        assert abs(z) < 4.5
    sums = grid("sums")
    none = sums.upload(np.zeros((0, DIM)), np.zeros(0, int), CLASSES)
    assert np.stack([sums.noised(none, 1, draws).values != 0 for _ in range(3)]).any(0).all()


def test_numbers_come_back_from_the_grid():
    features, labels = RNG.normal(size=(40, DIM)), RNG.integers(-1, CLASSES, 40)
    features *= 0.9 * CLIP / np.linalg.norm(features, axis=1).max()
    kept = labels >= 0
    for weight in (None, 1e4):
        g = grid("sums", weight=weight, log=22, rho=0.1)
        up = g.upload(features, labels, CLASSES).values
        sums = np.stack([features[labels == c].sum(0) for c in range(CLASSES)])
        tolerance = g.step * CLIP * len(labels)
        np.testing.assert_allclose(up[:, :-2] * g.step * CLIP, sums, atol=tolerance)
        np.testing.assert_allclose(up[:, -2] * g.count_step, np.bincount(labels[kept]), atol=0.03)
        squares = (features[kept] ** 2).sum()
        np.testing.assert_allclose(up[:, -1].sum() * g.square_step * CLIP**2, squares, rtol=0.03)
        m = grid("matrix", weight=weight, log=22, rho=0.1)
        matrix = full_matrix(m.upload(features, labels, CLASSES).values * m.step * CLIP**2)
        np.testing.assert_allclose(matrix, features[kept].T @ features[kept], atol=0.3)


def test_rounding_never_passes_the_bound():
    integers = on_grid(clipped(extreme_examples(), CLIP), 37)
    assert (integers**2).sum(1).max() == 37**2


def test_what_is_not_finite_or_overflows_stays_within_the_bound():
    rows = np.full((7, DIM), 1e-320)
    rows[:4] = np.array([np.nan, np.inf, 1e308, 3e38])[:, None]
    rows[0, 1:], rows[1, 1] = 1.0, -np.inf
    # Of 1e308 in each place a norm is infinite, of 1e-320 it is 0, if squares are summed as they are.
    for clip, norms in (
        (1.0, [1, 1, 0]),
        (1e308, [1, 0, 0]),
        (1e-320, [1, 1, 1]),
        (1e-319, [1, 1, 0.1 * DIM**0.5]),
    ):
        found = np.linalg.norm(clipped(rows, clip), axis=1)
        np.testing.assert_allclose(found[:5], [0, 0, *norms], rtol=1e-3, atol=1e-9)
    for kind in ("sums", "matrix"):
        for weight in (None, 3.0):
            g = grid(kind, weight=weight)
            parts = [g.upload(rows[[k]], np.zeros(1, int), CLASSES) for k in range(len(rows))]
            assert max(map(weighted_norm, parts)) <= g.sensitivity("add_remove")
    with pytest.raises(ArithmeticError, match="integers: expected a norm of at most 37, got"):
        bounded(np.full((1, 2), np.iinfo(np.int64).min), 37)


def test_what_does_not_fit_is_refused():
    a = grid("sums").upload(np.zeros((1, DIM)), np.zeros(1, int), CLASSES)
    b = grid("matrix").upload(np.zeros((1, DIM)), np.zeros(1, int), CLASSES)
    with pytest.raises(ValueError, match=r"upload: expected sums of shape \[3, 7\]"):
        added([a, b])
    with pytest.raises(ValueError, match="at least one"):
        added([])
    with pytest.raises(ValueError, match="epsilon: expected a larger one"):
        grid("matrix", rho=1e-7)


@pytest.mark.usefixtures("untyped")
def test_floats_are_no_upload():
    with pytest.raises(TypeError, match="values: expected an array of int64"):
        Upload("sums", np.zeros((2, 3)))
    with pytest.raises(TypeError, match="values: expected an array of int64, got list"):
        Upload("sums", [[1]])
    with pytest.raises(TypeError, match="noises: expected an integer of at least 0, got '2'"):
        Upload("sums", np.zeros((1, 3), np.int64), "2")
