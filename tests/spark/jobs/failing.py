"""Jobs that stop at a barrier or fail on purpose, for tests that break something meanwhile.

``parameters["barrier"]`` is the path of the test's barrier; None makes the same job run through,
which gives the rows to compare with.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import BarrierTaskContext, TaskContext

from tests.spark.barrier import jvm_pid, stop_at
from tests.spark.jobs.settings import local_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark import RDD
    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

MAPS = 4
REDUCERS = 6
SLOTS = 2
Rows = list[tuple[Any, ...]]

_kept: dict[str, Any] = {}
"""Shuffled data sets that a later job reads again; Spark keeps their map outputs as long."""


def reduce_waits(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Reduce tasks stop at ``reduce-N`` before they take their first record."""
    barrier = parameters.get("barrier")

    def reduce(index: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, int, str]]:
        stop_at(barrier, f"reduce-{index}")
        return _digest(index, pairs)

    return _shuffled(spark, parameters).mapPartitionsWithIndex(reduce).collect()


def reduce_waits_inside(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Reduce tasks stop at ``reduce-N`` when they have taken one record and many are left."""
    barrier = parameters.get("barrier")

    def reduce(index: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, int, str]]:
        records = iter(pairs)
        first = next(records)
        stop_at(barrier, f"reduce-{index}")
        return _digest(index, chain([first], records))

    return _shuffled(spark, parameters).mapPartitionsWithIndex(reduce).collect()


def prepare(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Run the map stage and one reduce task; ``read_again`` reads the rest later.

    ``settings`` are local properties of the thread meanwhile. With a ``barrier`` map tasks stop at
    ``map-N`` before their first record.
    """
    with local_properties(spark.sparkContext, parameters.get("settings", {})):
        shuffled = _shuffled(spark, parameters, parameters.get("barrier"))
        _kept["prepared"] = shuffled
        counts = spark.sparkContext.runJob(shuffled, lambda pairs: [sum(1 for _ in pairs)], [0])
    return [(count,) for count in counts]


def read_again(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Read all of what ``prepare`` shuffled, for the last time unless it is ``kept``."""
    prepared = _kept["prepared"] if parameters.get("kept") else _kept.pop("prepared")
    return prepared.mapPartitionsWithIndex(_digest).collect()


def release_prepared(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Release the map outputs of what ``prepare`` shuffled, which can be read again."""
    _kept["prepared"].cleanShuffleDependencies(blocking=True)
    return []


def map_fails_once(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """The first attempt of every other map task fails when it has made most of its records."""
    fails = bool(parameters.get("fails"))

    def records(number: int) -> Iterator[tuple[int, bytes]]:
        yield from _records(number, 5_000)
        task = TaskContext.get()
        if fails and number % 2 and task is not None and task.attemptNumber() == 0:
            raise RuntimeError("this map task fails once")

    numbers = spark.sparkContext.parallelize(range(MAPS), MAPS)
    shuffled = numbers.flatMap(records).partitionBy(REDUCERS)
    return shuffled.mapPartitionsWithIndex(_digest).collect()


def map_waits(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Map tasks stop at ``map-N`` when they have made all but their last record."""
    barrier = parameters.get("barrier")

    def records(number: int) -> Iterator[tuple[int, bytes]]:
        *most, last = _records(number, 5_000)
        yield from most
        stop_at(barrier, f"map-{number}")
        yield last

    numbers = spark.sparkContext.parallelize(range(MAPS), MAPS)
    return numbers.flatMap(records).partitionBy(REDUCERS).mapPartitionsWithIndex(_digest).collect()


def all_wait(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Map tasks stop at ``map-N`` and reduce tasks at ``reduce-N``, each in the middle of its data.

    A reduce task stops when it has taken its first record.
    """
    barrier, size = parameters.get("barrier"), int(parameters.get("record_bytes", 100))

    def records(number: int) -> Iterator[tuple[int, bytes]]:
        *most, last = _records(number, 5_000, size)
        yield from most
        stop_at(barrier, f"map-{number}")
        yield last

    def reduce(index: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, int, str]]:
        taken = iter(pairs)
        first = next(taken)
        stop_at(barrier, f"reduce-{index}")
        return _digest(index, chain([first], taken))

    numbers = spark.sparkContext.parallelize(range(MAPS), MAPS)
    shuffled = numbers.flatMap(records).partitionBy(REDUCERS)
    return shuffled.mapPartitionsWithIndex(reduce).collect()


def barrier_stages(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A barrier stage reads one shuffle and writes another.

    One of its two tasks stops at ``fails`` and then fails, once: it makes the file ``failed``. With
    ``kills`` its executor is killed. Without ``failed`` nothing fails, and nobody waits: Spark
    3.5's ``barrier()`` leaves a timer behind that keeps the JVM from ending, which is the driver's
    in local mode.
    """
    failed, kills = parameters.get("failed"), bool(parameters.get("kills"))
    barrier = parameters.get("barrier")

    def relabel(pairs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        task = BarrierTaskContext.get()
        for key, value in pairs:
            yield key * 7, value
        if failed is None:
            return
        task.barrier()
        if task.partitionId() == 1 and not Path(failed).exists():
            Path(failed).touch()
            stop_at(barrier, "fails")
            if kills:
                os.kill(jvm_pid(), signal.SIGKILL)
            raise RuntimeError("this stage fails once")

    numbers = spark.sparkContext.parallelize(range(MAPS), MAPS)
    pairs = numbers.flatMap(lambda number: _records(number, 5_000)).partitionBy(SLOTS)
    relabelled = pairs.barrier().mapPartitions(relabel)
    return relabelled.partitionBy(REDUCERS).mapPartitionsWithIndex(_digest).collect()


def straggler(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """The first attempt of map task 0 stops at ``original``, its speculative copy at ``copy``.

    Reduce tasks stop at ``reduce-N`` before they take their first record.
    """
    barrier = parameters.get("barrier")
    context: Any = spark.sparkContext
    # Spark reads it at each stage: only this job has copies, however slow the machine is.
    context._jsc.sc().conf().set("spark.speculation.quantile", "0.5")

    def records(number: int) -> Iterator[tuple[int, bytes]]:
        yield from _records(number, 2_000)
        task = TaskContext.get()
        if number == 0 and task is not None:
            stop_at(barrier, "copy" if task.attemptNumber() else "original")

    def reduce(index: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, int, str]]:
        stop_at(barrier, f"reduce-{index}")
        return _digest(index, pairs)

    numbers = spark.sparkContext.parallelize(range(MAPS), MAPS)
    shuffled = numbers.flatMap(records).partitionBy(REDUCERS)
    return shuffled.mapPartitionsWithIndex(reduce).collect()


def _shuffled(
    spark: SparkSession, parameters: dict[str, Any], barrier: str | None = None
) -> RDD[tuple[int, bytes]]:
    size, maps = int(parameters.get("record_bytes", 100)), int(parameters.get("maps", MAPS))

    def records(number: int) -> Iterator[tuple[int, bytes]]:
        stop_at(barrier, f"map-{number}")
        return _records(number, 5_000, size)

    numbers = spark.sparkContext.parallelize(range(maps), maps)
    return numbers.flatMap(records).partitionBy(REDUCERS)


def _records(number: int, count: int, size: int = 100) -> Iterator[tuple[int, bytes]]:
    """Records of map task ``number``: bytes that cannot be compressed."""
    for key in range(number * count, (number + 1) * count):
        yield key, random.Random(key).randbytes(size)


def _digest(index: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, int, str]]:
    """Number of records of a partition, and a digest that does not depend on their order."""
    total, count = 0, 0
    for key, value in pairs:
        total += int.from_bytes(hashlib.sha256(b"%d " % key + value).digest())
        count += 1
    yield index, count, hex(total % 2**256)


JOBS: dict[str, Job] = {
    build.__name__: build
    for build in (
        reduce_waits,
        reduce_waits_inside,
        prepare,
        read_again,
        release_prepared,
        map_fails_once,
        map_waits,
        all_wait,
        barrier_stages,
        straggler,
    )
}
