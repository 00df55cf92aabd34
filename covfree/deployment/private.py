"""Run private methods between machines: each site adds its share of the noise and masks its upload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covfree.core.checks import check_positive
from covfree.core.types import AnyArray, Head
from covfree.deployment.steps import Arrays
from covfree.methods import Method
from covfree.privacy import Private, PrivateUpdates, private, private_updates
from covfree.privacy import Upload as Integers
from covfree.privacy.accounting import Neighbours, Unit
from covfree.privacy.projection import PublicProjection
from covfree.privacy.uploads import Kind
from covfree.rounds.adding import Parts
from covfree.secure.words import Words

_KINDS: tuple[Kind, ...] = ("sums", "matrix")


@dataclass(frozen=True)
class PrivateSums:
    """The privacy promise of a federation; the fields are arguments of `covfree.privacy.private`.

    Attributes:
        epsilon: ε of the promise, for all rounds together.
        delta: δ of the promise.
        clip: B, the bound on a feature vector's norm. For an algorithm of `covfree.finetune`, the bound on
            the norm of an upload; above 1, as the upload includes the site's weight, 1.
        unit: what is hidden: one ``"example"`` or one ``"client"`` (a site). An algorithm of
            `covfree.finetune` needs ``"client"``.
        neighbours: ``"add_remove"`` hides whether the unit is present, ``"replace_one"`` hides its values.
        honest: the number of sites that surely take part and add their noise; None for `Description.fewest`,
            which must be above 1 then.
        weight: with ``unit="client"``, the largest number of examples with which a site may count.
        projection: the number of features after a public random projection, drawn with the description's
            seed; or None.
    """

    epsilon: float | int
    delta: float
    clip: float | int
    unit: Unit = "example"
    neighbours: Neighbours = "add_remove"
    honest: int | None = None
    weight: float | int | None = None
    projection: int | None = None

    def made(
        self, method: Method[Any] | None, fewest: int, rounds: int, num_sites: int, seed: int
    ) -> Private | PrivateUpdates:
        """Make the method, or the encoding of the uploads of training, that adds the noise.

        Args:
            method: the method; None for an algorithm that trains in rounds.
            fewest: the least number of sites whose answers close a round.
            rounds: the number of rounds of training.
            num_sites: the number of sites.
            seed: the description's seed.

        Raises:
            ValueError: if a number is out of range or ``honest`` above ``fewest``; or for training, if
                ``unit`` is not ``"client"``, or ``weight`` or ``projection`` is given.
        """
        if method is None and (
            self.unit != "client" or self.weight is not None or self.projection is not None
        ):
            raise ValueError(
                "private: expected unit=client, no weight, no projection, as training hides whole sites; "
                f"got unit={self.unit}, weight={self.weight}, projection={self.projection}"
            )
        if self.honest is None and fewest == 1:
            raise ValueError(
                "fewest: expected at least 2 with private, as that many sites share the noise, got 1; or "
                "give honest=1, so that each site adds all of it"
            )
        honest = fewest if self.honest is None else check_positive("honest", self.honest)
        if honest > fewest:
            raise ValueError(
                f"honest: expected at most fewest = {fewest}, the sites sure to answer, got {honest}"
            )
        given = {**asdict(self), "honest": honest}
        if method is not None:
            return private(method, noise="distributed", seed=seed, **given)
        for name in ("unit", "weight", "projection"):
            del given[name]
        made = private_updates(rounds=rounds, num_clients=num_sites, **given)
        if self.clip <= 1:
            raise ValueError(
                f"clip: expected above 1, as an upload includes the site's weight, 1; got {self.clip}"
            )
        return made


class _State(NamedTuple):
    """The server's state: the noisy totals so far. Its arrays have the same shapes in all rounds.

    Attributes:
        kind: what sites upload in the next round, class sums or second moment, as an index of `_KINDS`; after
            the last round, what they uploaded in it.
        noises: [rounds] how many shares of noise (one for each site) each round's total includes; 0 if the
            total is still to come.
        first: [C, d + 2], the first round's total: class sums of features, counts and squared norms.
        second: the second round's total as a vector: class sums, or the upper triangle of the second moment.
            It is padded to the larger of the two sizes.
    """

    kind: AnyArray
    noises: AnyArray
    first: AnyArray
    second: AnyArray


class PrivateSteps:
    """The computations of a private method by server and sites.

    The interface is that of `covfree.deployment.steps.Steps`. The computations use NumPy, for
    64-bit integers. `upload` draws noise with the operating system's randomness.

    Attributes:
        made: the private method.
    """

    def __init__(self, made: Private, num_classes: int, dim: int) -> None:
        """Store the settings on which all machines agree, and compute the shapes of uploads."""
        self.made, self._classes, self._dim = made, num_classes, dim
        mapped = jax.eval_shape(made.method.mapped, jnp.zeros((1, dim), jnp.float32)).shape[1]
        self._sums, self._matrix = (num_classes, mapped + 2), (mapped * (mapped + 1) // 2,)

    def start(self) -> tuple[_State, Any]:
        """Return the server's first state, and a site's memory, which stays empty."""
        longest = max(self._sums[0] * self._sums[1], *self._matrix)
        noises, second = np.zeros(len(self.made.grids), np.int32), np.zeros(longest, np.int64)
        return _State(np.zeros((), np.int32), noises, np.zeros(self._sums, np.int64), second), ()

    def broadcast(self, state: _State) -> AnyArray:
        """Return what the server sends to sites: ``state.kind``, which says what to upload next."""
        return state.kind

    def skeleton(self, items: Sequence[Sequence[int]]) -> _State:
        """Return zeros with the shapes of the server's state, which are the same in all rounds."""
        return self.start()[0]

    def form(self, state: _State) -> Parts:
        """Return zeros in the shapes of a site's next upload, two integer arrays.

        The first has class sums or, if ``state`` asks for it, the second moment; the other has the number of
        draws of noise.
        """
        shape = self._matrix if _KINDS[int(state.kind)] == "matrix" else self._sums
        return Parts.of([np.zeros(shape, np.int64), np.zeros((), np.int64)])

    def upload(
        self, number: int, turn: int, sent: Any, memory: Any, features: np.ndarray, labels: np.ndarray
    ) -> tuple[Arrays, Any]:
        """Compute a site's upload from its examples, and add the site's share of the noise.

        ``number`` is the site's number, ``turn`` the round's, and ``sent`` the server's broadcast. See
        `covfree.privacy.Private.upload`.

        Returns:
            The upload; and ``memory``, unchanged, as sites store nothing between rounds.
        """
        if not 0 <= int(sent) < len(_KINDS):
            raise ValueError(f"kind: expected one of 0 to {len(_KINDS) - 1}, got {int(sent)}")
        kind = _KINDS[int(sent)]
        own = self.made.upload(turn, kind, features, labels, num_classes=self._classes)
        return {"sum.0": own.values, "sum.1": np.asarray(own.noises, np.int64)}, memory

    def serve(self, state: _State, total: Any) -> tuple[_State, bool]:
        """Return the server's state with a round's ``total``, and True, as integers are always finite.

        After the first round the state also says what sites send in the second, by `Private.choose`.
        """
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

    def report(self, state: _State) -> dict[str, Any]:
        """Return {}: private methods have no numbers to report."""
        return {}

    def result(self, state: _State) -> Head | None:
        """Return the head; None until the last round is done."""
        if not np.all(state.noises):
            return None
        totals = [Integers("sums", np.asarray(state.first), int(state.noises[0]))]
        if len(state.noises) > 1:
            form = self.form(state).sums[0]
            values = np.asarray(state.second)[: form.size].reshape(form.shape)
            totals.append(Integers(_KINDS[int(state.kind)], values, int(state.noises[1])))
        head: Any = self.made.head(*totals)
        projection = self.made.method.feature_map
        return (
            projection.unprojected(head.head, self._dim) if isinstance(projection, PublicProjection) else head
        )


@dataclass(frozen=True)
class Exact:
    """Encodes the uploads of private methods, which are 64-bit integers, for secure sums.

    Each integer becomes an unsigned word with the same 64 bits, so sums of words are exact sums of integers.
    (Methods that upload floats use `FixedPoint`.) The attributes are those of
    `covfree.secure.words.Encoding`.
    """

    num_clients: int = 2**63
    rounds: int | None = None
    least: int = 2

    def encode(self, upload: Any) -> Words:
        """Convert an upload, a list of arrays of integers, to one vector of words."""
        return np.concatenate([np.ravel(part) for part in upload]).astype(np.int64).view(np.uint64)

    def decode(self, total: Words, like: Any) -> Any:
        """Convert a sum of encoded uploads back to integers: a list of arrays of the shapes in ``like``."""
        ends = np.cumsum([np.size(part) for part in like])
        parts = np.split(total.view(np.int64), ends[:-1])
        return [part.reshape(np.shape(own)) for part, own in zip(parts, like, strict=True)]
