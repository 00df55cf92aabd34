"""Solve for a head from a table of Spark: each partition becomes one total, which the driver merges.

Run ``python on_spark.py FOLDER HEAD.npz CLASSES`` (``pip install pyspark pyarrow pandas``, and Java). Rows of
the table have the columns ``features`` (lists of numbers), ``labels`` and ``clients``.
"""

import pickle
import sys

import numpy as np
import pyarrow
from pyspark.sql import SparkSession

import covfree


def main(folder: str, out: str, classes: str) -> None:
    """Fold in `mapInArrow`, which gives the batches of a partition one by one."""
    session = SparkSession.builder.getOrCreate()
    empty = covfree.aggregate.zero(covfree.fedcof(), num_classes=int(classes))

    def folded(batches):
        total = empty
        for batch in batches:
            column = batch.column("features")
            features = column.flatten().to_numpy().reshape(len(column), -1)
            labels, clients = (np.asarray(batch.column(name)) for name in ("labels", "clients"))
            total = covfree.aggregate.add(total, features, labels, clients)
        yield pyarrow.RecordBatch.from_pydict({"total": [pickle.dumps(total)]})

    rows = session.read.parquet(folder).mapInArrow(folded, "total binary").toLocalIterator()
    total = empty
    for row in rows:
        total = covfree.aggregate.merge(total, pickle.loads(row.total))
    covfree.save_head(covfree.aggregate.finish(total), out)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
