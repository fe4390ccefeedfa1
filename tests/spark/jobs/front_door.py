"""A job with pandas in it and a jar of its own; prints one JSON object of what it found.

With an argument, the endpoints, the job turns Sluice on itself: first beside a session that runs
without it, then with ``restart=True``.
"""

import json
import sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf

from sluice import SluiceError, configure


def main() -> None:
    found: dict[str, object] = {}
    builder = SparkSession.builder
    if len(sys.argv) > 1:
        builder.getOrCreate()
        try:
            configure(SparkSession.builder, sys.argv[1])
        except SluiceError as error:
            found["refused"] = str(error)
        configure(SparkSession.builder, sys.argv[1], restart=True).getOrCreate()
        # Once more, as a notebook's cell does.
        builder = configure(SparkSession.builder, sys.argv[1])
    spark = builder.getOrCreate()
    length = pandas_udf(_length, "long")
    rows = spark.range(0, 1000, 1, 4).selectExpr("string(id % 10) as k").groupBy("k").count()
    found["sum"] = rows.select(length("k").alias("n")).agg({"n": "sum"}).collect()[0][0]
    found["conf"] = dict(spark.sparkContext.getConf().getAll())
    found["python"] = sys.prefix
    found["worker"] = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.prefix).first()
    loader = spark.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found["own jar"] = loader.getResource("of-the-user.txt") is not None
    spark.stop()
    print("FOUND", json.dumps(found))


def _length(values: pd.Series) -> pd.Series:
    return values.str.len()


main()
