"""Statistics of a schedule against a walk through its rounds; the picture of them."""

import numpy as np
import pytest
from matplotlib.text import Text

from covfree import figures
from covfree.federation import (
    Schedule,
    first_rounds,
    inner_dirichlet,
    participation,
    plot_schedule,
    schedule,
    schedule_statistics,
)


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
    assert (found.num_rounds, found.num_clients, found.num_classes) == (12, 22, 7)
    assert found.num_examples == (clients >= 0).sum()
    assert found.times_drawn.sum() == (plan.clients >= 0).sum()
    if not options:
        np.testing.assert_array_equal(found.first_arrival, first_rounds(plan.clients, 22))
    assert ((found.first_arrival >= 0).sum()) == found.clients_seen[-1]


def test_an_upload_that_would_arrive_after_the_last_round_is_not_seen():
    plan = Schedule(np.array([[0, 1], [2, -1]]), np.array([[0, 1], [1, -1]]))
    found = schedule_statistics(plan, np.array([0, 1, 2]), np.array([0, 1, 2]))
    assert found.uploads.tolist() == [1, 1]
    assert found.first_arrival.tolist() == [0, 1, -1]
    assert "clients never seen: 1" in str(found)


def test_the_table_names_rounds_and_clients():
    labels, clients = np.arange(60) % 5, np.arange(60) % 30
    text = schedule_statistics(participation(30, 10, 25, seed=0), labels, clients).as_table()
    lines = text.split("\n")
    assert lines[0] == "25 rounds; 60 examples, 5 classes, 30 clients"
    assert [int(line.split()[0]) for line in lines[2:8]] == [1, 2, 5, 10, 20, 25]
    first = participation(30, 10, 25, seed=0)[0]
    assert lines[2].endswith(" ".join(map(str, np.sort(first)[:6])) + " …")


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([[0]], [0, 1], [0]), {}, "labels and clients must have equal lengths, got 2 and 1"),
        (([[3]], [0, 1], [0, 1]), {}, "participation must hold clients from 0 to 1"),
        (
            ([[0]], [0, 1], [0, 5]),
            {"num_clients": 4},
            "num_clients must be above the largest client, 5, got 4",
        ),
        (([[1, 1]], [0, 1], [0, 1]), {}, "different clients in a round; round 0 has one twice"),
        (
            (3, [0, 1], [0, 1]),
            {},
            r"schedule must be a Schedule, or integers \[rounds, drawn\], got shape \[\]",
        ),
        (([0, 1], [0, 1], [0, 1]), {}, r"schedule must be a Schedule, .* got shape \[2\]"),
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
    assert near.num_classes == far.num_classes == 3


def texts(figure):
    """All that is written in a figure."""
    figure.canvas.draw()
    return [each for each in figure.findobj(match=Text) if each.get_text()]


@pytest.mark.parametrize("clients", [5, 80])
def test_the_picture(tmp_path, clients):
    labels = np.arange(400) % 10
    plan = schedule(clients, 0.4, 30, seed=0, dropout=0.2, late=0.2)
    statistics = schedule_statistics(plan, labels, np.arange(400) % clients)
    figure = plot_schedule(statistics, tmp_path / "rounds.png", title="digits, iid")
    assert (tmp_path / "rounds.png").stat().st_size > 10_000
    chart, shares, histogram = figure.axes
    # A cell for each draw among the clients that are shown, of the kind that it is.
    cells = chart.images[0].get_array()
    assert cells.shape == (min(clients, 30), 30)
    drawn, delay = plan.clients, plan.delay
    shown = drawn < 30
    assert cells.count() == shown.sum()
    assert (cells == 2).sum() == (shown & (delay > 0)).sum()
    assert (cells == 3).sum() == (shown & (delay < 0)).sum()
    row = int(np.flatnonzero((delay[0] == 0) & shown[0])[0])
    assert cells[drawn[0, row], 0] == 0
    for line, seen, total in zip(
        shares.lines,
        (statistics.classes_seen, statistics.examples_seen, statistics.clients_seen),
        (10, 400, clients),
        strict=True,
    ):
        np.testing.assert_allclose(line.get_ydata(), 100 * seen / total)
    assert histogram.get_xlabel() == "times drawn"
    assert chart.get_xticks()[0] == shares.get_xticks()[0] == 1
    # The colours' legend belongs to the map.
    assert {text.get_text() for text in chart.get_legend().texts} >= {"first upload", "late"}
    assert not figure.legends
    written = {each.get_text() for each in texts(figure)}
    assert {"digits, iid", "first upload", "again", "late", "never arrives"} <= written
    assert min(each.get_fontsize() for each in texts(figure)) >= figures.TYPE


@pytest.mark.parametrize("drawn", [[[0, 1]], [[0, -1], [0, 1], [0, -1]]])
def test_nobody_is_drawn_less_than_never(drawn):
    statistics = schedule_statistics(np.array(drawn), np.arange(3), np.arange(3) % 2)
    histogram = plot_schedule(statistics).axes[2]
    assert histogram.get_xlim()[0] >= -0.5
