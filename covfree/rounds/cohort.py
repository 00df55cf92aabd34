"""Compute one round: the uploads of its clients, their sum, and the server's next state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int32

from covfree.core.compiling import jit, shard_map
from covfree.core.doors import is_finite
from covfree.core.forms import zeros_of
from covfree.core.keys import derive
from covfree.core.sums import Compensated
from covfree.core.types import PRNGKey
from covfree.rounds.adding import Parts
from covfree.rounds.algorithm import Algorithm, ClientData


class Examples(NamedTuple):
    """The examples of all clients, with their order by client.

    Attributes:
        features: [examples, …], or a pytree of such arrays.
        labels: [examples, …].
        order: indices of the examples, sorted by client: first those of the first client, and so on.
    """

    features: Any
    labels: Array
    order: Int32[Array, " places"]


class Members(NamedTuple):
    """Some of a round's clients, padded to one of few sizes, so that few functions are compiled.

    Attributes:
        client: each client's number; −1 for padding, which comes last.
        start: where each client's examples start in `Examples.order`, which lists examples client by client.
        size: the number of the client's examples; 0 for padding.
    """

    client: Int32[Array, " members"]
    start: Int32[Array, " members"]
    size: Int32[Array, " members"]


class Answers(NamedTuple):
    """What a round's members (the clients that take part in it) return.

    Attributes:
        uploads: the members' uploads, in two parts. ``sums`` is their sum, as a `Compensated`. ``tables`` has
            a leading axis of members, as tables are not summed.
        memory: each member's new memory.
        sound: whether each member's new memory is finite.
        metrics: each member's metrics.
    """

    uploads: Parts
    memory: Any
    sound: Bool[Array, " members"]
    metrics: dict[str, Array]

    @property
    def form(self) -> Parts:
        """An upload with the shapes and data types of one member's."""
        sums, tables = self.uploads.sums.total, self.uploads.tables
        return Parts(sums, [[x[0] for x in table] for table in tables], self.uploads.structure)


# Use `jax.jit`: covfree's `jit` compiles faster, but makes each round of training a fifth slower.
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
    """Compute the answers of a round's members, ``width`` at once, and add their uploads in order.

    Uploads are added one by one with compensated summation, for any width. So the width changes the sum only
    by the rounding within each client's own computation.

    Args:
        algorithm: the algorithm.
        broadcast: the pytree that the server sends.
        examples: the examples of all clients.
        members: the clients that take part; their number is a multiple of ``width`` times the mesh's devices.
        memory: each member's memory, with a leading axis of members.
        key: the round's key.
        before: sums over earlier members of the round, to which these members' uploads are added.
        longest: an upper bound on a member's examples.
        width: the number of members that run at once.
        mesh: devices over which members are spread; None for one device.
    """
    structure: Any = None

    def all_of(shared: Any, members: Members, memory: Any) -> tuple[Any, ...]:
        algorithm, broadcast, examples, keys = shared

        def one(member: Members, memory: Any) -> tuple[Any, Any]:
            place = jnp.arange(longest, dtype=jnp.int32)
            index = examples.order[jnp.minimum(member.start + place, examples.order.shape[0] - 1)]
            index = jnp.where(place < member.size, index, -1)
            data = ClientData(examples.features, examples.labels, index, member.client)
            # Fold in the client's number, so that its draws do not depend on the other clients of the round.
            own = jax.random.fold_in(keys, member.client)
            upload, remembered, metrics = algorithm.client(algorithm.params, broadcast, data, memory, own)
            # Padding keeps its memory.
            remembered = jax.tree.map(
                lambda new, old: jnp.where(member.client >= 0, new, old), remembered, memory
            )
            return Parts.of(upload), (remembered, is_finite(remembered), metrics)

        def at_once(members: Members, memory: Any) -> tuple[Any, Any]:
            if width > 1:
                return jax.vmap(one)(members, memory)
            # Avoid `vmap` for one member: batched loops of unequal length copy their carry in every step.
            answer = one(*jax.tree.map(lambda x: x[0], (members, memory)))
            return jax.tree.map(lambda x: x[None], answer)

        def several(sums: Compensated, chunk: tuple[Members, Any]) -> tuple[Compensated, Any]:
            def plus(sums: Compensated, item: tuple[Any, Array]) -> tuple[Compensated, None]:
                term, client = item
                return sums.plus(jax.tree.map(lambda x: jnp.where(client >= 0, x, 0), term)), None

            nothing = empty, (chunk[1], jnp.ones(width, bool), metrics)
            # Add the uploads after the branch, so that each is rounded before it is added, as a real client's
            # upload is. Inside the branch, XLA could fuse an upload's last product with the addition, without
            # rounding it.
            parts, others = jax.lax.cond(chunk[0].client[0] >= 0, lambda: at_once(*chunk), lambda: nothing)
            return jax.lax.scan(plus, sums, (parts.sums, chunk[0].client))[0], (parts.tables, *others)

        chunks = jax.tree.map(lambda x: x.reshape(-1, width, *x.shape[1:]), (members, memory))
        first = jax.tree.map(lambda x: x[0], chunks)
        shapes = jax.eval_shape(
            lambda *chunk: (lambda parts, others: (parts, others[-1]))(*at_once(*chunk)), *first
        )
        empty, metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        begun = jax.tree.map(lambda x: x[0], empty.sums)
        sums, each = jax.lax.scan(several, Compensated(begun, begun), chunks)
        each = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), each)
        if mesh is not None:
            sums = jax.lax.psum(sums, mesh.axis_names)
        nonlocal structure
        structure = empty.structure
        return sums, *each

    run: Any = all_of
    if mesh is not None:
        whole, spread = PartitionSpec(), PartitionSpec(mesh.axis_names)
        # Pass every array as an argument: an array from the enclosing scope is not on the mesh.
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


@partial(jit, static_argnames=("num_clients",))
def start(algorithm: Algorithm, key: PRNGKey, *, num_clients: int) -> tuple[Any, Any]:
    """Return the server's first state, and a client's first memory."""
    return algorithm.init(algorithm.params, num_clients, derive(key, "start"))


@jit
def broadcast(algorithm: Algorithm, state: Any) -> Any:
    """Return the pytree that the server sends to each client of a round."""
    return algorithm.broadcast(algorithm.params, state)


@jit
def total(sums: Compensated) -> Any:
    """Return the sum of a round's uploads."""
    return sums.value


@jit
def serve(algorithm: Algorithm, state: Any, total: Any) -> tuple[Any, Array]:
    """Return the server's next state, and whether all of it is finite."""
    state = algorithm.server(algorithm.params, state, total)
    return state, is_finite(state)


def state_after(algorithm: Algorithm, state: Any, form: Parts, counts: Sequence[int]) -> Any:
    """Return zeros in the shapes and data types of the server's next state, without computing it.

    ``form`` is an upload with the shapes of one client's. Clients' tables are concatenated, not added:
    ``counts`` has, for each table of an upload, its number of rows in the total.
    """
    tables = [
        [jnp.zeros((number, *x.shape[1:]), x.dtype) for x in table]
        for number, table in zip(counts, form.tables, strict=True)
    ]
    total = Parts(form.sums, tables, form.structure).upload()
    return zeros_of(serve, algorithm, state, total)[0]
