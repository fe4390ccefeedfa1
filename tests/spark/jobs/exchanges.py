"""A query together with what Spark SQL shows at the exchanges of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from tests.spark.jobs.settings import sql_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

ROWS = 20_000
Rows = list[tuple[Any, ...]]


def exchange_metrics(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Two joins by shuffle; a row for each exchange and metric: its place, name and value."""
    settings = {
        "spark.sql.adaptive.enabled": parameters["aqe"],
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
    with sql_settings(spark, settings):
        numbers = spark.range(0, ROWS, 1, 4).select(
            f.pmod("id", f.lit(500)).alias("key"), f.sha2(f.hex("id"), 256).alias("text")
        )
        names = spark.range(0, 700, 1, 3).select(
            f.col("id").alias("key"), f.hex("id").alias("name")
        )
        joined = numbers.join(names, "key").groupBy("name").agg(f.max("text"), f.count("*"))
        joined.collect()
        plan: Any = joined._jdf.queryExecution().executedPlan()
        return [
            (place, metric, value)
            for place, exchange in enumerate(_exchanges(plan))
            for metric, value in sorted(_metrics(exchange).items())
        ]


def _exchanges(plan: Any) -> Iterator[Any]:
    """Shuffle exchanges of a physical plan, in the order of the tree."""
    name = plan.nodeName()
    if name == "AdaptiveSparkPlan":
        yield from _exchanges(plan.executedPlan())
        return
    if name == "Exchange":
        yield plan
    if "QueryStage" in name:
        yield from _exchanges(plan.plan())
    children = plan.children()
    for number in range(children.size()):
        yield from _exchanges(children.apply(number))


def _metrics(exchange: Any) -> dict[str, int]:
    found = {}
    metrics = exchange.metrics().iterator()
    while metrics.hasNext():
        entry = metrics.next()
        found[str(entry._1())] = int(entry._2().value())
    return found


JOBS: dict[str, Job] = {"exchange_metrics": exchange_metrics}
