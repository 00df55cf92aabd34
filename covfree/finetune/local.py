"""Train a model on one client's examples: steps of any optax optimiser, from given parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial
from jaxtyping import Array, Int32

from covfree.backbones.rewriting import with_fast_forms
from covfree.core.checks import check_positive, check_strength
from covfree.core.keys import derive
from covfree.core.types import PRNGKey, is_traced, masked
from covfree.finetune.model import Model
from covfree.finetune.per_example import PerExample
from covfree.methods.rounds import bound
from covfree.rounds.algorithm import ClientData, is_classes


def as_optimiser(name: str, optimiser: Any) -> Partial:
    """Return a ``Partial`` that makes an optimiser (see `made`); its leaves are the optimiser's numbers.

    Another learning rate then needs no recompilation. ``optimiser`` is a learning rate of gradient descent, a
    ``Partial(optax.adam, 0.1)``, or an optax transformation. Errors begin with ``name``, the argument's name.
    """
    if isinstance(optimiser, Partial):
        for where, number in [*enumerate(optimiser.args), *optimiser.keywords.items()]:
            for leaf in jax.tree.leaves(number):
                # jax traces the Partial's arguments as numbers, so a flag or a schedule among them would fail
                # deep inside optax.
                if isinstance(leaf, bool) or callable(leaf):
                    raise TypeError(
                        f"{name}: expected only numbers in the Partial, got {where}={number!r}; bind a "
                        "flag or schedule by functools.partial first: "
                        "Partial(functools.partial(optimiser, …), …)"
                    )
                if not is_traced(leaf) and not np.isfinite(leaf).all():
                    raise ValueError(
                        f"{name}: expected finite numbers in the Partial, got {where}={number!r}"
                    )
        return optimiser
    # Do not check the type: optax.MultiSteps is no GradientTransformation.
    if hasattr(optimiser, "init") and hasattr(optimiser, "update"):
        return Partial(bound(_itself, transformation=optimiser))
    if callable(optimiser):
        got = getattr(optimiser, "__qualname__", optimiser)
        raise TypeError(
            f"{name}: expected an optax transformation or a learning rate, got {got}; call a function "
            "that makes a transformation, as in optax.adam(0.01), and pass it a schedule: optax.sgd(schedule)"
        )
    return Partial(optax.sgd, check_strength(name, optimiser))


def _itself(*, transformation: Any) -> Any:
    return transformation


def made(optimiser: Partial) -> optax.GradientTransformationExtraArgs:
    """Make the optax transformation; extra arguments that it does not know are ignored."""
    return optax.with_extra_args_support(optimiser())


def _draws(part: Any) -> bool:
    """Return whether a part of an optimiser's state has a PRNG key, as that of `optax.add_noise` has."""
    return hasattr(part, "rng_key")


def _waits(part: Any) -> bool:
    """Return whether a state is of an optimiser that sums gradients over several steps before it moves."""
    return isinstance(part, (optax.MultiStepsState, optax.ApplyEvery))


def check_classes(labels: Any) -> None:
    """Raise a TypeError unless labels are classes: a vector of integers."""
    if not is_classes(labels):
        got = f"{jnp.result_type(labels)}{list(jnp.shape(labels))}"
        raise TypeError(f"labels: expected a class of each example, integers [examples], got {got}")


def class_counts(data: ClientData, num_classes: int) -> Int32[Array, " classes"]:
    """Return a client's number of examples of each class, [classes]."""
    check_classes(data.labels)
    labels = jnp.asarray(data.labels)[jnp.maximum(jnp.asarray(data.index), 0)]
    # Padding gets class C, which is out of range, so that the scatter drops it.
    labels = jnp.where((jnp.asarray(data.index) >= 0) & (labels >= 0), labels, num_classes)
    return jnp.zeros(num_classes, jnp.int32).at[labels].add(1, mode="drop")


def _check_scores(model: Model, scores: Any, labels: jax.Array) -> None:
    """Raise unless scores are [examples, model.num_classes], or [examples, …] if ``num_classes`` is None."""
    shape, wide = jnp.shape(scores), model.num_classes
    if shape[:1] != (len(labels),) or (wide is not None and shape[1:] != (wide,)):
        expected = "…" if wide is None else wide
        raise ValueError(f"scores: expected [{len(labels)}, {expected}] of a batch, got {list(shape)}")


class Local(NamedTuple):
    """The result of a client's training in a round.

    Attributes:
        trained: the client's parameters.
        statistics: the client's running statistics.
        steps: K_i, the number of steps.
        factor: the schedule's factor, by which the optimiser's updates were multiplied.
        optimiser: the last state of the client's optimiser.
        metrics: ``loss``, the mean over steps of the batch's loss before the step; and ``steps``.
    """

    trained: Any
    statistics: Any
    steps: Int32[Array, ""]
    factor: Any
    optimiser: Any
    metrics: dict[str, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LocalTraining:
    """The settings of a client's training in a round, and (when called) the training itself.

    Attributes:
        optimiser: the optimiser of the steps; it is initialised again in each round.
        epochs: passes over the client's examples; None if ``steps`` is given.
        steps: the number of steps, however many examples the client has; None if ``epochs`` is given.
        batch_size: the number of examples in a step.
        schedule: function from the round (from 0) to a factor of the optimiser's updates; by default 1.
        own_classes: whether a client's softmax is only over the classes that it has.
        private: how a step clips each example's gradient and adds noise; None for the batch's mean gradient.
    """

    optimiser: Partial
    epochs: int | None = field(metadata={"static": True})
    steps: int | None = field(metadata={"static": True})
    batch_size: int = field(metadata={"static": True})
    schedule: Callable[[Any], Any] | None = field(default=None, metadata={"static": True})
    own_classes: bool = field(default=False, metadata={"static": True})
    private: PerExample | None = None

    @classmethod
    def of(
        cls,
        optimiser: Any,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int = 32,
        schedule: Callable[[Any], Any] | None = None,
        own_classes: bool = False,
    ) -> LocalTraining:
        """Check the arguments of an algorithm such as `fedavg`, and make the settings from them."""
        if steps is None:
            epochs = 1 if epochs is None else epochs
            check_positive("epochs", epochs)
        elif epochs is not None:
            raise ValueError(f"steps: expected epochs or steps, got both, {epochs} and {steps}")
        else:
            check_positive("steps", steps)
        check_positive("batch_size", batch_size)
        if schedule is not None and not callable(schedule):
            raise TypeError(f"schedule: expected a function of the round, which is traced, got {schedule!r}")
        return cls(as_optimiser("client", optimiser), epochs, steps, batch_size, schedule, own_classes)

    def __call__(
        self,
        model: Model,
        trained: Any,
        statistics: Any,
        data: ClientData,
        key: PRNGKey,
        *,
        round: Any,
        penalty: Callable[[Any, Any], Any] | None = None,
        **extra: Any,
    ) -> Local:
        """Train on a client's examples; return the client's model and metrics as a `Local`.

        Each epoch goes through the examples in a random order of its own. The last batch of an epoch is
        filled up with the epoch's first examples: there they have no weight in the loss, but batch norms get
        a full batch. No batch has more examples than the largest client. A client without examples takes no
        step.

        Args:
            model: the model, for its functions and frozen parameters.
            trained: the parameters to start from.
            statistics: the running statistics to start from.
            data: the client's examples.
            key: PRNG key of the examples' order, and of each step's dropout, augmentation and noise.
            round: the round, for the schedule.
            penalty: ``(features [batch, dim], labels [batch]) -> [batch]``, added to the loss.
            extra: extra arguments of the optimiser, such as ``anchor``, the server's model, for
                `add_proximal`.
        """
        transformation, count = made(self.optimiser), data.num_examples
        factor = 1.0 if self.schedule is None else self.schedule(round)
        longest = data.index.shape[0]
        size = min(self.batch_size, longest)
        per_epoch = -(-count // size)
        total = per_epoch * (self.epochs or 1) if self.steps is None else jnp.where(count > 0, self.steps, 0)
        orders, drops = derive(key, "order"), derive(key, "dropout")

        def loss_of(trained: Any, statistics: Any, batch: Any, key: Any) -> tuple[jax.Array, Any]:
            inputs, labels, weight = batch
            features, statistics = model.features(trained, model.frozen, statistics, inputs, True, key)
            scores = model.scores(trained, model.frozen, features)
            _check_scores(model, scores, labels)
            if self.own_classes:
                own = class_counts(data, scores.shape[1]) > 0
                scores = masked(scores, own.astype(scores.dtype))
            loss = model.loss(scores, labels)
            if jnp.shape(loss) != labels.shape[:1]:
                raise ValueError(
                    f"loss: expected shape {list(labels.shape[:1])}, one number for each example, got "
                    f"{list(jnp.shape(loss))}; do not average it: examples may be padding, which the mean "
                    "must leave out"
                )
            if penalty is not None:
                loss += penalty(features, labels)
            # Select instead of multiplying by 0: the loss of padding may not be finite.
            return jnp.where(weight > 0, loss, 0).sum() / weight.sum(), statistics

        def epoch(number: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            chance = jax.random.uniform(jax.random.fold_in(orders, number), (longest,))
            # First the client's own examples in random order, then padding.
            order = jnp.argsort(jnp.where(jnp.arange(longest) < count, chance, 2))

            def step(place: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
                trained, statistics, state, lost = carry
                places = place * size + jnp.arange(size)
                inputs, labels = data.take(order[places % jnp.maximum(count, 1)])
                weight = (places < count).astype(lost.dtype)
                own = jax.random.fold_in(drops, number * per_epoch + place)
                differentiated = jax.value_and_grad(with_fast_forms(loss_of), has_aux=True)
                more = dict(extra)
                if self.private is None:
                    (loss, statistics), gradient = differentiated(
                        trained, statistics, (inputs, labels, weight), own
                    )
                    more["value"] = loss
                else:

                    def of_one(example: Any, key: Any) -> tuple[jax.Array, Any]:
                        one = jax.tree.map(lambda x: x[None], example)
                        (loss, _), gradient = differentiated(
                            trained, statistics, (*one, jnp.ones(1, lost.dtype)), key
                        )
                        return loss, gradient

                    loss, gradient = self.private(of_one, (inputs, labels), weight, own)
                updates, state = transformation.update(gradient, state, trained, **more)
                updates = jax.tree.map(lambda x: (factor * x).astype(x.dtype), updates)
                return optax.apply_updates(trained, updates), statistics, state, lost + loss

            return jax.lax.fori_loop(0, jnp.minimum(per_epoch, total - number * per_epoch), step, carry)

        epochs = -(-total // jnp.maximum(per_epoch, 1))
        state = transformation.init(trained)
        if any(map(_draws, jax.tree.leaves(state, is_leaf=_draws))):
            raise ValueError(
                "client: expected an optimiser that does not draw, got one with a key of its own, which "
                "would be the same for all clients and rounds"
            )
        if any(map(_waits, jax.tree.leaves(state, is_leaf=_waits))):
            warnings.warn(
                "client: optax.MultiSteps and apply_every lose what they have gathered when a round ends, "
                "and never move if a client takes fewer steps than they wait for; a larger batch_size loses "
                "none",
                stacklevel=2,
            )
        carry = (trained, statistics, state, jnp.zeros(()))
        trained, statistics, state, lost = jax.lax.fori_loop(0, epochs, epoch, carry)
        metrics = {"loss": lost / jnp.maximum(total, 1), "steps": total}
        return Local(trained, statistics, total, factor, state, metrics)
