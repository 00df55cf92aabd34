"""One-shot ensembles: each client trains a head on its own examples, and the server averages predictions."""

from __future__ import annotations

from typing import Any, Literal, overload

import jax.numpy as jnp

from covfree.core.checks import check_choice
from covfree.core.sums import sum_groups
from covfree.core.types import LinearHead, Moments, Rows
from covfree.estimators.moments import row_clients, row_counts, row_labels, row_means, valid_rows
from covfree.heads import EnsembleHead
from covfree.heads.columns import head_for_present
from covfree.methods.fedncm import moments_phase
from covfree.methods.field.sampled import keep_phase
from covfree.methods.local_heads import send_heads
from covfree.methods.method import Method
from covfree.methods.rounds import phases
from covfree.statistics.groups import subset_groups


def _average_scores(params: Any, system: None, moments: Moments) -> LinearHead:
    """Make the linear head whose scores are averages of the clients' scores; n_kc is the weight of client k.

    Client k trained a head on its own examples, n_kc of them in class c. For each class c it sent the weights
    and bias [w_kc, b_kc] as a row with count n_kc, in place of a class mean. So the class means in
    ``moments`` are the averages.
    """
    mean = moments.mean
    return head_for_present(mean[:, :-1].T, mean[:, -1], moments.present)


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


@overload
def ensemble(
    average: Literal["probabilities"] = "probabilities", *, l2: float = 1e-3
) -> Method[EnsembleHead]: ...
@overload
def ensemble(average: Literal["scores"], *, l2: float = 1e-3) -> Method[LinearHead]: ...
def ensemble(
    average: Literal["probabilities", "scores"] = "probabilities", *, l2: float = 1e-3
) -> Method[Any]:
    """Make a one-shot ensemble: clients train a softmax head each and send it; the server averages them.

    A client's head covers the classes that the client has, and is trained only on its examples
    (`softmax_head`). There are two averages over the clients. Client k has n_k of the N examples, and n_kc of
    the N_c of class c; its head has the score w_kcᵀx + b_kc and the probability softmax_k(x)_c for class c:

        probabilities   Σ_k n_k/N · softmax_k(x)_c, with 0 from a client without class c
        scores          Σ_k n_kc/N_c · (w_kcᵀx + b_kc), over the clients with class c

    Averaged scores are one linear head, similar to one round of FedAvg with local training to convergence.
    Averaged probabilities need an `EnsembleHead`, which keeps all heads. A client that has only one class
    always predicts it: it adds the constant n_k/N to the probability of its class, and 0 to its score. Bytes
    up: 4·M·(d + 1) for M client-class pairs and d features.

    This is a baseline without cooperation in training. Rows are columns of heads, not means, so `diagnose`
    refuses them, and `collect` must not be given a ``max_norm`` (its ``dim`` is d + 1).

    Args:
        average: whether probabilities or scores are averaged.
        l2: weight of the clients' penalty, see `softmax_head`; static.

    Raises:
        ValueError: if ``average`` is unknown or ``l2`` out of its range.

    Source: the baseline of one-shot federated learning, Guha, Talwalkar and Smith (2019), with softmax heads.
    """
    check_choice("average", average, ("probabilities", "scores"))
    summary = send_heads(l2)
    if average == "scores":
        return Method(None, "ensemble-scores", summary, phases(moments_phase), None, _average_scores)
    return Method(None, "ensemble", summary, phases(moments_phase, keep_phase), None, _average_probabilities)
