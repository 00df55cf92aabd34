"""Which sites not to believe: each site's class means against those of all others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from covfree.core.checks import check_positive, check_row_structure, check_type
from covfree.core.types import Rows
from covfree.protocol.door import Collected
from covfree.protocol.labels import Labels, label_test
from covfree.protocol.messages import check_class_names
from covfree.protocol.sites_model import Means, class_means_of, deviation, fit_model

# Robust standard deviations: a normal law exceeds 5 once in 3.5 million, so 1 % a federation at 35,000 sites.
_DEVIATIONS = 5.0
# With fewer sites a majority cannot be told from a minority: two of four may agree.
FEWEST = 5
# Least standard deviations, on which no honest federation's thresholds rest: a norm that is off by less than
# 2.5, a count by less than 4, a distance by less than e^(5/8), an agreement by less than a half pass.
_NORM, _COUNT, _SPREAD, _AGREEMENT = np.log(2.5) / 5, np.log(4) / 5, 0.125, 0.1
_ROUNDS = 8
# A mean of fewer examples is far from normal and weighs little: only norm and count of the site are tested.
_EXAMPLES = 8


class Site(NamedTuple):
    """What the test found of a site.

    Attributes:
        score: how far the site lies from the others, in units of what is allowed: above 1, it fails.
        examples: how many it claims.
        spread: deviations of the distance of its class means from the others', robust standard ones.
        agreement: slope β of its centred class means on the others'; 1 of honest sites, 0 of random labels.
        moved: share of its examples in classes that lie at another class of the others.
        reason: why it fails, in words; None if it does not.
    """

    score: float
    examples: float
    spread: float
    agreement: float
    moved: float
    reason: str | None


@dataclass(frozen=True)
class SiteReport:
    """The test of every site; ``print`` it for a table.

    Attributes:
        sites: what was found, by client.
        judged: whether there were sites enough to judge any.
    """

    sites: Mapping[Hashable, Site]
    judged: bool

    @property
    def failed(self) -> dict[Hashable, str]:
        """The reason for each site that fails."""
        return {name: site.reason for name, site in self.sites.items() if site.reason is not None}

    def __str__(self) -> str:
        """The table, the sites that fail first."""
        if not self.judged:
            return (
                f"{len(self.sites)} sites: nobody can judge. With fewer than {FEWEST} sites, which of two "
                "that differ is wrong cannot be told from their messages."
            )
        lines = [f"{len(self.sites)} sites, of which {len(self.failed)} should not be believed.", ""]
        width = max(4, *(len(str(name)) for name in self.sites))
        lines.append(f"{'site':<{width}}  examples  spread  agreement  moved  reason")
        for name, site in sorted(self.sites.items(), key=lambda item: -item[1].score):
            values = f"{site.examples:8.0f}  {site.spread:6.1f}  {site.agreement:9.2f}  {site.moved:5.0%}"
            lines.append(f"{name!s:<{width}}  {values}  {site.reason or 'none'}")
        return "\n".join(lines)


def diagnose_sites(
    collected: Collected | Rows, *, num_classes: int, class_names: Sequence[str] | None = None
) -> SiteReport:
    """Compare each site's class means with those of all others, and say which sites not to believe, and why.

    Four statistics a site: the logarithm of its means' norm, that of its count, the leave-one-out
    Mahalanobis distance of its means (`fit_model`), and the order of its classes (`label_test`). Each is
    compared with those of all sites by median and median distance, so that what ordinary shift does to all
    of them is allowed. The site that fails worst, and those at least half as far, are taken out and the rest
    is tested again.
    ``docs/security.md`` has the formulas and error rates.

    Args:
        collected: from `collect`, or rows that name their ``client``. Several rows of one class are averaged;
            residual directions are ignored.
        num_classes: C.
        class_names: [C], for the reasons; by default those of the messages, or numbers.

    Returns:
        The report. With fewer than five sites none is judged.

    Raises:
        TypeError: if ``collected`` has another type.
        ValueError: if rows name no client.

    >>> rng = np.random.default_rng(0)
    >>> true = 3 * rng.normal(size=(4, 8))
    >>> means = true + 0.1 * rng.normal(size=(10, 4, 8))
    >>> means[7] = means[7][[1, 0, 2, 3]]
    >>> label, client = np.tile(np.arange(4), 10), np.repeat(np.arange(10), 4)
    >>> rows = Rows(means.reshape(40, 8), np.full(40, 9), label, client)
    >>> diagnose_sites(rows, num_classes=4).failed
    {7: 'labels: classes 0 and 1 are swapped'}
    """
    check_positive("num_classes", num_classes)
    if isinstance(collected, Rows):
        rows, clients = collected, None
        check_row_structure(rows)
    else:
        check_type("collected", collected, Collected)
        rows, clients = collected.message.rows, collected.clients
        class_names = collected.message.class_names if class_names is None else class_names
    if rows.client is None and len(rows.label):
        raise ValueError("collected: expected rows that name their client, got none")
    means = class_means_of(rows, num_classes)
    if clients is None:
        clients = range(int(means.site.max(initial=-1)) + 1)
    return judge_means(means, clients, num_classes, class_names)


def judge_means(
    means: Means, clients: Sequence[Hashable], num_classes: int, class_names: Sequence[str] | None = None
) -> SiteReport:
    """`diagnose_sites` of class means, whose ``site`` indexes ``clients``."""
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
    """Test all sites of the table once."""
    model = fit_model(means, len(names))
    sites, place = np.unique(means.site, return_inverse=True)
    number = np.bincount(place)

    def average(values: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " sites"]:
        return np.bincount(place, values) / number

    counts = np.bincount(place, means.number)
    # The median over classes: one mean of zeros, such as that of an empty text, says nothing of the site.
    each = np.log(np.linalg.norm(means.mean, axis=1) + 1e-300) - np.log(model.norm[means.label])
    norms = np.array([np.median(each[place == i]) for i in range(len(sites))])
    spread = np.log(average(np.maximum(model.excess, 1e-300)))
    labels = label_test(means, model, place)
    tests = {
        "count": deviation(np.log(counts), _COUNT, tail=True),
        "norm": np.abs(deviation(norms, _NORM)),
        "spread": deviation(spread, _SPREAD),
        "agreement": np.abs(deviation(labels.agreement, _AGREEMENT, labels.error)),
    }
    limits = dict.fromkeys(tests, _DEVIATIONS) | {"count": 6.0}
    scores = np.stack([np.nan_to_num(tests[name]) / limits[name] for name in tests])
    many = counts >= _EXAMPLES
    scores[2:] *= many
    labels.score[:] *= many
    found = {}
    for i, site in enumerate(sites.tolist()):
        score = max(float(scores[:, i].max()), float(labels.score[i]))
        reason = None
        if score > 1:
            reason = _reason(i, dict(zip(tests, scores[:, i], strict=True)), labels, norms, counts, names)
        found[site] = Site(
            score,
            float(counts[i]),
            float(tests["spread"][i]),
            float(labels.agreement[i]),
            float(labels.moved[i]),
            reason,
        )
    return found


def _reason(
    i: int,
    scores: Mapping[str, float],
    labels: Labels,
    norms: np.ndarray,
    counts: np.ndarray,
    names: Sequence[str],
) -> str:
    """The reasons of a site that fails, in words: what explains most comes first."""
    said = []
    if scores["count"] > 1:
        said.append(f"count: {counts[i]:.0f} examples, {counts[i] / np.median(counts):.3g} times the median")
    if scores["norm"] > 1:
        factor = np.exp(norms[i] - np.median(norms))
        said.append(f"scale: its means have {factor:.3g} times the others' norm: another backbone or scaling")
    if labels.score[i] > 1:
        said.append(f"labels: {labels.described(i, names)}")
    elif scores["agreement"] > 1:
        beta = labels.agreement[i]
        what = "random or mixed labels, or another backbone" if beta < 1 else "another scaling of features"
        said.append(f"classes: differ {beta:.2g} times as much as the others': {what}")
    if not said:
        said.append("means: too far from the others': another backbone, preprocessing, or invented means")
    return "; ".join(said)
