"""Jobs in which one task reads many shuffles, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

RECORDS_PER_READER = 5
Rows = list[tuple[Any, ...]]


def frame(spark: SparkSession, readers: int) -> int:
    """Return the rows of an exchange, all partitions in one task."""
    rows = spark.range(readers * RECORDS_PER_READER)
    # coalesce() keeps adaptive execution from merging the partitions first.
    return rows.repartition(readers, "id").coalesce(1).count()


def pairs(spark: SparkSession, readers: int) -> int:
    """Return the pairs of an RDD, all partitions in one task."""
    numbers = spark.sparkContext.range(readers * RECORDS_PER_READER, numSlices=2)
    return numbers.map(lambda n: (n, n)).partitionBy(readers).coalesce(1).count()


def cartesian(spark: SparkSession, readers: int) -> int:
    """Read one shuffled partition once for each partition of another RDD."""
    context: Any = spark.sparkContext
    numbers = context._jvm.java.util.ArrayList(list(range(readers)))
    few = context._jvm.java.util.ArrayList(list(range(RECORDS_PER_READER)))
    left = context._jsc.parallelize(numbers, readers)
    shuffled = context._jsc.parallelize(few, 2).repartition(1)
    return int(left.cartesian(shuffled).coalesce(1).count())


SHAPES: dict[str, Callable[[SparkSession, int], int]] = {
    "frame": frame,
    "pairs": pairs,
    "cartesian": cartesian,
}


def count(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Return one row: the number of records that the ``readers`` of a ``shape`` read."""
    return [(SHAPES[parameters["shape"]](spark, parameters["readers"]),)]


JOBS: dict[str, Job] = {"one_task_count": count}
