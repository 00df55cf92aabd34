"""The picture of a sweep: which number is drawn, which curves, and what is far below."""

import numpy as np
import pytest

from covfree import SentBytes
from covfree.studies import Federation, Result, Run
from covfree.studies.plots import style, sweep

SENT = SentBytes(100, 10)


def result(method, title, *accuracies, clients=10, alpha=0.1, partition="dirichlet", dataset="digits"):
    place = {"dataset": dataset, "federation": Federation(clients, partition, alpha)}
    runs = [Run(method, seed, value, SENT, 0, 10, **place) for seed, value in enumerate(accuracies)]
    return Result(method, title, tuple(runs))


BY_ALPHA = [
    result(name, name.upper(), base + rise * at, base + rise * at + 0.02, alpha=alpha, clients=clients)
    for name, base, rise in (("ncm", 0.8, 0.0), ("cof", 0.85, 0.01), ("far", 0.1, 0.0))
    for clients in (10, 20)
    for at, alpha in enumerate((0.1, 1.0, 10.0))
]
BY_SHRINKAGE = [
    result("ncm", "NCM", 0.8),
    result("cof:shrinkage=auto", "COF (shrinkage=auto)", 0.9),
    *(
        result(f"cof:shrinkage={x}:head=ridge", f"COF (shrinkage={x}, head=ridge)", 0.85 + x)
        for x in (0.1, 0)
    ),
]


def curves(axes):
    return {
        line.get_color(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in axes.lines
    }


@pytest.mark.parametrize(
    ("results", "number"),
    [
        (BY_ALPHA, "alpha"),
        (BY_SHRINKAGE, "shrinkage"),
        ([result("a", "A", 0.5, clients=k, alpha=9) for k in (3, 4)], "clients"),
        # An iid partition ignores alpha.
        ([result("a", "A", 0.5, partition="iid", alpha=alpha) for alpha in (1, 2)], None),
        (BY_SHRINKAGE[:3], None),
        ([], None),
    ],
)
def test_the_number_with_the_most_values_is_drawn(results, number):
    assert sweep.swept(results) == number


def test_a_curve_a_method_and_a_panel_for_each_other_setting():
    with style.style():
        figure = sweep.draw("", BY_ALPHA, "alpha")
    few, many = figure.axes
    assert [axes.get_title(loc="left") for axes in (few, many)] == ["10 clients", "20 clients"]
    assert few.get_xscale() == "log"
    labels = [text.get_text() for text in figure.legends[0].texts]
    # The last would squeeze the others into a tenth of the height.
    assert labels == ["NCM", "COF", "FAR (below the axes)", "mean ± one standard deviation"]
    assert few.get_ylim()[0] > 70
    _, cof, _ = curves(few).values()
    np.testing.assert_allclose(cof[0], [0.1, 1, 10])
    np.testing.assert_allclose(cof[1], [86, 87, 88])
    # A band's half height is the standard deviation of two accuracies that are 0.02 apart.
    corners = few.collections[1].get_paths()[0].vertices
    np.testing.assert_allclose(np.ptp(corners[corners[:, 0] == 1, 1]), 2 * 100 * 0.02 / np.sqrt(2))


def test_methods_without_the_number_are_horizontal_lines(tmp_path):
    with style.style():
        figure = sweep.draw("", BY_SHRINKAGE, "shrinkage")
    (axes,) = figure.axes
    labels = [text.get_text() for text in figure.legends[0].texts]
    assert labels == ["NCM (no shrinkage set)", "COF (shrinkage=auto)", "COF (head=ridge)"]
    flat, auto, swept = (line for line in axes.lines)
    assert [*flat.get_ydata(), *auto.get_ydata()] == [80, 80, 90, 90]
    # Sorted, and not on a logarithmic axis, as one is 0.
    np.testing.assert_allclose(swept.get_xdata(), [0, 0.1])
    np.testing.assert_allclose(swept.get_ydata(), [85, 95])
    assert axes.get_xscale() == "linear"
    files = style.save_all(sweep.draw("title", BY_SHRINKAGE, "shrinkage"), tmp_path / "by.png")
    assert [file.suffix for file in files] == [".png", ".pdf", ".svg"]
    assert all(file.stat().st_size > 1000 for file in files)


@pytest.mark.parametrize(
    ("rise", "label"), [(0.02, "test accuracy, %"), (0.3, "test accuracy, %\n(scales differ)")]
)
def test_panels_have_the_same_scale_unless_that_squeezes_one(rise, label):
    """The second panel is higher by ``rise``."""
    places = [
        result("a", "A", 0.6 + rise * (clients == 20) + 0.02 * (alpha == 1), alpha=alpha, clients=clients)
        for clients in (10, 20)
        for alpha in (0.1, 0.3, 1)
    ]
    with style.style():
        figure = sweep.draw("", places, "alpha")
    few, many = figure.axes
    assert few.get_ylabel() == label
    assert (few.get_ylim() == many.get_ylim()) == (rise < 0.1)
    for axes in figure.axes:
        ((_, shown),) = curves(axes).values()
        assert axes.get_ylim()[0] < shown.min() < shown.max() < axes.get_ylim()[1]


def test_zero_has_a_place_beside_decades_and_dollars_are_text():
    places = [result(f"a:x={x}", f"$a^$ (x={x})", 0.8, dataset=d) for x in (0, 0.1, 1) for d in ("$d^$", "e")]
    with style.style():
        figure = sweep.draw("", places, "x")
        figure.draw_without_rendering()
    axes = figure.axes[0]
    across = axes.transData.transform([(x, 80) for x in (0, 0.1, 1)])[:, 0]
    assert np.diff(across).min() > 0.3 * np.ptp(across)
    assert axes.get_title(loc="left") == "$d^$"
    # One seed has no band.
    assert [text.get_text() for text in figure.legends[0].texts] == ["$a^$"]
