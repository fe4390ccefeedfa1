"""Jobs about how map tasks write: rows of every size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from tests.spark.jobs import frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.jobs.kinds import Job

Rows = list[tuple[Any, ...]]


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


JOBS: dict[str, Job] = {f"writer_{build.__name__}": build for build in (huge_rows, no_columns)}
