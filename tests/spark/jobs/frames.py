"""Jobs of the DataFrame API, adaptive execution as it is by default unless the name says other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import pandas_udf

from tests.spark.jobs.settings import sql_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.jobs.kinds import Job

ROWS = 20_000
MAPS = 4
Rows = list[tuple[Any, ...]]


def group_by(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Sums, counts, and distinct counts by key."""
    grouped = numbered(spark).groupBy("key")
    return rows_of(grouped.agg(f.sum("value"), f.count("*"), f.countDistinct("text")))


def join(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Inner and full outer joins by shuffle, some keys on one side only."""
    with sql_settings(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        names = spark.range(50, 200, 1, 3).select(
            f.col("id").alias("key"), f.hex("id").alias("name")
        )
        numbers = numbered(spark).where("value < 2000")
        inner, outer = numbers.join(names, "key"), numbers.join(names, "key", "full")
        return [*rows_of(inner), *rows_of(outer)]


def order_by(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Rows in a total order."""
    ordered = numbered(spark).orderBy(f.desc("text"), "value")
    return [(place, *row) for place, row in enumerate(rows_of(ordered))]


def repartition(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Round robin, by hash, and by range."""
    numbers = numbered(spark)
    return [
        *rows_of(numbers.repartition(7)),
        *rows_of(numbers.repartition(7, "text")),
        *rows_of(numbers.repartitionByRange(7, "value")),
        (numbers.repartition(7).rdd.getNumPartitions(),),
    ]


def window(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Rank and running sum within keys."""
    by_key = Window.partitionBy("key").orderBy("value")
    ranked = numbered(spark).select(
        "key", "value", f.rank().over(by_key), f.sum("value").over(by_key)
    )
    return rows_of(ranked)


def distinct(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Each row once."""
    return rows_of(numbered(spark).select("key", "text").distinct())


def python_udf(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A Python function before and after an exchange."""
    double = f.udf(lambda value: value * 2, "long")
    changed = numbered(spark).select("key", double("value").alias("value"))
    return rows_of(changed.groupBy("key").agg(double(f.sum("value"))))


def pandas_udfs(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A pandas function over columns and one over whole groups."""

    @pandas_udf("long")  # type: ignore[call-overload]
    def double(values: pd.Series) -> pd.Series:
        return values * 2

    def span(group: pd.DataFrame) -> pd.DataFrame:
        value = group["value"]
        return pd.DataFrame({"key": group["key"][:1], "span": [value.max() - value.min()]})

    numbers = numbered(spark).select("key", double("value").alias("value"))
    return rows_of(numbers.groupBy("key").applyInPandas(span, "key long, span long"))


def no_rows(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Exchanges that carry nothing."""
    nothing = numbered(spark).where("value < 0")
    return [
        *rows_of(nothing.groupBy("key").count()),
        *rows_of(nothing.groupBy().agg(f.count("*"), f.sum("value"))),
        *rows_of(nothing.orderBy("value")),
        *rows_of(nothing.repartition(3).distinct()),
    ]


def many_partitions(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Exchanges to ``partitions`` partitions; without adaptive execution each has a reduce task."""
    adaptive = {"spark.sql.adaptive.enabled": str(parameters["adaptive"]).lower()}
    partitions = int(parameters["partitions"])
    with sql_settings(spark, adaptive | {"spark.sql.shuffle.partitions": str(partitions)}):
        spread = numbered(spark).groupBy("text").agg(f.sum("value"))
        return [(spread.rdd.getNumPartitions() <= partitions,), *rows_of(spread)]


def small_blocks(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """One row from each of ``maps`` map tasks to each of ``reducers`` reduce tasks."""
    maps, reducers = int(parameters["maps"]), int(parameters["reducers"])
    plain = {
        "spark.sql.adaptive.enabled": "false",
        # Each map task deals its rows out in turn.
        "spark.sql.execution.sortBeforeRepartition": "false",
    }
    with sql_settings(spark, plain):
        dealt = spark.range(0, maps * reducers, 1, maps).repartition(reducers)
        return rows_of(dealt.agg(f.count("id"), f.sum("id")))


def wide(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Move ``rows`` rows of 128 characters that do not compress well, twice."""
    rows = spark.range(0, int(parameters["rows"]), 1, MAPS).select(
        "id", f.sha2(f.hex("id"), 512).alias("text")
    )
    sums = rows.repartition(5, "text").groupBy("text").agg(f.sum("id").alias("id"))
    keyed = sums.groupBy(f.pmod("id", f.lit(50)).alias("key"))
    return rows_of(keyed.agg(f.count("*"), f.sum(f.crc32("text"))).orderBy("key"))


def numbered(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, MAPS).select(
        (f.col("id") % 97).alias("key"),
        f.col("id").alias("value"),
        f.sha2((f.col("id") % 5000).cast("string"), 256).alias("text"),
    )


def rows_of(frame: DataFrame) -> Rows:
    return [tuple(row) for row in frame.collect()]


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
        small_blocks,
        wide,
    )
}
