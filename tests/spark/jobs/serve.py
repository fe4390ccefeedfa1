"""The script given to spark-submit by the Spark tests: serves the jobs of this folder.

As ``benchmarks/jobs/serve.py``, whose protocol it speaks, except that an answer comes only when
Spark has written all events of the job to its event log.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.jobs import serve
from tests.spark.jobs import (
    adaptive,
    cancelled,
    cleanup,
    exchanges,
    failing,
    frames,
    jvm,
    order,
    plan,
    policies,
    python_api,
    rdds,
    repeated,
    reruns,
    streaming,
    writer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from benchmarks.jobs.kinds import Job

EVENTS_TIMEOUT_MILLIS = 60_000


def driver(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """One row: the process id of the driver's JVM."""
    jvm_view: Any = spark.sparkContext._jvm
    return [(int(jvm_view.java.lang.ProcessHandle.current().pid()),)]


def setting(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """One row: the setting ``key`` and its value now."""
    key = str(parameters["key"])
    return [(key, spark.sparkContext.getConf().get(key))]


def write_setting(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """Write the setting ``key`` to the file ``path``; no row, for rows stay in the directory."""
    value = spark.sparkContext.getConf().get(str(parameters["key"]))
    Path(str(parameters["path"])).write_text(str(value), encoding="utf-8")
    return []


def events_written(job: Job) -> Job:
    """The same job; returns when its events are in the event log."""

    def run(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        context: Any = spark.sparkContext
        try:
            return job(spark, parameters)
        finally:
            context._jsc.sc().listenerBus().waitUntilEmpty(EVENTS_TIMEOUT_MILLIS)

    return run


JOBS: dict[str, Job] = {
    "driver": driver,
    "setting": setting,
    "write_setting": write_setting,
    **rdds.JOBS,
    **jvm.JOBS,
    **frames.JOBS,
    **adaptive.JOBS,
    **order.JOBS,
    **failing.JOBS,
    **cancelled.JOBS,
    **cleanup.JOBS,
    **python_api.JOBS,
    **repeated.JOBS,
    **reruns.JOBS,
    **plan.JOBS,
    **streaming.JOBS,
    **policies.JOBS,
    **exchanges.JOBS,
    **writer.JOBS,
}


if __name__ == "__main__":
    serve.JOBS.update({name: events_written(job) for name, job in JOBS.items()})
    serve.main()
