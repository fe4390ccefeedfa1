"""A job whose reduce tasks hold their slots until all of them run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.spark.barrier import stop_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from benchmarks.jobs.kinds import Job

Rows = list[tuple[Any, ...]]


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
        context.parallelize(range(1000), maps)
        .map(lambda number: (number, number))
        .partitionBy(reducers)
        .mapPartitionsWithIndex(hold)
    )
    return [(count,) for count in shuffled.collect()]


JOBS: dict[str, Job] = {"held_reducers": held_reducers}
