"""A job whose reduce tasks hold their slots until all of them run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.spark.barrier import stop_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

Rows = list[tuple[Any, ...]]

RECORDS = 1_000


def held_reducers(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Count the records of ``reducers`` partitions; each reduce task stops at ``reduce-N``."""
    barrier = str(parameters["barrier"])
    reducers = int(parameters["reducers"])
    maps = int(parameters["maps"])
    context = spark.sparkContext

    def hold(index: int, numbers: Iterable[Any]) -> Iterator[int]:
        count = sum(1 for _ in numbers)
        stop_at(barrier, f"reduce-{index}")
        yield count

    shuffled = (
        context.parallelize(range(RECORDS), maps)
        .map(lambda number: (number, number))
        .partitionBy(reducers)
        .mapPartitionsWithIndex(hold)
    )
    return [(count,) for count in shuffled.collect()]


def own_partitions(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Each map task fills the partition of its number, and stops at ``map-N`` before the end."""
    barrier = str(parameters["barrier"])
    maps = int(parameters["maps"])

    def records(number: int) -> Iterator[tuple[int, bytes]]:
        yield from ((number, bytes([each % 256]) * 100) for each in range(RECORDS))
        stop_at(barrier, f"map-{number}")

    shuffled = (
        spark.sparkContext.parallelize(range(maps), maps)
        .flatMap(records)
        .partitionBy(maps, int)
        .mapPartitionsWithIndex(lambda index, pairs: [(index, sum(len(v) for _, v in pairs))])
    )
    return list(shuffled.collect())


def hide_hosts(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Do what the driver does when the first executor without a TaskManager on its host reports."""
    jvm_view: Any = spark.sparkContext._jvm
    loader = jvm_view.java.lang.Thread.currentThread().getContextClassLoader()
    tracker = loader.loadClass("io.sluice.spark.outputs.SparkTracker")
    method = next(each for each in tracker.getDeclaredMethods() if _hides_all(each))
    method.setAccessible(True)
    method.invoke(None, None)
    return []


def _hides_all(method: Any) -> bool:
    return bool(method.getName() == "hideHosts" and method.getParameterCount() == 0)


JOBS: dict[str, Job] = {
    build.__name__: build for build in (held_reducers, own_partitions, hide_hosts)
}
