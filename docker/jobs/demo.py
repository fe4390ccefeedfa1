"""A small job that is mostly shuffle: aggregation, join and sort of a table of orders.

Prints the result, the name of the shuffle manager, and a digest of the result, so that two runs can
be compared: all columns are integers and texts, so the digests must be equal.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from operator import add
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REGIONS = 7
PARTITIONS = 8
SPARK_OWN_MANAGER = "sort"


def revenue_by_region(spark: SparkSession, orders: int, customers: int) -> DataFrame:
    """Orders summed by customer, joined with the customers, summed by region, sorted."""
    order = spark.range(0, orders, 1, PARTITIONS).select(
        (f.col("id") * 2_654_435_761 % customers).alias("customer"),
        (f.col("id") % 9_973).alias("cents"),
    )
    customer = spark.range(0, customers, 1, PARTITIONS).select(
        f.col("id").alias("customer"), (f.col("id") % REGIONS).alias("region")
    )
    by_customer = order.groupBy("customer").agg(
        f.sum("cents").alias("cents"), f.count("*").alias("orders")
    )
    return (
        by_customer.join(customer, "customer")
        .groupBy("region")
        .agg(
            f.count("*").alias("customers"),
            f.sum("orders").alias("orders"),
            f.sum("cents").alias("cents"),
        )
        .orderBy(f.desc("cents"), "region")
    )


def last_digits(spark: SparkSession, numbers: int) -> list[tuple[str, int]]:
    """Count the last three digits of the squares with the functions of RDDs."""
    return (
        spark.sparkContext.parallelize(range(numbers), PARTITIONS)
        .map(lambda number: (f"{number * number % 1000:03d}", 1))
        .reduceByKey(add, PARTITIONS)
        .sortByKey(numPartitions=PARTITIONS)
        .collect()
    )


def main() -> None:
    """Run both parts and print their results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=500_000)
    parser.add_argument("--customers", type=int, default=50_000)
    arguments = parser.parse_args()
    spark = (
        SparkSession.builder.appName("Sluice demo")
        # A broadcast join would not shuffle.
        .config("spark.sql.autoBroadcastJoinThreshold", "-1")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .getOrCreate()
    )
    started = time.perf_counter()
    table = revenue_by_region(spark, arguments.orders, arguments.customers)
    regions = [tuple(row) for row in table.collect()]
    digits = last_digits(spark, arguments.orders // 20)
    seconds = time.perf_counter() - started
    manager = spark.sparkContext.getConf().get("spark.shuffle.manager", SPARK_OWN_MANAGER)
    spark.stop()

    columns = ("region", "customers", "orders", "cents")
    print("".join(f"{column:>14}" for column in columns))
    for row in regions:
        print("".join(f"{value:>14}" for value in row))
    digest = hashlib.sha256(repr((regions, digits)).encode()).hexdigest()
    print(f"seconds: {seconds:.1f}")
    print(f"shuffle: {manager}")
    print(f"digest: {digest}")


if __name__ == "__main__":
    main()
