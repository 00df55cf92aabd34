"""FedNCM: the nearest class mean."""

from __future__ import annotations

from covfree.core.types import LinearHead, Moments, Rows
from covfree.estimators import first_moments
from covfree.heads import ncm_head
from covfree.methods.method import Method
from covfree.methods.rounds import phases
from covfree.methods.summaries import send_class_means


def moments_phase(params: object, sent: tuple[()], rows: Rows, num_classes: int) -> Moments:
    """Compute each class's number of examples and sum of features: the first round of many methods."""
    return first_moments(rows, num_classes)


def _head(params: object, system: None, moments: Moments) -> LinearHead:
    return ncm_head(moments)


def fedncm() -> Method[LinearHead]:
    """Make FedNCM: clients send class means and counts; the normalised global means are the classifier.

    Bytes up: 4·M·d for M client-class pairs and d features.

    Source: Legate, Bernier, Caccia, Oyallon and Belilovsky (2023).
    """
    return Method(
        params=None,
        name="fedncm",
        summary=send_class_means(),
        rounds=phases(moments_phase),
        system=None,
        head=_head,
    )
