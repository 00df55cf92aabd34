"""Clients that arrive over rounds: after each of them, what the clients who came would have given alone."""

import dataclasses

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import CLASSES, CLIENTS, DIM
from precision import FLOAT32, assert_heads_close

import covfree
from covfree.federation import first_rounds, participation

ROUNDS = 5
RIDGE = covfree.fed3r()
COF = covfree.fedcof(shrinkage=0.4)
METHODS = pytest.mark.parametrize("method", [RIDGE, COF], ids=["fed3r", "fedcof"])


def federation() -> federations.Federation:
    made = federations.make(0)
    return made.with_features(made.features.astype(np.float32))


def unseen() -> tuple[np.ndarray, np.ndarray]:
    """Test examples near the training ones, with padding."""
    clean = federation().clean
    rng = np.random.default_rng(1)
    features = np.tile(clean.features, (5, 1)) + rng.normal(size=(5 * len(clean.labels), DIM))
    labels = np.tile(clean.labels, 5)
    labels[::50] = -1
    return features.astype(np.float32), labels


def only(clients) -> federations.Federation:
    """The examples of some clients; the others' are padding, so that all are of one shape."""
    made = federation()
    return made._replace(
        clients=np.where(np.isin(made.clients, list(clients)), made.clients, -1).astype(np.int32)
    )


# Three of nine clients in each round, drawn with replacement: some come again, one never does.
FIRST = first_rounds(participation(CLIENTS, 0.3, ROUNDS, seed=4), CLIENTS)


def came(after: int, first=FIRST) -> set[int]:
    return {k for k in range(CLIENTS) if 0 <= first[k] <= after}


def test_the_rounds_are_what_these_tests_want():
    assert len(came(0)) == 3
    assert {-1, 0, 1} <= set(FIRST.tolist())


# Rows


def test_rows_of_those_who_came_are_left():
    rows = covfree.summarise(COF, *federation())
    for after in range(ROUNDS):
        left = covfree.arrived(rows, FIRST, after)
        here = np.isin(rows.client, list(came(after)))
        np.testing.assert_array_equal(left.count, np.where(here, rows.count, 0))
        for field in ("mean", "label", "client"):
            np.testing.assert_array_equal(getattr(left, field), getattr(rows, field))


def test_padding_never_arrives():
    """Not even as client −1, which is no index from the end."""
    rows = covfree.Rows(
        jnp.full((3, 2), jnp.nan), jnp.array([0, 4, 4]), jnp.array([-1, 0, 0]), client=jnp.array([-1, -1, 2])
    )
    left = covfree.arrived(rows, jnp.array([5, 5, 0]), 3)
    assert left.count.tolist() == [0, 0, 4]
    assert covfree.arrived(rows, jnp.array([0, 0, 0]), -1).count.tolist() == [0, 0, 0]


def test_a_client_past_the_end_never_comes():
    rows = covfree.Rows(jnp.ones((2, 1)), jnp.array([3, 4]), jnp.zeros(2, int), client=jnp.array([0, 7]))
    assert covfree.arrived(rows, jnp.array([0, 0]), 9).count.tolist() == [3, 0]


def test_the_round_may_be_traced():
    rows = covfree.summarise(COF, *federation())
    counts = jax.jit(jax.vmap(lambda r: covfree.arrived(rows, FIRST, r).count))(jnp.arange(ROUNDS))
    for after in range(ROUNDS):
        np.testing.assert_array_equal(counts[after], covfree.arrived(rows, FIRST, after).count)


def test_rows_must_say_whose_they_are():
    rows = covfree.Rows(jnp.ones((3, 1)), jnp.ones(3), jnp.zeros(3, int))
    with pytest.raises(ValueError, match="rows: expected to know the client of each row, got None"):
        covfree.arrived(rows, FIRST, 0)


@METHODS
@pytest.mark.parametrize("after", [0, 1])
def test_the_head_is_that_of_the_clients_who_came(method, after):
    rows = covfree.arrived(covfree.summarise(method, *federation()), FIRST, after)
    head = covfree.solve_rows(method, rows, num_classes=CLASSES)
    expected = covfree.fit(method, *only(came(after)), num_classes=CLASSES)
    assert_heads_close(head, expected, FLOAT32.tolerance)


# Accuracy


def accuracies(method, first=FIRST, federation=federation) -> np.ndarray:
    rows = covfree.summarise(method, *federation())
    features, labels = unseen()
    return np.asarray(
        covfree.accuracy_by_round(
            method,
            rows,
            jnp.asarray(first, jnp.int32),
            features,
            labels,
            num_rounds=ROUNDS,
            num_classes=CLASSES,
        )
    )


def accuracy_of(method, clients) -> float:
    """By a loop over the test examples, with the head of those clients' examples alone."""
    head = covfree.fit(method, *only(clients), num_classes=CLASSES)
    features, labels = unseen()
    scores = np.asarray(head(features))
    right = [s.argmax() == y for s, y in zip(scores, labels, strict=True) if y >= 0]
    return sum(right) / len(right)


# A score that is a tie but for rounding may go either way.
ONE_EXAMPLE = 1.5 / (unseen()[1] >= 0).sum()


def test_accuracy_is_that_of_the_clients_who_came():
    expected = [accuracy_of(RIDGE, came(after)) for after in range(ROUNDS)]
    np.testing.assert_allclose(accuracies(RIDGE), expected, atol=ONE_EXAMPLE)
    assert len(set(np.round(expected, 2))) > 1  # so that one round could be told from another


def test_the_last_of_enough_rounds_is_that_of_all():
    """Everybody once, three in a round, without replacement."""
    for method in (RIDGE, COF):
        first = first_rounds(participation(CLIENTS, 3, 3, seed=0, replacement=False), CLIENTS)
        last = accuracies(method, first)[-1]
        assert abs(last - accuracy_of(method, range(CLIENTS))) <= ONE_EXAMPLE


@METHODS
def test_order_within_and_before_a_round_does_not_matter(method):
    """Whoever came first, after the round in which the last of them came the server has the same."""
    base = accuracies(method)
    shuffled = np.where(FIRST == 1, 0, np.where(FIRST == 0, 1, FIRST))
    other = accuracies(method, shuffled)
    np.testing.assert_array_equal(other[1:], base[1:])
    # Clients under other numbers: rows in another order.
    number = np.random.default_rng(2).permutation(CLIENTS)

    def renumbered():
        made = federation()
        return made._replace(clients=np.where(made.clients >= 0, number[made.clients], -1).astype(np.int32))

    first = np.empty_like(FIRST)
    first[number] = FIRST
    np.testing.assert_allclose(accuracies(method, first, renumbered), base, atol=ONE_EXAMPLE)


def test_who_never_comes_changes_nothing():
    """Whatever the features are of those who do not come."""
    never = [k for k in range(CLIENTS) if FIRST[k] < 0]
    assert never

    def spoiled():
        made = federation()
        features = np.where(np.isin(made.clients, never)[:, None], 1e6, made.features)
        return made.with_features(features.astype(np.float32))

    np.testing.assert_array_equal(accuracies(RIDGE, federation=spoiled), accuracies(RIDGE))


@METHODS
def test_as_long_as_nobody_came_nothing_is_right(method):
    late = np.where(FIRST >= 0, FIRST + 2, -1)
    late[late >= ROUNDS] = -1
    values = accuracies(method, late)
    np.testing.assert_array_equal(values[:2], 0)
    np.testing.assert_allclose(values[2:], accuracies(method)[: ROUNDS - 2], atol=ONE_EXAMPLE)
    np.testing.assert_array_equal(accuracies(method, np.full(CLIENTS, -1)), 0)


def test_sweep_over_the_methods_numbers():
    """The rounds of several ridges at once are those of one after the other."""
    rows = covfree.summarise(RIDGE, *federation())
    features, labels = unseen()

    def run(ridge):
        method = dataclasses.replace(RIDGE, params=ridge)
        return covfree.accuracy_by_round(
            method, rows, jnp.asarray(FIRST), features, labels, num_rounds=ROUNDS, num_classes=CLASSES
        )

    swept = jax.vmap(run)(jnp.array([1.0, 30.0]))
    np.testing.assert_allclose(swept[0], accuracies(RIDGE), atol=ONE_EXAMPLE)
    assert swept.shape == (2, ROUNDS)
