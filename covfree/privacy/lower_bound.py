"""Measure a lower bound on a mechanism's ε, to test whether the mechanism keeps its promise."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from covfree.core.checks import check_above_zero, check_integer
from covfree.privacy.accounting import check_delta, spent
from covfree.privacy.discrete import RandomBytes
from covfree.privacy.mechanism import Private

# The number of thresholds that are tried on one half of the runs; the other half tests the best one.
_THRESHOLDS = 200


class AuditedEpsilon(NamedTuple):
    """The result of `audit_epsilon` for one noisy release.

    Attributes:
        claimed: ε that the method promises for the release.
        lower: a lower bound on the true ε, with the ``confidence`` given to `audit_epsilon`.
    """

    claimed: float
    lower: float

    @property
    def broken(self) -> bool:
        """Whether ``lower`` is above ``claimed``, which refutes the claim."""
        return self.lower > self.claimed


def epsilon_lower_bound(
    present: Float[np.ndarray, " runs"],
    absent: Float[np.ndarray, " runs"],
    delta: float,
    confidence: float = 0.999,
) -> float:
    """Return a lower bound on a mechanism's ε, from the numbers it released on two neighbouring data sets.

    Let T be a released number. (ε, δ)-differential privacy implies P(T > t) ≤ e^ε P′(T > t) + δ for every
    threshold t, with P and P′ the probabilities on the two data sets. The same holds for T < t, and with P
    and P′ exchanged. From half of the runs, t and one of these four inequalities are chosen. From the other
    half, both probabilities are bounded (Clopper and Pearson), which gives the bound on ε. So it has the
    stated confidence, however many thresholds were tried.

    Args:
        present: for each run on one data set, the number T that it released.
        absent: the same for runs on the neighbouring data set.
        delta: δ.
        confidence: confidence of the bound, between 0 and 1.

    Raises:
        ValueError: if ``present`` or ``absent`` has fewer than two numbers, or a NaN, or if δ or the
            confidence is out of range.
    """
    check_delta(delta)
    check_above_zero("confidence", confidence)
    if not confidence < 1:
        raise ValueError(f"confidence: expected a number below 1, got {confidence!r}")
    for name, runs in (("present", present), ("absent", absent)):
        if np.ndim(runs) != 1 or len(runs) < 2 or np.isnan(runs).any():
            found = f"{np.isnan(runs).sum()} NaN in shape {list(np.shape(runs))}"
            raise ValueError(f"{name}: expected numbers of two runs or more, got {found}")
    halves = [(present[::2], absent[::2]), (present[1::2], absent[1::2])]
    tried = np.quantile(np.concatenate(halves[0]), np.linspace(0, 1, _THRESHOLDS))
    best, chosen = -math.inf, (1.0, 1.0, False)
    for threshold in np.unique(np.r_[tried, 0.0]):
        for sign in (1.0, -1.0):
            for swapped in (False, True):
                bound = _bound(halves[0], sign, threshold, swapped, delta, confidence)
                if bound > best:
                    best, chosen = bound, (sign, float(threshold), swapped)
    return max(0.0, _bound(halves[1], *chosen, delta, confidence))


def audit_epsilon(
    made: Private,
    *,
    runs: int = 100_000,
    confidence: float = 0.999,
    random_bytes: RandomBytes = os.urandom,
) -> AuditedEpsilon:
    """Return the promised ε of a private method's first release, and a measured lower bound on its true ε.

    The first release, the class sums, is made once with one example in each of ``runs`` classes, at the
    clipping norm, and once without examples. The noise of classes is independent, so one release of ``runs``
    classes equals ``runs`` releases of one class. The audit runs the code of clients and of the server,
    ``made.upload`` and ``made.total``, on features of dimension 1, without a map or a centre.

    Args:
        made: a private method whose unit is an example, with central or local noise.
        runs: number of runs with the example, and of runs without it; at least 2.
        confidence: the confidence of the lower bound.
        random_bytes: source of the noise.
    """
    if made.promise.unit != "example" or made.promise.noise == "distributed":
        got = f"unit={made.promise.unit!r} and noise={made.promise.noise!r}"
        raise ValueError(f"made: expected unit='example' and noise='central' or 'local', got {got}")
    check_integer("runs", runs, 2)
    grid = made.grids[0]["sums"]
    plain = replace(made, method=replace(made.method, feature_map=None), centre=None)
    features, labels = np.full((runs, 1), 2 * grid.clip), np.arange(runs)
    scores = []
    for kept in (labels, np.full(runs, -1)):
        upload = plain.upload(0, "sums", features, kept, num_classes=runs, random_bytes=random_bytes)
        total = plain.total(0, [upload], random_bytes=random_bytes)
        # The statistic of a likelihood-ratio test, which tells best whether the example is in the sum:
        # coordinates weighted by how far the example moves them.
        moves = np.array([grid.bound, grid.count, grid.square], float)
        scores.append(total.values @ moves)
    delta = made.promise.delta
    lower = epsilon_lower_bound(scores[0], scores[1], delta, confidence)
    return AuditedEpsilon(spent(made.promise.releases[:1], delta), lower)


def _bound(
    runs: tuple[np.ndarray, np.ndarray],
    sign: float,
    threshold: float,
    swapped: bool,
    delta: float,
    confidence: float,
) -> float:
    from scipy.stats import beta

    hits = [int((sign * each > sign * threshold).sum()) for each in runs]
    sizes = [len(each) for each in runs]
    if swapped:
        hits, sizes = hits[::-1], sizes[::-1]
    risk = (1 - confidence) / 2
    low = float(beta.ppf(risk, hits[0], sizes[0] - hits[0] + 1)) if hits[0] else 0.0
    if low <= delta:
        return -math.inf
    high = float(beta.ppf(1 - risk, hits[1] + 1, sizes[1] - hits[1])) if hits[1] < sizes[1] else 1.0
    return math.log((low - delta) / high)
