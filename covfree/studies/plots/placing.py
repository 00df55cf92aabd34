"""Placement of points' labels without overlaps. All lengths are in points of the page."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

# The sides of a box: left, bottom, right, top.
Sides = Float[np.ndarray, "4"]
Places = Float[np.ndarray, "points 2"]

_GAP = 1.2  # gap between any two boxes
_DASH = 5.0  # gap between marks that are moved apart sideways; the line to a mark's true place shows in it
_SPACE = 9.0  # gap between texts side by side, which would otherwise read as one line
_OWN = 5.0  # a label should be this much nearer to its own point than to any other
_ANGLES = np.linspace(0, 2 * np.pi, 36, endpoint=False)
_NEAREST = 500  # number of candidate places per label
_SWEEPS, _ORDERS = 3, 16
# Costs, in points of line length: labels that overlap, a line through a label or mark, lines that cross.
_COVER, _THROUGH, _CROSS = 1e4, 800.0, 150.0
# Costs of texts that run together, and of a label too near to another mark, for each 1/72 inch.
_BESIDE, _NEARER = 200.0, 6.0


def side_by_side(boxes: Float[np.ndarray, "boxes 4"], bounds: Sides) -> Float[np.ndarray, " boxes"]:
    """Return how far to move each box sideways, as little as possible, so that no box hides another.

    Returns:
        [n] the shifts; 0 for a box that has no free place within ``bounds``.
    """
    moved, shifts = np.empty((0, 4)), []
    tries = np.ravel([(step, -step) for step in np.arange(bounds[2] - bounds[0])])
    for box in boxes:
        places = box + tries[:, None] * [1, 0, 1, 0]
        free = ~_meet(places, moved, _DASH).any(1) & (places[:, 0] >= bounds[0]) & (places[:, 2] <= bounds[2])
        best = int(free.argmax()) if free.any() else 0
        shifts.append(tries[best])
        moved = np.vstack([moved, places[best]])
    return np.array(shifts)


def place_labels(
    points: Places, sizes: Places, marks: Float[np.ndarray, "boxes 4"], bounds: Sides
) -> tuple[Places, Places]:
    """Place a label near each point, clear of marks, other labels and the lines from points to labels.

    A sweep goes through the labels: each takes the best of many places around its point, given the places of
    the others. The result of several sweeps depends on the labels' order, so several orders are tried, and
    the best result is taken. Every second order is random; the others begin with the labels placed worst
    before.

    Args:
        points: [n, 2] the points to label.
        sizes: [n, 2] width and height of the labels.
        marks: [m, 4] boxes that no label may cover; box i < n is point i's mark, which its line may cross.
        bounds: [4] the box that no label may leave.

    Returns:
        The labels' centres [n, 2] and the ends [n, 2] of the lines from the points to the labels.
    """
    count = len(points)
    tried = [_candidates(*each, marks, bounds) for each in zip(points, sizes, strict=True)]
    costs = []
    for i, (point, (boxes, ends)) in enumerate(zip(points, tried, strict=True)):
        through = _lines_meet(point, ends, np.delete(marks, i, 0)).sum(1)
        # A label straight beside, above or below its point looks better than a diagonal one.
        aslant = np.abs((boxes[:, :2] + boxes[:, 2:]) / 2 - point).min(1)
        away = np.hypot(*(ends - point).T)
        nearer = (away + _OWN - _distance(boxes, np.delete(points, i, 0))).clip(0)
        costs.append(away + 0.2 * aslant + _THROUGH * through + _NEARER * nearer)
    settled, order, rng = [], np.arange(count), np.random.default_rng(0)
    for repeat in range(_ORDERS):
        boxes, ends, paid = _settle(points, tried, costs, order)
        settled.append((paid.sum(), boxes, ends))
        order = rng.permutation(count) if repeat % 2 else order[np.argsort(-paid[order], kind="stable")]
    _, boxes, ends = min(settled, key=lambda each: each[0])
    return (boxes[:, :2] + boxes[:, 2:]) / 2, ends


def _settle(
    points: np.ndarray, tried: list[tuple[np.ndarray, np.ndarray]], costs: list[np.ndarray], order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose a box for each label: the candidate that costs least, given the other labels.

    Overlapping labels and crossing lines (from points to labels) cost more.

    Args:
        points: [labels, 2] the points to label.
        tried: for each label, its candidate boxes [m, 4], and the end [m, 2] of the line to each box.
        costs: for each label, the cost [m] of each box by itself.
        order: the order in which labels choose, several times.

    Returns:
        For each label, the box, the end of the line to it, and the cost.
    """
    # NaN stands for labels not placed yet: it overlaps nothing.
    boxes, ends, paid = (
        np.full((len(points), 4), np.nan),
        np.full(points.shape, np.nan),
        np.zeros(len(points)),
    )
    for _ in range(_SWEEPS):
        for i in order:
            box, end = tried[i]
            others, starts, stops = (np.delete(each, i, 0) for each in (boxes, points, ends))
            covered, beside = _meet(box, others).sum(1), _meet(box, others, _SPACE).sum(1)
            through = _lines_meet(points[i], end, others).sum(1)
            for start, stop in zip(starts, stops[:, None], strict=True):
                through += _lines_meet(start, stop, box)[0]
            crossed = _cross(points[i], end, starts, stops).sum(1)
            cost = costs[i] + _COVER * covered + _BESIDE * beside + _THROUGH * through + _CROSS * crossed
            best = int(cost.argmin())
            boxes[i], ends[i], paid[i] = box[best], end[best], cost[best]
    return boxes, ends, paid


def _candidates(
    point: np.ndarray, size: np.ndarray, marks: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes [m, 4] where a label of width and height ``size`` may be put, nearest to ``point`` first.

    The boxes do not cover ``marks`` and do not leave ``bounds``, if there is room. Also return, for each box,
    the spot on it that is nearest to ``point``, [m, 2].
    """
    reach = np.hypot(*(bounds[2:] - bounds[:2]))
    radii = np.concatenate([np.arange(5, 40, 3), np.arange(40, reach, 8)])
    direction = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], 1)
    # Widen the rings by the label's size, so that its gap to the point is alike beside and above it.
    centres = (point + direction * (size / 2 + radii[:, None, None])).reshape(-1, 2)
    boxes = np.concatenate([centres - size / 2, centres + size / 2], 1)
    inside = ((boxes[:, :2] >= bounds[:2]) & (boxes[:, 2:] <= bounds[2:])).all(1)
    free = inside & ~_meet(boxes, marks).any(1)
    # If there is no room at all, a label may cover marks, or else leave the bounds.
    kept = next(some for some in (free, inside, np.ones(len(boxes), bool)) if some.any())
    boxes = boxes[kept][:_NEAREST]
    return boxes, np.clip(point, boxes[:, :2], boxes[:, 2:])


def _meet(first: np.ndarray, second: np.ndarray, sideways: float = _GAP) -> np.ndarray:
    """Return [m, k]: whether boxes [m, 4] and [k, 4] are nearer than ``sideways`` in x and `_GAP` in y."""
    gap = np.array([sideways, _GAP])
    near = (first[:, None, :2] < second[:, 2:] + gap) & (first[:, None, 2:] > second[:, :2] - gap)
    return np.asarray(near.all(-1))


def _distance(boxes: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the distances [m] of boxes [m, 4] to the nearest of points [k, 2]; infinite without points."""
    low, high = boxes[:, None, :2] - points, points - boxes[:, None, 2:]
    return np.linalg.norm(np.maximum(low, high).clip(0), axis=-1).min(1, initial=np.inf)


def _lines_meet(start: np.ndarray, ends: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return [m, k]: whether lines from a point [2] to ends [m, 2] pass through boxes [k, 4]."""
    step = (ends - start)[:, None]
    step = np.where(step == 0, 1e-9, step)
    # The points of a line are start + p·step, with p from 0 to 1. Find the p at which the line crosses the
    # box's sides: [m, k, x and y].
    low, high = (boxes[:, :2] - start) / step, (boxes[:, 2:] - start) / step
    enters, leaves = np.minimum(low, high), np.maximum(low, high)
    first, last = np.maximum(enters[..., 0], enters[..., 1]), np.minimum(leaves[..., 0], leaves[..., 1])
    return np.asarray(np.maximum(first, 0) < np.minimum(last, 1))


def _cross(start: np.ndarray, ends: np.ndarray, starts: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return [m, k]: whether lines from ``start`` to ``ends`` cross lines from ``starts`` to ``others``.

    ``start`` is one point [2], ``ends`` are [m, 2], ``starts`` and ``others`` [k, 2].
    """
    ends = ends[:, None]
    here = _side(start, ends, starts) * _side(start, ends, others)
    there = _side(starts, others, start) * _side(starts, others, ends)
    return (here < 0) & (there < 0)


def _side(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return 1 if the point c is to the left of the line from a to b, −1 to the right, 0 on the line."""
    return np.sign((b - a)[..., 0] * (c - a)[..., 1] - (b - a)[..., 1] * (c - a)[..., 0])
