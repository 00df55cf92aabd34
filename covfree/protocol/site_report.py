"""Compare each site's class means with those of all other sites, and report the sites that differ."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from covfree.protocol.messages import check_class_names
from covfree.protocol.site_labels import Labels, label_test
from covfree.protocol.sites_model import Means, deviation, fit_model

# A site fails beyond this many robust standard deviations. A normal variable exceeds 5 with probability 1/3.5
# million: in a federation of 35,000 honest sites, one does with probability 1 %.
_DEVIATIONS = 5.0
# With fewer sites there may be no majority: of four, two may agree against the other two.
FEWEST = 5
# Lower bounds of the standard deviations. With them a site passes in any federation if its norm is off by a
# factor below 2.5, its count by a factor below 4^(6/5) = 5.3, its mean squared distance by a factor below
# e^(5/8), and its agreement by less than ½.
_NORM, _COUNT, _SPREAD, _AGREEMENT = np.log(2.5) / 5, np.log(4) / 5, 0.125, 0.1
_ROUNDS = 8
# If a site has fewer examples, only its norm and count are tested: its means are far from normal, and weigh
# little.
_EXAMPLES = 8


class Site(NamedTuple):
    """The result of the test for one site.

    Attributes:
        score: how far the site lies from the others, relative to what is allowed: above 1, it fails.
        examples: how many examples the site claims.
        spread: how far the site's class means lie from the other sites': the logarithm of the mean squared
            distance, in robust standard deviations from the median of all sites.
        agreement: slope β of the regression of the site's centred class means on the other sites'; about 1
            for honest sites, about 0 for random labels.
        moved: the share of the site's examples that are in classes whose mean lies at the other sites' mean
            of another class.
        reason: why the site fails, in words; None if it does not.
    """

    score: float
    examples: float
    spread: float
    agreement: float
    moved: float
    reason: str | None


@dataclass(frozen=True)
class SiteReport:
    """The result of `diagnose_sites`; ``print`` it for a table.

    Attributes:
        sites: by client (a site is a client), the `Site` with its result.
        judged: whether there are enough sites to judge them.
    """

    sites: Mapping[Hashable, Site]
    judged: bool

    @property
    def summary(self) -> str:
        """A text: how many sites there are, and how many of them fail; or that they are too few to judge."""
        if not self.judged:
            return (
                f"{len(self.sites)} sites: too few to judge. With fewer than {FEWEST} sites, their messages "
                "do not show which of two sites that differ is wrong."
            )
        return f"{len(self.sites)} sites, of which {len(self.failed)} failed the check."

    @property
    def failed(self) -> dict[Hashable, str]:
        """The reason for each site that fails."""
        return {name: site.reason for name, site in self.sites.items() if site.reason is not None}

    def __str__(self) -> str:
        """Format the table, with the sites that fail first."""
        if not self.judged:
            return self.summary
        lines = [self.summary, ""]
        width = max(4, *(len(str(name)) for name in self.sites))
        lines.append(f"{'site':<{width}}  examples  spread  agreement  moved  reason")
        for name, site in sorted(self.sites.items(), key=lambda item: -item[1].score):
            values = f"{site.examples:8.0f}  {site.spread:6.1f}  {site.agreement:9.2f}  {site.moved:5.0%}"
            lines.append(f"{name!s:<{width}}  {values}  {site.reason or 'none'}")
        return "\n".join(lines)


def judge_means(
    means: Means, clients: Sequence[Hashable], num_classes: int, class_names: Sequence[str] | None = None
) -> SiteReport:
    """Compare each site's class means with the other sites'; return the report of `diagnose_sites`.

    ``clients`` has the sites' names; ``means.site`` are indices in it.
    """
    numbers = np.unique(means.site)
    names = check_class_names(class_names, num_classes) or tuple(map(str, range(num_classes)))
    judged = len(numbers) >= FEWEST
    left, found, reasons = numbers, {}, dict[int, tuple[float, str]]()
    for _ in range(_ROUNDS if judged else 0):
        if len(left) < max(FEWEST, len(numbers) / 2):
            break
        found |= _tested(means.of(left), names)
        failing = {k: found[k] for k in left.tolist() if found[k].reason is not None}
        if not failing:
            break
        worst = max(site.score for site in failing.values())
        out = {k: site for k, site in failing.items() if site.score >= worst / 2}
        reasons |= {k: (site.score, str(site.reason)) for k, site in out.items()}
        left = np.array([k for k in left.tolist() if k not in out])
    counts = {k: means.number[means.site == k].sum() for k in numbers.tolist()}
    if not judged:
        found = {k: Site(0.0, count, 0.0, 1.0, 0.0, None) for k, count in counts.items()}
    report = {
        clients[k]: found[k] if k in reasons else found[k]._replace(reason=None) for k in numbers.tolist()
    }
    return SiteReport(report, judged)


def _tested(means: Means, names: Sequence[str]) -> dict[int, Site]:
    """Test each site in ``means`` once against the others; return the results by the sites' numbers.

    ``names`` are the class names, for the reasons.
    """
    model = fit_model(means, len(names))
    sites, place = np.unique(means.site, return_inverse=True)
    own = [np.flatnonzero(place == i) for i in range(len(sites))]
    counts = np.bincount(place, means.number)
    # Use the median over classes: a single mean of 0, such as that of empty texts, must not make a site fail.
    each = np.log(np.linalg.norm(means.mean, axis=1) + 1e-300) - np.log(model.norm[means.label])
    norms = np.array([np.median(each[rows]) for rows in own])
    spread = np.log(np.bincount(place, np.maximum(model.excess, 1e-300)) / np.bincount(place))
    labels = [label_test(means, model, rows, len(sites)) for rows in own]
    agreement, error = (np.array([getattr(site, name) for site in labels]) for name in ("agreement", "error"))
    tests = {
        "count": deviation(np.log(counts), _COUNT, tail=True),
        "norm": np.abs(deviation(norms, _NORM)),
        "spread": deviation(spread, _SPREAD),
        "agreement": np.abs(deviation(agreement, _AGREEMENT, error)),
    }
    limits = dict.fromkeys(tests, _DEVIATIONS) | {"count": 6.0}
    scores = np.stack([np.nan_to_num(tests[name]) / limits[name] for name in tests])
    many = counts >= _EXAMPLES
    scores[2:] *= many
    found = {}
    for i, own_labels in enumerate(labels):
        shown = own_labels if many[i] else own_labels._replace(score=0.0)
        score = max(float(scores[:, i].max()), shown.score)
        reason = None
        if score > 1:
            reason = _reason(i, dict(zip(tests, scores[:, i], strict=True)), shown, norms, counts, names)
        examples, distance = float(counts[i]), float(tests["spread"][i])
        found[int(sites[i])] = Site(score, examples, distance, shown.agreement, shown.moved, reason)
    return found


def _reason(
    i: int,
    scores: Mapping[str, float],
    labels: Labels,
    norms: np.ndarray,
    counts: np.ndarray,
    names: Sequence[str],
) -> str:
    """Return in words the reasons why site i fails; ``scores`` has its score in each test."""
    said = []
    if scores["count"] > 1:
        said.append(f"count: {counts[i]:.0f} examples, {counts[i] / np.median(counts):.3g} times the median")
    if scores["norm"] > 1:
        factor = np.exp(norms[i] - np.median(norms))
        said.append(f"scale: its means have {factor:.3g} times the others' norm: another backbone or scaling")
    if labels.score > 1:
        said.append(f"labels: {labels.described(names)}")
    elif scores["agreement"] > 1:
        beta = labels.agreement
        what = "random or mixed labels, or another backbone" if beta < 1 else "another scaling of features"
        said.append(
            f"classes: its class means differ {beta:.2g} times as much as those of the others: {what}"
        )
    if not said:
        said.append("means: too far from the others': another backbone, preprocessing, or invented means")
    return "; ".join(said)
