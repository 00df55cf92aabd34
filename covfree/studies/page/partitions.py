"""How examples are spread over clients, for a page."""

from __future__ import annotations

from covfree.data import FeatureSet
from covfree.data.partitions import PartitionStatistics, partition_statistics
from covfree.studies import Federation, plot_partition
from covfree.studies.page.content import Picture
from covfree.studies.page.pictures import as_svg
from covfree.studies.source import law_of


def partition_of(data: FeatureSet, federation: Federation, seed: int) -> PartitionStatistics:
    """Count the training examples of each client and class."""
    return partition_statistics(data.train_labels, federation.assign(data, seed), data.num_classes)


def partition_picture(
    partition: PartitionStatistics, data: FeatureSet, federation: Federation, seed: int, prefix: str
) -> Picture:
    """Draw it, as ``covfree partition`` does."""
    title = f"How training examples are spread: {law_of(data, federation)}, seed {seed}"
    return Picture(title, partition.as_table(), (as_svg(plot_partition(partition), f"{prefix}d"),))
