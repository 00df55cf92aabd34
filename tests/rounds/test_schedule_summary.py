"""Statistics of a schedule against a walk through its rounds."""

import numpy as np
import pytest

from covfree.data.partitions import inner_dirichlet
from covfree.rounds import Schedule, first_rounds, schedule, schedule_statistics


def walked(plan, labels, clients):
    """Round by round: uploads, and the sets of clients, examples and classes that the server knows of."""
    rounds = len(plan.clients)
    arrivals = [[] for _ in range(rounds)]
    for r in range(rounds):
        for client, delay in zip(plan.clients[r], plan.delay[r], strict=True):
            if client >= 0 and delay >= 0 and r + delay < rounds:
                arrivals[r + delay].append(client)
    known, lines = set(), []
    for uploads in arrivals:
        known |= set(uploads)
        mine = np.isin(clients, list(known))
        lines.append((len(uploads), len(known), mine.sum(), len(set(labels[mine]))))
    return [np.array(column) for column in zip(*lines, strict=True)]


@pytest.mark.parametrize("options", [{}, {"dropout": 0.4, "late": 0.5}, {"replacement": False}])
def test_against_a_walk_through_the_rounds(options):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 8, 300)
    clients = inner_dirichlet(labels, 20, 0.1, seed=1)
    clients[rng.random(300) < 0.1] = -1
    labels[labels == 3] = 2  # a class that nobody holds
    plan = schedule(22, 3, 12, seed=2, **options)
    found = schedule_statistics(plan, labels, clients, num_clients=22)
    uploads, *seen = walked(plan, labels, clients)
    np.testing.assert_array_equal(found.uploads, uploads)
    for ours, theirs in zip((found.clients_seen, found.examples_seen, found.classes_seen), seen, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert found.times_drawn.sum() == (plan.clients >= 0).sum()
    if not options:
        np.testing.assert_array_equal(found.first_arrival, first_rounds(plan.clients, 22))
    assert ((found.first_arrival >= 0).sum()) == found.clients_seen[-1]


def test_an_upload_that_would_arrive_after_the_last_round_is_not_seen():
    plan = Schedule(np.array([[0, 1], [2, -1]]), np.array([[0, 1], [1, -1]]))
    found = schedule_statistics(plan, np.array([0, 1, 2]), np.array([0, 1, 2]))
    assert found.uploads.tolist() == [1, 1]
    assert found.first_arrival.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([[0]], [0, 1], [0]), {}, "clients: expected 2, one for each label, got 1"),
        (([[3]], [0, 1], [0, 1]), {}, "schedule: expected clients from 0 to 1"),
        (
            ([[0]], [0, 1], [0, 5]),
            {"num_clients": 4},
            "num_clients: expected more than the largest client, 5, got 4",
        ),
        (
            ([[1, 1]], [0, 1], [0, 1]),
            {},
            "schedule: expected different clients in a round",
        ),
        (
            (3, [0, 1], [0, 1]),
            {},
            r"schedule: expected integers \[rounds, drawn\], .*got int64\[\]",
        ),
        (([0, 1], [0, 1], [0, 1]), {}, r"schedule: expected integers \[rounds, drawn\], .*got int64\[2\]"),
    ],
)
def test_errors(untyped, arguments, options, text):
    with pytest.raises(ValueError, match=text):
        schedule_statistics(np.array(arguments[0]), *arguments[1:], **options)


def test_labels_may_have_gaps():
    drawn, clients = np.array([[0], [2], [1]]), np.array([0, 1, 2, 2, -1])
    near = schedule_statistics(drawn, np.array([1, 0, 1, 2, 3]), clients)
    far = schedule_statistics(drawn, np.array([7, 0, 7, 10**11, 10**12]), clients)
    assert near.classes_seen.tolist() == far.classes_seen.tolist() == [1, 2, 3]
