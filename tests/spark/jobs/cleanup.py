"""Jobs that are about what Spark does with a shuffle once nobody needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from tests.spark.jobs.frames import numbered, rows_of
from tests.spark.jobs.settings import sql_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

Rows = list[tuple[Any, ...]]

MANY_MAPS = 12
EAGER = {"spark.sql.classic.shuffleDependency.fileCleanup.enabled": "true"}
"""Spark 4.1 and later: a query's shuffles are removed at its end, by no garbage collector."""


def eager_query(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """One query."""
    with sql_settings(spark, parameters.get("settings", EAGER)):
        return rows_of(numbered(spark).groupBy("key").sum("value"))


def eager_twice(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """The same frame twice: the second time its shuffle is gone, and map tasks run again.

    They are more than the attempts that Spark gives a stage.
    """
    with sql_settings(spark, parameters.get("settings", EAGER)):
        grouped = (
            spark.range(0, 3_000, 1, MANY_MAPS).groupBy((f.col("id") % 7).alias("key")).count()
        )
        return [*rows_of(grouped), *rows_of(grouped)]


def eager_rdd(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Spark removes the shuffle when the RDD is made, before any of its map tasks has run."""
    with sql_settings(spark, parameters.get("settings", EAGER)):
        rows = numbered(spark).groupBy("key").sum("value").rdd.map(tuple)
        return rows.collect()


JOBS: dict[str, Job] = {build.__name__: build for build in (eager_query, eager_twice, eager_rdd)}
