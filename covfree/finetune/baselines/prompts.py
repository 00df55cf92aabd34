"""Prompts: additional tokens that a frozen vision transformer reads, trained with a linear head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covfree.backbones.extractor import Backbone
from covfree.backbones.preprocess import normalise
from covfree.backbones.table import Preprocessing
from covfree.core.checks import check_positive
from covfree.core.types import AnyArray, LinearHead, PRNGKey, is_traced
from covfree.finetune.model import Model, check_head, check_params
from covfree.methods.rounds import bound


def random_prompts(backbone: Backbone, number: int, *, key: PRNGKey) -> Float[Array, "prompts features"]:
    """Draw prompts as visual prompt tuning does: uniform in ±√(6/(3·p² + d)), for p×p patches and d features.

    A prompt is a token of d numbers that the transformer reads beside the image's patches.

    Args:
        backbone: a vision transformer.
        number: the number of prompts.
        key: PRNG key.

    Raises:
        ValueError: if the backbone is not a vision transformer, or the number is below 1.

    Source: the code of Jia et al. (2022), "Visual Prompt Tuning", and the code of PFPT (Weng et al. 2024).

    >>> from covfree.backbones import backbone
    >>> random_prompts(backbone("vit_b_32"), 20, key=jax.random.key(0)).shape
    (20, 768)
    """
    _check_transformer(backbone)
    check_positive("number", number)
    bound = (6 / (3 * backbone.spec.settings["patch"] ** 2 + backbone.num_features)) ** 0.5
    return jax.random.uniform(key, (number, backbone.num_features), minval=-bound, maxval=bound)


def _check_transformer(backbone: Backbone) -> None:
    if not isinstance(backbone, Backbone) or not backbone.takes_prompts:
        got = backbone.name if isinstance(backbone, Backbone) else type(backbone).__name__
        raise ValueError(f"backbone: expected a vision transformer, which takes prompts, got {got}")


def _features(
    trained: Any,
    frozen: Any,
    statistics: tuple[()],
    inputs: Any,
    train: bool,
    key: Any,
    *,
    backbone: Backbone,
    preprocessing: Preprocessing | None,
    top: int | None,
) -> tuple[jax.Array, tuple[()]]:
    network, prompts, kept = {"params": frozen["network"]}, trained["prompts"], frozen["kept"]
    if preprocessing is not None:
        inputs = normalise(inputs, preprocessing)
    if top is None or top >= len(prompts):
        chosen = jnp.broadcast_to(jnp.arange(len(prompts)), (len(inputs), len(prompts)))
    else:
        similarity = _cosines(backbone.apply(network, inputs), prompts)
        _, chosen = jax.lax.top_k(jnp.where(kept[None, :], similarity, -jnp.inf), top)
    return backbone.apply(network, inputs, prompts=prompts[chosen], kept=kept[chosen]), statistics


def _cosines(queries: jax.Array, prompts: jax.Array) -> jax.Array:
    """Compute the cosine between each query and each prompt, in float32."""
    queries, prompts = (
        x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1e-6)
        for x in (queries.astype(jnp.float32), prompts.astype(jnp.float32))
    )
    return jnp.matmul(queries, prompts.T, precision=jax.lax.Precision.HIGHEST)


def _scores(trained: Any, frozen: Any, features: Any) -> jax.Array:
    head = replace(trained["head"], present=frozen["present"])
    return head(features.astype(head.weight.dtype))


def without_padding(model: Model) -> Model:
    """Remove the padding from a model's prompts; return a traced model, or one without prompts, unchanged.

    PFPT's pool of prompts is padded, as the pool's size varies between rounds. An algorithm that trains
    PFPT's result further would otherwise send the padding too.
    """
    if not (isinstance(model.trained, dict) and "prompts" in model.trained):
        return model
    kept = model.frozen["kept"]
    if is_traced(kept) or np.asarray(kept).all():
        return model
    places = np.flatnonzero(kept)
    trained = {**model.trained, "prompts": model.trained["prompts"][places]}
    return replace(model, trained=trained, frozen={**model.frozen, "kept": kept[places]})


def prompt_model(
    backbone: Backbone,
    params: Any,
    head: LinearHead,
    prompts: Float[AnyArray, "prompts features"],
    *,
    top: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> Model:
    """Make a model that trains prompts and a linear head on images, with the vision transformer frozen.

    ``fedavg(prompt_model(…))`` is FedAvg-PT, ``fedprox(prompt_model(…))`` FedProx-PT; `pfpt` takes the model
    too. The result of a run is a `Model`, which can be called on images or trained further; its ``trained``
    is a dict of ``"prompts"`` and ``"head"``.

    With ``top``, each image reads only the prompts with the largest cosines to the image's feature, computed
    without prompts, as in L2P's pool of prompts. PFPT's code differs in three points. All images of a batch
    read the prompts that most of them would choose, so a prediction depends on the rest of the batch. Prompts
    are compared with a projection of the feature; the projection is trained too, but App. H of FedCOF does
    not count it as sent. And 0.01 times the cosines are added to the loss. Here each image chooses on its
    own, there is no projection, and the loss is the classifier's alone.

    Args:
        backbone: a vision transformer, from ``covfree.backbones.backbone(name)``.
        params: the backbone's parameters.
        head: a head on the backbone's features, calibrated as `linear_model` says.
        prompts: the prompts to start from, e.g. `random_prompts`.
        top: the number of prompts that an image reads; None for all of them.
        preprocessing: normalises uint8 images; None if images are already normalised.

    Raises:
        TypeError: if prompts are not floats.
        ValueError: if the backbone takes no prompts, the head or the prompts do not fit the backbone's
            features, there is no prompt, a prompt is not finite, or ``params`` lacks the parameters.

    Source: Jia et al. (2022), "Visual Prompt Tuning", VPT-shallow; for the pool Wang et al. (2022), "Learning
    to Prompt for Continual Learning", equation 3.
    """
    _check_transformer(backbone)
    check_head(head, backbone)
    size, dtype, shape = backbone.num_features, jnp.result_type(prompts), jnp.shape(prompts)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"prompts: expected floats, got {dtype}")
    if len(shape) != 2 or shape[0] < 1 or shape[1] != size:
        raise ValueError(f"prompts: expected [prompts, {size}], at least one prompt, got {list(shape)}")
    if not is_traced(prompts) and not np.isfinite(jnp.asarray(prompts)).all():
        raise ValueError("prompts: expected finite numbers, got some that are not")
    if top is not None:
        check_positive("top", top)
    trained = {"prompts": jnp.asarray(prompts), "head": replace(head, present=None)}
    kept = jnp.ones(len(prompts), bool)
    frozen = {"network": check_params(params), "present": head.marks, "kept": kept}
    features = bound(_features, backbone=backbone, preprocessing=preprocessing, top=top)
    return Model(trained, frozen, (), features, _scores, num_classes=head.weight.shape[1])
