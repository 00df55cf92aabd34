"""Personal heads in closed form: each client solves ridge regression that is pulled towards a global head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from covfree.core.checks import check, check_type
from covfree.core.compiling import jit
from covfree.core.lapack import eigh
from covfree.core.padding import as_arrays
from covfree.core.products import product
from covfree.core.types import AnyArray, LinearHead
from covfree.finetune.model import linear_model
from covfree.finetune.personal import ClientModels, Own, client_classes
from covfree.heads import with_finite_scores

# Candidates for λ, relative to the mean squared norm of the client's features; the first one nearly keeps the
# global head.
RATIOS = tuple(10.0**power for power in range(4, -4, -1))
# Of the λ with errors at most this share above the least error, the largest is taken. With one example all
# errors are equal.
EQUAL = 1e-4
# The largest client number may be this many times the count of clients; a head is stored for each number.
_GAPS = 2**10


def ridge_at_home(
    head: LinearHead,
    features: Float[AnyArray, "examples dim"],
    labels: Integer[AnyArray, " examples"],
    clients: Integer[AnyArray, " examples"],
) -> ClientModels:
    """Give each client the head W_k that minimises ‖F W_k + b − Y‖² + λ ‖W_k − W‖² on its own examples.

    W and b are the global head's weights and bias, F [n_k, d] are client k's features, and Y its one-hot
    labels. With R = Y − F W − b,

        W_k = W + Fᵀ (F Fᵀ + λI)⁻¹ R.

    For a class that the global head lacks, W and b are 0: only clients that have the class can predict it.
    Each client's λ is one of `RATIOS` times the mean squared norm of its features: the one with the smallest
    leave-one-out squared error; of equal ones, the largest. One eigendecomposition of G = F Fᵀ gives these
    errors: that of example i is [(G + λI)⁻¹R]_i / [(G + λI)⁻¹]_ii. Clients send nothing, and given W and b,
    a client's head does not depend on other clients' examples. Clients are solved one after another, padded
    to the n examples of the largest, with n³ operations and n² memory each.

    Args:
        head: the global head, scaled for one-hot labels, such as the head that `covfree.afl` gives, ridge
            regression on the examples of all clients.
        features: features of all clients' examples.
        labels: the examples' classes; below 0 is padding.
        clients: the examples' clients, numbered from 0; below 0 is padding.

    Returns:
        The models of the clients 0 … max(``clients``). A client without examples keeps the global head.

    Raises:
        TypeError: if the head is not linear, or a data type is wrong.
        ValueError: if there are no examples, features and head differ in d, a value is wrong (see
            `covfree.check`), or clients are numbered with large gaps.

    Source: personal heads after a global ridge regression are as in FedHiP (Tang et al. 2025, arXiv
    2508.04470) and APFL (arXiv 2508.10732); this form, and the choice of λ, are covfree's.
    """
    check_type("head", head, LinearHead)
    dim, num_classes = head.weight.shape
    check(features, labels, clients, num_classes=num_classes)
    given = {"features": features, "labels": labels, "clients": clients}
    features, labels, clients = map(np.asarray, as_arrays(given, given).values())
    kept = np.flatnonzero((labels >= 0) & (clients >= 0))
    if not len(kept):
        raise ValueError("clients: expected examples of a client at least, got none")
    if features.shape[1] != dim:
        raise ValueError(f"features: expected dim {dim} of the head, got {features.shape[1]}")
    if (last := int(clients[kept].max())) > _GAPS * len(np.unique(clients[kept])):
        raise ValueError(
            f"clients: expected numbers from 0 without large gaps, got {last}; number them anew: "
            "np.unique(clients, return_inverse=True)[1]"
        )
    order = kept[np.argsort(clients[kept], kind="stable")]
    sizes = np.bincount(clients[order])
    places = np.full((len(sizes), sizes.max()), -1)
    places[np.arange(sizes.max()) < sizes[:, None]] = order
    weight = _weights(replace(head, present=None), *map(jnp.asarray, (features, labels, places)))
    has = client_classes(labels, clients, num_classes=num_classes)
    # Clients lack different classes, so a low bias marks absent classes instead of ``present``.
    model = linear_model(with_finite_scores(head))
    bias = jnp.where(jnp.asarray(has), jnp.asarray(head.bias), model.trained.bias)
    return ClientModels(model, Own(LinearHead(weight, bias), (), jnp.ones(len(sizes), jnp.int32)))


@jit
def _weights(head: LinearHead, features: jax.Array, labels: jax.Array, places: jax.Array) -> jax.Array:
    """Compute each client's own head, and return the weights W_k of all clients, [clients, dim, classes].

    `ridge_at_home` has the formula. ``head`` is the global head; ``features`` and ``labels`` are those of all
    clients. ``places`` [clients, most examples] has the indices of each client's examples, filled up with −1.
    """

    def one(place: jax.Array) -> jax.Array:
        known = (place >= 0)[:, None]
        own = jnp.where(known, features[place], 0).astype(head.weight.dtype)
        targets = jax.nn.one_hot(labels[place], head.bias.shape[0], dtype=own.dtype)
        rest = jnp.where(known, targets - product(own, head.weight) - head.bias[None, :], 0)
        values, vectors = eigh(product(own, own.T))
        values = jnp.maximum(values, 0)
        scale = jnp.maximum(values.sum() / jnp.maximum(known.sum(), 1), jnp.finfo(own.dtype).tiny)
        turned = product(vectors.T, rest)

        def dual(ratio: jax.Array) -> tuple[Any, jax.Array]:
            inverse = 1 / (values + ratio * scale)
            found = product(vectors * inverse[None, :], turned)
            diagonal = product(jnp.square(vectors), inverse[:, None])
            return found, jnp.square(found / diagonal).sum()

        duals, errors = jax.lax.map(dual, jnp.asarray(RATIOS, own.dtype))
        return head.weight + product(own.T, duals[(errors <= (1 + EQUAL) * errors.min()).argmax()])

    return jax.lax.map(one, places)
