"""Values of rows at the door: every error by its message; what is sound passes."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import covfree

MEAN = np.arange(8.0, dtype=np.float32).reshape(4, 2)
COUNT, LABEL = np.array([3, 1, 0, 2]), np.array([0, 2, -1, 1])


def spoiled(value, row, column=1):
    mean = MEAN.copy()
    mean[row, column] = value
    return mean


ROW_CASES = [
    (
        "NaN",
        (spoiled(np.nan, 1), COUNT, LABEL),
        ValueError,
        r"mean: row 1 \(class 2\) holds nan at position 1; expected finite",
    ),
    ("infinite", (spoiled(-np.inf, 0), COUNT, LABEL), ValueError, r"mean: row 0 \(class 0\) holds -inf"),
    (
        "negative count",
        (MEAN, np.array([3, -1, 0, 2]), LABEL),
        ValueError,
        "count: row 1 has count -1; expected finite numbers of at least 0",
    ),
    ("NaN count", (MEAN, np.array([3, np.nan, 0, 2]), LABEL), ValueError, "count: row 1 has count nan"),
    ("infinite count", (MEAN, np.array([3, 1, 0, np.inf]), LABEL), ValueError, "count: row 3 has count inf"),
    (
        "label past the end",
        (MEAN, COUNT, np.array([0, 3, -1, 1])),
        ValueError,
        "label: row 1 has label 3; expected labels below num_classes = 3",
    ),
    ("integer mean", (MEAN.astype(int), COUNT, LABEL), TypeError, "mean: expected floats, got int64"),
    ("boolean count", (MEAN, COUNT > 0, LABEL), TypeError, "count: expected numbers, got bool"),
    ("float label", (MEAN, COUNT, LABEL * 1.0), TypeError, "label: expected integers, got float64"),
    ("cube", (MEAN[None], COUNT, LABEL), ValueError, r"mean: expected shape \[rows, dim\], got \[1, 4, 2\]"),
    (
        "few counts",
        (MEAN, COUNT[:2], LABEL),
        ValueError,
        r"count: expected shape \[4\] as mean has, got \[2\]",
    ),
    (
        "few labels",
        (MEAN, COUNT, LABEL[:2]),
        ValueError,
        r"label: expected shape \[4\] as mean has, got \[2\]",
    ),
    (
        "few covariances",
        (MEAN, COUNT, LABEL, None, np.ones((2, 2, 2))),
        ValueError,
        r"covariance: expected shape \[4\], \[4, 2\] or \[4, 2, 2\] as mean has, got \[2, 2, 2\]",
    ),
    (
        "covariances of another dim",
        (MEAN, COUNT, LABEL, None, np.ones((4, 3))),
        ValueError,
        r"covariance: expected shape \[4\], \[4, 2\] or \[4, 2, 2\] as mean has, got \[4, 3\]",
    ),
    (
        "NaN in a covariance",
        (MEAN, COUNT, LABEL, None, np.where(np.arange(16) == 6, np.nan, 1.0).reshape(4, 2, 2)),
        ValueError,
        r"covariance: row 1 \(class 2\) holds nan at position 2; expected finite",
    ),
    (
        "infinite diagonal",
        (MEAN, COUNT, LABEL, None, np.where(np.arange(8) == 7, np.inf, 1.0).reshape(4, 2)),
        ValueError,
        r"covariance: row 3 \(class 1\) holds inf at position 1",
    ),
    (
        "NaN variance",
        (MEAN, COUNT, LABEL, None, np.array([1, 1, 1, np.nan])),
        ValueError,
        r"covariance: row 3 \(class 1\) holds nan at position 0",
    ),
    (
        "few marks",
        (MEAN, COUNT, LABEL, None, None, np.zeros(3, bool)),
        ValueError,
        r"sketch: expected shape \[4\] as mean has, got \[3\]",
    ),
    (
        "NaN in a sketch",
        (spoiled(np.nan, 2), np.array([3, 1, 4, 2]), LABEL, None, None, np.arange(4) == 2),
        ValueError,
        r"mean: row 2 \(class -1\) holds nan at position 1; expected finite",
    ),
]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("arrays", "error", "message"), [c[1:] for c in ROW_CASES], ids=[c[0] for c in ROW_CASES]
)
def test_bad_rows_are_named_and_set_aside(arrays, error, message):
    """By the check alone, and at the server's door, where the others count."""
    bad, good = covfree.Rows(*arrays), covfree.Rows(MEAN, COUNT, LABEL)
    with pytest.raises(error, match=message):
        covfree.check_rows(bad, num_classes=3)
    sent = {name: covfree.Message(own) for name, own in (("a", good), ("bad", bad), ("b", good))}
    collected = covfree.collect(sent, num_classes=3)
    assert collected.clients == ("a", "b")
    assert re.match(message, collected.rejected["bad"])
    np.testing.assert_array_equal(collected.message.rows.count, [3, 1, 2] * 2)


def test_sound_rows_pass():
    rows = covfree.Rows(MEAN, COUNT, LABEL)
    covfree.check_rows(rows, num_classes=3, dim=2)
    covfree.check_rows(covfree.Rows(spoiled(np.nan, 2), COUNT, LABEL), num_classes=3)  # padding
    covfree.check_rows(covfree.Rows(jnp.asarray(MEAN, jnp.bfloat16), COUNT * 0.5, LABEL), num_classes=3)
    with pytest.raises(ValueError, match=r"mean: expected shape \[rows, 5\], got \[4, 2\]"):
        covfree.check_rows(rows, num_classes=3, dim=5)


@pytest.mark.parametrize("structure", [(4,), (4, 2), (4, 2, 2)], ids=["spherical", "diagonal", "full"])
def test_covariances_and_marks_that_are_sound_pass(structure):
    """Of padding they may hold anything, of rows of one example 0."""
    covariance = np.ones(structure)
    covariance[1], covariance[2] = 0, np.nan
    covfree.check_rows(covfree.Rows(MEAN, COUNT, LABEL, covariance=covariance), num_classes=3, dim=2)
    # A mark on a row of count 0 makes it no sketch.
    rows = covfree.Rows(spoiled(np.nan, 2), COUNT, LABEL, covariance=covariance, sketch=np.arange(4) == 2)
    covfree.check_rows(rows, num_classes=3)


@pytest.mark.parametrize("structure", [(0,), (0, 2), (0, 2, 2), None], ids=str)
def test_no_rows_pass(structure):
    """What a client without examples sends."""
    covariance = None if structure is None else np.ones(structure)
    covfree.check_rows(
        covfree.Rows(MEAN[:0], COUNT[:0], LABEL[:0], covariance=covariance), num_classes=3, dim=2
    )
