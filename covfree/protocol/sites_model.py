"""A model of the class means that honest sites send, with which the sites are judged.

It has a robust centre of each class, the covariance of the means, and the usual shift between sites.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from covfree.core.types import Rows

# Steps of Weiszfeld's iteration, which weighs a class's means. The weights need few correct digits.
_STEPS = 15
# In `fit_model`, S is _SHARE·d times the spatial sign covariance, plus (1 − _SHARE)·I.
_SHARE = 0.6
# A class is compared only if at least this many sites have a mean of it.
HOLDERS = 3
# Candidates for τ, the variance of the usual shift between sites, in units of the variance of one example.
_SHIFTS = np.concatenate([[0.0], np.geomspace(1e-4, 10, 26)])


class Means(NamedTuple):
    """The class means of all sites, one row for each class of each site.

    Attributes:
        mean: the mean of the site's examples of the class.
        number: the number of these examples.
        label: the class.
        site: the number of the site.
    """

    mean: Float[np.ndarray, "rows dim"]
    number: Float[np.ndarray, " rows"]
    label: Int[np.ndarray, " rows"]
    site: Int[np.ndarray, " rows"]

    def of(self, sites: np.ndarray) -> Means:
        """Return the class means of some sites alone; ``sites`` are their numbers."""
        kept = np.isin(self.site, sites)
        return Means(*(part[kept] for part in self))


class SitesModel(NamedTuple):
    """The result of `fit_model`: how far each site's class means lie from the other sites'.

    A row is the mean of one class at one site. A class's centre is a robust mean of the class's means at all
    sites. Whitening multiplies by L⁻¹, for S = LLᵀ. `fit_model` defines S, D, v and σ.

    Attributes:
        white: the rows' means, whitened.
        own: for each row, the whitened centre of its class, computed from the other sites.
        residual: for each row, its mean minus that centre, not whitened; 0 if the class is not compared.
        centre: [C, d], the classes' whitened centres, computed from all sites; NaN for classes that are not
            compared.
        excess: D²/v divided by its median over compared rows; about 1 for an honest row. 1 for rows that are
            not compared.
        variance: v σ²/d, the variance of a coordinate of ``white`` − ``own``.
        compared: for each row, whether at least `HOLDERS` sites have a mean of its class.
        norm: [C], for each class the median norm of the sites' means.
    """

    white: Float[np.ndarray, "rows dim"]
    own: Float[np.ndarray, "rows dim"]
    residual: Float[np.ndarray, "rows dim"]
    centre: Float[np.ndarray, "classes dim"]
    excess: Float[np.ndarray, " rows"]
    variance: Float[np.ndarray, " rows"]
    compared: np.ndarray
    norm: Float[np.ndarray, " classes"]


def class_means_of(rows: Rows, num_classes: int) -> Means:
    """Return the mean and count of each client's classes, from rows with a class and a count above 0."""
    count, label = np.asarray(rows.count).astype(np.float64), np.asarray(rows.label)
    client = np.zeros(len(label), np.int64) if rows.client is None else np.asarray(rows.client, np.int64)
    kept = (count > 0) & (label >= 0) & (label < num_classes) & (client >= 0)
    key = client[kept] * num_classes + label[kept]
    pairs, place = np.unique(key, return_inverse=True)
    total = np.bincount(place, count[kept], len(pairs))
    mean = np.zeros((len(pairs), rows.mean.shape[1]))
    np.add.at(mean, place, np.asarray(rows.mean)[kept].astype(np.float64) * count[kept][:, None])
    return Means(mean / total[:, None], total, pairs % num_classes, pairs // num_classes)


def deviation(
    values: np.ndarray, least: float, error: np.ndarray | float = 0.0, *, tail: bool = False
) -> np.ndarray:
    """Compute each value's deviation from the median in robust standard deviations; 0 for NaN.

    Args:
        values: one value for each site; NaN if a site has none.
        least: the smallest allowed standard deviation.
        error: the known standard error of each value, used as its standard deviation where it is larger.
        tail: as in `robust_deviation`.
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return np.zeros_like(values)
    scale = max(robust_deviation(known, tail=tail), least)
    return np.nan_to_num((values - np.median(known)) / np.maximum(scale, error))


def robust_deviation(values: np.ndarray, *, tail: bool) -> float:
    """Return a robust standard deviation: the median distance of values from their median, times 1.48.

    With ``tail``, return the upper quartile's distance from the median, divided by 0.67, if that is larger;
    for sizes of clients, which have long tails.
    """
    median = np.median(values)
    scale = 1.4826 * np.median(np.abs(values - median))
    # If the quartile lies between two values, take the lower: of four values, interpolation would use the
    # largest, which would raise its own bound.
    upper = (np.quantile(values, 0.75, method="lower") - median) / 0.6745 if tail else 0.0
    return max(scale, upper)


def fit_model(means: Means, num_classes: int) -> SitesModel:
    """Compare each site's class means with the other sites' means; a few bad sites change the result little.

    Site k sends the mean x_k of its n_k examples of a class. There are three steps:

    - The class's centre is the geometric median (Weiszfeld) of the sites' means: an average of the x_j with
      weights w_j. Site k is compared with the centre of the others, g_k = Σ_{j≠k} w_j x_j / W_k with
      W_k = Σ_{j≠k} w_j. In units of one example's variance, Var(g_k) = Σ_{j≠k} w_j²/n_j / W_k².
    - S = 0.6·d·mean(u uᵀ) + 0.4·I estimates the covariance of x_k − g_k, up to a factor. Here u is x_k − g_k
      scaled to length 1, so that a few huge means cannot dominate S (mean(u uᵀ) is the spatial sign
      covariance). The mean is over all sites and classes.
    - The squared distance D² = ‖S^(−½)(x_k − g_k)‖² is expected to be σ²·v with v = 1/n_k + Var(g_k) + τ,
      where τ is the variance of the usual shift between sites. τ is chosen such that log(D²/v) varies least
      (by median deviation); σ² is the median of D²/v.

    Source: Weiszfeld (1937); Visuri, Koivunen and Oja (2000), Sign and rank covariance matrices.
    """
    rows, dim = means.mean.shape
    centre = np.full((num_classes, dim), np.nan)
    own, spread, norm = means.mean.copy(), np.zeros(rows), np.ones(num_classes)
    compared = np.zeros(rows, bool)
    for c in np.unique(means.label):
        here = np.flatnonzero(means.label == c)
        if len(here) < HOLDERS:
            norm[c] = np.median(np.linalg.norm(means.mean[here], axis=1)) or 1.0
            continue
        x = means.mean[here]
        g, w = _geometric_median(x)
        rest = w.sum() - w
        centre[c], compared[here] = g, True
        own[here] = (w @ x - w[:, None] * x) / rest[:, None]
        noise = w**2 / means.number[here]
        spread[here] = (noise.sum() - noise) / rest**2
        norm[c] = np.median(np.linalg.norm(x, axis=1)) or 1.0
    residual = (means.mean - own)[compared]
    length = np.linalg.norm(residual, axis=1)
    unit = residual[length > 0] / length[length > 0][:, None]
    sign = np.eye(dim) if not len(unit) else _SHARE * dim * (unit.T @ unit) / len(unit)
    root = np.linalg.cholesky(sign + (1 - _SHARE) * np.eye(dim))

    # S has eigenvalues from 0.4 to 0.4 + 0.6 d, so a condition number of at most 1.5 d + 1: inverting is
    # accurate.
    whitening = np.linalg.inv(root).T
    white, near = means.mean @ whitening, own @ whitening
    square = ((white - near) ** 2).sum(1)
    excess, variance = np.ones(rows), np.ones(rows)
    if (used := compared & (square > 0)).any():
        size = (1 / means.number + spread)[:, None] + _SHIFTS
        logs = np.log(square[used][:, None] / size[used])
        best = int(np.argmin(np.median(np.abs(logs - np.median(logs, 0)), 0)))
        scale = np.exp(np.median(logs[:, best]))
        excess[compared] = (square / (size[:, best] * scale))[compared]
        variance = size[:, best] * scale / dim
    return SitesModel(white, near, means.mean - own, centre @ whitening, excess, variance, compared, norm)


def _geometric_median(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the point g with the least sum of distances to the rows of ``x``, and weights w with g = wᵀx."""
    g = np.median(x, axis=0)
    weight = np.ones(len(x))
    for _ in range(_STEPS):
        distance = np.linalg.norm(x - g, axis=1)
        floor = 1e-3 * np.median(distance)
        weight = 1 / np.maximum(distance, floor if floor > 0 else 1.0)
        weight /= weight.sum()
        g = weight @ x
    return g, weight
