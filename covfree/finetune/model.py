"""Models to train: classifiers whose parameters are split into trained and frozen ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from covfree.backbones.extractor import Backbone
from covfree.backbones.preprocess import normalise
from covfree.backbones.table import Preprocessing
from covfree.core.checks import check_choice, check_positive
from covfree.core.types import AnyArray, LinearHead, PRNGKey, masked
from covfree.heads.composed import MappedHead
from covfree.heads.student import StudentHead
from covfree.methods.rounds import bound

Trained = Literal["all", "head", "backbone"]
Norms = Literal["batch", "frozen"]


def cross_entropy(
    scores: Float[Array, "batch classes"], labels: Int[Array, " batch"]
) -> Float[Array, " batch"]:
    """Compute −log softmax(scores)[label] of each example, in float32 at least."""
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(
            f"labels: expected integers, the classes of the cross-entropy, got {labels.dtype}; give the "
            "Model a loss of its own"
        )
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Model:
    """A classifier to train: a pytree of parameters, with the functions that use them.

    Attributes:
        trained: parameters that gradients change.
        frozen: parameters that do not change.
        statistics: running statistics of batch norms, which training changes without gradients. The server
            averages them over clients, without its optimiser. ``()`` if there are none.
        features: ``(trained, frozen, statistics, inputs, train, key) -> (features [batch, dim], statistics)``
            with ``train`` a static bool, and ``key`` for dropout and augmentation.
        scores: ``(trained, frozen, features) -> scores [batch, classes]``.
        finish: ``(trained, frozen, statistics) -> result``, which makes what a run returns, such as a head;
            None if a run returns a `Model`.
        loss: ``(scores [batch, classes], labels [batch, …]) -> [batch]``, which training minimises. Without
            ``num_classes``, scores may have any shape [batch, …]. A vector of integer labels is always taken
            as classes (below 0 is padding), so numbers to predict must be floats.
        num_classes: the number of classes C, if labels are classes, integers below C. None if the loss takes
            other labels, as in ``replace(linear_model(head), loss=…, num_classes=None)`` for regression or
            several labels for each example.
    """

    trained: Any
    frozen: Any
    statistics: Any
    features: Callable[..., tuple[Any, Any]] = field(metadata={"static": True})
    scores: Callable[..., Any] = field(metadata={"static": True})
    finish: Callable[..., Any] | None = field(default=None, metadata={"static": True})
    loss: Callable[[Any, Any], Any] = field(default=cross_entropy, metadata={"static": True})
    num_classes: int | None = field(default=None, metadata={"static": True})

    def __call__(self, inputs: Any) -> Float[Array, "batch classes"]:
        """Compute the scores of each class, in evaluation mode."""
        features, _ = self.features(self.trained, self.frozen, self.statistics, inputs, False, None)
        return self.scores(self.trained, self.frozen, features)

    def result(self, trained: Any, statistics: Any) -> Any:
        """Return the result of a run that ended with these trained parameters and running statistics.

        It is what ``finish`` makes of them, e.g. a head; without ``finish``, this model with the new values.
        """
        if self.finish is None:
            return replace(self, trained=trained, statistics=statistics)
        return self.finish(trained, self.frozen, statistics)


def check_model(model: Any) -> Model:
    """Return the model; raise unless it is a `Model`."""
    if not isinstance(model, Model):
        raise TypeError(f"model: expected a covfree.finetune.Model, got {type(model).__name__}")
    return model


def check_head(head: Any, backbone: Backbone) -> None:
    """Raise unless ``head`` is a linear head on the backbone's features."""
    if not isinstance(head, LinearHead) or head.weight.shape[0] != backbone.num_features:
        got = list(head.weight.shape) if isinstance(head, LinearHead) else type(head).__name__
        raise ValueError(f"head: expected a linear head of {backbone.num_features} features, got {got}")


def check_params(params: Any) -> Any:
    """Return the network's parameters, the entry ``"params"`` of a backbone's variables; raise without it."""
    if not isinstance(params, Mapping) or "params" not in params:
        got = type(params).__name__
        if isinstance(params, Mapping):
            got = f"a dict of {', '.join(sorted(map(str, params)))[:80]}"
        raise ValueError(f'params: expected a dict with "params", as the backbone loads them, got {got}')
    return params["params"]


def linear_part(head: Any) -> LinearHead:
    """Return a linear head, or that of a `StudentHead`; raise for other heads."""
    inner = head.linear if isinstance(head, StudentHead) else head
    if not isinstance(inner, LinearHead):
        raise TypeError(f"head: expected a linear head or a Student head, got {type(inner).__name__}")
    return inner


def linear_features(
    trained: LinearHead, frozen: Any, statistics: tuple[()], inputs: Any, train: bool, key: Any
) -> tuple[jax.Array, tuple[()]]:
    """Return the features of a `linear_model`, which training does not change."""
    feature_map, _ = frozen
    return jnp.asarray(inputs) if feature_map is None else feature_map(inputs), ()


def _linear_scores(trained: LinearHead, frozen: Any, features: Any) -> jax.Array:
    _, present = frozen
    if jnp.shape(features)[1:] != trained.weight.shape[:1]:
        raise ValueError(
            f"features: expected [examples, {trained.weight.shape[0]}], as the head has rows, got "
            f"{list(jnp.shape(features))}"
        )
    return replace(trained, present=present)(features)


def _linear_head(trained: LinearHead, frozen: Any, statistics: tuple[()]) -> LinearHead | MappedHead:
    feature_map, present = frozen
    head = replace(trained, present=present)
    return head if feature_map is None else MappedHead(feature_map, head)


def linear_model(head: LinearHead | StudentHead | MappedHead) -> Model:
    """Make a model that trains a linear head on features (linear probing).

    Start from any linear head that `covfree.fit` gives. First divide its scores by a temperature, which
    `covfree.calibrate_temperature` fits and `covfree.with_temperature` applies: predictions stay the same,
    and the softmax's probabilities become calibrated. A feature map before the head stays fixed; of a
    `StudentHead` only the linear part is trained. Absent classes, whose score is −∞, stay absent.

    Args:
        head: e.g. from ``covfree.fit(covfree.fedcof(), …)``, or `random_head`.

    Raises:
        TypeError: if the head is not linear.
    """
    mapped = isinstance(head, MappedHead)
    feature_map, inner = (head.feature_map, head.head) if mapped else (None, head)
    inner = linear_part(inner)
    frozen = feature_map, inner.marks
    classes = inner.weight.shape[1]
    trained = replace(inner, present=None)
    return Model(trained, frozen, (), linear_features, _linear_scores, _linear_head, num_classes=classes)


def random_head(dim: int, num_classes: int, *, key: PRNGKey) -> LinearHead:
    """Draw a linear head as PyTorch's ``nn.Linear`` does: weights and biases uniform in ±1/√d.

    Args:
        dim: d, the dimension of the features.
        num_classes: the number of classes.
        key: PRNG key.
    """
    check_positive("dim", dim)
    check_positive("num_classes", num_classes)
    bound = dim**-0.5
    weight, bias = (
        jax.random.uniform(own, shape, minval=-bound, maxval=bound)
        for own, shape in zip(jax.random.split(key), ((dim, num_classes), (num_classes,)), strict=True)
    )
    return LinearHead(weight, bias)


def _network_features(
    trained: Any,
    frozen: Any,
    statistics: Any,
    inputs: Any,
    train: bool,
    key: Any,
    *,
    backbone: Backbone,
    norms: Norms,
    dropout: bool,
    preprocessing: Preprocessing | None,
) -> tuple[jax.Array, Any]:
    params = {"params": {**frozen, **trained}["network"], **frozen["statistics"], **statistics}
    if preprocessing is not None:
        inputs = normalise(inputs, preprocessing)
    trains = train and "network" in trained
    key = key if trains and dropout else None
    if not trains or norms == "frozen":
        return backbone.apply(params, inputs, key=key), statistics
    features, params = backbone.apply_and_update(params, inputs, key=key)
    return features, {name: params[name] for name in statistics}


def _network_scores(trained: Any, frozen: Any, features: Any) -> jax.Array:
    head = {**frozen, **trained}["head"]
    scores = jnp.matmul(features.astype(head.weight.dtype), head.weight) + head.bias[None, :]
    return masked(scores, frozen["present"])


def _network_result(
    trained: Any, frozen: Any, statistics: Any, *, backbone: Backbone, preprocessing: Preprocessing | None
) -> MappedHead:
    parts = {**frozen, **trained}
    params = {"params": parts["network"], **frozen["statistics"], **statistics}
    head = replace(parts["head"], present=frozen["present"])
    return MappedHead(NetworkMap(params, backbone, preprocessing), head)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NetworkMap:
    """A backbone with its parameters: the map from images to features before a head.

    Attributes:
        params: the backbone's parameters.
        backbone: the backbone.
        preprocessing: normalises uint8 images; None if images are already normalised.
    """

    params: Any
    backbone: Backbone = field(metadata={"static": True})
    preprocessing: Preprocessing | None = field(metadata={"static": True})

    def __call__(self, images: AnyArray) -> Float[Array, "batch dim"]:
        """Compute features of images, in float32 at least."""
        if self.preprocessing is not None:
            images = normalise(images, self.preprocessing)
        features = self.backbone.apply(self.params, images)
        return features.astype(jnp.promote_types(features.dtype, jnp.float32))


def network_model(
    backbone: Backbone,
    params: Any,
    head: LinearHead,
    *,
    train: Trained = "all",
    norms: Norms = "frozen",
    dropout: bool = False,
    preprocessing: Preprocessing | None = None,
) -> Model:
    """Make a model of a backbone and a linear head on images, which trains both or one of the two.

    The result of a run is a `MappedHead`, to be called on images: its ``feature_map.params`` are the
    backbone's parameters, its ``head`` the linear head.

    Args:
        backbone: from ``covfree.backbones.backbone(name)``.
        params: the backbone's parameters.
        head: a head on the backbone's features, calibrated as in `linear_model`.
        train: ``"all"``; ``"head"`` for the head only (linear probing, Fed3R's FT-LP); or ``"backbone"`` for
            the backbone only, under a fixed head (Fed3R's FT-FEAT).
        norms: ``"batch"`` normalises by the batch's statistics in training, and averages the running
            statistics over clients; ``"frozen"``, or any ``norms`` if only the head is trained, always uses
            the running statistics, which do not change.
        dropout: whether training uses dropout and stochastic depth, at the network's own rates. A network
            that is not trained never uses them.
        preprocessing: normalises uint8 images, which take a quarter of the memory of float32; None if images
            are already normalised.

    Raises:
        ValueError: if a choice is unknown, the head does not fit the backbone's features, or ``params`` lacks
            the parameters.
    """
    check_choice("train", train, ("all", "head", "backbone"))
    check_choice("norms", norms, ("batch", "frozen"))
    check_choice("dropout", dropout, (False, True))
    check_head(head, backbone)
    statistics = {name: leaf for name, leaf in params.items() if name != "params"}
    # Fixed statistics are not sent.
    fixed, moving = (statistics, {}) if norms == "frozen" or train == "head" else ({}, statistics)
    parts = {"network": check_params(params), "head": replace(head, present=None)}
    kept = {"head": ("network",), "backbone": ("head",), "all": ()}[train]
    trained = {name: part for name, part in parts.items() if name not in kept}
    frozen = {name: parts[name] for name in kept} | {"present": head.marks, "statistics": fixed}
    about = {"backbone": backbone, "preprocessing": preprocessing}
    features = bound(_network_features, **about, norms=norms, dropout=dropout)
    finish = bound(_network_result, **about)
    classes = head.weight.shape[1]
    return Model(trained, frozen, moving, features, _network_scores, finish, num_classes=classes)
