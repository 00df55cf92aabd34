"""How data is spread over clients: partitioners, statistics of a partition, and participation in rounds.

All functions run on the host, in NumPy; `docs/partitions.md` says which partitioner to use when.
"""

from collections.abc import Callable

from covfree.federation.dirichlet_partition import dirichlet as dirichlet
from covfree.federation.dirichlet_partition import inner_dirichlet as inner_dirichlet
from covfree.federation.partition import Clients as Clients
from covfree.federation.partition import iid as iid
from covfree.federation.partition import lognormal_sizes as lognormal_sizes
from covfree.federation.partition import natural_id as natural_id
from covfree.federation.partition_plot import plot_partition as plot_partition
from covfree.federation.partition_statistics import PartitionStatistics as PartitionStatistics
from covfree.federation.partition_statistics import partition_statistics as partition_statistics
from covfree.federation.schedule import Schedule as Schedule
from covfree.federation.schedule import as_schedule as as_schedule
from covfree.federation.schedule import first_rounds as first_rounds
from covfree.federation.schedule import participation as participation
from covfree.federation.schedule import rounds_to_meet as rounds_to_meet
from covfree.federation.schedule import schedule as schedule
from covfree.federation.schedule_summary import ScheduleStatistics as ScheduleStatistics
from covfree.federation.schedule_summary import schedule_statistics as schedule_statistics
from covfree.federation.shard_partition import dominant_classes as dominant_classes
from covfree.federation.shard_partition import pathological as pathological
from covfree.federation.shard_partition import shards as shards

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
