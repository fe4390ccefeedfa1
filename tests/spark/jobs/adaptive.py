"""Jobs whose plan adaptive execution changes at run time, each feature as Spark has it by default.

Only sizes are made small, so that small data reaches them. The first row of a result is what the
executed plan says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from tests.spark.jobs.frames import ROWS, numbered, rows_of
from tests.spark.jobs.settings import sql_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.jobs.kinds import Job

KEYS = 100
Rows = list[tuple[Any, ...]]

SMALL = {
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64k",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1k",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "100k",
}
NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1"}


def coalesced(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Small partitions that are read together, with every default."""
    return _seen(numbered(spark).groupBy("text").count(), ["AQEShuffleRead coalesced"])


def skew_join(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A join with one heavy key, whose partition is read in parts by map range."""
    with sql_settings(spark, SMALL | NO_BROADCAST):
        keys = spark.range(0, KEYS, 1, 2)
        right = keys.select(f.col("id").alias("key"), f.hex("id").alias("h"))
        joined = _skewed(spark).join(right, "key")
        return _seen(joined, ["SortMergeJoin(skew=true)", "AQEShuffleRead coalesced and skewed"])


def local_read(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A join that becomes a broadcast at run time, whose other side is read by map range."""
    late = {"spark.sql.adaptive.autoBroadcastJoinThreshold": "1m"}
    with sql_settings(spark, NO_BROADCAST | late):
        few = numbered(spark).where("value % 1000 = 7")
        few = few.select("key", f.col("text").alias("few"))
        joined = numbered(spark).join(few, "key")
        return _seen(joined, ["AQEShuffleRead local", "BroadcastHashJoin"])


def rebalance_split(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A heavy partition of a REBALANCE by key that is read in parts by map range."""
    with sql_settings(spark, SMALL):
        query = "SELECT /*+ REBALANCE(key) */ * FROM {skewed}"
        rebalanced = spark.sql(query, skewed=_skewed(spark))
        return _seen(rebalanced, ["AQEShuffleRead coalesced and skewed"])


def rebalance_coalesced(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Small partitions of a REBALANCE that are read together, with every default."""
    rebalanced = numbered(spark).hint("rebalance")
    return _seen(rebalanced, ["AQEShuffleRead coalesced"])


def _skewed(spark: SparkSession) -> DataFrame:
    """Eight of ten rows have the key 0."""
    heavy = f.when(f.col("id") % 10 < 8, 0).otherwise(f.col("id") % KEYS).alias("key")
    return spark.range(0, ROWS, 1, 8).select(heavy, f.sha2(f.hex("id"), 256).alias("text"))


def _seen(frame: Any, wanted: Sequence[str]) -> Rows:
    """Which of these the plan has, once the frame was collected; then its rows."""
    rows = rows_of(frame)
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    return [("seen", [text for text in wanted if text in plan]), *rows]


JOBS: dict[str, Job] = {
    f"adaptive_{build.__name__}": build
    for build in (coalesced, skew_join, local_read, rebalance_split, rebalance_coalesced)
}
