"""Structured Streaming: micro-batches that add to a state, and what they leave behind."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from tests.spark.barrier import jvm_pid
from tests.spark.jobs.settings import sql_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.jobs.kinds import Job

BATCHES = 50
RECORDS = 400
KEYS = 61
SETTLE_SECONDS = 60.0
KEPT_SHUFFLES = 4
"""The batch that runs has two, and Spark refers to the one before it."""

PARTITIONS = {"spark.sql.shuffle.partitions": "2"}
SCHEMA = "key long, value long"
Rows = list[tuple[Any, ...]]


def stateful_stream(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Sums by key over one small file for each micro-batch.

    ``directory`` receives the files and the checkpoint; ``taskmanagers`` are pairs of an HTTP
    address and an access token. The result: ``("state", key, sum, count)`` as the last micro-batch
    saw them, ``("batches", number)``, and after every ten micro-batches ``("sample", number,
    JSON)``.
    """
    directory = Path(parameters["directory"])
    files = directory / "files"
    files.mkdir()
    for batch in range(BATCHES):
        lines = (f"{key},{value}\n" for key, value in _records(batch))
        (files / f"{batch:03}.csv").write_text("".join(lines), encoding="utf-8")
    seen: Rows = []
    last: Rows = []

    def take(frame: DataFrame, batch: int) -> None:
        last[:] = [("state", *row) for row in frame.repartition(2).collect()]
        if batch % 10 == 9:
            sample = _sample(spark, parameters["taskmanagers"])
            seen.append(("sample", batch, json.dumps(sample)))

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).csv(files.as_uri())
    writer = _sums(stream).writeStream.outputMode("complete").foreachBatch(take)
    writer = writer.option("checkpointLocation", (directory / "checkpoint").as_uri())
    with sql_settings(spark, PARTITIONS):
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    progress: Any = query.lastProgress
    return [*last, ("batches", progress["batchId"] + 1), *seen]


def switched_stream(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Turn Sluice off in the session while a stream runs, then start the stream again.

    The result: ``("left to Spark", [counts])``, how many shuffles were left to Spark by the end of
    each of three micro-batches, of which the last one runs after the new start; and the state.
    """
    directory = Path(parameters["directory"])
    files = directory / "files"
    files.mkdir()
    jvm: Any = spark.sparkContext._jvm
    metrics = jvm.io.sluice.spark.common.SluiceMetrics.INSTANCE
    before = int(metrics.snapshot()["fallbackDisabled"])
    left: list[int] = []
    state: Rows = []

    def take(frame: DataFrame, _: int) -> None:
        state[:] = [("state", *row) for row in frame.orderBy("key").collect()]

    stream = spark.readStream.schema(SCHEMA).csv(files.as_uri())
    writer = _sums(stream).writeStream.outputMode("complete").foreachBatch(take)
    writer = writer.option("checkpointLocation", (directory / "checkpoint").as_uri())

    def run(query: Any, batch: int) -> None:
        lines = (f"{key},{value}\n" for key, value in _records(batch))
        new = directory / "new.csv"
        new.write_text("".join(lines), encoding="utf-8")
        new.rename(files / f"{batch}.csv")
        query.processAllAvailable()
        left.append(int(metrics.snapshot()["fallbackDisabled"]) - before)

    with sql_settings(spark, PARTITIONS):
        query = writer.start()
        run(query, 0)
        with sql_settings(spark, {"spark.sluice.enabled": "false"}):
            run(query, 1)
            query.stop()
            query = writer.start()
            run(query, 2)
            query.stop()
    return [("left to Spark", left), *state]


def sums_of_stream(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """The state that a stream should end with, after ``batches`` micro-batches."""
    batches = int(parameters.get("batches", BATCHES))
    records = [record for batch in range(batches) for record in _records(batch)]
    frame = spark.createDataFrame(records, SCHEMA)
    return [("state", *row) for row in _sums(frame).orderBy("key").collect()]


def _records(batch: int) -> list[tuple[int, int]]:
    numbers = range(batch * RECORDS, (batch + 1) * RECORDS)
    return [(number * number % KEYS, number) for number in numbers]


def _sums(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(f.sum("value"), f.count("*"))


# ---- samples ------------------------------------------------------------------------------------


def _sample(spark: SparkSession, taskmanagers: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return what TaskManagers and executors hold once Spark has dropped its unused shuffles."""
    jvm: Any = spark.sparkContext._jvm
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        gc.collect()  # first the references that Python holds to objects of the JVM
        jvm.System.gc()
        time.sleep(0.2)  # Spark's cleaner works in a thread of its own
        found = _taskmanagers(taskmanagers)
        if found["shuffles"] <= KEPT_SHUFFLES or time.monotonic() > deadline:
            return found | _executors(spark)


def _taskmanagers(taskmanagers: Sequence[Sequence[str]]) -> dict[str, int]:
    """Sums over TaskManagers; of shuffles and memory the largest."""
    found = {"shuffles": 0, "resident_bytes": 0, "stored_bytes": 0, "lent_segments": 0}
    for address, token in taskmanagers:
        status = json.loads(_get(f"{address}/api/v1/status", token))
        found["shuffles"] = max(found["shuffles"], len(status["partitions"]))
        found["stored_bytes"] += sum(tier["used_bytes"] for tier in status["storage"])
        found["lent_segments"] += status["network_pool"]["lent_segments"]
        resident = re.search(
            r"^process_resident_memory_bytes (\S+)", _get(f"{address}/metrics"), re.MULTILINE
        )
        if resident is not None:
            found["resident_bytes"] = max(found["resident_bytes"], int(float(resident[1])))
    return found


def _executors(spark: SparkSession) -> dict[str, int]:
    """Of the executor that holds most: threads, open files, live heap, objects of Sluice."""
    tasks = spark.sparkContext.parallelize(range(4), 4)
    pids = set(tasks.map(lambda _: jvm_pid()).collect())
    found = {"threads": 0, "open_files": 0, "heap_bytes": 0, "sluice_objects": 0}
    for pid in pids:
        process = Path(f"/proc/{pid}")
        # A histogram of the heap is preceded by a full collection.
        lines = subprocess.run(
            ["jcmd", str(pid), "GC.class_histogram"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.splitlines()
        heap = next(int(line.split()[2]) for line in lines if line.startswith("Total"))
        objects = sum(int(line.split()[1]) for line in lines if " io.sluice." in line)
        mine = {
            "threads": len(list((process / "task").iterdir())),
            "open_files": len(list((process / "fd").iterdir())),
            "heap_bytes": heap,
            "sluice_objects": objects,
        }
        found = {key: max(value, mine[key]) for key, value in found.items()}
    return found


def _get(url: str, token: str = "") -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        url, headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    with opener.open(request, timeout=10.0) as answer:
        text: str = answer.read().decode()
    return text


JOBS: dict[str, Job] = {
    build.__name__: build for build in (stateful_stream, switched_stream, sums_of_stream)
}
