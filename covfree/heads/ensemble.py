"""An ensemble of clients' own softmax heads, each over the classes of its client's examples."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from covfree.core.products import product
from covfree.core.types import AnyArray, as_features, at_once, masked


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EnsembleHead:
    """A weighted average of the probabilities of clients' heads; scores are log Σ_k π_k softmax_k(x)_c.

    Client k has the weight π_k and a linear head with a column for each class of its examples. softmax_k is
    the softmax over these classes; all other classes have probability 0. If the heads have M columns
    together, a call computes M scores per example, all in memory at once.

    Attributes:
        weight: the M columns of all clients' heads, each stored as a row.
        bias: the bias of each column.
        client: the client of each column, numbered from 0; M or above for padding.
        label: the class of each column.
        log_share: log π_k of each column's client k; the weights π_k sum to 1.
        present: above 0 for a class with examples at some client.
    """

    weight: Float[Array, "columns dim"]
    bias: Float[Array, " columns"]
    client: Integer[Array, " columns"]
    label: Integer[Array, " columns"]
    log_share: Float[Array, " columns"]
    present: Float[Array, " classes"]

    @at_once
    def __call__(self, features: Float[AnyArray, "*batch dim"]) -> Float[Array, "*batch classes"]:
        """Compute the logarithms of the averaged probabilities; −∞ for an absent class."""
        features = jnp.asarray(as_features(features, self.weight.shape[1]))
        flat = features.reshape(-1, features.shape[-1])
        columns, classes = self.bias.shape[0], self.present.shape[0]
        used = self.client < columns
        # Put the columns on the first axis, along which segment sums work.
        scores = product(self.weight, flat.T) + self.bias[:, None]
        of_client = _log_sum_exp(jnp.where(used[:, None], scores, 0), self.client, columns)
        own = of_client[jnp.where(used, self.client, 0)]
        log_share = jnp.where(used, self.log_share, 0)[:, None]
        label = jnp.where(used, self.label, classes)
        scores = _log_sum_exp(scores - own + log_share, label, classes)
        return masked(scores.T.reshape(*features.shape[:-1], classes), self.present)


def _log_sum_exp(
    values: Float[Array, "columns examples"], group: Integer[Array, " columns"], num_groups: int
) -> Float[Array, "groups examples"]:
    """Return log Σ exp v for each group, over the ``values`` v of its columns; 0 for a group without columns.

    Columns whose group is ``num_groups`` or above are left out.
    """
    kept = (group < num_groups)[:, None]
    slot = jnp.where(kept[:, 0], group, 0)
    held = jax.ops.segment_sum(jnp.ones_like(group), group, num_groups)[:, None] > 0
    most = jax.lax.stop_gradient(jax.ops.segment_max(values, group, num_groups))
    most = jnp.where(held, most, 0)
    powers = jnp.exp(jnp.where(kept, values - most[slot], 0))
    total = jax.ops.segment_sum(powers, group, num_groups)
    return jnp.where(held, most + jnp.log(jnp.where(held, total, 1)), 0)
