"""One-shot ensembles: each client trains a head on its own examples, and the server averages predictions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from covfree.core.sums import sum_groups
from covfree.core.types import Moments, Rows
from covfree.estimators.moments import row_clients, row_counts, row_labels, row_means, valid_rows
from covfree.heads import EnsembleHead
from covfree.methods.fedncm import CLASS_SUMS
from covfree.methods.field.sampled import KEPT_ROWS
from covfree.methods.local_heads import send_heads
from covfree.methods.method import Method
from covfree.statistics.groups import subset_groups


def _average_probabilities(params: Any, system: None, moments: Moments, rows: Rows) -> EnsembleHead:
    num_classes = moments.count.shape[0]
    valid = valid_rows(rows, num_classes)
    columns, count = row_means(rows, valid), row_counts(rows, valid)
    size, client = count.shape[0], row_clients(rows).astype(jnp.int32)
    # A row of an unknown client counts as a client of its own.
    alone = jnp.where(client < 0, jnp.arange(size, dtype=jnp.int32), -1)
    group = subset_groups((client, alone), valid, 1, None)
    weight = count.astype(columns.dtype)[:, None]
    held = sum_groups(weight, group, size)[0][:, 0][jnp.where(valid, group, 0)]
    share = held / jnp.maximum(moments.num_examples, 1)
    return EnsembleHead(
        weight=columns[:, :-1],
        bias=columns[:, -1],
        client=jnp.where(valid, group, size),
        label=jnp.where(valid, row_labels(rows), num_classes),
        log_share=jnp.where(valid, jnp.log(jnp.where(valid, share, 1)), 0),
        present=moments.present.astype(columns.dtype),
    )


def ensemble(*, l2: float = 1e-3) -> Method[EnsembleHead]:
    """Make a one-shot ensemble: clients train a softmax head each and send it; the server averages them.

    A client's head covers the classes that the client has, and is trained only on its examples
    (`softmax_head`). With n_k of the N examples at client k, whose head gives class c the probability
    softmax_k(x)_c, the `EnsembleHead` predicts by Σ_k n_k/N · softmax_k(x)_c, with 0 from a client without
    class c. A client that has only one class always predicts it: it adds the constant n_k/N to the
    probability of its class. Bytes up: 4·M·(d + 1) for M client-class pairs and d features.

    This is a baseline without cooperation in training. Rows are columns of heads, not means, so `diagnose`
    refuses them, and `collect` must not be given a ``max_norm`` (its ``dim`` is d + 1).

    Args:
        l2: weight of the clients' penalty, see `softmax_head`; static.

    Raises:
        ValueError: if ``l2`` is out of its range.

    Source: the baseline of one-shot federated learning, Guha, Talwalkar and Smith (2019), with softmax heads.
    """
    rounds = CLASS_SUMS, KEPT_ROWS
    return Method(None, "ensemble", send_heads(l2), rounds, None, _average_probabilities)
