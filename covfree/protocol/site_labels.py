"""Test whether a site numbers its classes as the other sites do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from covfree.protocol.sites_model import Means, SitesModel

# If means are Gaussian and a site shifts all its means alike, the probability that any class of any honest
# site counts as moved (see `Labels`) is at most this.
_LEVEL = 0.01
# A site fails if more than this share of its examples is in classes that moved.
_SHARE = 0.3
# A class counts as moved to another only if it fits there: the squared distance of its mean from the other
# sites' mean must be below this many times the expected one.
_FIT = 3.0
# Two classes count as swapped only if each has at least this many examples; means of fewer may mislead.
_PAIR = 3


class Labels(NamedTuple):
    """The result of `label_test` for one site.

    Attributes:
        agreement: slope β of the regression of the site's centred class means on the other sites' centred
            class means; NaN with fewer than two classes.
        error: the standard error of ``agreement`` that the model of the sites' means predicts.
        moved: the share of the site's examples that are in moved classes, those whose mean lies at the other
            sites' mean of another class. Only classes that were compared count.
        score: ``moved`` divided by its limit 0.3, but at least 1.5 if two classes are swapped. Above 1 the
            site fails.
        known: the number of the site's classes that were compared.
        places: for each moved class, the class at which it lies.
    """

    known: int
    agreement: float = np.nan
    error: float = 0.0
    moved: float = 0.0
    score: float = 0.0
    places: Mapping[int, int] = MappingProxyType({})

    def described(self, names: Sequence[str]) -> str:
        """Say in words which of the site's classes seem mislabelled, as "classes cat and dog are swapped".

        These are the classes whose mean at the site lies at other sites' mean of another class. If most are
        shifted by one number, the text says so. Otherwise it names pairs that are swapped, or else lists
        classes. ``names`` are the classes' names.
        """
        places = self.places
        steps = Counter((c - there) % len(names) for c, there in places.items())
        step, number = steps.most_common(1)[0]
        if number > 2 and number > self.known / 2:
            first = min(c for c, there in places.items() if (c - there) % len(names) == step)
            return f"shifted by {step}: its class {names[first]} is the others' {names[places[first]]}"
        swaps = [(c, there) for c, there in places.items() if c < there and places.get(there) == c]
        if swaps and 4 * len(swaps) >= len(places):
            pairs = ", ".join(f"{names[a]} and {names[b]}" for a, b in swaps[:3])
            more = f" and {len(swaps) - 3} more pairs" if len(swaps) > 3 else ""
            return f"classes {pairs}{more} are swapped"
        shown = ", ".join(f"{names[c]} at {names[there]}" for c, there in list(places.items())[:3])
        return f"{len(places)} of {self.known} classes lie where others have another ({shown})"


def label_test(means: Means, model: SitesModel, rows: np.ndarray, num_sites: int) -> Labels:
    """Test whether a site's class means x_c lie at the other sites' centres g_c of the same classes.

    The means x_c and the centres g_c are whitened by `fit_model`; ``rows`` are the indices of the site's
    class means. A site may shift all its classes alike (its domain), which says nothing about labels. So y_c
    is x_c minus the average of x_c − g_c over the site's classes. This average does not change if labels are
    permuted.

    - The evidence that the site's class c is the other sites' class c′, the one with g_c′ nearest to y_c, is
      the log-likelihood ratio (‖y_c − g_c‖² − ‖y_c − g_c′‖²)/(2s_c²), with s_c² from ``model.variance``. If
      label c is right, the ratio for any one c′ is above t with probability at most e⁻ᵗ (Markov). The
      threshold log(K·C²/0.01) allows for K sites and all class pairs.
    - A class has moved if its evidence is above the threshold and y_c is near g_c′. A site fails if more than
      0.3 of its examples of compared classes are in moved ones, or if two classes are swapped.
    - The slope β = Σ_c ⟨y_c − ȳ, g_c − ḡ⟩ / Σ_c ‖g_c − ḡ‖², with averages ȳ and ḡ over the site's classes, is
      near 1 for honest sites, and near 0 with random labels or another backbone. Its variance is
      Σ_c s_c²‖g_c − ḡ‖²/(Σ_c ‖g_c − ḡ‖²)².
    """
    rows, classes = rows[model.compared[rows]], len(model.centre)
    if len(rows) < 2:
        return Labels(len(rows))
    x, g, s2 = model.white[rows], model.own[rows], model.variance[rows]
    y = x - (x - g).mean(0)
    axis = g - g.mean(0)
    power = (axis**2).sum(1)
    if not power.sum() > 0:
        return Labels(len(rows))
    others = np.where(np.isnan(model.centre), np.inf, model.centre)
    others[means.label[rows]] = g
    known = np.isfinite(others[:, 0])
    square = np.full((len(rows), classes), np.inf)
    cross = (y**2).sum(1)[:, None] + (others[known] ** 2).sum(1) - 2 * y @ others[known].T
    square[:, known] = np.maximum(cross, 0)
    own = square[np.arange(len(rows)), means.label[rows]]
    there, nearest = square.argmin(1), square.min(1)
    evidence = (own - nearest) / (2 * s2)
    bar = np.log(num_sites * classes**2 / _LEVEL)
    moved = (evidence > bar) & (nearest < _FIT * x.shape[1] * s2)
    places = {int(means.label[rows[i]]): int(there[i]) for i in np.flatnonzero(moved)}
    share = float(means.number[rows][moved].sum() / means.number[rows].sum())
    held = dict(zip(means.label[rows].tolist(), means.number[rows].tolist(), strict=True))
    swapped = any(places.get(b) == a and min(held[a], held[b]) >= _PAIR for a, b in places.items())
    return Labels(
        len(rows),
        float(((y - y.mean(0)) * axis).sum() / power.sum()),
        float(np.sqrt((s2 * power).sum()) / power.sum()),
        share,
        max(share / _SHARE, 1.5 if swapped else 0.0),
        places,
    )
