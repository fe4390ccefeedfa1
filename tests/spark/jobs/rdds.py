"""Jobs of the RDD API, one operation each. Rows that have an order come with their place in it."""

from __future__ import annotations

import hashlib
import random
from operator import add
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import RDD
    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

MAPS = 4
REDUCERS = 5
RECORDS = 20_000
LARGE_RECORD_BYTES = 64 * 1024 * 1024

Rows = list[tuple[Any, ...]]


def group_by_key(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """All values of 97 keys."""
    return _numbers(spark).groupByKey(REDUCERS).mapValues(sorted).collect()


def reduce_by_key(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Sums, combined in the map tasks."""
    return _numbers(spark).reduceByKey(add, REDUCERS).collect()


def sort_by_key(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Shuffled text in order; the sort runs in Python, the exchange by range."""
    keys = [f"{number * 7919 % RECORDS:06d}" for number in range(RECORDS)]
    pairs = spark.sparkContext.parallelize(keys, MAPS).map(lambda key: (key, len(key)))
    in_order: Rows = pairs.sortByKey(numPartitions=REDUCERS).collect()
    return [(place, *pair) for place, pair in enumerate(in_order)]


def join(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Two inputs, some keys in one only, some several times."""
    left, right = _numbers(spark, 2_000), _texts(spark)
    return left.join(right, REDUCERS).collect()


def cogroup(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Two inputs grouped together, also the keys that only one of them has."""
    left, right = _numbers(spark, 2_000), _texts(spark)
    groups = left.cogroup(right, REDUCERS)
    return groups.mapValues(lambda both: [sorted(both[0]), sorted(both[1])]).collect()


def repartition(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """The rows and how many partitions hold them; which row goes where is not promised."""
    spread = spark.sparkContext.parallelize(range(RECORDS), MAPS).repartition(7)
    fewer = spread.coalesce(3, shuffle=True)
    return [(spread.getNumPartitions(), fewer.getNumPartitions()), *((n,) for n in fewer.collect())]


def distinct(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Each value once."""
    values = spark.sparkContext.parallelize(range(RECORDS), MAPS).map(lambda n: n % 1_009)
    return [(value,) for value in values.distinct(REDUCERS).collect()]


def no_rows(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Shuffles that carry nothing, and one to which one of four map tasks adds one record."""
    nothing = _numbers(spark).filter(lambda pair: pair[0] < 0)
    one = spark.sparkContext.parallelize([(1, 2)], 1)
    return [
        ("grouped", nothing.groupByKey(REDUCERS).count()),
        ("sorted", nothing.sortByKey(numPartitions=REDUCERS).count()),
        ("joined", nothing.join(_texts(spark), REDUCERS).count()),
        ("one", nothing.union(one).groupByKey(REDUCERS).mapValues(list).collect()),
    ]


def one_partition(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """One map task and one reduce task; then many map tasks and one reduce task."""
    single = spark.sparkContext.parallelize(range(1_000), 1).map(lambda n: (n % 10, n))
    return [*single.reduceByKey(add, 1).collect(), *_numbers(spark).reduceByKey(add, 1).collect()]


def large_record(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """One record of 64 MiB that cannot be compressed, among small ones."""
    records = spark.sparkContext.parallelize(range(4), 2).map(_large_or_small)
    groups = records.groupByKey(2).mapValues(_digests)
    return groups.collect()


def _large_or_small(number: int) -> tuple[int, bytes]:
    size = LARGE_RECORD_BYTES if number == 2 else 10
    return number % 2, random.Random(number).randbytes(size)


def _digests(values: Iterable[bytes]) -> list[list[Any]]:
    return sorted([len(value), hashlib.sha256(value).hexdigest()] for value in values)


def _numbers(spark: SparkSession, records: int = RECORDS) -> RDD[tuple[int, int]]:
    return spark.sparkContext.parallelize(range(records), MAPS).map(lambda n: (n % 97, n))


def _texts(spark: SparkSession) -> RDD[tuple[int, str]]:
    return spark.sparkContext.parallelize(range(50, 150), 3).map(lambda n: (n, f"text {n}"))


JOBS: dict[str, Job] = {
    f"rdd_{build.__name__}": build
    for build in (
        group_by_key,
        reduce_by_key,
        sort_by_key,
        join,
        cogroup,
        repartition,
        distinct,
        no_rows,
        one_partition,
        large_record,
    )
}
