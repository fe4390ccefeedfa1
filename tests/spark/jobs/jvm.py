"""Jobs of the JVM's own RDDs, driven through Py4J: pairs with typed keys, combined by the JVM.

PySpark combines in Python and hands bytes to the JVM, so none of its jobs reach the map-side
combine, the key order or the Java serializer of Spark's writers and readers. These do, with
operations that need no function of ours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

MAPS = 4
REDUCERS = 5
Rows = list[tuple[Any, ...]]


def count_by_key(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Counts, combined in the map tasks by the JVM."""
    counts = str(_pairs(spark, parameters).countByKey())
    return [(key, int(count)) for key, count in re.findall(r"(\w+)=(\d+)", counts)]


def distinct(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Each pair once: also combined in the map tasks."""
    pairs = _pairs(spark, parameters)
    once = str(pairs.union(pairs).distinct(REDUCERS).collect())
    return [(word, int(place)) for word, place in re.findall(r"\((\w+),(\d+)\)", once)]


def group_by_key(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Places of every word: not combined in the map tasks although there is an aggregator."""
    groups = str(_pairs(spark, parameters).groupByKey(REDUCERS).collect())
    return [
        (key, sorted(map(int, values.split(", "))))
        for key, values in re.findall(r"\((\w+),\[([\d, ]+)\]\)", groups)
    ]


def sort_by_key(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Words in order, sorted by Spark's own sorter in the reduce tasks."""
    in_order = _pairs(spark, parameters).sortByKey(True, REDUCERS).keys().collect()
    return list(enumerate(re.findall(r"\w+", str(in_order))))


def cogroup(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Two inputs grouped together, and how many groups."""
    pairs = _pairs(spark, parameters)
    ordered = pairs.sortByKey(True, REDUCERS)
    groups = str(pairs.cogroup(ordered, REDUCERS).collect())
    return [
        (key, sorted(map(int, left.split(", "))), sorted(map(int, right.split(", "))))
        for key, left, right in re.findall(r"\((\w+),\(\[([\d, ]*)\],\[([\d, ]*)\]\)\)", groups)
    ]


def serializer(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """One row: the serializer of such a shuffle, and whether its records can be moved."""
    grouped = _pairs(spark, parameters).groupByKey(REDUCERS)
    used = grouped.rdd().dependencies().head().rdd().dependencies().head().serializer()
    name = used.getClass().getSimpleName()
    return [(name, bool(used.supportsRelocationOfSerializedObjects()))]


def _pairs(spark: SparkSession, parameters: dict[str, Any]) -> Any:
    """Words and their places, of types that Spark does not know: it would take Kryo for text."""
    context: Any = spark.sparkContext
    placed = context._jsc.textFile(parameters["words"], MAPS).zipWithIndex()
    return context._jvm.org.apache.spark.api.java.JavaPairRDD.fromJavaRDD(placed.rdd().toJavaRDD())


JOBS: dict[str, Job] = {
    f"jvm_{build.__name__}": build
    for build in (count_by_key, distinct, group_by_key, sort_by_key, cogroup, serializer)
}
