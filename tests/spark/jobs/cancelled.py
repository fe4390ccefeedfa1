"""A job that cancels itself in the middle, and one that needs every slot of the cluster."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread

from tests.spark.barrier import stop_at
from tests.spark.jobs.settings import local_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

SLOTS = 2
MAPS = 4
REDUCERS = 6
RECORDS = 5_000
END_SECONDS = 60.0
Rows = list[tuple[Any, ...]]


def cancelled(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Cancel a job, interrupting its tasks, when the barrier lets ``driver`` go.

    Its map tasks stop at ``map-N`` before their last record, its reduce tasks at ``reduce-N`` when
    they have one record. The row says whether the job was cancelled. ``settings`` are local
    properties of its thread.
    """
    barrier = str(parameters["barrier"])
    record_bytes = int(parameters["record_bytes"])
    context = spark.sparkContext
    ends: list[str] = []

    def write(number: int) -> Iterator[tuple[int, bytes]]:
        for key in range(number * RECORDS, (number + 1) * RECORDS):
            yield key, random.Random(key).randbytes(record_bytes)
        stop_at(barrier, f"map-{number}")

    def read(index: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[int]:
        records = iter(pairs)
        next(records)
        stop_at(barrier, f"reduce-{index}")
        yield sum(1 for _ in records)

    def victim() -> None:
        context.setJobGroup("victim", "to be cancelled", interruptOnCancel=True)
        numbers = context.parallelize(range(MAPS), MAPS)
        try:
            with local_properties(context, parameters.get("settings", {})):
                numbers.flatMap(write).partitionBy(REDUCERS).mapPartitionsWithIndex(read).collect()
            ends.append("finished")
        except Exception as error:  # noqa: BLE001 - Py4J's, whose text tells what it was
            ends.append("cancelled" if "cancelled" in str(error) else str(error))

    thread = InheritableThread(target=victim)
    thread.start()
    stop_at(barrier, "driver")
    context.cancelJobGroup("victim")
    thread.join(END_SECONDS)
    return [(end,) for end in ends]


def all_slots(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """``slots`` tasks, as many as there are; they end when all have come to ``POINT`` and N."""
    slots = parameters.get("slots", SLOTS)
    barrier = parameters.get("barrier")
    point = parameters["point"]

    def hold(index: int, numbers: Iterable[int]) -> Iterator[int]:
        stop_at(barrier, f"{point}{index}")
        return iter(numbers)

    held = spark.sparkContext.parallelize(range(slots), slots).mapPartitionsWithIndex(hold)
    return [(number,) for number in held.collect()]


JOBS: dict[str, Job] = {build.__name__: build for build in (cancelled, all_slots)}
