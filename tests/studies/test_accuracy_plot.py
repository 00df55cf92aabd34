"""The picture of accuracy against bytes: everything can be read, whatever the results are."""

import json
from dataclasses import replace
from functools import cache
from math import nan

import drawn
import numpy as np
import pytest
from pages import ROOT

import covfree
from covfree import methods
from covfree.methods import registry
from covfree.studies import Result, Run
from covfree.studies.known import like
from covfree.studies.plots import style as figures
from covfree.studies.plots.accuracy import draw
from covfree.studies.plots.placing import place_labels, side_by_side
from covfree.studies.plots.points import FAMILIES, OTHER, Point

TITLES = {name: entry.title for name, entry in registry().items()}
LONG = "a$b$ " + "very long name " * 9 + "x" * 99


def result(method, accuracies, up, *, down=0, title=None) -> Result:
    runs = (
        Run(method, seed, accuracy, covfree.SentBytes(up, 8), down, 5, 9, 1, 0.1, 0.1)
        for seed, accuracy in enumerate(accuracies)
    )
    return Result(method, title or TITLES[method], tuple(runs))


def results(count: int, kind: str) -> list[Result]:
    """Results of so many methods: spread out, close together, or all at one place."""
    found = []
    for i, name in enumerate(list(TITLES)[:count]):
        spread = 0.8 + 0.2 * ((7 * i) % 20) / 20, int(7e4 * 10 ** ((3 * i) % 5))
        crowded = 0.90 + 0.005 * (i % 4), 70_000 + 900 * (i % 3)
        accuracy, up = {"spread": spread, "crowded": crowded, "equal": (0.9, 70_000)}[kind]
        found.append(result(name, [accuracy, accuracy + 0.002], up))
    return found


def marks(figure) -> tuple[np.ndarray, np.ndarray]:
    """Where marks lie in the data [n, 2], and their boxes [n, 4] in pixels."""
    (axes,) = figure.axes
    places = np.array([container[0].get_xydata()[0] for container in axes.containers])
    sizes = np.array([[container[0].get_markersize()] for container in axes.containers])
    half = sizes / 2 * figure.dpi / 72
    centres = axes.transData.transform(places)
    return places, np.concatenate([centres - half, centres + half], 1)


@cache
def picture(count: int, kind: str):
    """The results, their figure and its texts."""
    found = results(count, kind)
    with figures.style():
        figure = draw("digits: 1201 train, 596 test, 100 clients, inner_dirichlet 0.1, 2 seeds", found)
        return found, figure, drawn.texts(figure)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "kind"),
    [(2, "equal"), (7, "crowded"), *((len(TITLES), kind) for kind in ("spread", "crowded", "equal"))],
)
def test_nothing_covers_anything(count, kind):
    found, figure, shown = picture(count, kind)
    labels = figure.axes[0].texts
    assert [" ".join(label.get_text().split()) for label in labels] == [
        one.title.replace("between-", "between- ") if "\n" in label.get_text() else one.title
        for one, label in zip(found, labels, strict=True)
    ]
    assert figure.get_figwidth() == (figures.COLUMN if count == 2 else figures.PAGE)
    assert min(text.get_fontsize() for text in shown) >= 8
    # Labels and marks, with every other text.
    places, points = marks(figure)
    everything = drawn.boxes(shown)
    assert not np.triu(drawn.overlaps(everything, everything), 1).any()
    assert not drawn.overlaps(everything, points).any()
    assert not np.triu(drawn.overlaps(points, points), 1).any()
    page = np.array([0, 0, *figure.bbox.size])
    assert (everything[:, :2] >= page[:2]).all()
    assert (everything[:, 2:] <= page[2:] + 1).all()
    # Marks keep their accuracy; one that was moved has a line to its bytes.
    np.testing.assert_allclose(places[:, 1], [100 * one.accuracy[0] for one in found])
    lines = [line.get_xydata() for line in figure.axes[0].lines]
    moved = 0
    for place, one in zip(places, found, strict=True):
        true = one.runs[0].sent.statistics
        if not np.isclose(place[0], true):
            moved += 1
            assert any(np.allclose(line[0], (true, place[1])) for line in lines)
    assert moved >= (count - 1 if kind == "equal" else 0)
    assert ("moved apart" in " ".join(figure.axes[0].get_xlabel().split())) == (moved > 0)


@pytest.mark.slow
def test_families_have_a_colour_and_a_mark_of_their_own_and_every_method_has_a_family():
    assert len({family.colour for family in FAMILIES}) == len({f.mark for f in FAMILIES}) == len(FAMILIES)
    assert {entry.family for entry in registry().values()} == {family.title for family in FAMILIES}
    _, figure, _ = picture(len(TITLES), "spread")
    assert [text.get_text() for text in figure.legends[0].texts] == [family.title for family in FAMILIES]
    family = {family.title: family for family in FAMILIES}
    drawn_colours = [container[0].get_color() for container in figure.axes[0].containers]
    assert drawn_colours == [family[entry.family].colour for entry in registry().values()]


def test_a_method_has_the_family_of_what_its_clients_send():
    """Of a name of its own, a family by its summary: as a registered method that sends the same."""
    for entry in registry().values():
        assert registry()[like(entry.make())].family == entry.family
    means, sums = covfree.fedcof(), methods.keep_examples()
    own = {
        "class means": means,
        "means and variances": replace(means, summary=methods.send_class_means(covariance="diagonal")),
        "several means or directions": replace(means, summary=methods.send_directions(8)),
        "Gram matrices": replace(means, summary=sums),
        "several rounds of sums": replace(means, summary=sums, rounds=4 * means.rounds),
        "heads of clients": replace(means, summary=methods.send_heads()),
    }
    for title, method in own.items():
        assert Point(like(replace(method, name="mine")), "", 1, 1, None).family.title == title
    another = replace(means.summary, name="Medians")
    assert Point(like(replace(means, name="mine", summary=another)), "", 1, 1, None).family is OTHER
    choice = covfree.select([replace(means, name="mine"), means])
    assert Point(like(choice), "", 1, 1, None).family.title == "class means"


def test_what_clients_receive_is_counted_if_any_receives():
    one_way = [result("fedncm", [0.8], 1000), result("fedcof", [0.9], 2000)]
    both = [*one_way, result("fedcof-refined", [0.95], 3000, down=500)]
    for found, expected, label in (
        (one_way, [1000, 2000], "bytes up, all clients together"),
        (both, [1000, 2000, 3500], "bytes up and down, all clients together"),
    ):
        with figures.style():
            figure = draw("title", found)
        places, _ = marks(figure)
        np.testing.assert_allclose(places[:, 0], expected)
        assert figure.axes[0].get_xlabel().splitlines()[0] == label


def test_the_front_is_a_line_of_steps_and_its_labels_are_bold():
    found = [
        result(name, [accuracy], up)
        for name, accuracy, up in (
            ("fedncm", 0.8995, 1000),
            ("fedcof", 0.90, 1000),
            ("fed3r", 0.85, 9000),
            ("qda", 0.95, 90_000),
            ("ccvr", 0.94, 1e6),
        )
    ]
    with figures.style():
        figure = draw("title", found)
    (axes,) = figure.axes
    (steps,) = (line for line in axes.lines if line.get_drawstyle() == "steps-post")
    np.testing.assert_allclose(steps.get_xydata(), [[1000, 90], [90_000, 95], [axes.get_xlim()[1], 95]])
    bold = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    assert bold == ["FedCOF (LDA,\nautomatic γ)", "Quadratic\ndiscriminant analysis"]
    # At equal bytes the better one stays at its place, on the line.
    places, _ = marks(figure)
    assert places[1, 0] == pytest.approx(1000)
    assert places[0, 0] != pytest.approx(1000, rel=0.01)
    assert "best accuracy at so many bytes" in " ".join(axes.get_xlabel().split())


def test_bars_are_standard_deviations():
    with figures.style():
        figure = draw("title", [result("fedncm", [0.5, 0.7, 0.9], 1000), result("fed3r", [0.6], 9000)])
    (segment,) = figure.axes[0].containers[0][2][0].get_segments()
    np.testing.assert_allclose(segment[:, 1], [50, 90])
    assert not figure.axes[0].containers[1].has_yerr
    assert "bars: one standard deviation" in figure.axes[0].get_xlabel()


def test_results_without_accuracy_are_named():
    found = [result("fedncm", [nan, 0.5], 1000), result("fed3r", [0.6, 0.7], 9000, title="mine, " * 9)]
    with figures.style():
        figure = draw(LONG, found)
        shown = drawn.boxes(drawn.texts(figure))
    assert len(figure.axes[0].containers) == 1
    assert "no accuracy: FedNCM" in " ".join(figure.axes[0].get_xlabel().split())
    assert not np.triu(drawn.overlaps(shown, shown), 1).any()
    assert (shown[:, 2] <= figure.bbox.width + 1).all()
    assert "$b$" in figure.get_suptitle()
    with figures.style():
        nothing = draw("title", found[:1])
    assert nothing.axes[0].containers == []


def test_a_method_far_below_does_not_squeeze_the_others():
    found = [result("fedcof", [0.95, 0.96], 1000), result("fedncm", [0.88, 0.9], 1000)]
    with figures.style():
        low = draw("title", [*found, result("mine.py:low", [0.03, 0.05], 900, title="low")])
        near = draw("title", [*found, result("mine.py:low", [0.7, 0.72], 900, title="low")])
    assert low.axes[0].get_ylim()[0] > 80
    assert "below the axes: low (4.0 %)" in " ".join(low.axes[0].get_xlabel().split())
    assert [text.get_text() for text in low.axes[0].texts] == ["FedCOF (LDA,\nautomatic γ)", "FedNCM"]
    assert len(near.axes[0].texts) == 3
    assert "below" not in near.axes[0].get_xlabel()


def test_three_files_are_written(tmp_path):
    paths = figures.save_all(draw("title", results(2, "spread")), tmp_path / "picture.png")
    assert paths == [tmp_path / f"picture.{suffix}" for suffix in ("png", "pdf", "svg")]
    assert "FedNCM</text>" in paths[2].read_text(encoding="utf-8")
    assert all(path.stat().st_size > 1000 for path in paths)


def test_moved_sideways_as_little_as_can_be():
    box = np.array([10.0, 0, 14, 4])
    far, above = box + np.array([20, 0, 20, 0]), box + np.array([0, 50, 0, 50])
    shifts = side_by_side(np.array([box, far, box, box, above]), np.array([0.0, 0, 40, 99]))
    np.testing.assert_array_equal(shifts, [0, 0, 9, -9, 0])


def test_labels_are_nearest_to_their_own_points_and_apart_from_each_other():
    points = np.array([[100.0, 100], [118, 100], [136, 104], [100, 128], [160, 100]])
    sizes = np.array([[60.0, 10], [20, 10], [70, 22], [60, 10], [30, 10]])
    marks = np.concatenate([points - 3.5, points + 3.5], 1)
    centres, _ = place_labels(points, sizes, marks, np.array([0.0, 0, 300, 200]))
    gaps = np.abs(points - centres[:, None]) - sizes[:, None] / 2
    distances = np.linalg.norm(gaps.clip(0), axis=-1)
    np.testing.assert_array_equal(distances.argmin(1), np.arange(len(points)))
    across, up = np.moveaxis(np.abs(centres[:, None] - centres) - (sizes[:, None] + sizes) / 2, -1, 0)
    others = ~np.eye(len(points), dtype=bool)
    assert ((up > 0) | (across >= 8))[others].all()


@pytest.mark.slow
def test_few_lines_pass_through_labels_of_thirty_methods(monkeypatch):
    """Results on Caltech-101: most methods are at its upper edge, beside each other."""
    kept = json.loads((ROOT / "experiments/methods-caltech101/results.json").read_text(encoding="utf-8"))
    found = []
    for one in kept["results"]:
        accuracies, sizes = [run["accuracy"] for run in one["runs"]], (one["bytes_up"], one["bytes_down"])
        found.append(result(one["method"], accuracies, sizes[0], down=sizes[1], title=one["title"]))
    through = []

    def placed(points, sizes, marks, bounds):
        centres, ends = place_labels(points, sizes, marks, bounds)
        along = points + np.linspace(0, 1, 200)[:, None, None] * (ends - points)
        inside = (np.abs(along[:, :, None] - centres) < sizes / 2 - 1).all(-1).any(0)
        through.append(int((inside & ~np.eye(len(points), dtype=bool)).sum()))
        return centres, ends

    monkeypatch.setattr("covfree.studies.plots.accuracy.place_labels", placed)
    with figures.style():
        draw("caltech101", found)
    assert through[0] <= 2


def test_no_line_passes_through_the_labels_of_points_in_a_row():
    """As many wide labels as fit one above the other only."""
    points = np.array([[244.0, 20], [280, 20], [316, 20], [364, 20], [400, 20]])
    sizes = np.tile([103.0, 39], (5, 1))
    marks = np.concatenate([points - 3, points + 3], 1)
    walls = [[20, 198, 462, 199], [120, 20, 121, 199]]
    centres, ends = place_labels(points, sizes, np.concatenate([marks, walls]), np.array([0.0, 0, 462, 217]))
    for i, centre in enumerate(centres):
        others = np.delete(np.arange(5), i)
        along = points[others] + np.linspace(0, 1, 50)[:, None, None] * (ends - points)[others]
        assert not (np.abs(along - centre) < sizes[i] / 2).all(-1).any()
