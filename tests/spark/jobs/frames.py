"""Jobs of the DataFrame API, adaptive execution as it is by default unless the name says other."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import pandas_udf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.jobs.kinds import Job

ROWS = 20_000
MAPS = 4
Rows = list[tuple[Any, ...]]


def group_by(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Sums, counts, and distinct counts by key."""
    grouped = _numbers(spark).groupBy("key")
    return _rows(grouped.agg(f.sum("value"), f.count("*"), f.countDistinct("text")))


def join(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Inner and full outer joins by shuffle, some keys on one side only."""
    with _settings(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        names = spark.range(50, 200, 1, 3).select(
            f.col("id").alias("key"), f.hex("id").alias("name")
        )
        numbers = _numbers(spark).where("value < 2000")
        inner, outer = numbers.join(names, "key"), numbers.join(names, "key", "full")
        return [*_rows(inner), *_rows(outer)]


def order_by(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Rows in a total order."""
    ordered = _numbers(spark).orderBy(f.desc("text"), "value")
    return [(place, *row) for place, row in enumerate(_rows(ordered))]


def repartition(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Round robin, by hash, and by range."""
    numbers = _numbers(spark)
    return [
        *_rows(numbers.repartition(7)),
        *_rows(numbers.repartition(7, "text")),
        *_rows(numbers.repartitionByRange(7, "value")),
        (numbers.repartition(7).rdd.getNumPartitions(),),
    ]


def window(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Rank and running sum within keys."""
    by_key = Window.partitionBy("key").orderBy("value")
    ranked = _numbers(spark).select(
        "key", "value", f.rank().over(by_key), f.sum("value").over(by_key)
    )
    return _rows(ranked)


def distinct(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Each row once."""
    return _rows(_numbers(spark).select("key", "text").distinct())


def python_udf(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A Python function before and after an exchange."""
    double = f.udf(lambda value: value * 2, "long")
    changed = _numbers(spark).select("key", double("value").alias("value"))
    return _rows(changed.groupBy("key").agg(double(f.sum("value"))))


def pandas_udfs(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A pandas function over columns and one over whole groups."""

    @pandas_udf("long")  # type: ignore[call-overload]
    def double(values: pd.Series) -> pd.Series:
        return values * 2

    def span(group: pd.DataFrame) -> pd.DataFrame:
        value = group["value"]
        return pd.DataFrame({"key": group["key"][:1], "span": [value.max() - value.min()]})

    numbers = _numbers(spark).select("key", double("value").alias("value"))
    return _rows(numbers.groupBy("key").applyInPandas(span, "key long, span long"))


def no_rows(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Exchanges that carry nothing."""
    nothing = _numbers(spark).where("value < 0")
    return [
        *_rows(nothing.groupBy("key").count()),
        *_rows(nothing.groupBy().agg(f.count("*"), f.sum("value"))),
        *_rows(nothing.orderBy("value")),
        *_rows(nothing.repartition(3).distinct()),
    ]


def many_partitions(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Exchanges to ``partitions`` partitions; without adaptive execution each has a reduce task."""
    adaptive = {"spark.sql.adaptive.enabled": str(parameters["adaptive"]).lower()}
    partitions = int(parameters["partitions"])
    with _settings(spark, adaptive | {"spark.sql.shuffle.partitions": str(partitions)}):
        spread = _numbers(spark).groupBy("text").agg(f.sum("value"))
        return [(spread.rdd.getNumPartitions() <= partitions,), *_rows(spread)]


def coalesced(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Small partitions that adaptive execution joins, with its defaults; the row says whether."""
    counts = _numbers(spark).groupBy("text").count()
    rows = _rows(counts)
    return [("coalesced" in _plan(counts),), *rows]


def skew_join(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A join with one heavy key that adaptive execution splits; the row says whether."""
    small = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64k",
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "100k",
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1k",
    }
    with _settings(spark, small):
        heavy = f.when(f.col("id") % 10 < 8, 0).otherwise(f.col("id") % 100).alias("key")
        left = spark.range(0, ROWS, 1, 8).select(heavy, f.sha2(f.hex("id"), 256).alias("text"))
        right = spark.range(0, 100, 1, 2).select(f.col("id").alias("key"), f.hex("id").alias("h"))
        joined = left.join(right, "key")
        rows = _rows(joined)
        return [("skew=true" in _plan(joined), "skewed" in _plan(joined)), *rows]


def local_read(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A join that becomes a broadcast at run time, whose other side is read by map range."""
    late = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.autoBroadcastJoinThreshold": "1m",
    }
    with _settings(spark, late):
        few = _numbers(spark).where("value % 1000 = 7").select("key", f.col("text").alias("few"))
        joined = _numbers(spark).join(few, "key")
        rows = _rows(joined)
        plan = _plan(joined)
        return [("AQEShuffleRead local" in plan, "BroadcastHashJoin" in plan), *rows]


def _numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, MAPS).select(
        (f.col("id") % 97).alias("key"),
        f.col("id").alias("value"),
        f.sha2((f.col("id") % 5000).cast("string"), 256).alias("text"),
    )


def _rows(frame: DataFrame) -> Rows:
    return [tuple(row) for row in frame.collect()]


def _plan(frame: Any) -> str:
    """The plan as adaptive execution left it, once the frame was collected."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)


JOBS: dict[str, Job] = {
    f"frame_{build.__name__}": build
    for build in (
        group_by,
        join,
        order_by,
        repartition,
        window,
        distinct,
        python_udf,
        pandas_udfs,
        no_rows,
        many_partitions,
        coalesced,
        skew_join,
        local_read,
    )
}
