"""The script given to spark-submit by the Spark tests: serves the jobs of this folder.

As ``tests/support/jobs/serve.py``, whose protocol it speaks, with two differences. An answer comes
only when Spark has written all events of the job to its event log. The driver can end its
application and begin another one with other settings in the same JVM: `tests/spark/driver.py`.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from tests.spark.jobs import (
    adaptive,
    cancelled,
    cleanup,
    exchanges,
    failing,
    frames,
    jvm,
    locality,
    matrix,
    one_task,
    order,
    plan,
    policies,
    python_api,
    rdds,
    repeated,
    reruns,
    streaming,
    table_formats,
    writer,
)
from tests.support.jobs import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.jobs.kinds import Job

EVENTS_TIMEOUT_MILLIS = 60_000


def driver(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """One row: the process id of the driver's JVM."""
    jvm_view: Any = spark.sparkContext._jvm
    return [(int(jvm_view.java.lang.ProcessHandle.current().pid()),)]


def setting(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """One row: the setting ``key`` and its value now."""
    key = str(parameters["key"])
    return [(key, spark.sparkContext.getConf().get(key))]


def settings(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """Return one row for each setting and its current value."""
    return list(spark.sparkContext.getConf().getAll())


def counters(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """Return one row for each counter of Sluice in the driver's JVM, and its value."""
    jvm_view: Any = spark.sparkContext._jvm
    counted = jvm_view.io.sluice.spark.common.SluiceMetrics.INSTANCE.snapshot()
    return [(name, int(counted[name])) for name in counted]


def say(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """No row; the application's log says ``text``, behind all that it said before."""
    jvm_view: Any = spark.sparkContext._jvm
    jvm_view.java.lang.System.err.println(parameters["text"])
    return []


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
    "settings": settings,
    "counters": counters,
    "say": say,
    "write_setting": write_setting,
    **rdds.JOBS,
    **jvm.JOBS,
    **locality.JOBS,
    **frames.JOBS,
    **adaptive.JOBS,
    **one_task.JOBS,
    **order.JOBS,
    **failing.JOBS,
    **cancelled.JOBS,
    **cleanup.JOBS,
    **python_api.JOBS,
    **repeated.JOBS,
    **reruns.JOBS,
    **plan.JOBS,
    **streaming.JOBS,
    **table_formats.JOBS,
    **policies.JOBS,
    **exchanges.JOBS,
    **writer.JOBS,
    **matrix.JOBS,
}


class Turns:
    """Applications of this driver that run one after the other.

    Args:
        handle: Runs a job in a session.
    """

    def __init__(self, handle: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
        self._handle_job = handle
        self._session: SparkSession | None = None
        self.jobs: dict[str, Job] = {"begin_application": self._begin, "end_application": self._end}

    def handle(self, first: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
        """Run a job in the session of now: the ``first`` one, until an application has begun."""
        if request["job"] in self.jobs:
            # There may be no context, before and after.
            context = SimpleNamespace(_jvm=SparkContext._jvm, setJobGroup=lambda *_: None)
            return self._handle_job(SimpleNamespace(sparkContext=context), request)
        return self._handle_job(self._session or first, request)

    def _begin(self, _: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        """One row: the application's id, and the version of Spark."""
        self._stop()
        SparkContext(conf=SparkConf().setAll(list(parameters["settings"].items())))
        self._session = SparkSession.builder.getOrCreate()
        return [(self._session.sparkContext.applicationId, self._session.version)]

    def _end(self, _: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        """No row; the last line of the application's log says ``mark``."""
        self._stop()
        jvm_view: Any = SparkContext._jvm
        jvm_view.java.lang.System.err.println(parameters["mark"])
        return []

    def _stop(self) -> None:
        session = SparkSession.getActiveSession() or self._session
        self._session = None
        if session is not None:
            session.stop()


if __name__ == "__main__":
    turns = Turns(serve._handle)
    serve._handle = turns.handle  # type: ignore[assignment]
    serve.JOBS.update({name: events_written(job) for name, job in JOBS.items()} | turns.jobs)
    serve.main()
