"""Choose among methods, or among a method's hyperparameters, by examples that clients keep aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from covfree.core.checks import check_choice
from covfree.core.types import H, Message, Rows
from covfree.methods.method import Method
from covfree.methods.rounds import Round, bound, option
from covfree.methods.selecting import counting
from covfree.methods.selecting.counting import By, Known, Maker, begin
from covfree.methods.selecting.tracks import Running, Step, Tracks, ask, receive, serve, side_by_side, terms
from covfree.methods.summary import Merge, Summary
from covfree.statistics.kept import check_keep, kept_aside


def _served(
    params: Any, state: Any, total: Any, *, steps: tuple[Step, ...], maker: Maker | None
) -> Running | tuple[Known]:
    """Compute the server's state after a round that several methods run together.

    ``total`` is the sum of the clients' uploads. ``maker`` is None except in the last round, after which it
    makes the heads of all methods; the state is then a `Known`.
    """
    running = serve(params, state, total, steps=steps)
    return running if maker is None else begin(params, running, maker)


def _rounds(tracks: Tracks, maker: Maker, share_of_rows: float) -> list[Round]:
    """Make the rounds in which all methods run side by side; after the last one the server makes all heads.

    In some rounds clients use their examples; in others the rows of their summary, such as class means.
    Clients keep a share of their examples aside, to choose a method by: ``maker.share``. In rounds over rows
    the share is ``share_of_rows``, which is above 0 only if each row is one example.
    """
    every = [(steps, False) for steps in tracks.over_rows] + [(steps, True) for steps in tracks.over_examples]
    found = []
    for number, (steps, examples) in enumerate(every):
        last = number == len(every) - 1
        client = bound(terms, steps=steps, share=maker.share if examples else share_of_rows)
        server = bound(_served, steps=steps, maker=maker if last else None)
        found.append(Round(client, server, bound(ask, steps=steps), examples=examples, head=last))
    return found


def _without(labels: jax.Array, features: jax.Array, share: float) -> jax.Array:
    return jax.numpy.where(kept_aside(features, share), -1, labels)


def _made_of_rest(
    features: Any, labels: Any, clients: Any, sizes: Any, key: Any, *, make: Any, share: float
) -> Rows:
    return make(features, _without(labels, features, share), clients, sizes, key)


def _message_of_rest(
    params: Any, features: Any, labels: Any, num_classes: int, key: Any, *, message: Any, share: float
) -> Message:
    # What is sent depends on no method's numbers: `_check` refuses ridge solutions.
    return message(None, features, _without(labels, features, share), num_classes, key)


def _of_rest(summary: Summary, share: float, merge: Any) -> Summary:
    """Return ``summary``, changed so that what clients send leaves out the examples that they keep aside.

    ``share`` is the share of its examples that each client keeps aside. If clients send sums, ``merge``
    replaces `Summary.merge`. If they send rows, these are made from the other examples in simulations too.
    """
    if summary.message is None:
        return summary
    name = f"{summary.name} but for {share:g}"
    message = bound(_message_of_rest, message=summary.message, share=share)
    if summary.stays:
        return replace(summary, name=name, message=message, merge=merge)
    make = bound(_made_of_rest, make=summary.make, share=share)
    return replace(summary, name=name, message=message, make=make)


def _merged(
    params: Any,
    message: Message,
    num_classes: int,
    *,
    merges: tuple[Merge, ...],
    tracks: Tracks,
    maker: Maker,
) -> Running | tuple[Known]:
    """Compute the server's state from the clients' messages, which ``message`` merges into one.

    If rounds over clients' examples follow, the state is `Running`, with the methods' own states. If not, the
    methods' heads are made at once, and it is `Known`.
    """
    steps = tracks.over_rows[-1]
    running = tuple(merges[s.who](params[s.who], message, num_classes) for s in steps)
    return running if tracks.over_examples else begin(params, running, maker)


def _flops(params: Any, num_examples: int, dim: int, num_classes: int, *, own: tuple[Any, ...]) -> int:
    return sum(
        flops(p, num_examples, dim, num_classes) for p, flops in zip(params, own, strict=True) if flops
    )


def select(candidates: Sequence[Method[H]], *, by: By = "errors", keep: float = 0.1) -> Method[H]:
    """Let clients choose among methods or hyperparameters by examples that they keep aside.

    Each client keeps a share of its examples aside. From the clients' messages about the other examples, the
    server makes the heads of all candidates, and sends them. Each client counts the errors of each head on
    the examples that it kept aside. The server adds the counts, and takes the head with the fewest errors. So
    all candidates together cost one message, their later rounds if they have any, and one more round, in
    which a client sends a number for each candidate and the number of examples kept aside.

    Which examples are kept aside is decided by a hash of their features, so it needs no key and no memory.
    The counts are unbiased for these clients; they do not show the accuracy at new clients.

    Args:
        candidates: two or more methods whose clients send the same arrays; of equal counts the first wins.
            Examples: `fedcof` with different heads or priors, ``qda`` from means; `fed3r` with several λ;
            some of them `refined` or `corrected`. Leave the shrinkage γ on ``"auto"``.
        by: what clients add up: ``"errors"``, or ``"losses"`` (−log softmax of the example's class, at most
            100), which judges probabilities too.
        keep: the share of examples that are kept aside, between 0 and 1. The head is fitted to all other
            examples: if all examples of a class are kept aside, the head lacks the class.

    Returns:
        The method; its ``params`` are a tuple of the candidates'. Its head is that of the chosen
        candidate. Under ``jit``, if heads differ in class or shapes, it is a `SelectedHead` of all of them.
        The history of `covfree.rounds.run` has the chosen index (``taken``), each candidate's mean
        ``errors`` or ``losses``, and the number of examples kept aside (``counted``).

    Raises:
        TypeError: if a candidate is not a method.
        ValueError: if there are fewer than two candidates; if their clients send different messages, or apply
            a feature map or transforms; or if an argument is out of range.

    Source: covfree; docs/selecting.md.

    >>> import covfree, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels, clients = rng.integers(0, 3, 400), rng.integers(0, 20, 400)
    >>> features = (rng.normal(size=(400, 8)) @ rng.normal(size=(8, 8))).astype(np.float32)
    >>> features += 3 * np.eye(3, 8, dtype=np.float32)[labels]
    >>> method = covfree.select([covfree.fedncm(), covfree.fedcof()])
    >>> head = covfree.fit(method, features, labels, clients)
    >>> head.weight.shape
    (8, 3)
    """
    if isinstance(candidates, Method):
        raise TypeError(f"candidates: expected several methods, got {candidates.name!r} alone")
    candidates = tuple(candidates)
    _check(candidates, keep)
    check_choice("by", by, ("errors", "losses"))
    first, tracks = candidates[0], side_by_side(candidates)
    maker = Maker(
        tuple(each.system for each in candidates),
        tuple(each.head for each in candidates),
        tracks.ends,
        by,
        keep,
    )
    own = _rounds(tracks, maker, keep if first.summary.stays else 0.0)
    count = Round(
        bound(counting.answer, maker=maker),
        bound(counting.take, by=by),
        counting.ask,
        examples=True,
        head=True,
    )
    merges = tuple(each.summary.merge for each in candidates)
    merge = bound(_merged, merges=merges, tracks=tracks, maker=maker)
    # If one candidate needs each class's covariance, their sum does not suffice.
    summary = next((each.summary for each in candidates if each.summary.matrices == "each"), first.summary)
    receives = any(each.received is not None for each in candidates)
    made: Any = Method(
        params=tuple(each.params for each in candidates),
        name="-or-".join(dict.fromkeys(each.name for each in candidates)),
        summary=_of_rest(summary, keep, merge),
        rounds=(*own, count),
        system=None,
        head=bound(counting.finish, maker=maker),
        whole_clients=any(each.whole_clients for each in candidates),
        received=bound(receive, steps=tracks.over_rows[-1]) if receives else None,
        report=bound(counting.report, by=by),
        flops=bound(_flops, own=tuple(each.flops for each in candidates)),
    )
    return made


def _check(candidates: tuple[Method[Any], ...], keep: float) -> None:
    """Raise an error unless ``candidates`` are two or more methods whose clients send the same message.

    An error is also raised if a method has a feature map or transforms, or if ``keep`` is not a valid share.
    """
    if len(candidates) < 2:
        raise ValueError(f"candidates: expected two methods or more, got {len(candidates)}")
    first = candidates[0]
    for each in candidates:
        if not isinstance(each, Method):
            raise TypeError(f"candidates: expected methods, as covfree.fedcof() makes them, got {each!r}")
        if isinstance(option(each.head, "maker"), Maker):
            raise ValueError(
                f"candidates: expected methods that were not made by select, got {each.name!r}; list all "
                "candidates in one call"
            )
        # Do not compare how the server uses messages: in this, candidates may differ.
        sent, other = (replace(one.summary, merge=None, matrices=None) for one in (each, first))
        if each.sends != first.sends or sent != other:
            other = " with other settings" if each.sends == first.sends else ""
            raise ValueError(
                f"candidates: expected methods whose clients send the same; {first.name!r} sends "
                f"{first.sends}, {each.name!r} sends {each.sends}{other}"
            )
        if each.summary.matrices == "solution":
            raise ValueError(
                f"candidates: expected methods whose clients send the same whatever the numbers, got "
                f"{each.name!r}, whose clients send ridge solutions"
            )
        if each.feature_map is not None:
            # The last bits of a mapped feature depend on how many examples are mapped at once. The hash that
            # decides which examples are kept aside would change with them.
            raise ValueError(
                f"candidates: expected methods without a feature map, got {each.name!r}; apply the map "
                "to the features first"
            )
        if each.transforms:
            raise ValueError(f"candidates: expected methods without transforms of rows, got {each.name!r}")
    check_keep(keep)
