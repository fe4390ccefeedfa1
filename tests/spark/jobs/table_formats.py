"""Delta Lake and Iceberg: writes, merges and compactions. The rows are those of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.jobs.kinds import Job

ROWS = 4000
STREAM_SECONDS = 120
Rows = list[tuple[Any, ...]]


def _source(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 4).select(
        "id", (f.col("id") % 7).alias("part"), f.hex("id").alias("text")
    )


def _updates(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS // 2, 2 * ROWS, 3, 3).select(
        "id", (f.col("id") % 7).alias("part"), f.lit("merged").alias("text")
    )


def _merge(spark: SparkSession, table: str, updates: DataFrame) -> None:
    updates.createOrReplaceTempView("updates")
    spark.sql(
        f"MERGE INTO {table} t USING updates u ON t.id = u.id"
        " WHEN MATCHED THEN UPDATE SET text = u.text"
        " WHEN NOT MATCHED THEN INSERT (id, part, text) VALUES (u.id, u.part, u.text)"
    )


def _change(spark: SparkSession, table: str) -> None:
    _merge(spark, table, _updates(spark))
    spark.sql(f"UPDATE {table} SET text = 'updated' WHERE id % 11 = 0")
    spark.sql(f"DELETE FROM {table} WHERE id % 13 = 0")


def _rows(spark: SparkSession, table: str) -> Rows:
    return [tuple(row) for row in spark.table(table).orderBy("id").collect()]


def _stream_into(spark: SparkSession, table: str, path: str) -> None:
    _updates(spark).write.format("parquet").save(f"{path}-stream")
    arrivals = spark.readStream.schema(_updates(spark).schema).parquet(f"{path}-stream")

    def merge(batch: DataFrame, number: int) -> None:
        _merge(batch.sparkSession, table, batch.repartition(3, "id"))

    writer: Any = arrivals.writeStream.foreachBatch(merge)
    query = writer.option("checkpointLocation", f"{path}-checkpoint").trigger(availableNow=True)
    query.start().awaitTermination(STREAM_SECONDS)


def delta_optimized_write(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """An optimized write behind an exchange of its own: the option, then the table's property."""
    table = f"delta.`{parameters['path']}`"
    source = _source(spark).repartition(5, "id")
    writer = source.write.format("delta").partitionBy("part").option("optimizeWrite", "true")
    writer.save(str(parameters["path"]))
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.autoOptimize.optimizeWrite'='true')")
    source.withColumn("id", f.col("id") + ROWS).write.format("delta").mode("append").save(
        str(parameters["path"])
    )
    return _rows(spark, table)


def delta_changes(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """MERGE, UPDATE and DELETE, perhaps with deletion vectors, then OPTIMIZE ZORDER."""
    table = f"delta.`{parameters['path']}`"
    _source(spark).repartition(5, "id").write.format("delta").save(str(parameters["path"]))
    vectors = parameters["vectors"]
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors'='{vectors}')")
    _change(spark, table)
    spark.sql(f"OPTIMIZE {table} ZORDER BY (text)")
    return _rows(spark, table)


def delta_stream(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """A stream whose batches are merged."""
    table = f"delta.`{parameters['path']}`"
    _source(spark).write.format("delta").save(str(parameters["path"]))
    _stream_into(spark, table, str(parameters["path"]))
    return _rows(spark, table)


def iceberg_changes(spark: SparkSession, parameters: dict[str, Any]) -> Rows:
    """Ordered writes, MERGE, UPDATE and DELETE, a stream, and rewrite_data_files."""
    name = str(parameters["name"])
    table = f"ice.db.{name}"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, part BIGINT, text STRING) USING iceberg"
        " PARTITIONED BY (part)"
        f" TBLPROPERTIES ('write.merge.mode'='{parameters['mode']}', 'format-version'='2',"
        f" 'write.update.mode'='{parameters['mode']}', 'write.delete.mode'='{parameters['mode']}')"
    )
    spark.sql(f"ALTER TABLE {table} WRITE ORDERED BY text")
    _source(spark).writeTo(table).append()
    _change(spark, table)
    _stream_into(spark, table, str(parameters["path"]))
    for options in ("", ", strategy => 'sort', sort_order => 'zorder(id, text)'"):
        spark.sql(
            f"CALL ice.system.rewrite_data_files(table => 'db.{name}'{options},"
            " options => map('rewrite-all', 'true'))"
        )
    return _rows(spark, table)


BUILDERS: tuple[Callable[[SparkSession, dict[str, Any]], Rows], ...] = (
    delta_optimized_write,
    delta_changes,
    delta_stream,
    iceberg_changes,
)
JOBS: dict[str, Job] = {build.__name__: build for build in BUILDERS}
