"""Make the heads of several methods, and count the errors of each on clients' examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from covfree.core.doors import is_finite
from covfree.core.sums import fold_parts
from covfree.core.types import Head, Moments, Rows, accumulation_dtype
from covfree.heads.composed import SelectedHead
from covfree.methods.rounds import moments_of
from covfree.methods.selecting.tracks import Running, labelled
from covfree.statistics.kept import kept_aside

By: TypeAlias = Literal["errors", "losses"]
# The largest loss of an example: a higher one is cut to it, so that one example cannot decide which method
# is best, and sums stay finite.
MOST = 100.0


class Count(NamedTuple):
    """How many errors each head makes on examples that clients keep aside: one client's counts, or their sum.

    Attributes:
        scores: each head's number of errors on these examples, or its sum of losses.
        number: the number of these examples.
    """

    scores: Float[Array, " candidates"]
    number: Float[Array, ""]


class Known(NamedTuple):
    """The server's state once it has made the heads of all methods; clients then count the heads' errors.

    Attributes:
        moments: the first `Moments` (class counts and sums) in the methods' states, to check the features'
            scale; None if there are none.
        heads: an entry for each group of methods that differ only in hyperparameters, see `Maker.groups`: the
            heads of the group, stacked, or its only head.
        sound: for each method, whether its head is finite; the numbers of other heads are set to 0.
        counted: the sum of the clients' `Count`; 0 before the round in which clients count.
    """

    moments: Moments | None
    heads: tuple[Head, ...]
    sound: Bool[Array, " candidates"]
    counted: Count


@dataclass(frozen=True)
class Maker:
    """How the server makes the heads of several methods, and how clients compare these heads.

    Attributes:
        systems: each method's `Method.system`.
        heads: each method's `Method.head`.
        ends: for each method, the index in `Running` of its state after its last round.
        by: what a client counts for each head: ``"errors"`` or ``"losses"``.
        share: the share of a client's examples that it keeps aside: heads are compared on these examples,
            and made from all others.
    """

    systems: tuple[Callable[..., Any] | None, ...]
    heads: tuple[Callable[..., Head], ...]
    ends: tuple[int, ...]
    by: By
    share: float

    def groups(self, params: tuple[Any, ...]) -> list[list[int]]:
        """Group methods that differ only in hyperparameters; return the indices of each group's methods.

        One compiled function makes all heads of a group.
        """
        found: dict[Any, list[int]] = {}
        for who, own in enumerate(params):
            leaves, structure = jax.tree.flatten(own)
            shapes = tuple(map(jnp.shape, leaves))
            key = self.systems[who], self.heads[who], self.ends[who], structure, shapes
            found.setdefault(key, []).append(who)
        return list(found.values())


def begin(params: tuple[Any, ...], running: Running, maker: Maker) -> tuple[Known]:
    """Make the head of each method; return the state with these heads, whose errors clients count next.

    ``params`` has the ``params`` of each method, and ``running`` its state after its last round. ``maker``
    makes the head from both.
    """
    heads, sound = [], [jnp.ones((), bool)] * len(params)
    for group in maker.groups(params):
        first, state = group[0], running[maker.ends[group[0]]]

        def make(own: Any, first: int = first, state: Any = state) -> tuple[Head, jax.Array]:
            system = maker.systems[first]
            head = maker.heads[first](own, None if system is None else system(own, *state), *state)
            finite = is_finite(head)
            return jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0).astype(leaf.dtype), head), finite

        if len(group) == 1:
            head, finite = make(params[first])
            finite = finite[None]
        else:
            every = [params[who] for who in group]
            own = jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)), *every)
            head, finite = jax.lax.map(make, own)
        heads.append(head)
        for place, who in enumerate(group):
            sound[who] = finite[place]
    numbers = [leaf for leaf in jax.tree.leaves(heads) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    dtype = accumulation_dtype(numbers[0])
    none = Count(jnp.zeros(len(params), dtype), jnp.zeros((), dtype))
    return (Known(moments_of(running), tuple(heads), jnp.stack(sound), none),)


def each_head(params: tuple[Any, ...], heads: tuple[Head, ...], maker: Maker) -> list[Head]:
    """Split stacked heads: return a list with one head for each method, in the order of ``params``.

    ``heads`` has an entry for each group of methods that differ only in hyperparameters (`Maker.groups`): the
    heads of the group, stacked along a first axis; or just the head, if the group is a single method.
    """
    found: dict[int, Head] = {}
    for group, stacked in zip(maker.groups(params), heads, strict=True):
        for place, who in enumerate(group):
            alone = len(group) == 1
            found[who] = stacked if alone else jax.tree.map(lambda x, place=place: x[place], stacked)
    return [found[who] for who in range(len(params))]


def ask(params: tuple[Any, ...], state: tuple[Known]) -> tuple[Head, ...]:
    """Return what the server broadcasts before clients count errors: the heads of all methods."""
    return state[0].heads


def answer(
    params: tuple[Any, ...], heads: tuple[Head, ...], rows: Rows, num_classes: int, *, maker: Maker
) -> Count:
    """Sum the errors, or losses, of each head over the examples that a client keeps aside.

    ``params`` has the ``params`` of each method, ``heads`` the broadcast, and ``rows`` the client's examples.
    """
    rows = labelled(rows, kept_aside(rows.mean, maker.share))
    groups = maker.groups(params)
    order = jnp.argsort(jnp.array([who for group in groups for who in group]))

    def add(total: Count, part: tuple[jax.Array, ...]) -> Count:
        features, label, count = part
        kept = (count > 0) & (label >= 0) & (label < num_classes)
        features = jnp.where(kept[:, None], features, 0)
        weight, label = jnp.where(kept, count, 0).astype(total.number.dtype), jnp.where(kept, label, 0)

        def one(head: Head) -> jax.Array:
            return (results_of(head(features), label, maker.by).astype(weight.dtype) * weight).sum()

        found = [
            one(head)[None] if len(group) == 1 else jax.lax.map(one, head)
            for group, head in zip(groups, heads, strict=True)
        ]
        return Count(total.scores + jnp.concatenate(found)[order], total.number + weight.sum())

    features = jnp.asarray(rows.mean)
    features = features.astype(accumulation_dtype(features))
    none = Count(jnp.zeros(len(params), features.dtype), jnp.zeros((), features.dtype))
    return fold_parts(add, none, (features, jnp.asarray(rows.label), jnp.asarray(rows.count)))


def results_of(scores: jax.Array, label: jax.Array, by: By) -> jax.Array:
    """Measure a head on each example: whether its prediction is wrong, or its loss, if ``by`` is "losses".

    ``scores`` are the head's scores, ``label`` the true classes. The loss is −log softmax of the true class,
    at most `MOST`.
    """
    most = scores.max(1)
    if by == "errors":
        # Scores with NaN, or of −∞ for all classes, predict nothing, which counts as an error.
        return (scores.argmax(1) != label) | ~jnp.isfinite(most)
    own = jnp.take_along_axis(scores, label[:, None], axis=1)[:, 0]
    loss = jax.nn.logsumexp(scores, axis=1) - own
    return jnp.where(jnp.isnan(loss), MOST, jnp.minimum(loss, MOST))


def take(params: tuple[Any, ...], state: tuple[Known], total: Count, *, by: By) -> tuple[Known]:
    """Return the server's state with each head's errors, or losses, summed over all clients (``total``).

    A head that is not finite gets the largest possible sum.
    """
    worst = total.number * (1.0 if by == "errors" else MOST)
    scores = jnp.where(state[0].sound, total.scores, worst.astype(total.scores.dtype))
    return (state[0]._replace(counted=Count(scores, total.number)),)


def finish(params: tuple[Any, ...], system: None, known: Known, *, maker: Maker) -> Head:
    """Return the head with the fewest errors, or the least loss, on the examples that clients kept aside.

    Before clients have counted errors, return the first head that is finite.
    """
    index = best(known)
    # If no head is finite, return NaN, which raises an error.
    lost = jnp.where(known.sound.any(), 0, jnp.nan)
    heads = [
        jax.tree.map(lambda x: x + lost.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, head)
        for head in each_head(params, known.heads, maker)
    ]
    forms = [
        (jax.tree.structure(head), [(x.shape, x.dtype) for x in jax.tree.leaves(head)]) for head in heads
    ]
    if any(form != forms[0] for form in forms):
        return SelectedHead(tuple(heads), index)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves)[index], *heads)


def best(known: Known) -> jax.Array:
    """Return the index of the head with the least errors or loss; among equals, of the first finite head."""
    worst = jnp.where(known.sound, 0, 1)
    return jnp.lexsort((worst, known.counted.scores))[0]


def report(params: tuple[Any, ...], state: tuple[Any, ...], *, by: By) -> dict[str, Any]:
    """Report each head's mean error or loss (NaN without examples), and which head was chosen."""
    known = state[0]
    if not isinstance(known, Known):
        return {}
    number = jnp.where(known.counted.number > 0, known.counted.number, jnp.nan)
    return {"taken": best(known), by: known.counted.scores / number, "counted": known.counted.number}
