"""Private methods between machines: each site adds its share of the noise inside the masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.types import AnyArray, Head
from covfree.deployment.steps import Upload
from covfree.methods import Method
from covfree.privacy import Private, PrivateUpdates, private, private_updates
from covfree.privacy import Upload as Integers
from covfree.privacy.accounting import Neighbours, Unit
from covfree.privacy.projection import PublicProjection
from covfree.privacy.uploads import Kind
from covfree.rounds.uploads import Parts
from covfree.secure.words import Words

_KINDS: tuple[Kind, ...] = ("sums", "matrix")


@dataclass(frozen=True)
class PrivateSums:
    """What a federation promises; see `covfree.privacy.private`, of which these are arguments.

    Attributes:
        epsilon: ε of all rounds together.
        delta: δ.
        clip: B, the bound on a feature's norm; of an algorithm of `covfree.finetune`, that on an upload's,
            above 1, which is a site's weight.
        unit: what is hidden, ``"example"`` or ``"client"``, which is a site; the latter for training.
        neighbours: ``"add_remove"`` or ``"replace_one"``.
        honest: sites that surely take part and add their noise; None for `Description.fewest`.
        weight: with ``unit="client"``, the most examples that a site may weigh.
        projection: the number of features after a public projection, by the description's seed; or None.
    """

    epsilon: float | int
    delta: float
    clip: float | int
    unit: Unit = "example"
    neighbours: Neighbours = "add_remove"
    honest: int | None = None
    weight: float | int | None = None
    projection: int | None = None

    def updates(self, fewest: int, rounds: int, num_sites: int) -> PrivateUpdates:
        """The noise of an algorithm of training in rounds; see `covfree.privacy.private_updates`.

        Raises:
            ValueError: as of `method`, or if it is to hide single examples.
        """
        if self.unit != "client" or self.weight is not None or self.projection is not None:
            raise ValueError(
                "private: expected unit=client, without weight and projection, as updates hide sites; got "
                f"unit={self.unit}, weight={self.weight}, projection={self.projection}"
            )
        return private_updates(
            epsilon=self.epsilon,
            delta=self.delta,
            clip=self.clip,
            rounds=rounds,
            honest=self._honest(fewest),
            num_clients=num_sites,
            neighbours=self.neighbours,
        )

    def _honest(self, fewest: int) -> int:
        honest = fewest if self.honest is None else self.honest
        if honest > fewest:
            raise ValueError(f"honest: expected at most the fewest sites of a round, {fewest}, got {honest}")
        return honest

    def method(self, method: Method[Any], fewest: int, seed: int) -> Private:
        """The private method.

        Raises:
            ValueError: if a number is out of range, or more sites are to be honest than are sure to answer.
        """
        return private(
            method,
            epsilon=self.epsilon,
            delta=self.delta,
            clip=self.clip,
            unit=self.unit,
            noise="distributed",
            neighbours=self.neighbours,
            honest=self._honest(fewest),
            weight=self.weight,
            projection=self.projection,
            seed=seed,
        )


class _State(NamedTuple):
    """What the server knows: the noisy totals so far, in arrays whose shapes are the same in all rounds.

    Attributes:
        kind: place in `_KINDS` of what is asked for next, or was last.
        noises: [rounds] how many noises each total has; 0 if it is still to come.
        first: [C, d + 2], the first total.
        second: [numbers] the second total, as long as the longer kind.
    """

    kind: AnyArray
    noises: AnyArray
    first: AnyArray
    second: AnyArray


class PrivateSteps:
    """The pure steps of a private method, as `covfree.deployment.steps.Steps` has them of an algorithm.

    They are NumPy's, as integers of 64 bits are, and noise is the operating system's.

    Attributes:
        made: the private method.
    """

    def __init__(self, made: Private, num_classes: int, dim: int) -> None:
        """Take what all machines of a federation agree on."""
        self.made, self._classes, self._dim = made, num_classes, dim
        mapped = jax.eval_shape(made.method.mapped, jnp.zeros((1, dim), jnp.float32)).shape[1]
        self._sums, self._matrix = (num_classes, mapped + 2), (mapped * (mapped + 1) // 2,)

    def start(self) -> tuple[_State, Any]:
        """The server's first state, and a site's first memory: sites remember nothing."""
        longest = max(self._sums[0] * self._sums[1], *self._matrix)
        noises, second = np.zeros(len(self.made.grids), np.int32), np.zeros(longest, np.int64)
        return _State(np.zeros((), np.int32), noises, np.zeros(self._sums, np.int64), second), ()

    def broadcast(self, state: _State) -> AnyArray:
        """The kind of sums that the server asks for."""
        return state.kind

    def sent_form(self, state: _State) -> AnyArray:
        """A broadcast of zeros."""
        return state.kind

    def skeleton(self, items: Sequence[Sequence[int]]) -> _State:
        """A state of zeros."""
        return self.start()[0]

    def form(self, state: _State) -> Parts:
        """An upload of zeros: sums, and the number of noises in them."""
        shape = self._matrix if _KINDS[int(state.kind)] == "matrix" else self._sums
        return Parts.of([np.zeros(shape, np.int64), np.zeros((), np.int64)])

    def upload(
        self, number: int, turn: int, sent: Any, memory: Any, features: np.ndarray, labels: np.ndarray
    ) -> tuple[Upload, Any]:
        """Compute a site's upload, with its share of the noise; see `covfree.privacy.Private.upload`."""
        kind = _KINDS[int(sent)]
        own = self.made.upload(turn, kind, features, labels, num_classes=self._classes)
        return Upload(number, 0, [own.values, np.asarray(own.noises, np.int64)], []), memory

    def serve(self, state: _State, total: Any) -> tuple[_State, bool]:
        """The server's next state: the second kind is chosen by the first total."""
        values, noises = (np.asarray(part) for part in total)
        counted = np.array(state.noises)
        turn = int((counted > 0).sum())
        counted[turn] = noises
        if turn:
            second = np.array(state.second)
            second[: values.size] = values.ravel()
            return state._replace(noises=counted, second=second), True
        kind = self.made.choose(Integers("sums", values, int(noises)))
        place = np.array(0 if kind is None else _KINDS.index(kind), np.int32)
        return state._replace(kind=place, noises=counted, first=values), True

    def result(self, state: _State) -> Head | None:
        """The head; None before the last round."""
        if not np.all(state.noises):
            return None
        totals = [Integers("sums", np.asarray(state.first), int(state.noises[0]))]
        if len(state.noises) > 1:
            kind = _KINDS[int(state.kind)]
            shape = self._matrix if kind == "matrix" else self._sums
            values = np.asarray(state.second)[: int(np.prod(shape))].reshape(shape)
            totals.append(Integers(kind, values, int(state.noises[1])))
        head: Any = self.made.head(*totals)
        projection = self.made.method.feature_map
        return (
            projection.unprojected(head.head, self._dim) if isinstance(projection, PublicProjection) else head
        )


@dataclass(frozen=True)
class Exact:
    """Integers of 64 bits as words, which they are already; as `covfree.secure.FixedPoint` for numbers."""

    num_clients: int = 2**63
    rounds: int | None = None
    least: int = 2

    def encode(self, upload: Any) -> Words:
        """The words of a list of integers."""
        return np.concatenate([np.ravel(part) for part in upload]).astype(np.int64).view(np.uint64)

    def decode(self, total: Words, like: Any) -> Any:
        """The integers of a sum of words."""
        ends = np.cumsum([np.size(part) for part in like])
        parts = np.split(total.view(np.int64), ends[:-1])
        return [part.reshape(np.shape(own)) for part, own in zip(parts, like, strict=True)]
