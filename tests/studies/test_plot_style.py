"""The look that pictures share: colours, bytes on axes, broken lines, files."""

import numpy as np
import pytest

from covfree.studies.plots import style as figures


def test_colours_differ():
    from matplotlib.colors import to_rgb

    colours = np.array([to_rgb(colour) for colour in figures.palette(24)])
    distance = np.linalg.norm(colours[:, None] - colours, axis=-1) + np.eye(len(colours))
    assert distance[:7, :7].min() > 0.25
    assert distance.min() > 0.08


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (3e3, 4e7, ["10 kB", "100 kB", "1 MB", "10 MB"]),
        (4e5, 6e6, ["500 kB", "1 MB", "2 MB", "5 MB"]),
        (8e8, 2e12, ["1 GB", "10 GB", "100 GB", "1 TB"]),
    ],
)
def test_bytes_on_a_logarithmic_axis(low, high, expected):
    with figures.style():
        figure = figures.new_figure(figures.COLUMN, 2)
        axes = figure.subplots()
        axes.set(xscale="log", xlim=(low, high))
        figures.byte_axis(axes.xaxis)
        figure.draw_without_rendering()
        ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        assert [label.get_text() for place, label in ticks if low <= place <= high] == expected


@pytest.mark.parametrize("text", ["short", "a title of several words " * 9, "w" * 200, "a$b$ _c " * 20])
def test_lines_are_broken_where_they_must_be(text):
    lines = figures.wrapped(text, 200.0).split("\n")
    assert "".join("".join(lines).split()) == "".join(text.split())
    widths = [figures.text_width(line) for line in lines]
    assert max(widths) <= 200
    assert len(lines) <= 2 * sum(widths) / 200 + 1


def test_files_are_the_same_again_and_keep_their_text(tmp_path):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    for name in ("first", "again"):
        with figures.style():
            figure = figures.new_figure(figures.COLUMN, 2)
            figures.set_title(figure, "a title")
            figure.subplots().plot([1, 2])
            paths = figures.save_all(figure, tmp_path / f"{name}.png")
        assert [path.name for path in paths] == [f"{name}.{suffix}" for suffix in ("png", "pdf", "svg")]
    assert dict(mpl.rcParams) == before
    contents = {suffix: (tmp_path / f"first.{suffix}").read_bytes() for suffix in figures.FORMATS}
    assert contents == {s: (tmp_path / f"again.{s}").read_bytes() for s in figures.FORMATS}
    assert contents["png"].startswith(b"\x89PNG")
    assert contents["pdf"].startswith(b"%PDF")
    assert b">a title</text>" in contents["svg"]


def test_a_legend_fits_the_figure_in_columns_as_wide_as_their_own_entries():
    with figures.style():
        figure = figures.new_figure(figures.PAGE, 2)
        axes = figure.subplots()
        names = ["from a start whose title takes more than half of the picture's width", *"abcdef"]
        figures.legend_below(figure, [axes.plot([0, 1], label=name)[0] for name in names])
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert len({round(text.get_window_extent().x0) for text in legend.texts}) > 2
