"""Whether the order of a site's classes is that of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from covfree.protocol.sites_model import Means, Model

# The greatest chance of a false alarm, if class means are Gaussian and no class is shifted by itself.
_LEVEL = 0.01
# Share of a site's examples in moved classes above which it fails.
_SHARE = 0.3
# A moved class must fit its new place: at most this many times the median distance.
_FIT = 3.0
# At least so many examples must each of two swapped classes have: the means of fewer may be mistaken.
_PAIR = 3


class Labels(NamedTuple):
    """What `label_test` found, by site.

    Attributes:
        agreement: slope β of the site's centred class means on the others'; NaN with fewer than two classes.
        error: the standard error of ``agreement`` by the model.
        moved: the share of the site's examples whose class lies where the others have another class.
        score: ``moved`` over its limit, at least 1.5 if two classes are swapped. Above 1 the labels are
        wrong.
        places: for each site, a dictionary from each class that moved to the others' class where it lies.
        known: for each site, the number of its classes that were compared.
        num_classes: C.
    """

    agreement: Float[np.ndarray, " sites"]
    error: Float[np.ndarray, " sites"]
    moved: Float[np.ndarray, " sites"]
    score: Float[np.ndarray, " sites"]
    places: list[dict[int, int]]
    known: list[int]
    num_classes: int

    def described(self, i: int, names: Sequence[str]) -> str:
        """Say in words where the classes of site i lie."""
        places = self.places[i]
        steps = Counter((c - there) % self.num_classes for c, there in places.items())
        step, number = steps.most_common(1)[0]
        if number > 2 and number > self.known[i] / 2:
            first = min(c for c, there in places.items() if (c - there) % self.num_classes == step)
            return f"shifted by {step}: its class {names[first]} is the others' {names[places[first]]}"
        swaps = [(c, there) for c, there in places.items() if c < there and places.get(there) == c]
        if swaps and 4 * len(swaps) >= len(places):
            pairs = ", ".join(f"{names[a]} and {names[b]}" for a, b in swaps[:3])
            more = f" and {len(swaps) - 3} more pairs" if len(swaps) > 3 else ""
            return f"classes {pairs}{more} are swapped"
        shown = ", ".join(f"{names[c]} at {names[there]}" for c, there in list(places.items())[:3])
        return f"{len(places)} of {self.known[i]} classes lie where others have another ({shown})"


def label_test(means: Means, model: Model, place: np.ndarray) -> Labels:
    """Test whether each site's classes lie where the others' classes of the same number lie.

    A shift of all classes of a site alike (its domain) says nothing of labels: the plain average of the
    residuals x_c − g_c over its classes is taken off first. A permutation of labels does not change it.

    - Evidence that class c is the others' c′: the logarithm of the ratio of likelihoods, (‖y_c − g_c‖² −
      ‖y_c − g_c′‖²)/(2s²), y_c without the average. If c is right, it exceeds x with probability at most e⁻ˣ
      (Markov), so log(K·C²/0.01) allows for all sites and pairs of classes.
    - Classes with such evidence that fit where they lie have moved. A site fails if they hold more than 0.3
      of its examples, or if two have changed places.
    - The slope β = Σ_c ⟨y_c − ȳ, g_c − ḡ⟩ / Σ_c ‖g_c − ḡ‖² is 1 of honest sites, near 0 with random labels
      or another backbone; its variance is Σ_c s_c²‖g_c − ḡ‖²/(Σ_c ‖g_c − ḡ‖²)².
    """
    sites, classes = int(place.max(initial=-1)) + 1, len(model.centre)
    nan = np.full(sites, np.nan)
    found = Labels(nan, np.zeros(sites), np.zeros(sites), np.zeros(sites), [], [], classes)
    bar = np.log(sites * classes**2 / _LEVEL)
    for k in range(sites):
        rows = np.flatnonzero((place == k) & model.compared)
        found.places.append({})
        found.known.append(len(rows))
        if len(rows) < 2:
            continue
        x, g, s2 = model.white[rows], model.own[rows], model.variance[rows]
        y = x - (x - g).mean(0)
        axis = g - g.mean(0)
        power = (axis**2).sum(1)
        if not power.sum() > 0:
            continue
        found.agreement[k] = ((y - y.mean(0)) * axis).sum() / power.sum()
        found.error[k] = np.sqrt((s2 * power).sum()) / power.sum()
        others = np.where(np.isnan(model.centre), np.inf, model.centre)
        others = others.copy()
        others[means.label[rows]] = g
        known = np.isfinite(others[:, 0])
        square = np.full((len(rows), classes), np.inf)
        cross = (y**2).sum(1)[:, None] + (others[known] ** 2).sum(1) - 2 * y @ others[known].T
        square[:, known] = np.maximum(cross, 0)
        own = square[np.arange(len(rows)), means.label[rows]]
        there = square.argmin(1)
        nearest = square.min(1)
        evidence = (own - nearest) / (2 * s2)
        moved = (evidence > bar) & (nearest < _FIT * x.shape[1] * s2)
        places = {int(means.label[rows[i]]): int(there[i]) for i in np.flatnonzero(moved)}
        found.places[k].update(places)
        share = means.number[rows][moved].sum() / means.number[rows].sum()
        held = dict(zip(means.label[rows].tolist(), means.number[rows].tolist(), strict=True))
        swapped = any(places.get(b) == a and min(held[a], held[b]) >= _PAIR for a, b in places.items())
        found.moved[k] = share
        found.score[k] = max(share / _SHARE, 1.5 if swapped else 0.0)
    return found
