"""Rows sharded over devices and hosts: each device sums its own rows, and only totals are exchanged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from covfree.core.checks import check_row_structure
from covfree.core.compiling import jit, shard_map
from covfree.core.doors import check_int32
from covfree.core.padding import clip_to_int32
from covfree.core.types import Rows, is_traced
from covfree.engine.parts import clients_of, cuts, padded_rows
from covfree.engine.totals import How, through, total_over_rows, with_numbers
from covfree.methods import Method
from covfree.methods.rounds import Round


def shard_rows(rows: Rows, mesh: Mesh, *, whole_clients: bool = False) -> Rows:
    """Return a table of rows, spread over all devices of a mesh, along all of the mesh's axes.

    With several processes (``jax.distributed``), each calls this with its own rows, and all receive the same
    global table.

    Args:
        rows: the rows of this process, in host memory.
        mesh: devices of all processes.
        whole_clients: whether to put all rows of a client on one device, see `Method.whole_clients`. The
            table is then ordered by client, and all rows of a client must be in one process.

    Returns:
        The padded rows, equally many on each device.

    Raises:
        ValueError: if ``whole_clients`` is True and ``rows.client`` is None; if the mesh has no device of
            this process; if a label, client or count is 2³¹ or above.
    """
    check_row_structure(rows)
    for name in ("label", "client", "count"):
        check_int32(name, getattr(rows, name))
    rows = jax.tree.map(np.asarray, rows)
    for name in ("label", "client", "count"):
        rows = replace(rows, **{name: _narrow(getattr(rows, name), name == "count")})
    clients = None
    if whole_clients:
        order = np.argsort(clients_of(rows), kind="stable")
        rows = jax.tree.map(lambda x: x[order], rows)
        clients = np.asarray(rows.client)
    devices = sum(device.process_index == jax.process_index() for device in mesh.devices.flat)
    if devices == 0:
        raise ValueError(f"mesh: expected devices of this process among {mesh.devices.size}, got none")
    length = len(rows.label)
    size = max(1, -(-length // devices))
    if clients is not None:
        size = max(size, int(np.unique(clients[clients >= 0], return_counts=True)[1].max(initial=0)))
    places = cuts(clients, length, size)
    while len(places) - 1 > devices:
        # Whole clients cannot fill all devices evenly, so allow more rows on each.
        size += -(-size // 8)
        places = cuts(clients, length, size)
    if jax.process_count() > 1:
        size = int(multihost_utils.process_allgather(np.asarray(size)).max())
    places = np.append(places, np.full(devices + 1 - len(places), length))
    parts = [padded_rows(jax.tree.map(lambda x, a=a, b=b: x[a:b], rows), size) for a, b in pairwise(places)]
    local = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.tree.map(partial(jax.make_array_from_process_local_data, sharding), local)


def _narrow(column: Any, count: bool) -> Any:
    """Convert a column of rows to int32; an integer outside int32's range becomes the nearest int32.

    The column has labels or clients. If ``count`` is True, it has counts, and keeps its data type: only
    integers below int32's range change. None and columns of floats are returned as they are.
    """
    if column is None or column.dtype.kind not in "iu":
        return column
    if not count:
        # Labels and clients are padded with −1. With unsigned 64-bit integers NumPy would make floats, which
        # merge large numbers.
        return clip_to_int32(column)
    least = np.iinfo(np.int32).min
    return column.clip(least) if column.min(initial=0) < least else column


def _check_sharded(method: Any, rows: Any) -> None:
    """Raise ValueError if rows of one client are on several devices, but the method compares them.

    Methods that compare a client's rows with each other have ``whole_clients`` set; others pass.
    """
    if not method.whole_clients or is_traced(rows.client):
        return
    client = jnp.asarray(clients_of(rows))
    # Each device lists its clients once, so a client that is listed twice is on two devices.
    shards = [np.unique(np.asarray(shard.data)) for shard in client.addressable_shards]
    own = np.concatenate(shards)
    if jax.process_count() > 1:
        sizes = multihost_utils.process_allgather(np.asarray(len(own)))
        own = np.concatenate([own, np.full(int(sizes.max()) - len(own), -1, own.dtype)])
        own = multihost_utils.process_allgather(own).reshape(-1)
    known, devices = np.unique(own[own >= 0], return_counts=True)
    if (devices > 1).any():
        raise ValueError(
            f"rows: expected all rows of a client on one device, as {method.name!r} compares them with one "
            f"another; those of client {known[np.argmax(devices > 1)]} are on {devices.max()}; use "
            "shard_rows(rows, mesh, whole_clients=True)"
        )


def over_devices(method: Method, rows: Rows, num_classes: int, mesh: Mesh) -> tuple[Any, ...]:
    """Run a method's rounds over rows that `shard_rows` has spread over devices; return the server's state.

    Each device sums its own rows. The state is the same on all devices.
    """
    _check_sharded(method, rows)
    rows, how = _numbered(rows, mesh), How(num_classes, method.whole_clients, mesh.axis_names)

    def source(each: Round, params: Any, sent: Any) -> Any:
        return _total_over_devices(each.client, params, sent, rows, how, mesh)

    return through(method.rounds, method.params, source)


@partial(jit, static_argnames="mesh")
def _numbered(rows: Rows, mesh: Mesh) -> Rows:
    sharded = PartitionSpec(mesh.axis_names)
    number = partial(with_numbers, axis_name=mesh.axis_names)
    return shard_map(number, mesh=mesh, in_specs=sharded, out_specs=sharded)(rows)


@partial(jit, static_argnums=(0, 4, 5))
def _total_over_devices(client: Any, params: Any, sent: Any, rows: Rows, how: How, mesh: Mesh) -> Any:
    def own(params: Any, sent: Any, rows: Rows) -> Any:
        return total_over_rows(rows, how, Round(client), params, sent)

    everywhere = PartitionSpec()
    specs = everywhere, everywhere, PartitionSpec(mesh.axis_names)
    return shard_map(own, mesh=mesh, in_specs=specs, out_specs=everywhere)(params, sent, rows)
