"""Statistics of a partition, against a table of counts, and their picture."""

import drawn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covfree.data.partitions import inner_dirichlet, partition_statistics
from covfree.studies import plot_partition


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    examples=st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 6)), min_size=1, max_size=50),
    more=st.integers(0, 3),
)
def test_against_a_table(examples, more):
    labels, clients = np.array(examples).T
    num_classes, num_clients = 6 + more, 7 + more
    table = np.zeros((num_clients, num_classes), int)
    for label, client in examples:
        if client >= 0:
            table[client, label] += 1
    statistics = partition_statistics(labels, clients, num_classes, num_clients=num_clients)
    np.testing.assert_array_equal(statistics.sizes, table.sum(1))
    np.testing.assert_array_equal(statistics.classes_per_client, (table > 0).sum(1))
    np.testing.assert_array_equal(statistics.clients_per_class, (table > 0).sum(0))
    again = np.zeros_like(table)
    again[statistics.pair_clients, statistics.pair_labels] = statistics.pair_counts
    np.testing.assert_array_equal(again, table)
    assert statistics.num_pairs == (table > 0).sum()
    assert statistics.num_examples == len(examples)
    assert statistics.num_unassigned == (clients == -1).sum()
    assert statistics.num_empty_clients == (table.sum(1) == 0).sum()
    assert (statistics.num_clients, statistics.num_classes) == table.shape
    for client, counts in enumerate(table):
        p = counts[counts > 0] / max(counts.sum(), 1)
        assert statistics.label_entropy[client] == pytest.approx(-(p * np.log2(p)).sum(), abs=1e-12)
    assert f"{statistics.num_pairs:,}" in str(statistics)


def test_numbers_by_default():
    statistics = partition_statistics([0, 3], [1, 1])
    assert (statistics.num_clients, statistics.num_classes) == (2, 4)
    nobody = partition_statistics([0, 1], [-1, -1])
    assert (nobody.num_clients, nobody.num_pairs, nobody.num_unassigned) == (1, 0, 2)
    assert "unassigned examples: 2" in str(nobody)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0, 1], [0]), ValueError, "clients: expected 2, one for each label, got 1"),
        (([0, 1], [0, -2]), ValueError, "clients: expected integers of at least -1, got -2 at row 1"),
        (([0, -1], [0, 0]), ValueError, "labels: expected integers of at least 0, got -1 at row 1"),
        (([0, 1], [0.0, 1.0]), TypeError, "clients: expected integers, got float64"),
        (([0, 4], [0, 0], 4), ValueError, "num_classes: expected more than the largest label, 4, got 4"),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        partition_statistics(*arguments)
    with pytest.raises(ValueError, match="num_clients: expected more than the largest client, 3, got 2"):
        partition_statistics([0], [3], num_clients=2)


def federation(name):
    if name == "few classes":
        labels = np.repeat(np.arange(10), 30)
        return labels, inner_dirichlet(labels, 12, 0.3, seed=0)
    if name == "many classes":
        labels = np.repeat(np.arange(100), 20)
        return labels, inner_dirichlet(labels, 40, 0.1, seed=0)
    if name == "long tail":
        return np.repeat([0, 1, 2], [2000, 40, 3]), np.arange(2043) % 500
    if name == "one of each":
        return np.array([0]), np.array([0])
    return np.array([0, 1]), np.array([-1, -1])


@pytest.mark.parametrize("name", ["few classes", "many classes", "long tail", "one of each", "nobody"])
def test_the_picture_is_written(name, tmp_path):
    statistics = partition_statistics(*federation(name))
    # One of the formats is enough for each: matplotlib writes both from one figure.
    suffix, start = ("png", b"\x89PNG") if name == "few classes" else ("svg", b"<?xml")
    path = tmp_path / f"partition.{suffix}"
    plot_partition(statistics, path)
    assert path.read_bytes().startswith(start)


def test_draws_into_a_figure_and_shows_each_pair_once():
    from matplotlib.figure import Figure

    labels, clients = federation("few classes")
    statistics = partition_statistics(labels, clients)
    figure = Figure()
    assert plot_partition(statistics, figure) is figure
    discs = figure.axes[0].collections[0]
    assert len(discs.get_offsets()) == statistics.num_pairs
    areas = discs.get_sizes()
    np.testing.assert_allclose(areas / areas.max(), statistics.pair_counts / statistics.pair_counts.max())


@pytest.mark.parametrize("name", ["few classes", "many classes", "long tail", "nobody"])
def test_all_words_of_the_picture_can_be_read(name):
    statistics = partition_statistics(*federation(name))
    figure = plot_partition(statistics, title="a data set, " * 20)
    shown = drawn.texts(figure)
    boxes = drawn.boxes(shown)
    assert not np.triu(drawn.overlaps(boxes, boxes), 1).any()
    assert min(text.get_fontsize() for text in shown) >= 8
    heading = figure.axes[0].get_title(loc="left")
    left_out = "on no client: 2 examples and 2 classes; without examples: 1 client"
    assert (left_out in heading) == (name == "nobody")
    assert figure.get_suptitle().startswith("a data set, a data set")
