"""How examples become rows: sizes known in advance, one client as among all, and operations."""

import dataclasses
from dataclasses import replace

import deployed
import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deployed import ragged
from federations import CLASSES, DIM
from precision import assert_close

import covfree
from covfree.methods import (
    Summary,
    keep_examples,
    send_class_means,
    send_mixtures,
)

KEY = jax.random.key(2)
MEANS = [
    send_class_means(),
    send_class_means(covariance="diagonal"),
    send_class_means(covariance="spherical"),
    send_class_means(3),
    send_class_means(None, 4),
]
ALL = [*MEANS, keep_examples(), send_mixtures(2)]


def named(value):
    return value.name if isinstance(value, Summary) else str(value)


each = pytest.mark.parametrize("summary", ALL, ids=named)


def rows_of(summary: Summary, sizes=None, made: federations.Federation | None = None) -> covfree.Rows:
    """Of a federation, by default of two clients (a mixture compiles for each size), with padding."""
    x, y, k = ragged("fedpft") if made is None else made
    sizes = summary.sizes(y, k) if sizes is None else sizes
    return summary.make(jnp.asarray(x), jnp.asarray(y), jnp.asarray(k), sizes, KEY)


def kept(rows: covfree.Rows) -> np.ndarray:
    return (np.asarray(rows.count) > 0) & (np.asarray(rows.label) >= 0)


@each
def test_is_a_summary_and_hashable(summary):
    assert isinstance(summary, Summary)
    again = dataclasses.replace(summary)
    assert again == summary
    assert hash(again) == hash(summary)
    assert len({*ALL}) == len(ALL)


@pytest.mark.parametrize("summary", [*MEANS, send_mixtures(2)], ids=named)
def test_the_number_of_rows_is_known_in_advance(summary):
    _, labels, clients = ragged("fedpft")
    assert summary.num_rows(labels, clients, DIM) == kept(rows_of(summary)).sum()


@each
def test_every_example_is_in_a_row_of_its_class_and_client(summary):
    features, labels, clients = ragged("fedpft").clean
    rows = rows_of(summary)
    for client in set(clients.tolist()):
        for label in set(labels.tolist()):
            mine = (clients == client) & (labels == label)
            own = kept(rows) & (np.asarray(rows.client) == client) & (np.asarray(rows.label) == label)
            count = np.asarray(rows.count)[own]
            np.testing.assert_allclose(count.sum(), mine.sum(), rtol=1e-5)
            sums = count @ np.asarray(rows.mean)[own]
            np.testing.assert_allclose(sums, features[mine].sum(0), atol=1e-4)


@pytest.mark.parametrize("summary", MEANS, ids=named)
def test_sizes_are_just_enough(summary):
    """One row fewer cannot hold all; a row more is padding."""
    _, labels, clients = ragged()
    (size,) = summary.sizes(labels, clients)
    rows = rows_of(summary, made=ragged())
    assert rows.count.shape == (size,)
    assert kept(rows).all()
    with pytest.raises(ValueError, match=f"num_rows: {size - 1} rows cannot hold all"):
        rows_of(summary, (size - 1,), ragged())
    assert kept(rows_of(summary, (size + 1,), ragged())).tolist() == [True] * size + [False]


@each
@pytest.mark.parametrize("number", [0, 1, 80])
def test_bounds_are_at_least_the_sizes(summary, number):
    """Of any federation of so many examples: all of one client's class, or each of a client of its own."""
    labels, one, many = np.zeros(number, int), np.zeros(number, int), np.arange(number)
    for clients in (one, many):
        sizes, bounds = summary.sizes(labels, clients), summary.bounds(number)
        assert len(sizes) == len(bounds)
        assert all(size <= bound for size, bound in zip(sizes, bounds, strict=True))
    assert min(summary.bounds(number)) >= 1  # a compiled function needs a row


@pytest.mark.parametrize("summary", MEANS[:3], ids=named)
def test_one_client_is_as_among_all(summary):
    """Where nothing is drawn; a row for each class (and subset), and nobody's by name."""
    everybody = rows_of(summary, made=ragged())
    for client in (3, 83):
        x, y = deployed.examples(client)
        rows = summary.one_client(jnp.asarray(x), jnp.asarray(y), CLASSES, None)
        assert rows.client is None
        assert rows.count.shape == (CLASSES,)
        own = np.asarray(everybody.client) == client
        for field in ("mean", "count", "label", "covariance"):
            expected, actual = getattr(everybody, field), getattr(rows, field)
            assert (expected is None) == (actual is None)
            if expected is not None:
                assert_close(np.asarray(actual)[kept(rows)], np.asarray(expected)[own], 1e-5)


@pytest.mark.parametrize("summary", [*MEANS, send_mixtures(2)], ids=named)
def test_a_label_past_the_end_is_padding(summary):
    x, y = deployed.examples(83)
    (at,) = np.flatnonzero(y >= 0)
    y[at] = CLASSES
    x[at] = 1
    assert not kept(summary.one_client(jnp.asarray(x), jnp.asarray(y), CLASSES, KEY)).any()


def test_examples_are_rows_as_they_are():
    """Those without a client are padding; a size beyond their number is filled up."""
    features, labels, clients = ragged()
    rows = rows_of(keep_examples(), (100,), ragged())
    np.testing.assert_array_equal(rows.mean[:80], features)
    np.testing.assert_array_equal(rows.label[:80], np.where(clients >= 0, labels, -1))
    np.testing.assert_array_equal(rows.client[:80], clients)
    np.testing.assert_array_equal(rows.count, [1] * 80 + [0] * 20)
    assert kept(rows).sum() == ragged().kept.sum()
    half = ragged().with_features(features.astype(np.float16))
    assert rows_of(keep_examples(), made=half).mean.dtype == np.float32


@pytest.mark.parametrize(
    ("summary", "name"), [(send_class_means(3), "num_subsets"), (send_mixtures(), "mixtures")], ids=named
)
def test_what_draws_needs_a_key(summary, name):
    with pytest.raises(ValueError, match=f"key: expected a PRNG key as {name}"):
        summary.one_client(*map(jnp.asarray, deployed.examples(83)), CLASSES, None)


@each
def test_operations_grow_with_the_examples(summary):
    labels, clients = np.arange(40) % 2, np.zeros(40, int)
    one, two = (summary.flops(np.tile(labels, r), np.tile(clients, r), DIM) for r in (1, 2))
    assert two == 2 * one
    assert (one > 0) != summary.stays
    assert summary.flops(labels[:0], clients[:0], DIM) == 0


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: send_class_means(0), ValueError, "num_subsets: expected an integer of at least 1, got 0"),
        (
            lambda: send_class_means(1.5),
            TypeError,
            r"num_subsets: expected an integer of at least 1, got 1\.5",
        ),
        (lambda: send_class_means(2, 0), ValueError, "subset_size: expected an integer of at least 1, got 0"),
        (
            lambda: send_class_means(covariance="full"),
            ValueError,
            r"covariance: expected one of \(None, 'diagonal', 'spherical'\), got 'full'",
        ),
        (lambda: send_mixtures(0), ValueError, "num_components: expected an integer of at least 1, got 0"),
        (lambda: send_mixtures(2, "round"), ValueError, "covariance: expected one of .*, got 'round'"),
        (
            lambda: replace(covfree.fed3r(), summary=replace(covfree.fed3r().summary, matrices="row")),
            ValueError,
            "matrices: expected one of .*'each'.*, got 'row'",
        ),
        (
            lambda: replace(covfree.fed3r(), summary=replace(covfree.fed3r().summary, message=None)),
            ValueError,
            "merge: expected None, as clients send no message",
        ),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()
