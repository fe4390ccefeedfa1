"""Jobs of some seconds with rows that are the same each time, run again and again by `tests.chaos`.

Each has several shuffles. Together they use Python's and the JVM's serializers, Spark's SQL rows,
wide rows, sorted output, and map outputs that a former job has left.
"""

from __future__ import annotations

import hashlib
import random
from operator import add
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark import RDD
    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

MAPS = 8
REDUCERS = 12
SORT_BEFORE = "spark.sql.execution.sortBeforeRepartition"
"""Whether Spark makes the order of rows the same each time before it deals them out."""

Rows = list[tuple[Any, ...]]

_kept: list[RDD[tuple[int, bytes]]] = []


def repeated_python(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """24 MB of Python records by key, a digest of each partition; then sums by key of those."""
    digests = _shuffled(spark, 6_000).mapPartitionsWithIndex(_digests)
    return digests.map(lambda row: (row[1], row[2])).reduceByKey(add, REDUCERS).collect()


def repeated_kept(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """As before, but the map outputs stay until the application ends: later runs read them."""
    if not _kept:
        _kept.append(_shuffled(spark, 4_000))
    return _kept[0].mapPartitionsWithIndex(_digests).collect()


def repeated_join(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Two aggregations, joined without broadcast, aggregated again, in order."""
    numbers = spark.range(0, 1_500_000, 1, MAPS)
    left = (
        numbers.withColumn("k", f.expr("pmod(id * 7919, 50021)"))
        .groupBy("k")
        .agg(f.sum("id").alias("total"), f.count("*").alias("n"))
    )
    right = (
        numbers.withColumn("k", f.expr("pmod(id * 104729, 60013)"))
        .groupBy("k")
        .agg(f.max("id").alias("latest"))
    )
    joined = left.join(right.hint("merge"), "k")
    groups = joined.groupBy(f.expr("k % 200").alias("g"))
    result = groups.agg(f.sum("total"), f.sum("n"), f.sum("latest")).orderBy("g")
    return [(place, *row) for place, row in enumerate(result.collect())]


def repeated_wide(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """80 MB of rows that do not compress well go by key, then in order of another."""
    texts = [f.sha2(f.concat(f.lit(number), f.col("id")), 256) for number in range(5)]
    rows = spark.range(0, 250_000, 1, MAPS).withColumn("text", f.concat(*texts))
    spread = rows.repartition(REDUCERS, "id")
    ordered = spread.orderBy("text").withColumn("part", f.spark_partition_id())
    checks = ordered.groupBy(f.expr("ascii(text)").alias("first"))
    return [tuple(row) for row in checks.agg(f.count("*"), f.sum(f.crc32("text"))).collect()]


def repeated_windows(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A window over a skewed key, rolled up."""
    rows = spark.range(0, 400_000, 1, MAPS).withColumn("k", f.expr("pmod(id * id, 97)"))
    ranked = rows.selectExpr("k", "id", "sum(id) over (partition by k order by id) as running")
    result = ranked.rollup("k").agg(f.max("running"), f.count("*"))
    return [tuple(row) for row in result.collect()]


def repeated_unordered(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Rows dealt out in turn, in the order in which they come: each run deals them otherwise.

    A reader that mixes two attempts of a map task has some rows twice and lacks others.
    """
    spark.conf.set(SORT_BEFORE, "false")
    try:
        texts = [f.sha2(f.concat(f.lit(number), f.col("id")), 256) for number in range(2)]
        rows = spark.range(0, 200_000, 1, MAPS).withColumn("text", f.concat(*texts))
        # What comes out of a shuffle has no order, so Spark calls the next stage indeterminate.
        dealt = rows.repartition(REDUCERS, "id").repartition(REDUCERS)
        groups = dealt.groupBy(f.expr("id % 500").alias("g"))
        result = groups.agg(f.count("*"), f.sum("id"), f.sum(f.crc32("text")))
        return [tuple(row) for row in result.collect()]
    finally:
        spark.conf.unset(SORT_BEFORE)


def _shuffled(spark: SparkSession, records: int) -> RDD[tuple[int, bytes]]:
    def make(number: int) -> Iterator[tuple[int, bytes]]:
        for key in range(number * records, (number + 1) * records):
            yield key, random.Random(key).randbytes(500)

    return spark.sparkContext.parallelize(range(MAPS), MAPS).flatMap(make).partitionBy(REDUCERS)


def _digests(index: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, int, int]]:
    """For each of 16 classes of keys in a partition a digest whatever the order of records."""
    totals: dict[int, int] = {}
    for key, value in pairs:
        digest = hashlib.sha256(b"%d " % key + value).digest()
        totals[key % 16] = totals.get(key % 16, 0) + int.from_bytes(digest[:6])
    yield from ((index, name, total) for name, total in totals.items())


JOBS: dict[str, Job] = {
    build.__name__: build
    for build in (
        repeated_python,
        repeated_kept,
        repeated_join,
        repeated_wide,
        repeated_windows,
        repeated_unordered,
    )
}
