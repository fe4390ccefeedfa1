"""Start a Spark Connect server, run two clients, and print their results as JSON.

Its arguments are the endpoints, and settings as KEY=VALUE.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from sluice import configure

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd


WAIT_SECONDS = 60.0


def main() -> None:
    found: dict[str, Any] = {}
    builder = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "3")
    for setting in sys.argv[2:]:
        key, _, value = setting.partition("=")
        builder.config(key, value)
    first: Any = configure(builder, sys.argv[1]).getOrCreate()
    # Once more, as a notebook's cell does.
    found["same session"] = configure(SparkSession.builder, sys.argv[1]).getOrCreate() is first
    found["connect"] = isinstance(first, ConnectSession)
    found["active"] = first.sql("SET spark.sluice.active").collect()[0]["value"]
    second: Any = ConnectSession.builder.remote("sc://localhost").create()
    found["sums"] = [_sum(first), _sum(second)]
    found["artifact"] = _of_an_artifact(second)
    found["interrupted"] = _interrupted(second)
    found["after"] = [_sum(first), _sum(second)]
    second.conf.set("spark.sluice.enabled", "false")
    found["left to Spark"] = _sum(second)
    second.client.close()
    first.stop()
    print("FOUND", json.dumps(found))


def _sum(spark: Any) -> int:
    """Sum by key, then sum the keys' results."""
    keys = spark.range(0, 1000, 1, 4).selectExpr("id % 10 AS k", "id").repartition(5)
    total: int = keys.groupBy("k").sum("id").agg({"sum(id)": "sum"}).collect()[0][0]
    return total


def _of_an_artifact(spark: Any) -> int:
    """Use a module of the client in a task after a shuffle."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "of_the_client.py")
        path.write_text("FACTOR = 3\n", encoding="utf-8")
        spark.addArtifacts(str(path), pyfile=True)

    def times(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import of_the_client  # type: ignore[import-not-found]

        for frame in frames:
            yield frame * of_the_client.FACTOR

    rows = spark.range(0, 100, 1, 4).repartition(3, "id").mapInPandas(times, "id long")
    total: int = rows.agg({"id": "sum"}).collect()[0][0]
    return total


def _interrupted(spark: Any) -> str:
    """Interrupt a query while a task after its shuffle runs; return the error."""
    errors: list[Exception] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_SECONDS)
        address = server.getsockname()

        def block(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            with socket.create_connection(address) as connection:
                connection.recv(1)
            yield from frames

        def run() -> None:
            try:
                spark.range(0, 100, 1, 4).repartition(1).mapInPandas(block, "id long").collect()
            except Exception as error:  # noqa: BLE001 - returned
                errors.append(error)

        query = threading.Thread(target=run, daemon=True)
        query.start()
        connection, _ = server.accept()
        with connection:
            spark.interruptAll()
            query.join(WAIT_SECONDS)
    return type(errors[0]).__name__ + ": " + str(errors[0])[:200] if errors else "none"


main()
