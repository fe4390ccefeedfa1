"""Jobs that a session or a thread keeps away from Sluice, and the way to the page in Spark's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.spark.jobs.settings import local_properties, sql_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

KEYS = 17
ROWS = 500


def ui_url(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """One row: where the application's UI is."""
    return [(spark.sparkContext.uiWebUrl,)]


def excluded_job(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """Sums by key in an RDD, with local properties of this thread."""
    settings: dict[str, str] = parameters["settings"]
    context = spark.sparkContext
    with local_properties(context, settings):
        pairs = context.parallelize(range(ROWS), 3).map(lambda number: (number % KEYS, number))
        return pairs.reduceByKey(lambda a, b: a + b, 4).collect()


def excluded_query(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """Count by key over a file, with settings of the session; two shuffles, the second is smaller.

    ``"as_rdd": true`` reads the result through ``DataFrame.rdd``, which runs outside of what Spark
    SQL calls an execution.
    """
    with sql_settings(spark, parameters["settings"]):
        words = spark.read.text(parameters["words"])
        counted = words.groupBy("value").count().groupBy("count").count().orderBy("count")
        return counted.rdd.collect() if parameters.get("as_rdd") else counted.collect()


def answers(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """Return settings and their values in a session that has set none of them."""
    keys: list[str] = parameters["keys"]
    return [
        (key, spark.sql(f"SET {key}").collect()[0]["value"], spark.conf.get(key)) for key in keys
    ]


def query_of_an_excluded_thread(
    spark: SparkSession, parameters: dict[str, Any]
) -> Sequence[Sequence[Any]]:
    """Count by key, with a local property of this thread and no setting of the session."""
    spark.sparkContext.setLocalProperty("spark.sluice.enabled", "false")
    try:
        return spark.range(0, ROWS, 1, 3).selectExpr("id % 17 AS k").groupBy("k").count().collect()
    finally:
        spark.sparkContext.setLocalProperty("spark.sluice.enabled", None)  # type: ignore[arg-type]


JOBS: dict[str, Job] = {
    "answers": answers,
    "query_of_an_excluded_thread": query_of_an_excluded_thread,
    "ui_url": ui_url,
    "excluded_job": excluded_job,
    "excluded_query": excluded_query,
}
