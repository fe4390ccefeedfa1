"""Jobs whose results show the order in which records are read: each row has its place.

Spark's own shuffle in local mode reads map outputs in the order of the map tasks. ``map_order``
asks Sluice to do the same where there are several TaskManagers.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import RDD
    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

MAPS = 12
REDUCERS = 5
KEYS = 13
RECORDS = 1_000
"""Few enough for Spark to sample all of them, which makes ranges the same in each run."""

SETTING = "spark.sluice.reader.mapOrder"
Rows = list[tuple[Any, ...]]


def rdd_values(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Values of a key: grouped, joined, folded, combined, looked up."""
    with _map_order(spark, parameters):
        pairs, others = _pairs(spark), _pairs(spark).mapValues(lambda n: -n)
        both = pairs.groupWith(others, pairs)
        folded = pairs.mapValues(lambda n: [n]).foldByKey([], _joined, REDUCERS)
        combined = pairs.combineByKey(lambda n: [n], _with, _joined, REDUCERS)
        placed = pairs.partitionBy(REDUCERS)
        return [
            *_placed("grouped", pairs.groupByKey(REDUCERS).mapValues(list).collect()),
            *_placed("joined", pairs.filter(lambda p: p[1] < 100).join(others, REDUCERS).take(50)),
            *_placed("with", both.mapValues(lambda each: [list(one) for one in each]).collect()),
            *_placed("folded", folded.collect()),
            *_placed("combined", combined.collect()),
            *_placed("looked up", [(n,) for n in placed.lookup(3)]),
            *_placed("first", [placed.first(), *placed.take(7)]),
        ]


def rdd_sorted(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Records with the same key, in partitions that are sorted by key."""
    with _map_order(spark, parameters):
        pairs = _pairs(spark)
        ordered = pairs.repartitionAndSortWithinPartitions(REDUCERS, lambda key: key % REDUCERS)
        fewer = pairs.coalesce(3, shuffle=True)
        return [
            *_placed("within", [(each,) for each in ordered.glom().collect()]),
            *_placed("by key", pairs.sortByKey(numPartitions=REDUCERS).collect()),
            *_placed("coalesced", fewer.collect()),
        ]


def frame_rows(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Rows of partitions by range and by hash, lists of a group, the first row of each key."""
    with _map_order(spark, parameters):
        numbers = spark.range(0, RECORDS, 1, MAPS).select(
            (f.col("id") % KEYS).alias("key"), f.col("id").alias("value")
        )
        ranged = numbers.repartitionByRange(REDUCERS, "key")
        lists = numbers.groupBy("key").agg(f.collect_list("value").alias("values"))
        # Several partitions of the shuffle are read by one task.
        joined = numbers.repartition("key")
        # Tasks that prefer an executor beside tasks that prefer a TaskManager's host.
        cached = numbers.where("value < 100").coalesce(1).cache()
        cached.count()
        mixed = cached.union(numbers.repartition(REDUCERS, "key"))
        return [
            *_placed("ranged", [tuple(row) for row in ranged.collect()]),
            *_placed("taken", [tuple(row) for row in [ranged.first(), *ranged.take(9)] if row]),
            *_placed("lists", [(row[0], list(row[1])) for row in lists.collect()]),
            *_placed("joined", [tuple(row) for row in joined.collect()]),
            *_placed("mixed", [tuple(row) for row in mixed.collect()]),
            *_placed("once", [tuple(row) for row in numbers.dropDuplicates(["key"]).collect()]),
        ]


def by_executor(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """The numbers of each partition, as they are read, by the executor that wrote them."""
    numbers = spark.sparkContext.parallelize(range(20_000), MAPS)
    # All workers of an executor are children of one process.
    placed = numbers.map(lambda n: (n % REDUCERS, (os.getppid(), n))).partitionBy(REDUCERS)
    rows: Rows = []
    for partition, records in enumerate(placed.values().glom().collect()):
        executors: dict[int, list[int]] = {}
        for executor, number in records:
            executors.setdefault(executor, []).append(number)
        rows += [(partition, executor, numbers) for executor, numbers in executors.items()]
    return rows


def _pairs(spark: SparkSession) -> RDD[tuple[int, int]]:
    return spark.sparkContext.parallelize(range(RECORDS), MAPS).map(lambda n: (n % KEYS, n))


def _with(values: list[int], value: int) -> list[int]:
    return [*values, value]


def _joined(one: list[int], other: list[int]) -> list[int]:
    return one + other


def _placed(what: str, rows: Rows) -> Rows:
    return [(what, place, *row) for place, row in enumerate(rows)]


@contextmanager
def _map_order(spark: SparkSession, parameters: dict[str, Any]) -> Iterator[None]:
    """Set map order for this thread's jobs, if the job is asked to."""
    context: Any = spark.sparkContext
    if parameters.get("map_order"):
        context.setLocalProperty(SETTING, "true")
    try:
        yield
    finally:
        context._jsc.setLocalProperty(SETTING, None)


JOBS: dict[str, Job] = {
    f"order_{build.__name__}": build for build in (rdd_values, rdd_sorted, frame_rows, by_executor)
}
