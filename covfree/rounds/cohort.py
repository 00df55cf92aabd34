"""One round's clients: what each makes of the broadcast, added as it is made."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int32

from covfree.core.keys import derive
from covfree.core.sharding import shard_map
from covfree.core.sums import Compensated
from covfree.core.types import PRNGKey
from covfree.rounds.algorithm import Algorithm, ClientData
from covfree.rounds.uploads import Parts


class Examples(NamedTuple):
    """The examples of all clients, those of a client one after the other in ``order``.

    Attributes:
        features: [examples, …], or a pytree of such arrays.
        labels: [examples, …].
        order: [examples] places of the examples, by client.
    """

    features: Any
    labels: Array
    order: Int32[Array, " places"]


class Members(NamedTuple):
    """Some clients of a round, padded to a number that is compiled for.

    Attributes:
        client: number of each; −1 for padding, which comes last.
        start: where in the order its examples start.
        size: how many it has; 0 for padding.
        arrives: for each delay, whether the upload arrives so many rounds later.
    """

    client: Int32[Array, " members"]
    start: Int32[Array, " members"]
    size: Int32[Array, " members"]
    arrives: Bool[Array, "members delays"]


class Answers(NamedTuple):
    """What came from the members.

    Attributes:
        uploads: their sums, added, with an axis of delays in front; their tables, with one of members.
        memory: what each remembers now.
        sound: whether all of that is finite.
        metrics: of each.
    """

    uploads: Parts
    memory: Any
    sound: Bool[Array, " members"]
    metrics: dict[str, Array]


@partial(jax.jit, static_argnames=("longest", "width", "mesh"))
def answers(
    algorithm: Algorithm,
    broadcast: Any,
    examples: Examples,
    members: Members,
    memory: Any,
    key: PRNGKey,
    before: Compensated | None,
    *,
    longest: int,
    width: int,
    mesh: Mesh | None,
) -> Answers:
    """Run the members, ``width`` of them at once, and add their uploads in their order.

    Uploads are added one after the other with compensation, whatever the width: how a cohort is cut changes
    the sum by no more than the rounding of single clients' work does.

    Args:
        algorithm: the algorithm.
        broadcast: what the server sends.
        examples: of all clients.
        members: who takes part; their number is a multiple of ``width`` times the mesh's devices.
        memory: what each remembers, with an axis of members in front.
        key: of the round.
        before: sums of other members of the round, to go on from.
        longest: most examples of a member, or more.
        width: members that run at once.
        mesh: devices over which members are spread.
    """
    structure: Any = None

    def all_of(shared: Any, members: Members, memory: Any) -> tuple[Any, ...]:
        algorithm, broadcast, examples, keys = shared

        def one(member: Members, memory: Any) -> tuple[Any, Any]:
            place = jnp.arange(longest, dtype=jnp.int32)
            index = examples.order[jnp.minimum(member.start + place, examples.order.shape[0] - 1)]
            index = jnp.where(place < member.size, index, -1)
            data = ClientData(examples.features, examples.labels, index, member.client)
            # By number: what a client draws does not depend on who else takes part.
            own = jax.random.fold_in(keys, member.client)
            upload, remembered, metrics = algorithm.client(algorithm.params, broadcast, data, memory, own)
            sent = member.arrives.any()
            # Where nothing arrives the client is as if it had not taken part.
            remembered = jax.tree.map(lambda new, old: jnp.where(sent, new, old), remembered, memory)
            return Parts.of(upload), (remembered, is_finite(remembered), metrics)

        def at_once(members: Members, memory: Any) -> tuple[Any, Any]:
            if width > 1:
                return jax.vmap(one)(members, memory)
            # `vmap` of a loop whose length differs by client copies what it carries in every step.
            answer = one(*jax.tree.map(lambda x: x[0], (members, memory)))
            return jax.tree.map(lambda x: x[None], answer)

        def several(sums: Compensated, chunk: tuple[Members, Any]) -> tuple[Compensated, Any]:
            def work() -> tuple[Compensated, Any]:
                parts, others = at_once(*chunk)

                def plus(sums: Compensated, item: tuple[Any, Array]) -> tuple[Compensated, None]:
                    term, arrives = item

                    def by_delay(leaf: Array) -> Array:
                        kept = arrives.reshape(-1, *(1,) * leaf.ndim)
                        return jnp.where(kept, leaf[None], jnp.zeros((), leaf.dtype))

                    return sums.plus(jax.tree.map(by_delay, term)), None

                added = jax.lax.scan(plus, sums, (parts.sums, chunk[0].arrives))[0]
                return added, (parts.tables, *others)

            nothing = parts.tables, chunk[1], jnp.ones(width, bool), metrics
            return jax.lax.cond(chunk[0].client[0] >= 0, work, lambda: (sums, nothing))

        chunks = jax.tree.map(lambda x: x.reshape(-1, width, *x.shape[1:]), (members, memory))
        first = jax.tree.map(lambda x: x[0], chunks)
        shapes = jax.eval_shape(
            lambda *chunk: (lambda parts, others: (parts, others[-1]))(*at_once(*chunk)), *first
        )
        parts, metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        delays = members.arrives.shape[1]
        begun = jax.tree.map(lambda x: jnp.zeros((delays, *x.shape[1:]), x.dtype), parts.sums)
        sums, each = jax.lax.scan(several, Compensated(begun, begun), chunks)
        each = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), each)
        if mesh is not None:
            sums = jax.lax.psum(sums, mesh.axis_names)
        nonlocal structure
        structure = parts.structure
        return sums, *each

    run: Any = all_of
    if mesh is not None:
        whole, spread = PartitionSpec(), PartitionSpec(mesh.axis_names)
        # All that is used goes in by the door: what a function encloses is not of the mesh.
        run = shard_map(
            all_of,
            mesh=mesh,
            in_specs=(whole, spread, spread),
            out_specs=(whole, spread, spread, spread, spread),
        )
    sums, tables, *others = run((algorithm, broadcast, examples, derive(key, "clients")), members, memory)
    if before is not None:
        sums = before.plus(sums.total).plus(sums.lost)
    return Answers(Parts(sums, tables, structure), *others)


@partial(jax.jit, static_argnames=("num_clients",))
def start(algorithm: Algorithm, key: PRNGKey, *, num_clients: int) -> tuple[Any, Any]:
    """The server's first state, and what a client remembers."""
    return algorithm.init(algorithm.params, num_clients, derive(key, "start"))


@jax.jit
def broadcast(algorithm: Algorithm, state: Any) -> Any:
    """What the server sends to each client of a round."""
    return algorithm.broadcast(algorithm.params, state)


@jax.jit
def due(sums: Compensated, pending: Any) -> tuple[Any, Any]:
    """The uploads' sums that arrive in this round, and those of later rounds; None without delays."""
    whole = sums.value
    if pending is not None:
        whole = jax.tree.map(jnp.add, whole, pending)
        pending = jax.tree.map(lambda x: jnp.concatenate([x[1:], jnp.zeros_like(x[:1])]), whole)
    return jax.tree.map(lambda x: x[0], whole), pending


@jax.jit
def serve(algorithm: Algorithm, state: Any, total: Any) -> tuple[Any, Array]:
    """The server's next state, and whether all of it is finite."""
    state = algorithm.server(algorithm.params, state, total)
    return state, is_finite(state)


def is_finite(tree: Any) -> Bool[Array, ""]:
    """Whether all floats of a pytree are finite."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.array([jnp.isfinite(x).all() for x in floats], bool).all()
