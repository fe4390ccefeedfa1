"""The script for spark-submit: runs the requested jobs one after the other.

Requests and answers are JSON objects, one per line, over the Unix socket named by ``--control``;
the end of the connection ends the application. See ``tests/support/application.py``.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from tests.support.jobs import realtime, rows, shuffles, tpch, wordcount

if TYPE_CHECKING:
    from tests.support.jobs.kinds import Job

JOBS: dict[str, Job] = {
    "tpch": tpch.run_query,
    "wordcount": wordcount.run,
    **shuffles.JOBS,
    **realtime.JOBS,
}


def main() -> None:
    """Connect, send the application's id, and serve until the connection ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control", required=True, help="path of the runner's Unix socket")
    arguments = parser.parse_args()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(arguments.control)
        spark = SparkSession.builder.getOrCreate()
        try:
            with connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
                _answer(
                    stream,
                    {
                        "application_id": spark.sparkContext.applicationId,
                        "spark_version": spark.version,
                    },
                )
                for line in stream:
                    _answer(stream, _handle(spark, json.loads(line)))
        finally:
            spark.stop()


def _answer(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _handle(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    name = request["name"]
    spark.sparkContext.setJobGroup(name, name)
    try:
        job = JOBS[request["job"]]
        started = time.perf_counter()
        result = job(spark, request["parameters"])
        seconds = time.perf_counter() - started
        lines = rows.canonical_lines(result)
        if request["rows_file"] is not None:
            Path(request["rows_file"]).write_text("".join(lines), encoding="utf-8")
        del result
        _release_shuffles(spark)
    except Exception:  # noqa: BLE001 - whatever a job raises is its result for the runner
        return {"error": f"job {name} failed:\n{traceback.format_exc()}"}
    return {"seconds": seconds, "rows": len(lines), "digest": rows.digest(lines)}


def _release_shuffles(spark: SparkSession) -> None:
    """Let Spark notice that the job's shuffles are no longer used.

    It gives up a shuffle when the driver's garbage collector has found it unused, which in a short
    application may never happen; the next job should not share its disk with all earlier ones.
    """
    gc.collect()  # first the references that Python holds to objects of the JVM
    jvm: Any = spark.sparkContext._jvm
    jvm.System.gc()


if __name__ == "__main__":
    main()
