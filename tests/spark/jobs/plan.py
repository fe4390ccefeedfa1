"""The job that runs a generated plan (``tests/spark/plans``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.spark.jobs.settings import sql_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

Rows = list[tuple[Any, ...]]


def plan(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Run ``source`` with the SQL ``settings``; the result is what it leaves in ``rows``."""
    # Functions of a module that cannot be imported travel to Python workers by value.
    names: dict[str, Any] = {"__name__": "plan", "spark": spark}
    with sql_settings(spark, parameters["settings"]):
        exec(compile(parameters["source"], "<plan>", "exec"), names)
    rows: Rows = names["rows"]
    return rows


JOBS: dict[str, Job] = {"plan": plan}
