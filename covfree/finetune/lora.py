"""LoRA: each layer of a model is frozen, and a low-rank matrix is trained that is added to the layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from covfree.core.checks import check_positive, check_strength
from covfree.core.keys import derive
from covfree.core.products import product
from covfree.core.types import PRNGKey, Scalar
from covfree.finetune.model import Model, check_model
from covfree.methods.rounds import bound

# Names of the parameters that are layers: ``kernel`` in Flax, ``weight`` in a `LinearHead`.
_LAYERS = ("kernel", "weight")


def lora(
    model: Model, rank: int = 8, *, key: PRNGKey, scale: Scalar = 1.0, whole: Sequence[str] = ("head",)
) -> Model:
    """LoRA: for each layer W of a model, train W + s A B with A [in, r] and B [r, out]; W is frozen.

    Clients train and send only A and B, r (in + out) numbers for each layer, and the parameters ``whole``. A
    is drawn from N(0, 1/in) and B starts as 0, so the model is unchanged before training. A convolution with
    h × w positions counts as a matrix of h·w·in rows. Biases, norms and other parameters are frozen. The
    server averages A and B, not their product, so with several clients the new layer is near the mean of the
    clients' layers, not equal to it.

    The result of a run is the model's own result, with s A B added to its layers.

    Args:
        model: a `network_model`, whose network's layers get A and B; a `linear_model`, whose head gets A and
            B; or a model of your own.
        rank: r; for a layer with fewer rows or columns it is reduced.
        key: PRNG key that draws A.
        scale: s, the paper's α/r.
        whole: entries of a dict ``model.trained`` that are trained without LoRA, such as the head of a
            network.

    Raises:
        TypeError: if ``model`` is no model.
        ValueError: if a number is out of its range, or the model has no layers.

    Source: Hu et al. (2022), "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
    """
    check_model(model)
    check_positive("rank", rank)
    check_strength("scale", scale)
    parts = model.trained if isinstance(model.trained, Mapping) else {}
    kept = {name: parts[name] for name in whole if name in parts}
    base = {name: part for name, part in parts.items() if name not in kept} if parts else model.trained
    added = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(base)[0]:
        name = jax.tree_util.keystr(path)
        if _is_layer(path, leaf):
            rows, columns = math.prod(leaf.shape[:-1]), leaf.shape[-1]
            own = min(rank, rows, columns)
            down = jax.random.normal(derive(key, f"lora {name}"), (rows, own), leaf.dtype) * rows**-0.5
            added[name] = {"down": down, "up": jnp.zeros((own, columns), leaf.dtype)}
    if not added:
        raise ValueError(f"model: expected layers, leaves named {' or '.join(_LAYERS)}, beside {tuple(kept)}")
    trained = {"added": added, "whole": kept}
    frozen = {"base": base, "scale": jnp.asarray(scale, jnp.float32), "frozen": model.frozen}
    plain = bound(_finished, model=replace(model, trained=None, frozen=None, statistics=None))
    functions = {"features": model.features, "scores": model.scores, "finish": model.finish or plain}
    around = {name: bound(_merged, function=function) for name, function in functions.items()}
    return replace(model, trained=trained, frozen=frozen, **around)


def _is_layer(path: tuple[Any, ...], leaf: Any) -> bool:
    last = path[-1] if path else None
    name = getattr(last, "key", getattr(last, "name", None))
    return name in _LAYERS and jnp.ndim(leaf) >= 2


def _merged(trained: Any, frozen: Any, *more: Any, function: Callable[..., Any]) -> Any:
    """Call a function of the model with W + s A B in place of each layer's weights W."""

    def one(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        own = trained["added"].get(jax.tree_util.keystr(path))
        if own is None:
            return leaf
        change = product(own["down"], own["up"]).reshape(leaf.shape)
        return leaf + (frozen["scale"] * change).astype(leaf.dtype)

    made = jax.tree_util.tree_map_with_path(one, frozen["base"])
    made = {**made, **trained["whole"]} if isinstance(made, Mapping) else made
    return function(made, frozen["frozen"], *more)


def _finished(trained: Any, frozen: Any, statistics: Any, *, model: Model) -> Model:
    return replace(model, trained=trained, frozen=frozen, statistics=statistics)
