"""Jobs whose map tasks give something else when they run again."""

from __future__ import annotations

from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from tests.spark.barrier import stop_at
from tests.spark.jobs.settings import sql_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.support.jobs.kinds import Job

RECORDS = 20_000
MAPS = 4
READERS = 6
LAST = 2
Rows = list[tuple[Any, ...]]

PLAIN = {"spark.sql.adaptive.enabled": "false"}  # the stages and tasks that are written here
CHECKSUMS = {  # as Spark 4.2 and later have it by themselves
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}


def told_apart(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A function that Spark takes for deterministic, and that returns what is in a file.

    Only checksums of rows show that a map task gave something else when it ran again.
    """
    path = parameters["token"]

    @f.udf("string")
    def token(_: int) -> str:
        return Path(path).read_text(encoding="utf-8")

    with sql_settings(spark, PLAIN | CHECKSUMS):
        numbers = spark.range(0, RECORDS, 1, MAPS).withColumn("token", token("id"))
        return _grouped(numbers.repartition(READERS, "id"), parameters)


def rolled_back(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A stage that Spark knows to give something else each time: it deals out unordered rows.

    What a run of it gives has a token in it: what is in a file then. Tasks that have read it stop
    at ``TOKEN-N``.

    The rows: token, numbers modulo ``LAST``, how many, sums.
    """
    path, barrier = parameters["token"], parameters.get("barrier")

    def marked(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[str, int]]:
        token = Path(path).read_text(encoding="utf-8")
        numbers = [number for _, number in pairs]
        return ((token, number) for number in sorted(numbers, reverse=token == "second"))

    def read(
        index: int, rows: Iterable[tuple[str, int]]
    ) -> Iterator[tuple[tuple[str, int], tuple[int, ...]]]:
        taken = list(rows)
        stop_at(barrier, f"{taken[0][0]}-{index}")
        for token, number in taken:
            yield (token, number % LAST), (1, number, number**2)

    numbers = spark.sparkContext.parallelize(range(RECORDS), MAPS).map(lambda n: (n, n))
    dealt = numbers.partitionBy(MAPS).mapPartitions(marked).repartition(READERS)
    sums = dealt.mapPartitionsWithIndex(read).reduceByKey(_sum, LAST).collect()
    return [(*group, *of_group) for group, of_group in sums]


def _sum(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(add, left, right))


def _grouped(frame: DataFrame, parameters: dict[str, Any]) -> Rows:
    """Tasks that read ``frame`` stop at ``read-N``; their output goes through another shuffle.

    The rows: first map task that had the numbers, token, how many numbers, sums.
    """
    barrier = parameters.get("barrier")

    def read(index: int, rows: Iterable[Row]) -> Iterator[tuple[tuple[int, str], Any]]:
        stop_at(barrier, f"read-{index}")
        for row in rows:
            values = row.asDict()
            group = values["id"] // (RECORDS // MAPS), values.get("token", "")
            yield group, (1, values["id"], values["id"] ** 2)

    groups = frame.rdd.mapPartitionsWithIndex(read).reduceByKey(_sum, LAST)
    return [(*group, *sums) for group, sums in groups.collect()]


JOBS: dict[str, Job] = {build.__name__: build for build in (told_apart, rolled_back)}
