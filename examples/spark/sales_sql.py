"""Spark SQL through Sluice: a join, an aggregation and a window, each with a shuffle.

The job is plain Spark. The last query runs with Spark's own shuffle, because the session turns
Sluice off for it, and must give the same rows.

    sluice submit -- examples/spark/sales_sql.py
    sluice submit --endpoints host1:7337,host2:7337 -- examples/spark/sales_sql.py --sales 1000000
"""

import argparse

from pyspark.sql import DataFrame, SparkSession

REGIONS = ("north", "east", "south", "west")

TOP_CUSTOMERS = """
    SELECT region, customer, cents
    FROM (
        SELECT region, customer, cents,
               row_number() OVER (PARTITION BY region ORDER BY cents DESC, customer) AS place
        FROM (
            SELECT region, customers.customer, sum(cents) AS cents
            FROM sales JOIN customers ON sales.customer = customers.customer
            GROUP BY region, customers.customer
        )
    )
    WHERE place <= 3
    ORDER BY region, cents DESC, customer
"""


def top_customers(spark: SparkSession, sales: int, customers: int) -> DataFrame:
    """Return the three best customers of each region; the sales are made of their numbers."""
    names = ", ".join(f"'{region}'" for region in REGIONS)
    spark.range(customers).selectExpr(
        "id AS customer", f"element_at(array({names}), int(id % {len(REGIONS)}) + 1) AS region"
    ).createOrReplaceTempView("customers")
    spark.range(sales).selectExpr(
        f"(id * 7919) % {customers} AS customer", "(id * 31) % 10000 AS cents"
    ).createOrReplaceTempView("sales")
    return spark.sql(TOP_CUSTOMERS)


def main() -> None:
    """Run the query twice; the second time Spark shuffles by itself."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sales", type=int, default=100_000)
    parser.add_argument("--customers", type=int, default=1_000)
    arguments = parser.parse_args()
    spark = (
        SparkSession.builder.appName("top customers")
        # A broadcast join would not shuffle.
        .config("spark.sql.autoBroadcastJoinThreshold", "-1")
        .getOrCreate()
    )
    active = spark.conf.get("spark.sluice.active", "false")
    rows = top_customers(spark, arguments.sales, arguments.customers).collect()
    for row in rows:
        print(f"{row['region']:<8}{row['customer']:>8}{row['cents'] / 100:>14,.2f}")

    spark.conf.set("spark.sluice.enabled", "false")
    own = top_customers(spark, arguments.sales, arguments.customers).collect()
    spark.stop()
    if rows != own:
        raise SystemExit("The rows differ from those of Spark's own shuffle")
    print(f"Sluice is active: {active}; Spark's own shuffle gives the same {len(rows)} rows")


if __name__ == "__main__":
    main()
