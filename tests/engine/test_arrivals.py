"""Clients that arrive over rounds: after each of them, what the clients who came would have given alone."""

import federations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import CLASSES, CLIENTS
from precision import FLOAT32, assert_heads_close

import covfree
from covfree.rounds import first_rounds, participation

ROUNDS = 5
RIDGE = covfree.fed3r()
COF = covfree.fedcof(shrinkage=0.4)
METHODS = pytest.mark.parametrize("method", [RIDGE, COF], ids=["fed3r", "fedcof"])


def federation() -> federations.Federation:
    made = federations.make(0)
    return made.with_features(made.features.astype(np.float32))


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
