"""Points of plots of accuracy against bytes: one for each method, in families; and their Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from covfree.methods import registry
from covfree.studies.known import alternatives
from covfree.studies.plots import style as figures
from covfree.studies.result import Result


class Family(NamedTuple):
    """The methods whose clients send one kind of statistics.

    Attributes:
        title: the kind of statistics, for the legend.
        colour: the methods' colour in plots.
        mark: the methods' mark in plots.
    """

    title: str
    colour: str
    mark: str


FAMILIES = (
    Family("class means", figures.BLUE, "o"),
    Family("several means or directions", figures.SKY, "v"),
    Family("means and variances", figures.GREEN, "^"),
    Family("Gram matrices", figures.ORANGE, "s"),
    Family("class covariances", figures.VERMILLION, "D"),
    Family("virtual features", figures.PURPLE, "p"),
    Family("heads of clients", figures.BROWN, "P"),
    Family("several rounds of sums", figures.BLACK, "*"),
)
OTHER = Family("other", figures.GREY, "X")


class Point(NamedTuple):
    """A method in the picture.

    Attributes:
        method: the method's name with its arguments or, if it is not registered, `Result.kind`.
        title: the method's title in the picture.
        size: bytes of all clients together, mean over the seeds.
        accuracy: accuracy in percent, mean over the seeds.
        deviation: the accuracy's standard deviation over the seeds; None for a single seed.
    """

    method: str
    title: str
    size: float
    accuracy: float
    deviation: float | None

    @property
    def family(self) -> Family:
        """The `Family` of the method, by the kind of statistics that its clients send."""
        # Clients that choose among methods send the same for all of them.
        entries = (registry().get(name.partition(":")[0]) for name in alternatives(self.method))
        entry = next(filter(None, entries), None)
        return OTHER if entry is None else next(each for each in FAMILIES if each.title == entry.family)


def point_of(result: Result, down: bool) -> Point:
    """Make a result's `Point`; its bytes are those that clients send or, with ``down``, send and receive."""
    mean, deviation = result.accuracy
    spread = None if deviation is None else 100 * deviation
    return Point(result.kind or result.method, result.title, result.bytes(down), 100 * mean, spread)


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Return the indices, sorted by bytes, of points with the best accuracy for their bytes or fewer.

    Of points with the same accuracy, the first of those with the fewest bytes is taken.

    >>> sizes_and_accuracies = [(10, 90), (10, 93), (20, 92), (40, 95), (40, 95)]
    >>> pareto_front([Point("", "", size, accuracy, None) for size, accuracy in sizes_and_accuracies])
    [1, 3]
    """
    front: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: (points[i].size, -points[i].accuracy)):
        if not front or points[place].accuracy > points[front[-1]].accuracy:
            front.append(place)
    return front
