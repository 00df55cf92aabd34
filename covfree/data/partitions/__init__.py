"""Partitioners, which divide data among clients, and statistics of a partition.

All functions run on the host, in NumPy; `docs/partitions.md` says when to use which partitioner.
"""

from collections.abc import Callable

from covfree.data.partitions.dirichlet_partition import dirichlet as dirichlet
from covfree.data.partitions.dirichlet_partition import inner_dirichlet as inner_dirichlet
from covfree.data.partitions.partition import Clients as Clients
from covfree.data.partitions.partition import iid as iid
from covfree.data.partitions.partition import lognormal_sizes as lognormal_sizes
from covfree.data.partitions.partition import natural_id as natural_id
from covfree.data.partitions.partition_statistics import PartitionStatistics as PartitionStatistics
from covfree.data.partitions.partition_statistics import partition_statistics as partition_statistics
from covfree.data.partitions.shard_partition import dominant_classes as dominant_classes
from covfree.data.partitions.shard_partition import pathological as pathological
from covfree.data.partitions.shard_partition import shards as shards

PARTITIONERS: dict[str, Callable[..., Clients]] = {
    "inner_dirichlet": inner_dirichlet,
    "dirichlet": dirichlet,
    "iid": iid,
    "shards": shards,
    "pathological": pathological,
    "lognormal_sizes": lognormal_sizes,
    "dominant_classes": dominant_classes,
}
"""The partitioners that draw at random, by name: `f(labels, num_partitions, <its parameters>, seed=seed)`.

`natural_id` is not one of them: it reads a column of the data.
"""
