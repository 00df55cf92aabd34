"""FedNCM, the nearest class mean: the shortest method, and so an example of how methods are written.

A `Method` says what clients send (``summary``), which sums over the rows of all clients the server needs
(``rounds``), and how these sums become a classifier (``head``).
"""

from __future__ import annotations

from covfree.core.types import LinearHead, Moments, Rows
from covfree.estimators import first_moments
from covfree.heads import ncm_head
from covfree.methods.method import Method
from covfree.methods.rounds import Round
from covfree.methods.summaries import send_class_means


def _class_sums(params: object, sent: tuple[()], rows: Rows, num_classes: int) -> Moments:
    return first_moments(rows, num_classes)


# The first round of many methods: each class's number of examples and sum of features. They depend on no
# hyperparameter (``fixed``).
CLASS_SUMS = Round(_class_sums, fixed=True)


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
        rounds=(CLASS_SUMS,),
        system=None,
        head=_head,
    )
