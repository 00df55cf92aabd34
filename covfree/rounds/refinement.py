"""A refined method as an algorithm: the rounds of its method, then rounds of products with few directions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covfree.engine import accumulate
from covfree.estimators import first_moments
from covfree.estimators.scatter import centred_rows
from covfree.products import product
from covfree.refine.refined import Progress, Refined
from covfree.rounds.algorithm import Algorithm, ClientData
from covfree.statistics import class_means
from covfree.statistics.products import scatter_products
from covfree.types import Message, Moments, PRNGKey, Rows


class _Known(NamedTuple):
    """What is known of the scatter without clients' products.

    Attributes:
        rows: clients' class means, which show the scatter between them; None where only sums were sent.
        moments: counts of examples and rows of each class.
    """

    rows: Rows | None
    moments: Moments


class _Refining(NamedTuple):
    """The server's state from the first head on."""

    known: _Known
    progress: Progress


class _Asked(NamedTuple):
    """What clients are asked in a round of products.

    Attributes:
        directions: Q.
        mean: class means to centre about; None for the client's own.
    """

    directions: Float[Array, "dim asked"]
    mean: Float[Array, "classes dim"] | None


class _Answer(NamedTuple):
    """What a client uploads in a round of products: sums.

    Attributes:
        product: of its scatter with the directions.
        trace: of its scatter.
        degrees: of freedom behind the scatter.
    """

    product: Float[Array, "dim asked"]
    trace: Float[Array, ""]
    degrees: Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Refinement:
    """The refined method, as an algorithm's numbers, and what its first rounds are.

    Attributes:
        refined: the method.
        first: the algorithm of its first rounds.
        num_classes: C.
    """

    refined: Refined
    first: Algorithm
    num_classes: int = field(metadata={"static": True})


def init(numbers: Refinement, num_clients: int, key: PRNGKey) -> tuple[Any, Any]:
    """As the first rounds have it."""
    return numbers.first.init(numbers.first.params, num_clients, key)


def broadcast(numbers: Refinement, state: Any) -> Any:
    """Directions, once there is a head."""
    if not isinstance(state, _Refining):
        return numbers.first.broadcast(numbers.first.params, state)
    known, progress = state
    return _Asked(progress.search.directions, progress.moments.mean if known.rows is None else None)


def client(
    numbers: Refinement, sent: Any, data: ClientData, memory: Any, key: PRNGKey
) -> tuple[Any, Any, dict[str, Any]]:
    """Answer with products.

    About the client's own class means they are of what its means do not show, with Σ_c (n_kc − 1) degrees of
    freedom; about the means of all clients they are of all its scatter.
    """
    if not isinstance(sent, _Asked):
        return numbers.first.client(numbers.first.params, sent, data, memory, key)
    features, labels = data.all()
    features = numbers.refined.method.mapped(features)
    mean, count = class_means(features, labels, numbers.num_classes)
    count = count.astype(mean.dtype)
    degrees = jnp.maximum(count - 1, 0).sum() if sent.mean is None else count.sum()
    centre = mean if sent.mean is None else sent.mean
    products = scatter_products(features, labels, centre, sent.directions)
    return _Answer(products.product, products.trace, degrees), memory, {}


def server(numbers: Refinement, state: Any, total: Any) -> Any:
    """Make the first head, then take products."""
    if isinstance(state, _Refining):
        return _advanced(numbers, state, total)
    method, new = numbers.refined.method, numbers.first.server(numbers.first.params, state, total)
    if isinstance(new, Message):
        totals = accumulate(method, new.rows, num_classes=numbers.num_classes)
        known = _Known(new.rows, first_moments(new.rows, numbers.num_classes))
    elif len(new.totals) == len(method.phases):
        totals = new.totals
        known = None
    else:
        return new
    progress = numbers.refined.begin(*totals)
    return _Refining(known or _Known(None, progress.moments), progress)


def _advanced(numbers: Refinement, state: _Refining, answer: _Answer) -> _Refining:
    """Products of those who answered stand for all, as far as the means do not show the scatter.

    Each unit of freedom of those who did not answer is taken to have the scatter of a unit of those who did.
    If nobody did, the round changes nothing.
    """
    (rows, moments), progress = state
    search = progress.search
    expected = moments.num_examples if rows is None else moments.hidden_degrees
    came = answer.degrees > 0
    scale = jnp.where(came, expected / jnp.where(came, answer.degrees, 1), 0)
    image, trace = scale * answer.product, scale * answer.trace
    if rows is not None:
        between = centred_rows(rows, moments, jnp.ones_like(moments.total[:, 0]))
        image += product(between.T, product(between, search.directions))
        trace += jnp.square(between).sum()
    came |= expected == 0
    asked = jnp.where(came, search.directions, 0)
    old = progress._replace(search=search._replace(directions=asked))
    new = numbers.refined.advance(old, jnp.where(came, image, 0), trace)
    kept = {
        name: jnp.where(came, getattr(new.search, name), getattr(search, name))
        for name in ("weight", "error")
    }
    return _Refining(state.known, new._replace(search=new.search._replace(**kept)))


def result(numbers: Refinement, state: Any, memory: Any) -> Any:
    """The head as it stands."""
    if isinstance(state, _Refining):
        return numbers.refined.head(state.progress)
    return numbers.first.result(numbers.first.params, state, memory)


def report(numbers: Refinement, state: Any) -> dict[str, Any]:
    """The predicted error, once there were products."""
    if isinstance(state, _Refining) and state.progress.search.span.shape[1]:
        return {"error": state.progress.search.error}
    return {}
