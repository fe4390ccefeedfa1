"""A job with pandas in it and a jar of its own; prints one JSON object of what it found.

With an argument, the endpoints, the job turns Sluice on itself: first beside a session that runs
without it, then with ``restart=True``.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import SparkSession

from sluice import SluiceError, configure

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    rows = spark.range(0, 1000, 1, 4).selectExpr("string(id % 10) as k").groupBy("k").count()
    found["sum"] = rows.mapInPandas(_lengths, "n long").agg({"n": "sum"}).collect()[0][0]
    found["conf"] = dict(spark.sparkContext.getConf().getAll())
    found["python"] = sys.prefix
    found["worker"] = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.prefix).first()
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found["own jar"] = loader.getResource("of-the-user.txt") is not None
    spark.stop()
    print("FOUND", json.dumps(found))


def _lengths(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"n": frame["k"].str.len()})


main()
