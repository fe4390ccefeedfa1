"""Jobs with resource profiles, kept data sets, and a partition of more than 2 GiB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel, TaskContext
from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import functions as f

from tests.spark.jobs.failing import MAPS, REDUCERS, Rows, _digest, _records, _shuffled
from tests.spark.jobs.frames import rows_of
from tests.spark.jobs.settings import sql_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark import RDD
    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

ROW_BYTES = 1 << 20

_kept: dict[str, RDD[tuple[int, bytes]]] = {}


def profiles(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Map tasks take ``cpus[0]`` cores, reduce tasks ``cpus[1]``; without ``cpus`` one each.

    With ``executors``, each stage has executors of its own profile, of four cores.
    """
    cpus, executors = parameters.get("cpus"), bool(parameters.get("executors"))

    def records(number: int) -> Iterator[tuple[int, bytes]]:
        _check_cpus(cpus, 0)
        yield from _records(number, 5_000)

    def reduce(index: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, int, str]]:
        _check_cpus(cpus, 1)
        return _digest(index, pairs)

    numbers = spark.sparkContext.parallelize(range(MAPS), MAPS).flatMap(records)
    if cpus:
        numbers = _with_cpus(numbers, cpus[0], executors=executors)
    reduced = numbers.partitionBy(REDUCERS).mapPartitionsWithIndex(reduce)
    if cpus:
        reduced = _with_cpus(reduced, cpus[1], executors=executors)
    return reduced.collect()


def _with_cpus(rdd: RDD[Any], cpus: int, *, executors: bool) -> RDD[Any]:
    builder = ResourceProfileBuilder().require(TaskResourceRequests().cpus(cpus))
    if executors:
        builder = builder.require(ExecutorResourceRequests().cores(4).memory("768m"))
    return rdd.withResources(builder.build)


def _check_cpus(cpus: list[int] | None, stage: int) -> None:
    task = TaskContext.get()
    if cpus and task is not None and task.cpus() != cpus[stage]:
        raise RuntimeError(f"this task has {task.cpus()} cores, not {cpus[stage]}")


def keep(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Keep a shuffled data set: ``cached``, or with a ``local`` or ``reliable`` checkpoint."""
    kind, shuffled = str(parameters["kind"]), _shuffled(spark, parameters)
    if kind == "reliable":
        spark.sparkContext.setCheckpointDir(str(parameters["directory"]))
        shuffled.checkpoint()
    elif kind == "local":
        # With one copy, the loss of an executor would fail the job.
        shuffled.persist(StorageLevel.MEMORY_AND_DISK_2)
        shuffled.localCheckpoint()
    else:
        shuffled.persist(StorageLevel.MEMORY_ONLY)
    _kept[kind] = shuffled
    return [(shuffled.count(), shuffled.isCheckpointed())]


def read_kept(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Read the data set of ``keep``, and unpersist it."""
    kept = _kept.pop(str(parameters["kind"]))
    rows = kept.mapPartitionsWithIndex(_digest).collect()
    kept.unpersist(blocking=True)
    return rows


def large_partition(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Write ``rows`` rows of 1 MiB to the last of three partitions in one map task."""
    rows = int(parameters["rows"])
    # Two other keys with small rows: the large partition has neighbors in the map output.
    key = f.when(f.col("id") % 100 == 7, f.col("id") % 3).otherwise(f.lit(2))
    digits = f.sha2(f.col("id").cast("string"), 256)
    times = f.when(key == 2, ROW_BYTES // 64).otherwise(1)
    frame = spark.range(0, rows, 1, 1).withColumns({"digits": digits, "times": times, "key": key})
    frame = frame.select("id", "key", f.expr("repeat(digits, times)").alias("text"))
    with sql_settings(spark, {"spark.sql.adaptive.enabled": "false"}):
        exchanged = frame.repartition(3, "key").select(
            "key", "id", f.length("text").alias("length"), f.crc32("text").alias("crc")
        )
        hashed = f.xxhash64("id", "crc").cast("decimal(38,0)")
        groups = exchanged.groupBy("key").agg(f.count("*"), f.sum("length"), f.sum(hashed))
        return rows_of(groups)


_BUILDS: tuple[Callable[[SparkSession, dict[str, Any]], Rows], ...] = (
    profiles,
    keep,
    read_kept,
    large_partition,
)
JOBS: dict[str, Job] = {f"matrix_{build.__name__}": build for build in _BUILDS}
