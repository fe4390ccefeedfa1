"""Jobs about how map tasks write: sizes of rows, memory, local disk, what is sent and when."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread, StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as f

from tests.spark.barrier import stop_at
from tests.spark.jobs import frames, jvm, rdds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.jobs.kinds import Job

Rows = list[tuple[Any, ...]]

PAGE_BYTES = 256 * 1024
"""Bytes that the writer requests from Spark at a time."""


def huge_rows(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A row of 32 MB to each of three partitions, between small ones."""
    # 64 digits, times half a million.
    times = f.when(f.col("id") % 10 == 5, 500_000).otherwise(1)
    digits = f.sha2(f.col("id").cast("string"), 256)
    rows = spark.range(0, 30, 1, 2).withColumns({"digits": digits, "times": times})
    rows = rows.select("id", f.expr("repeat(digits, times)").alias("text")).repartition(3, "id")
    return frames.rows_of(rows.select("id", f.length("text"), f.sha2("text", 256)))


def no_columns(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Rows without columns, one row, and none."""
    with_none = spark.range(0, 1000, 1, 4).select().repartition(3)
    one = spark.range(0, 1, 1, 4).repartition(3)
    return [
        (len(with_none.rdd.glom().map(len).collect()), with_none.count()),
        *frames.rows_of(one),
        *frames.rows_of(one.where("id > 5").repartition(2)),
    ]


def pressure(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A window's groups need memory while the map tasks of the next exchange gather its rows.

    With ``python``, a Python function stands between the two: then the window runs on a thread of
    its own.
    """
    groups = Window.partitionBy("key")
    numbers = spark.range(0, 200_000, 1, 4).select(
        # Each group is larger than the one before: it needs memory that the writer has by then.
        f.floor(f.sqrt(f.col("id") / 500)).alias("key"),
        "id",
        f.sha2(f.col("id").cast("string"), 256).alias("text"),
    )
    counted = numbers.withColumn("count", f.count("*").over(groups))
    if parameters.get("python"):
        length = f.udf(len, "int")
        counted = counted.withColumn("length", length("text"))
    return _digest(counted.repartition(50, "text"))


def no_memory(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Shuffle 20,000 rows; with ``full``, while cached blocks hold all memory.

    ``off_heap_bytes`` is the size of the off-heap memory if tasks use that.
    """
    off_heap = parameters.get("off_heap_bytes")
    # Each size fills the memory that the previous one leaves.
    sizes = [1_000_000] * 14 + [200_000] * 5 + [60_000] * 4
    storage = StorageLevel(
        useDisk=False, useMemory=True, useOffHeap=bool(off_heap), deserialized=False
    )
    context = spark.sparkContext
    blocks = context.parallelize(sizes, len(sizes)).map(os.urandom).persist(storage)
    if parameters.get("full"):
        blocks.count()
        assert _free_bytes(context, off_heap) < PAGE_BYTES
    try:
        return _digest(spark.range(0, 20_000, 1, 2).repartition(20, "id"))
    finally:
        blocks.unpersist(blocking=True)


def _free_bytes(context: Any, off_heap_bytes: int | None) -> int:
    jvm_context = context._jsc.sc()
    if off_heap_bytes:
        (cached,) = jvm_context.getRDDStorageInfo()
        return off_heap_bytes - int(cached.memSize())
    return int(jvm_context.getExecutorMemoryStatus().head()._2()._2())


def killed_spill(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A map task sorts its second half when the writer has gathered the first half.

    With a barrier, the task stops at ``half`` between the two, and is killed and interrupted when
    ``kill`` is released. The job ends when a second attempt of the task has succeeded.
    """
    barrier = parameters.get("barrier")
    context = spark.sparkContext
    text = f.sha2(f.col("id").cast("string"), 256).alias("text")

    def second_half(_: Iterable[int]) -> Iterator[tuple[int]]:
        stop_at(barrier, "half")
        return ((number,) for number in range(40_000, 200_000))

    half = spark.createDataFrame(context.parallelize([0], 1).mapPartitions(second_half), "id long")
    groups = Window.partitionBy(f.col("id") % 3)
    first = spark.range(0, 40_000, 1, 1).select("id", text, f.lit(0).cast("long").alias("count"))
    second = half.select("id", text).coalesce(1).withColumn("count", f.count("*").over(groups))
    one = first.union(second).coalesce(1)
    # Some lines of Spark drop the coalesce if the repartition follows it directly.
    frame = one.where(f.monotonically_increasing_id() >= 0).repartition(5, "id")
    if barrier is None:
        return _digest(frame)
    rows: Rows = []
    thread = InheritableThread(target=lambda: rows.extend(_digest(frame)))
    thread.start()
    stop_at(barrier, "kill")
    jvm_context: Any = context._jsc.sc()
    (stage,) = context.statusTracker().getActiveStageIds()
    task = jvm_context.statusStore().taskList(stage, 0, 10).apply(0)
    assert jvm_context.killTaskAttempt(task.taskId(), True, "as the test asks")
    thread.join()
    return rows


def _digest(frame: DataFrame) -> Rows:
    hashed = frame.select(f.xxhash64(*frame.columns).cast("decimal(38,0)").alias("hash"))
    return frames.rows_of(hashed.agg(f.count("hash"), f.sum("hash")))


def checksums(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Row checksums in the map statuses of one exchange; none before Spark 4.1."""
    frames.rows_of(frames.numbered(spark).repartition(7, "text"))
    # Py4J cannot look at SparkEnv: its methods name classes that are not there.
    context: Any = spark.sparkContext
    scheduler = context._jsc.sc().dagScheduler()
    field = scheduler.getClass().getDeclaredField("mapOutputTracker")
    field.setAccessible(True)
    tracker = field.get(scheduler)
    shuffles = tracker.shuffleStatuses().keySet().toSeq()
    newest = max(int(shuffles.apply(place)) for place in range(shuffles.size()))
    statuses = tracker.shuffleStatuses().apply(newest).mapStatuses()
    if spark.version < "4.1":
        return [(place,) for place in range(len(statuses))]
    return [(place, int(status.checksumValue())) for place, status in enumerate(statuses)]


def local_files(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Whether shuffles made files where Spark has its own: ours, then one of Spark's writers."""
    local = Path(spark.sparkContext.getConf().get("spark.local.dir", ""))
    with CreatedFiles(local.glob("**/blockmgr-*")) as created:
        rows = [
            *frames.repartition(spark, parameters),
            *frames.join(spark, parameters),
            *rdds.group_by_key(spark, parameters),
            *rdds.repartition(spark, parameters),
        ]
        ours = created.names()
        # Its serializer is not relocatable.
        jvm.group_by_key(spark, parameters)
        others = created.names()
    return [*rows, *(("ours", name) for name in ours), ("others", "temp_shuffle" in str(others))]


class CreatedFiles:
    """Names of the files of shuffles that are made in block managers' directories meanwhile.

    They may be gone again at once, so the kernel is asked to tell (inotify).
    """

    _CREATED = 0x100
    _HEAD = struct.Struct("iIII")
    _SUBDIRECTORIES = 64

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = list(directories)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK)
        for directory in self._directories:
            for number in range(self._SUBDIRECTORIES):
                folder = directory / f"{number:02x}"
                folder.mkdir(exist_ok=True)  # Spark makes it with its first file
                watch = self._libc.inotify_add_watch(
                    self._descriptor, os.fsencode(folder), self._CREATED
                )
                if watch < 0:
                    raise OSError(ctypes.get_errno(), f"{folder} cannot be watched")
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def names(self) -> list[str]:
        """Those since the last call."""
        found: list[str] = []
        while True:
            try:
                events = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return [name for name in found if "shuffle" in name]
            while events:
                length = self._HEAD.unpack_from(events)[3]
                end = self._HEAD.size + length
                found.append(events[self._HEAD.size : end].rstrip(b"\0").decode())
                events = events[end:]


def map_waits(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A map task of 4 MB stops at ``half`` when it has made the first half."""
    barrier = parameters.get("barrier")

    def records(number: int) -> Iterator[tuple[int, int]]:
        for key in range(number, number + 40_000):
            if key == 20_000:
                stop_at(barrier, "half")
            yield key % 100, key

    one = spark.sparkContext.parallelize([0], 1).flatMap(records)
    wide = one.map(lambda pair: (pair[0], f"{pair[1]:0100d}"))
    counts = wide.partitionBy(5).mapValues(len).values()
    return [(counts.count(), counts.sum())]


JOBS: dict[str, Job] = {
    f"writer_{build.__name__}": build
    for build in (
        huge_rows,
        no_columns,
        pressure,
        no_memory,
        killed_spill,
        checksums,
        local_files,
        map_waits,
    )
}
