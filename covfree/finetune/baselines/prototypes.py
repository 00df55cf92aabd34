"""FedProto and FedCGS's personalisation: personal models with features pulled towards global class means."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.core.checks import check_positive, check_strength
from covfree.core.types import PRNGKey, Scalar
from covfree.finetune.local import LocalTraining, class_counts
from covfree.finetune.model import Model, check_model, linear_features
from covfree.finetune.personal import Own, PersonalNumbers, Prototypes, personal, train_own
from covfree.rounds.algorithm import Algorithm, ClientData


class PrototypesUpload(NamedTuple):
    """The upload of a FedProto client; both arrays are summed over clients.

    Attributes:
        mean: class means of the client's features; 0 for a class that it lacks.
        holders: 1 for each class that the client has, else 0.
    """

    mean: Float[Array, "classes dim"]
    holders: Float[Array, " classes"]


def _check_prototypes(model: Model, prototypes: Prototypes) -> None:
    """Raise unless the model has trained features, and a class for each prototype."""
    if check_model(model).features is linear_features:
        raise ValueError(
            "model: expected one whose features are trained, adapter_model(head) or a network_model, got a "
            "linear_model"
        )
    if model.num_classes not in (None, len(prototypes.mean)):
        raise ValueError(
            f"prototypes: expected {model.num_classes}, one for each of the model's classes, got "
            f"{len(prototypes.mean)}"
        )


def _near_means(
    numbers: PersonalNumbers, prototypes: Prototypes, data: ClientData, own: Own, key: PRNGKey
) -> tuple[tuple[()], Own, dict[str, Any]]:
    counts = class_counts(data, prototypes.mean.shape[0])

    def penalty(features: jax.Array, labels: jax.Array) -> jax.Array:
        share = jnp.maximum(counts[labels], 1) / jnp.maximum(data.num_examples, 1)
        return numbers.strength * prototypes.distance(features, labels) / share

    return (), *train_own(numbers, data, own, key, penalty)


def fedcgs_personal(
    model: Model, prototypes: Prototypes, strength: Scalar = 0.01, client: Any = 0.01, **options: Any
) -> Algorithm:
    """FedCGS's personalisation: each client minimises its loss plus λ Σ_j (1/N_ij) Σ_{y = j} ‖f(x) − μ_j‖².

    Here f(x) are the features of an example, and N_ij is the number of client i's examples of class j. The
    class means μ_j over all clients' examples are computed once, before training, and stay fixed. Clients
    receive these means in each round, and send nothing.

    The paper prints 1/N_ij before the sum over classes j; as the factor depends on j, it belongs inside. Then
    all classes have the same weight. For a client with n_i examples, the sum is the mean over its examples of
    (n_i/N_i,y) ‖f(x) − μ_y‖², which minibatches estimate. (The authors' code has a plain mean.)

    Args:
        model: the model from which all clients start, with features of the prototypes' dimension:
            `network_model`, or `adapter_model` for frozen features.
        prototypes: the class means μ_j over all clients' examples.
        strength: λ, at least 0.
        client: see `fedavg`.
        options: see `local_only`.

    Returns:
        An algorithm whose result is `ClientModels`.

    Raises:
        TypeError: if ``prototypes`` is not `Prototypes`.
        ValueError: if a number is out of its range, the model is a `linear_model`, or there are not as many
            prototypes as classes.

    Source: Guan et al. (2025), "Capture Global Feature Statistics for One-Shot Federated Learning",
    equation 12.
    """
    if not isinstance(prototypes, Prototypes):
        raise TypeError(
            "prototypes: expected covfree.finetune.Prototypes(*covfree.class_means(features, labels, C)), "
            f"got {type(prototypes).__name__}"
        )
    _check_prototypes(model, prototypes)
    training, strength = LocalTraining.of(client, **options), check_strength("strength", strength)
    return personal("fedcgs-personal", model, training, _near_means, prototypes=prototypes, strength=strength)


def _near_prototypes(
    numbers: PersonalNumbers, prototypes: Prototypes, data: ClientData, own: Own, key: PRNGKey
) -> tuple[PrototypesUpload, Own, dict[str, Any]]:
    def penalty(features: jax.Array, labels: jax.Array) -> jax.Array:
        return numbers.strength * prototypes.distance(features, labels)

    own, metrics = train_own(numbers, data, own, key, penalty)
    return _class_means(numbers, own, data), own, metrics


def _class_means(numbers: PersonalNumbers, own: Own, data: ClientData) -> PrototypesUpload:
    """Make a client's upload, the class means of its features, with its own model in evaluation mode."""
    model, size = numbers.model, numbers.training.batch_size
    counts = class_counts(data, numbers.prototypes.mean.shape[0])

    def add(batch: Any, sums: jax.Array) -> jax.Array:
        inputs, labels = data.take(batch * size + jnp.arange(size))
        features, _ = model.features(own.trained, model.frozen, own.statistics, inputs, False, None)
        return sums.at[jnp.where(labels >= 0, labels, len(sums))].add(
            features.astype(sums.dtype), mode="drop"
        )

    batches = -(-data.num_examples // size)
    sums = jax.lax.fori_loop(0, batches, add, jnp.zeros_like(numbers.prototypes.mean))
    mean = sums / jnp.maximum(counts, 1)[:, None].astype(sums.dtype)
    return PrototypesUpload(mean, (counts > 0).astype(sums.dtype))


def _averaged(numbers: PersonalNumbers, state: Prototypes, total: PrototypesUpload) -> Prototypes:
    held = total.holders > 0
    mean = total.mean / jnp.where(held, total.holders, 1)[:, None]
    # Keep the prototype of a class that no client of the round has.
    return Prototypes(
        jnp.where(held[:, None], mean, state.mean), jnp.where(held, total.holders, state.counts)
    )


def fedproto(
    model: Model,
    num_classes: int,
    dim: int,
    strength: Scalar = 0.01,
    client: Any = 0.01,
    **options: Any,
) -> Algorithm:
    """FedProto: each client minimises its loss plus λ times the mean of ‖f(x) − μ_y‖² over its examples.

    After training, client k sends the class means μ_kc of its features f(x). The server averages these means
    over the K_c clients that have class c, into prototypes μ_c = Σ_k μ_kc / K_c. Models stay with the
    clients. In the first round there are no prototypes, and the penalty is 0.

    The paper's penalty has local class means: λ Σ_c ‖μ_kc − μ_c‖. The paper's prototypes are averages with
    weights n_kc/N_c, client k's share of the examples of class c, divided by K_c once more, and so K_c times
    too small. The authors' code uses single examples and the plain average, as here, but also a mean over
    dimensions, so the code's λ is d times the λ here.

    Args:
        model: the model from which all clients start; see `fedcgs_personal`.
        num_classes: the number of classes.
        dim: d, the dimension of the model's features.
        strength: λ, at least 0.
        client: see `fedavg`.
        options: see `local_only`.

    Returns:
        An algorithm whose result is `ClientModels`, and whose state is the `Prototypes`.

    Source: Tan et al. (2022), "FedProto: Federated Prototype Learning across Heterogeneous Clients",
    Algorithm 1, equations 5 and 6.
    """
    check_positive("num_classes", num_classes)
    check_positive("dim", dim)
    start = Prototypes(jnp.zeros((num_classes, dim)), jnp.zeros(num_classes))
    _check_prototypes(model, start)
    training, strength = LocalTraining.of(client, **options), check_strength("strength", strength)
    return personal("fedproto", model, training, _near_prototypes, _averaged, start, strength)
