"""Structured Streaming through Sluice: micro-batches that add to a count by word.

A file of words arrives for each micro-batch. Each micro-batch shuffles its words to the state, and
the checkpoint of the query is on disk, as in every streaming job. The counts at the end must be
those of a query over all files.

    sluice submit -- examples/spark/counts_streaming.py
    sluice submit --endpoints host1:7337,host2:7337 -- examples/spark/counts_streaming.py
"""

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import explode, split

WORDS = ("to", "be", "or", "not", "to", "be", "that", "is", "the", "question")


def write_files(folder: Path, files: int) -> None:
    """Write the files: each has one word more than the one before."""
    for number in range(files):
        words = (WORDS[place % len(WORDS)] for place in range(20 + number))
        (folder / f"{number:03}.txt").write_text(" ".join(words) + "\n", encoding="utf-8")


def counts_of(lines: DataFrame) -> DataFrame:
    """Count the words of lines, which may be a stream."""
    return lines.select(explode(split("value", " ")).alias("word")).groupBy("word").count()


def streamed_counts(spark: SparkSession, files: Path, checkpoint: Path) -> tuple[list[Row], int]:
    """Return the counts after the last micro-batch, and the number of micro-batches."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files))
    query = (
        counts_of(lines)
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("counts")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)  # all files there are, one for each micro-batch
        .start()
    )
    query.awaitTermination()
    batches = len([each for each in query.recentProgress if each["numInputRows"]])
    return spark.table("counts").orderBy("word").collect(), batches


def main() -> None:
    """Run the stream, and compare its counts with those of one query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=4)
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("streaming counts").getOrCreate()
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch, "files")
        files.mkdir()
        write_files(files, arguments.files)
        streamed, batches = streamed_counts(spark, files, Path(scratch, "checkpoint"))
        expected = counts_of(spark.read.text(str(files))).orderBy("word").collect()
    spark.stop()
    for row in streamed:
        print(f"{row['count']:>6}  {row['word']}")
    if streamed != expected:
        raise SystemExit("The counts of the stream differ from those of one query")
    print(f"{batches} micro-batches gave the counts of one query")


if __name__ == "__main__":
    main()
