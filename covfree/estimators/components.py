"""Estimate the within-class scatter if the mean of a class differs between clients (client shift)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.checks import check_choice
from covfree.core.products import divide_or_zero
from covfree.core.types import Moments, Rows
from covfree.estimators.moments import first_moments, row_clients, row_labels, valid_rows
from covfree.estimators.scatter import Freedom, Weighting, centred_rows
from covfree.statistics.groups import subset_groups


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ComponentMoments:
    """Sums over the rows of each class. A row is the mean of a subset of a client's examples of one class.

    The moments of several sets of rows can be added, provided that no client has rows in two of the sets.

    Attributes:
        moments: each class's number of examples, number of rows, and sum of features.
        degrees: Σ_k (J_kc − 1) for each class c, over the clients k that have J_kc ≥ 1 rows of the class.
            These are the degrees of freedom of the scatter between rows of the same client.
    """

    moments: Moments
    degrees: Integer[Array, " classes"]

    @property
    def clients(self) -> Integer[Array, " classes"]:
        """For each class, the number of clients that have rows of the class."""
        return self.moments.num_rows - self.degrees


class ClientParts(NamedTuple):
    """The deviation of each row x_r from its class mean μ_c, as a sum of two: between and within clients.

    Row r has count n_r, client k and class c; x̄_kc is the weighted mean of this client's rows of this class.

    Attributes:
        between: √n_r (x̄_kc − μ_c); 0 in padding rows.
        within: √n_r (x_r − x̄_kc); 0 in padding rows.
        group: number of the row's pair of client and class, see `client_groups`; −1 for padding.
    """

    between: Float[Array, "rows dim"]
    within: Float[Array, "rows dim"]
    group: Integer[Array, " rows"]


def client_groups(rows: Rows, num_classes: int) -> Integer[Array, " rows"]:
    """Return the number of each row's (client, class) pair; −1 for padding.

    Pairs are sorted and numbered from 0. A row of an unknown client (below 0) counts as a pair of its own.
    """
    client = row_clients(rows).astype(jnp.int32)
    valid = valid_rows(rows, num_classes)
    alone = jnp.where(client < 0, jnp.arange(client.shape[0], dtype=jnp.int32), -1)
    return subset_groups((client, row_labels(rows), alone), valid, 1, None)


def client_parts(rows: Rows, moments: Moments) -> ClientParts:
    """Write each row's deviation from its class mean as a sum of two, see `ClientParts`.

    The first, ``between``, is how far the client's own mean of the class is from the class mean. The second,
    ``within``, is how far the row is from the client's own mean.
    """
    group = client_groups(rows, moments.total.shape[0])
    size = max(1, group.shape[0])
    inside = replace(rows, label=group, covariance=None, sketch=None)
    own = first_moments(inside, size)
    centres = own.mean[jnp.where(group >= 0, group, 0)]
    of_client = Rows(centres, rows.count, rows.label)
    return ClientParts(
        between=centred_rows(of_client, moments),
        within=centred_rows(inside, own),
        group=group,
    )


def component_moments(rows: Rows, num_classes: int) -> ComponentMoments:
    """Compute, for each class, sums over all rows and the degrees of freedom within clients.

    A client may have several rows of a class, such as means of random subsets. J rows of one client and class
    have J − 1 degrees of freedom about their mean, which are added up over the clients. In the example, each
    of the two clients has two rows of class 0, so the sum is 1 + 1.

    >>> import jax.numpy as jnp
    >>> client = jnp.array([7, 7, 7, 2, 2])
    >>> rows = Rows(jnp.ones((5, 1)), jnp.ones(5, int), jnp.array([0, 0, 1, 0, 0]), client)
    >>> component_moments(rows, 2).degrees.tolist()
    [2, 0]
    """
    moments = first_moments(rows, num_classes)
    group = client_groups(rows, num_classes)
    size = max(1, group.shape[0])
    slot = jnp.where(group >= 0, group, size)
    # `segment_max` gives a group without rows the smallest integer, which is below 0.
    label = jax.ops.segment_max(row_labels(rows), slot, size)
    pair = (label >= 0).astype(jnp.int32)
    clients = jax.ops.segment_sum(pair, jnp.where(label >= 0, label, num_classes), num_classes)
    return ComponentMoments(moments, moments.num_rows - clients)


def hidden_weights(totals: ComponentMoments, weighting: Weighting) -> Float[Array, " classes"]:
    """Compute the weights w_c, one for each class, of `component_factor`.

    A row is the mean of some of a client's examples of a class, and clients do not send the scatter of these
    examples about the row. The sum of these scatters is estimated by Σ_c w_c B_c, where B_c is the scatter of
    the rows of class c about the mean of their client. The formulas of w_c for both values of ``weighting``
    are in `component_factor`.
    """
    check_choice("weighting", weighting, get_args(Weighting))
    moments = totals.moments
    dtype = moments.total.dtype
    hidden = jnp.maximum(moments.count.astype(dtype) - moments.num_rows.astype(dtype), 0)
    degrees = totals.degrees.astype(dtype)
    if weighting == "pooled":
        hidden, degrees = (jnp.broadcast_to(x.sum(), x.shape) for x in (hidden, degrees))
    return divide_or_zero(hidden, degrees)


def component_factor(
    rows: Rows, totals: ComponentMoments, *, weighting: Weighting = "per_class"
) -> Float[Array, "rows dim"]:
    """Make Y with YᵀY = Ŵ, an estimate of the within-class scatter that client shift does not bias.

    The scatter of the N_c examples of class c has two parts: S_c, the scatter of the class's K_c rows about
    the class mean, and the scatter of examples about their rows' means. With V_c the covariance of the class,
    the second part has expectation (N_c − K_c) V_c, but is not sent. It is estimated from B_c, the scatter of
    rows about the mean of their client: B_c = Σ_k Σ_r n_r (x_r − x̄_kc)(x_r − x̄_kc)ᵀ. Here row r is the mean
    x_r of n_r examples, and x̄_kc the mean of client k's J_kc rows of the class. B_c is free of client shift,
    and E[B_c] = Σ_k (J_kc − 1) V_c. Σ_c w_c B_c then estimates the sum of the second parts over classes:

        Ŵ = Σ_c (S_c + w_c B_c)    per_class  w_c = (N_c − K_c) / Σ_k (J_kc − 1)
                                   pooled     w = Σ_c (N_c − K_c) / Σ_c Σ_k (J_kc − 1)

    Ŵ is unbiased for the examples' scatter, even under client shift, if all clients share the covariance of a
    class; ``"pooled"`` also assumes that all classes share one. With ``"per_class"``, a class for which no
    client sends two rows adds only S_c, so Ŵ is too small.

    The cross terms of x_r − x̄_kc and x̄_kc − μ_c vanish, so each row r gives only one row of Y,
    y_r = √n_r [(x̄_kc − μ_c) + √(1 + w_c) (x_r − x̄_kc)].

    Returns:
        The factor; 0 in padding rows.

    Source: covfree; it replaces eq. 5 of FedCOF (Goswami et al. 2024), whose bias under client shift is
    eq. 22.

    >>> import jax.numpy as jnp
    >>> mean, client = jnp.array([[0.0], [2.0], [8.0], [10.0]]), jnp.array([0, 0, 1, 1])
    >>> rows = Rows(mean, jnp.array([3, 3, 3, 3]), jnp.zeros(4, int), client)
    >>> factor = component_factor(rows, component_moments(rows, 1))
    >>> round(float((factor**2).sum()))  # tr S_c = 3·(25 + 9 + 9 + 25); w_c = (12 − 4)/2; tr B_c = 3·4
    252
    """
    weight = hidden_weights(totals, weighting)
    parts = client_parts(rows, totals.moments)
    label = jnp.where(parts.group >= 0, row_labels(rows), 0)
    return parts.between + parts.within * jnp.sqrt(1 + weight)[label][:, None]


def component_freedom(totals: ComponentMoments, weighting: Weighting = "per_class") -> Freedom:
    """Return the `Freedom` of Ŵ, the estimate of the within-class scatter that `component_factor` makes.

    J_kc and w_c are those of `component_factor`. Each class c has two entries. Within clients it has
    Σ_k (J_kc − 1) degrees of freedom with weight 1 + w_c. Between clients it has one degree less than it has
    clients, with weight 1; under client shift, this part overestimates the scatter.
    """
    weight = hidden_weights(totals, weighting)
    between = jnp.maximum(totals.clients - 1, 0).astype(weight.dtype)
    inside = Freedom(totals.degrees.astype(weight.dtype), 1 + weight)
    return inside.joined(Freedom(between, jnp.ones_like(between)))


def client_means(rows: Rows, num_classes: int) -> Rows:
    """Average the rows of each client and class: the result has one row for each such pair, then padding.

    >>> import jax.numpy as jnp
    >>> client = jnp.array([5, 5, 7])
    >>> rows = Rows(jnp.array([[1.0], [4.0], [9.0]]), jnp.array([2, 1, 1]), jnp.zeros(3, int), client)
    >>> means = client_means(rows, 1)
    >>> means.mean.ravel().tolist(), means.count.tolist()
    ([2.0, 9.0, 0.0], [3.0, 1.0, 0.0])
    """
    group = client_groups(rows, num_classes)
    size = max(1, group.shape[0])
    own = first_moments(replace(rows, label=group, covariance=None, sketch=None), size)
    slot = jnp.where(group >= 0, group, size)
    label = jax.ops.segment_max(row_labels(rows), slot, size)
    return Rows(own.mean, own.count, jnp.where(own.count > 0, label, -1))
