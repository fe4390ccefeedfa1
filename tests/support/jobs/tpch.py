"""The 22 TPC-H queries with the parameters of the specification's validation run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
QUERIES = tuple(range(1, 23))
SETTINGS = {
    # Joins must shuffle: neither the planner nor adaptive execution may broadcast a side.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "32",
    # About eight map tasks for the largest table, so that an output has several sources.
    "spark.sql.files.maxPartitionBytes": "32m",
}
"""Spark settings of an application that runs the queries at scale factor 1 on two cores."""

_DIRECTORY = Path(__file__).resolve().parent / "queries"


def query_text(number: int) -> str:
    """Return the SQL of a query.

    Raises:
        ValueError: TPC-H does not have a query of that number.
    """
    if number not in QUERIES:
        raise ValueError(f"TPC-H has queries 1 to 22, not {number}")
    return (_DIRECTORY / f"q{number:02}.sql").read_text(encoding="utf-8")


def query_title(number: int) -> str:
    """Return the title of a query: the comment in its first line.

    Raises:
        ValueError: TPC-H does not have a query of that number.
    """
    return query_text(number).partition("\n")[0].removeprefix("--").strip()


def run_query(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """Run query ``parameters["query"]`` over the parquet files in ``parameters["data"]``.

    ``parameters["adaptive"]``, if it is there, turns adaptive execution on or off.
    """
    if "adaptive" in parameters:
        spark.conf.set("spark.sql.adaptive.enabled", str(parameters["adaptive"]).lower())
    text = query_text(parameters["query"])
    data = Path(parameters["data"])
    for table in TABLES:
        if not spark.catalog.tableExists(table):
            frame = spark.read.parquet((data / f"{table}.parquet").as_uri())
            frame.createOrReplaceTempView(table)
    return spark.sql(text).collect()
