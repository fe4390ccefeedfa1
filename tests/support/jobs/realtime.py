"""A stateful query in real-time mode (Spark 4.3): counts by key, over a source in the driver.

Each record carries the time at which it was sent. The query's tasks note the time at which a record
has come through the shuffle and the state, so a latency is taken without leaving Spark, by the
clock that all processes of this machine share.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.jobs.kinds import Job

COMMIT_TIMEOUT_SECONDS = 60.0
"""For a batch after its time is over: the machine may be busy."""
POLL_SECONDS = 0.1
"""Pause between two looks at a query, whose progress cannot be waited for."""

SETTINGS = {
    # The memory sink shows its rows at the end of a batch, which is all that is asked of it.
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "2",
}
"""Settings of an application that runs the job."""


def run(spark: SparkSession, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Send records at a steady pace; return the state of each key or the latency of each record.

    Args:
        spark: The session.
        parameters: ``records`` in all, of ``keys`` keys, padded by ``record_bytes``,
            ``per_tick`` at once and ``tick_millis`` between; ``maps`` tasks of the source;
            ``batch_seconds`` of a batch; ``warm_up`` records, sent first, of which no latency is
            kept; ``row_millis`` that the reading tasks take for a row; ``mode``, ``"state"`` or
            ``"latency"``.
    """
    jvm: Any = spark.sparkContext._jvm
    sources = jvm.org.apache.spark.sql.execution.streaming.sources
    source = sources.LowLatencyMemoryStream.apply(
        spark._jsparkSession, parameters["maps"], jvm.org.apache.spark.sql.Encoders.STRING()
    )
    counted = (
        DataFrame(source.toDF(), spark)
        .selectExpr("split(value, ',') as fields")
        .selectExpr(
            "cast(fields[0] as long) as number",
            "fields[1] as key",
            "cast(fields[2] as long) as sent",
        )
        .groupBy("key")
        .agg({"number": "sum", "key": "count", "sent": "max"})
        .withColumnsRenamed({"sum(number)": "total", "count(key)": "many", "max(sent)": "sent"})
        .selectExpr(
            "key",
            "many",
            "total",
            "sent",
            "java_method('java.time.Instant', 'now') as seen",
            f"java_method('java.lang.Thread', 'sleep', {parameters['row_millis']}L) as slept",
        )
    )
    name = f"realtime_{uuid.uuid4().hex}"
    # Tasks of the stopped query may write into it a moment longer than it is removed.
    with tempfile.TemporaryDirectory(
        prefix="sluice-checkpoint-", ignore_cleanup_errors=True
    ) as checkpoint:
        writer: Any = counted.writeStream  # its types do not know the trigger yet
        query: StreamingQuery = (
            writer.format("memory")
            .queryName(name)
            .outputMode("update")
            .option("checkpointLocation", checkpoint)
            .trigger(realTime=f"{parameters['batch_seconds']} seconds")
            .start()
        )
        try:
            sent = _send(jvm, source, query, parameters)
            rows = _rows(spark, query, name, parameters["records"])
        finally:
            query.stop()
            spark.sql(f"drop view if exists {name}")
    if parameters["mode"] == "state":
        return _state(rows)
    warm = sent[parameters["warm_up"]]
    return sorted((_micros(row["seen"]) - row["sent"],) for row in rows if row["sent"] >= warm)


def _send(jvm: Any, source: Any, query: StreamingQuery, parameters: dict[str, Any]) -> list[int]:
    """Send all records, each tick at its time even after a late one; return the times."""
    padding = "." * parameters["record_bytes"]
    times = []
    started = time.monotonic()
    ticks = range(0, parameters["records"], parameters["per_tick"])
    for tick, first in enumerate(ticks):
        due = started + tick * parameters["tick_millis"] / 1000
        time.sleep(max(due - time.monotonic(), 0))  # the pace is part of the measurement
        if not query.isActive:
            break  # its failure is told when its rows are asked for
        together = jvm.java.util.ArrayList()
        for number in range(first, min(first + parameters["per_tick"], parameters["records"])):
            key = f"key {number % parameters['keys']}{padding}"
            times.append(time.time_ns() // 1000)
            together.add(f"{number},{key},{times[-1]}")
        source.addData(jvm.scala.jdk.javaapi.CollectionConverters.asScala(together))
    return times


def _rows(spark: SparkSession, query: StreamingQuery, name: str, records: int) -> list[Any]:
    """Return all rows of the sink, once it has counted every record.

    Raises:
        TimeoutError: The sink has not counted all in time.
    """
    deadline = time.monotonic() + COMMIT_TIMEOUT_SECONDS
    while True:
        rows = spark.table(name).collect()
        if sum(row[1] for row in _state(rows)) >= records:
            return rows
        failure = query.exception()
        if failure is not None:
            raise failure
        if time.monotonic() > deadline:
            counted = sum(row[1] for row in _state(rows))
            raise TimeoutError(f"{counted} of {records} records counted")
        time.sleep(POLL_SECONDS)  # a sink in memory has no event for its rows


def _state(rows: list[Any]) -> list[tuple[str, int, int]]:
    """Return key, number and sum of its records; each row of a key counts more than the last."""
    last: dict[str, tuple[str, int, int]] = {}
    for row in rows:
        found = (row["key"].rstrip("."), row["many"], row["total"])
        last[found[0]] = max(last.get(found[0], found), found)
    return sorted(last.values())


def _micros(instant: str) -> int:
    moment = datetime.fromisoformat(instant)
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


JOBS: dict[str, Job] = {"realtime": run}
