"""The picture of ``covfree audit``: ROC curves of the attack that tells training examples from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from covfree.privacy.federation_audit import Finding
from covfree.studies.plots import style as figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@figures.style()
def draw(title: str, findings: Sequence[Finding]) -> Figure:
    """Draw ROC curves of the membership attack, both axes logarithmic.

    The attack guesses which examples are members, that is training examples.
    """
    figure = figures.new_figure(figures.PHONE, 3.6)
    figures.set_title(figure, title)
    axes = figure.subplots()
    for finding, colour in zip(findings, figures.palette(len(findings)), strict=True):
        false, true = _curve(finding)
        axes.step(false, true, where="post", color=colour, label=f"{finding.name}: AUC {finding.auc:.2f}")
    least = 1 / max(len(each.others) for each in findings)
    chance = np.geomspace(least, 1, 50)
    axes.plot(chance, chance, color="grey", linestyle=":", label="chance: AUC 0.50")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.1))
    axes.set_xlabel("others taken for members")
    axes.set_ylabel("members found")
    figures.legend_below(figure, axes.get_legend_handles_labels()[0])
    return figure


def _curve(finding: Finding) -> tuple[np.ndarray, np.ndarray]:
    """Return the ROC curve of an attack: for each threshold, the false and the true positive rate.

    Examples with a score of at least the threshold are taken for members (training examples). The first array
    is the share of other examples that are taken for members, the second the share of members found.
    """
    thresholds = np.unique(np.r_[finding.members, finding.others])[::-1]
    shares = [
        1 - np.searchsorted(np.sort(each), thresholds, side="left") / len(each)
        for each in (finding.others, finding.members)
    ]
    return shares[0], shares[1]
