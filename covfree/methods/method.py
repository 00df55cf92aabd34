"""`Method`: a federated method as a record of pure functions, and a pytree of hyperparameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import jax
import jax.numpy as jnp

from covfree.core.checks import check_above_zero, check_choice
from covfree.core.keys import derive
from covfree.core.linalg import Scatter
from covfree.core.types import AnyArray, H, Head, LinearHead, Message, Rows, Scalar, is_traced
from covfree.estimators.automatic import as_matrix_shrinkage
from covfree.estimators.shrinkage import Shrinkage
from covfree.heads.composed import MappedHead
from covfree.heads.temperature import with_temperature
from covfree.methods.rounds import Round, bound, option
from covfree.methods.summary import Summary
from covfree.methods.within import Estimate
from covfree.statistics.feature_maps import FeatureMap, described
from covfree.statistics.transforms import Transform


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Method(Generic[H]):
    """A federated method: how examples become rows, what is summed over rows, and how sums become a head.

    A row is an example, or the mean of several (`Rows`). ``Method[LinearHead]`` makes a `LinearHead`. A
    method is a pytree whose leaves are the numbers in ``params``, ``feature_map`` and ``transforms``;
    ``vmap`` and ``grad`` work on these. Compiled functions take methods as arguments: another number does
    not recompile them, another shrinkage rule does.

    Attributes:
        params: hyperparameters and shrinkage rules, whose numbers ``vmap`` may sweep.
        name: the method's name.
        summary: what clients send, and how examples become the rows that rounds sum over, see `Summary`.
        rounds: rounds of sums over rows, then those over clients' examples; each receives the server's state
            after the earlier rounds, see `Round`.
        system: ``(params, *state) -> Scatter``, the regularised matrix with which the head is solved; or
            None.
        head: ``(params, system, *state) -> Head``, from the server's state after the last round.
        feature_map: a map of features. Clients apply it before they summarise, the head before it classifies.
        transforms: transforms of the rows before they leave a client, in this order.
        whole_clients: whether a round compares the rows of a client. If a table is read in chunks, each
            client's rows must then be in one chunk.
        received: ``(state, rows) -> state``, called before rounds over examples, to store clients' rows, or
            results from them, in the state; None stores nothing.
        report: ``(params, state) -> dict`` of numbers for the history of `covfree.rounds.run`.
        flops: ``(params, num_examples, dim, num_classes) -> int``: operations of all clients, apart from
            those that `covfree.client_flops` counts for every method: the feature map, the summary or
            message, and products of examples with matrices that clients receive.
        estimate: how the server estimates the covariance within classes, if the head is made from it. It
            becomes None if ``system`` or ``rounds`` is replaced.
    """

    params: Any
    name: str = field(metadata={"static": True})
    summary: Summary = field(metadata={"static": True})
    rounds: tuple[Round, ...] = field(metadata={"static": True})
    system: Callable[..., Scatter] | None = field(metadata={"static": True})
    head: Callable[..., H] = field(metadata={"static": True})
    feature_map: FeatureMap | None = None
    transforms: tuple[Transform, ...] = ()
    whole_clients: bool = field(default=False, metadata={"static": True})
    received: Callable[[Any, Rows], Any] | None = field(default=None, metadata={"static": True})
    report: Callable[[Any, Any], dict[str, Any]] | None = field(default=None, metadata={"static": True})
    flops: Callable[[Any, int, int, int], int] | None = field(default=None, metadata={"static": True})
    estimate: Estimate | None = field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        # Check static fields only: jax also makes methods whose numbers are placeholders.
        if not isinstance(self.rounds, tuple) or not all(isinstance(each, Round) for each in self.rounds):
            raise TypeError(f"rounds: expected a tuple of Rounds, got {self.rounds!r}")
        if not callable(self.head):
            raise TypeError(f"head: expected a function, got {self.head!r}")
        if not isinstance(self.summary, Summary):
            raise TypeError(f"summary: expected a Summary, got {self.summary!r}")
        check_choice("matrices", self.summary.matrices, (None, "gram", "solution", "each", "sum"))
        if self.summary.merge is not None and self.summary.message is None:
            raise ValueError("merge: expected None, as clients send no message; got a function")
        if any(each.examples for each in self.rounds[: self.rounds_over_rows]):
            raise ValueError("rounds: expected all rounds over rows to come before rounds over examples")
        if self.estimate is not None and self.estimate.made != (self.system, self.rounds):
            object.__setattr__(self, "estimate", None)  # it was made for another method

    def __repr__(self) -> str:
        """Return a text with the method's name, its numbers and the type of its feature map."""
        text = f"Method({self.name!r}, params={self.params}"
        if self.feature_map is not None:
            text += f", feature_map={type(self.feature_map).__name__}"
        if self.transforms:
            text += f", transforms={self.transforms}"
        return re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", f"{text})")

    @property
    def rounds_over_rows(self) -> int:
        """The number of the method's rounds that sum over `Rows`, such as class means.

        The rounds after them sum over clients' examples.
        """
        return sum(not each.examples for each in self.rounds)

    @property
    def message_rounds(self) -> int:
        """The number of rounds that the server can compute alone, from one message of each client.

        These are all rounds that sum over rows, such as class means. The number is 0 if clients send no
        messages, but sums in each round.
        """
        return 0 if self.summary.message is None else self.rounds_over_rows

    @property
    def one_shot(self) -> bool:
        """Whether each client sends one message, from which the server makes the head."""
        return self.message_rounds == len(self.rounds)

    def check_message(self) -> None:
        """Raise ValueError unless the method needs only a single message from each client (`one_shot`)."""
        if not self.one_shot:
            more = len(self.rounds) - self.message_rounds
            raise ValueError(
                f"method: expected one whose clients send a single message each, got {self.name!r}, whose "
                f"clients send sums in {more} round{'s' * (more > 1)}; use covfree.fit, or "
                "covfree.rounds.as_algorithm and run"
            )

    def check_rules(self) -> None:
        """Raise ValueError if clients send matrices, but the shrinkage rule needs the rows behind them."""
        if self.summary.merge is not None:
            for rule in jax.tree.leaves(self.params, is_leaf=lambda part: isinstance(part, Shrinkage)):
                if isinstance(rule, Shrinkage):
                    as_matrix_shrinkage(rule)

    @property
    def sends(self) -> str:
        """Describe what clients send; methods with equal descriptions can use each other's messages.

        The description names the rows or sums, and the feature map by its `described` text.
        """
        if self.feature_map is None:
            return self.summary.name
        return f"{self.summary.name} in {described(self.feature_map)}"

    def check_sends(self, sends: str | None) -> None:
        """Raise a ValueError if ``sends``, a message's text on what it holds, differs from `Method.sends`.

        Nothing is checked if ``sends`` is None or the feature map is traced.
        """
        if sends is None or is_traced(*jax.tree.leaves(self.feature_map)):
            return
        if sends != self.sends:
            raise ValueError(
                f"message: expected {self.sends!r}, as clients of {self.name!r} send, got {sends!r}"
            )

    def client_part(self) -> Method[Head]:
        """Return the method without everything that only the server uses.

        Methods whose clients compute the same have equal client parts, so they share compiled functions.
        """
        none: Any = {"rounds": (), "estimate": None, "received": None, "report": None, "flops": None}
        return replace(self, params=None, name="clients", system=None, head=_no_head, **none)

    def mapped(self, features: AnyArray) -> jax.Array:
        """Apply the feature map, if there is one, to a client's features."""
        return jnp.asarray(features) if self.feature_map is None else self.feature_map(features)

    def made(
        self, features: jax.Array, labels: jax.Array, num_classes: int, key: jax.Array | None
    ) -> Message:
        """Make one client's `Message` from its features and labels, also under ``jit`` or ``vmap``.

        The message's rows (such as class means) may include padding.
        """
        assert self.summary.message is not None
        message = self.summary.message(self.params, self.mapped(features), labels, num_classes, key)
        return replace(message, rows=self.sent(message.rows, key))

    def sent(self, rows: Rows, key: jax.Array | None) -> Rows:
        """Apply the transforms to rows before they leave a client."""
        for index, transform in enumerate(self.transforms):
            if key is None:
                raise ValueError(
                    "key: expected a PRNG key as the method's transforms draw at random, got None"
                )
            rows = transform(rows, key=jax.random.fold_in(derive(key, "transforms"), index))
        return rows

    def with_transforms(self, *transforms: Transform) -> Method[H]:
        """Return the method with more transforms of the rows that clients send, after its own.

        Args:
            transforms: e.g. ``count_noise("laplace", 1.0)``.

        Raises:
            TypeError: if one is no callable pytree of arrays and numbers.
            ValueError: if clients send sums or matrices, which transforms of rows would leave as they are.

        >>> import covfree
        >>> noisy = covfree.fedcof().with_transforms(covfree.count_noise("laplace", 1.0))
        """
        if self.summary.stays:
            sends = "sums" if self.summary.merge is None else self.summary.name
            raise ValueError(
                f"transforms: expected a method whose clients send rows, got {self.name!r}, which sends "
                f"{sends}"
            )
        for transform in transforms:
            if not callable(transform) or not _is_held(transform):
                raise TypeError(
                    f"transforms: expected ones such as of covfree.count_noise, got {transform!r}; "
                    "covfree.statistics.transforms.Transform makes one of a function"
                )
        return replace(self, transforms=(*self.transforms, *transforms))

    def with_feature_map(self, feature_map: FeatureMap) -> Method[MappedHead]:
        """Return the method on mapped features: clients map theirs, and the head maps those it classifies.

        All parties must have the same map. With D mapped features, class means take 4·M·D bytes for M
        client-class pairs. If a server like `covfree.fedcof`'s has fewer than D means, it solves a system
        whose size is the number of means.

        Args:
            feature_map: e.g. ``covfree.relu_features(5000)``.

        Raises:
            TypeError: if it is no map of features, or no pytree of arrays and numbers.
            ValueError: if the method has a map already, or `covfree.select` made it.

        >>> import covfree
        >>> method = covfree.fedcof().with_feature_map(covfree.relu_features(500))
        """
        if not isinstance(feature_map, FeatureMap) or not _is_held(feature_map):
            raise TypeError(
                f"feature_map: expected a map such as covfree.relu_features(500), got {feature_map!r}; "
                "jax.tree_util.register_dataclass makes a dataclass one"
            )
        if any(option(each.client, "maker") is not None for each in self.rounds):
            # The last bits of a mapped feature depend on how many examples are mapped at once, and with them
            # the hash that decides which examples `covfree.select` keeps aside.
            raise ValueError(
                f"feature_map: expected a method that select did not make, got {self.name!r}; apply the map "
                "to the features first"
            )
        if self.feature_map is not None:
            raise ValueError(
                f"feature_map: expected a method without a map, got {self.name!r}, which has "
                f"{type(self.feature_map).__name__}"
            )
        mapped: Any = replace(self, feature_map=feature_map)
        return mapped

    def with_temperature(self, temperature: Scalar) -> Method[H]:
        """Return the method with its head's scores divided by T, as a candidate of `covfree.select`.

        Args:
            temperature: T above 0; `calibrate_temperature` finds the best one on examples.

        >>> import covfree
        >>> softer = [covfree.fedcof().with_temperature(T) for T in (0.5, 1.0, 2.0, 4.0)]
        >>> method = covfree.select(softer, by="losses")
        """
        check_above_zero("temperature", temperature)
        return replace(self, head=bound(_tempered, head=self.head, temperature=temperature))


def _tempered(
    params: Any, system: Any, *state: Any, head: Callable[..., Any], temperature: Scalar
) -> LinearHead:
    return with_temperature(head(params, system, *state), temperature)


def _is_held(part: Any) -> bool:
    """Return whether ``part`` can be an argument of compiled functions: a pytree of arrays and numbers."""
    try:
        jax.eval_shape(lambda _: None, part)
    except TypeError:
        return False
    return True


def _no_head(params: Any, system: Any, *totals: Any) -> Head:
    raise TypeError("a method's part for clients has no head")


def check_method(method: Any, *_: Any, **__: Any) -> None:
    """Raise unless ``method`` is a method; ignore other arguments."""
    if isinstance(method, Method):
        return
    if isinstance(method, str):
        hint = f"the name {method!r}; covfree.methods.registry()[{method!r}].make() makes a method of a name"
    elif callable(method):
        hint = f"{getattr(method, '__name__', method)!s}, which makes one: call it"
    else:
        hint = f"{type(method).__name__}" + (", which has its own fit" if hasattr(method, "fit") else "")
    raise TypeError(f"method: expected a method such as covfree.fedcof(), got {hint}")
