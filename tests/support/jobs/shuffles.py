"""Jobs that consist almost only of shuffles, each dominated by another cost.

``repartition`` moves wide rows (bytes), ``aggregate`` sums by many keys (records), ``sort`` orders
text (records and bytes), ``small_blocks`` has very many tiny blocks (per-block cost);
``map_outputs`` has very many tiny map tasks (per-task cost), and ``map_outputs_square`` as many
reduce tasks too; ``blocks`` has blocks of a known number of rows, ``tiny_shuffles`` many shuffles
of a few rows.

Every job can end in two ways. ``"mode": "time"`` throws its rows away in the executors.
``"mode": "check"`` returns one row, the number of rows and a sum of a hash of every row, which
does not depend on their order; this untimed run shows that both sides compute the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.jobs.kinds import Job


def repartition(spark: SparkSession, parameters: dict[str, Any]) -> DataFrame:
    """``rows`` rows of 125 longs (1 kB), ``maps`` map tasks, ``reducers`` reduce tasks."""
    columns = [f.xxhash64(f.col("id"), f.lit(column)).alias(f"c{column}") for column in range(124)]
    wide = spark.range(0, parameters["rows"], 1, parameters["maps"]).select("id", *columns)
    return wide.repartition(parameters["reducers"], "id")


def aggregate(spark: SparkSession, parameters: dict[str, Any]) -> DataFrame:
    """Sum of ``rows`` values by ``keys`` keys, ``maps`` map tasks, ``reducers`` reduce tasks."""
    spark.conf.set("spark.sql.shuffle.partitions", str(parameters["reducers"]))
    numbers = spark.range(0, parameters["rows"], 1, parameters["maps"])
    # Multiplying by an odd number spreads each key's rows over the map tasks.
    keyed = numbers.select(
        f.pmod(f.col("id") * f.lit(2654435761), f.lit(parameters["keys"])).alias("key"),
        f.col("id").alias("value"),
    )
    return keyed.groupBy("key").agg(f.sum("value").alias("total"))


def sort(spark: SparkSession, parameters: dict[str, Any]) -> DataFrame:
    """Order ``rows`` rows of a long and 64 hexadecimal digits by the digits."""
    spark.conf.set("spark.sql.shuffle.partitions", str(parameters["reducers"]))
    numbers = spark.range(0, parameters["rows"], 1, parameters["maps"])
    digits = f.sha2(f.col("id").cast("string").cast("binary"), 256)
    return numbers.select("id", digits.alias("digits")).orderBy("digits")


def small_blocks(spark: SparkSession, parameters: dict[str, Any]) -> DataFrame:
    """``rows`` small rows from ``maps`` map tasks to ``reducers`` reduce tasks."""
    numbers = spark.range(0, parameters["rows"], 1, parameters["maps"])
    return numbers.repartition(parameters["reducers"], "id")


def blocks(spark: SparkSession, parameters: dict[str, Any]) -> DataFrame:
    """``rows_per_block`` rows of 180 bytes from each of ``maps`` tasks to each of ``reducers``."""
    # Each map task deals its rows out in turn; sorting them first would cost more than the rest.
    spark.conf.set("spark.sql.execution.sortBeforeRepartition", "false")
    maps, reducers = parameters["maps"], parameters["reducers"]
    columns = [f.xxhash64(f.col("id"), f.lit(column)).alias(f"c{column}") for column in range(20)]
    rows = spark.range(0, maps * reducers * parameters["rows_per_block"], 1, maps)
    return rows.select("id", *columns).repartition(reducers)


def tiny_shuffles(spark: SparkSession, parameters: dict[str, Any]) -> DataFrame:
    """``rows`` rows through ``shuffles`` aggregations in a row, each by another key of its own.

    No two rows have the same key, so that every shuffle moves all of them.
    """
    spark.conf.set("spark.sql.shuffle.partitions", str(parameters["reducers"]))
    numbers = spark.range(0, parameters["rows"], 1, parameters["maps"])
    frame = numbers.select(f.col("id").alias("key"), f.col("id").alias("value"))
    for number in range(parameters["shuffles"]):
        key = f.xxhash64(f.col("key"), f.lit(number)).alias("key")
        frame = frame.groupBy(key).agg(f.sum("value").alias("value"))
    return frame


def _job(
    build: Callable[[SparkSession, dict[str, Any]], DataFrame], *, adaptive: bool = False
) -> Job:
    def run(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        # Adaptive execution joins small reduce partitions; it is on only where users have it on.
        spark.conf.set("spark.sql.adaptive.enabled", str(adaptive).lower())
        frame = build(spark, parameters)
        if parameters.get("mode", "time") == "time":
            frame.write.format("noop").mode("overwrite").save()
            return []
        hashed = f.xxhash64(*frame.columns).cast("decimal(38,0)")
        # Using a row's position keeps the optimizer from dropping a sort without a reader.
        placed = frame.select(hashed.alias("hash"), f.monotonically_increasing_id().alias("place"))
        checked = placed.agg(f.count("hash"), f.sum("hash"), f.min("place"))
        return checked.collect()

    return run


JOBS: dict[str, Job] = {
    "repartition": _job(repartition),
    "aggregate": _job(aggregate),
    "sort": _job(sort),
    "small_blocks": _job(small_blocks),
    "map_outputs": _job(small_blocks),
    "map_outputs_square": _job(small_blocks),
    "blocks": _job(blocks),
    "tiny_shuffles": _job(tiny_shuffles, adaptive=True),
}
