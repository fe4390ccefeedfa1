"""Traces of a job of Spark, from the thread of the job to the TaskManager's spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.spark_integration import spark_conf
from tests.spark.applications import LOCAL_MASTER
from tests.support.collector import PARENT_ID, TRACE_ID, TRACEPARENT, otlp_collector
from tests.support.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.driver import Driver

MAPS, REDUCERS = 3, 4
"""The tasks of ``excluded_job``."""


def test_spans_have_the_parent_the_stage_and_the_task_of_spark(driver: Driver, directory: Path):
    with (
        otlp_collector() as collector,
        Daemon(
            directory / "traced",
            traces_endpoint=collector.endpoint,
            memory_tier_bytes="16 MiB",
            min_free_bytes=0,
        ) as daemon,
    ):
        settings = spark_conf(daemon.endpoint) | {"spark.sluice.traces": "true"}
        with driver.application("traced", LOCAL_MASTER, settings) as application:
            application.rows("excluded_job", settings={"traceparent": TRACEPARENT})
        spans = collector.until(2 * MAPS + 2 * REDUCERS)
    assert {span.trace_id for span in spans} == {TRACE_ID}
    written = [span for span in spans if span.name == "map output"]
    read = [span for span in spans if span.name == "gate"]
    assert (len(written), len(read)) == (MAPS, REDUCERS)
    assert {span.parent_id for span in (*written, *read)} == {PARENT_ID}
    assert len({span.attributes["spark.stage.id"] for span in written}) == 1
    assert len({span.attributes["spark.stage.id"] for span in read}) == 1
    tasks = {span.attributes["spark.task.attempt_id"] for span in spans}
    assert len(tasks) == MAPS + REDUCERS
