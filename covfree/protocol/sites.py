"""Find sites whose messages should not be trusted, and limit their influence."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from covfree.core.checks import check_positive, check_row_structure, check_type
from covfree.core.types import Message, Rows
from covfree.protocol.door import Collected
from covfree.protocol.site_report import SiteReport, judge_means
from covfree.protocol.sites_model import class_means_of, fit_model


def diagnose_sites(
    collected: Collected | Rows, *, num_classes: int, class_names: Sequence[str] | None = None
) -> SiteReport:
    """Compare each site's class means with those of all others, and report which sites differ, and why.

    Each site has four statistics: the logarithm of its number of examples; the logarithm of the norm of its
    means, relative to all sites'; the logarithm of the average squared Mahalanobis distance of its means from
    the other sites' centres (`fit_model`); and the agreement of its labels (`label_test`). Each is compared
    with the median over all sites, in robust standard deviations, so that ordinary shift between sites is
    allowed. A site with labels that are surely swapped or moved also fails. Failed sites with at least half
    the highest `Site.score` are removed, and the remaining sites are tested again. ``docs/security.md`` has
    the formulas and error rates.

    Args:
        collected: the result of `collect`, or rows that name their ``client``. A client's rows of one class
            are averaged; residual directions (the rows that `Rows.sketch` marks) are ignored.
        num_classes: C.
        class_names: [C], for the reasons; by default those of the messages, or else numbers.

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
        raise ValueError("collected: expected rows with a client each, got client = None")
    means = class_means_of(rows, num_classes)
    if clients is None:
        clients = range(int(means.site.max(initial=-1)) + 1)
    return judge_means(means, clients, num_classes, class_names)


def clip_sites(rows: Rows, *, num_classes: int, limit: float | int = 1.5) -> Rows:
    """Move outlying class means towards those of the other sites, and cap the weight of large sites.

    Use it to bound each site's influence if the server may not exclude sites. Honest sites lose little.
    Against attackers, `diagnose_sites`, which excludes whole sites, is better (``docs/security.md``).

    A site's mean x of a class is compared with g, the centre of the other sites' means of this class. Let D
    be its Mahalanobis distance from g, and √v the expected distance, up to a factor (see `fit_model`). Let r
    be D/√v divided by the median of D/√v over all class means. If r is above ``limit``, x is replaced by
    g + (limit/r)(x − g), which bounds its influence as Huber's function does. If a site has more than three
    times as many examples as the median site, the counts of its class means are scaled down to three times;
    counts of rows that are no class means stay.

    Args:
        rows: the rows (class means) of all sites, such as ``collect(…).message.rows``. If a site has several
            rows of a class, they are moved alike. Classes with means of fewer than three sites are not moved.
        num_classes: C.
        limit: the largest r; at least 1.

    Returns:
        The rows, with counts in float32.

    Raises:
        ValueError: if rows name no client, or the limit is below 1.

    >>> means = np.zeros((6, 1, 2)) + 0.1 * np.random.default_rng(0).normal(size=(6, 1, 2))
    >>> means[5] = 1000.0
    >>> rows = Rows(means.reshape(6, 2), np.full(6, 9), np.zeros(6, int), np.arange(6))
    >>> bool(np.abs(clip_sites(rows, num_classes=1).mean).max() < 1)
    True
    """
    check_positive("num_classes", num_classes)
    check_row_structure(rows)
    if rows.client is None:
        raise ValueError("rows: expected rows with a client each, got client = None")
    if not limit >= 1:
        raise ValueError(f"limit: expected at least 1, got {limit}")
    means = class_means_of(rows, num_classes)
    mean, count = np.array(rows.mean), np.array(rows.count, np.float32)
    if not len(means.label):
        return replace(rows, mean=mean, count=count)
    model = fit_model(means, num_classes)
    far = np.sqrt(np.maximum(model.excess, 1e-300))
    moved = (np.minimum(limit / far, 1) - 1)[:, None] * model.residual
    examples = np.bincount(means.site, means.number)
    most = 3 * np.median(examples[examples > 0])
    weight = np.minimum(1, most / np.maximum(examples, 1e-300)).astype(np.float32)
    # Find each row's client and class among the class means, which are sorted by client and class.
    label, client = np.asarray(rows.label), np.asarray(rows.client)
    known = (count > 0) & (label >= 0) & (label < num_classes) & (client >= 0)
    place = np.searchsorted(
        means.site * num_classes + means.label, client[known] * num_classes + label[known]
    )
    mean[known] += moved[place].astype(mean.dtype)
    count[known] *= weight[client[known]]
    return replace(rows, mean=mean, count=count)


def leave_out(message: Message, *, num_classes: int) -> Message:
    """Return the message with counts of 0 for sites that fail `diagnose_sites`, and warn of these sites.

    Raise ValueError if the message has a matrix, which is a sum over all sites.
    """
    if message.matrix is not None:
        raise ValueError(
            "judge_sites: expected a message of rows alone, as a matrix is the sum of all sites'; "
            "collect(…, judge_sites=True) leaves out rows and matrices"
        )
    report = diagnose_sites(message.rows, num_classes=num_classes, class_names=message.class_names)
    if not report.judged:
        warnings.warn(f"judge_sites: {report.summary}", RuntimeWarning, stacklevel=3)
    if not report.failed:
        return message
    said = "; ".join(f"client {client}: {reason}" for client, reason in report.failed.items())
    warnings.warn(f"judge_sites: left out {said}", RuntimeWarning, stacklevel=3)
    failed = np.isin(np.asarray(message.rows.client), np.asarray(list(report.failed)))
    count = np.asarray(message.rows.count)
    return replace(message, rows=replace(message.rows, count=np.where(failed, np.zeros_like(count), count)))
