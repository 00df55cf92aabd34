"""Solve for a head from Parquet shards on a Ray cluster: each actor adds its shards up, a tree merges totals.

Run ``python on_ray.py FOLDER HEAD.npz CLASSES [WORKERS]`` (``pip install ray pyarrow``). Shards hold
``features`` (lists of numbers), ``labels`` and ``clients``.
"""

import sys
from pathlib import Path

import ray

import covfree
from covfree.core.columns import open_table


@ray.remote(max_restarts=3, max_task_retries=3)
class Worker:
    """A process that adds shards up; an extractor of features would be loaded once, in ``__init__``."""

    def total(self, empty, paths):
        """Add the shards of these files to a total."""
        total = empty
        for path in paths:
            shard = open_table(path)
            if len(shard["labels"]):
                total = covfree.aggregate.add(total, shard["features"], shard["labels"], shard["clients"])
        return total

    def merged(self, first, second):
        """Merge the totals of two actors."""
        return covfree.aggregate.merge(first, second)


def main(folder: str, out: str, classes: str, workers: str = "2") -> None:
    """Fold inside the actors, as a total is far larger than a shard's share of it."""
    paths = sorted(Path(folder).glob("*.parquet"))
    actors = [Worker.remote() for _ in range(int(workers))]
    empty = ray.put(covfree.aggregate.zero(covfree.fedcof(), num_classes=int(classes)))
    totals = [actor.total.remote(empty, paths[i :: len(actors)]) for i, actor in enumerate(actors)]
    while len(totals) > 1:
        pairs = zip(totals[::2], totals[1::2], actors, strict=False)
        rest = totals[-1:] if len(totals) % 2 else []
        totals = [actor.merged.remote(first, second) for first, second, actor in pairs] + rest
    covfree.save_head(covfree.aggregate.finish(ray.get(totals[0])), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
