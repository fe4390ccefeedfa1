"""Word count over real text with the RDD API: reduceByKey, join, sortByKey."""

from __future__ import annotations

import re
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

_WORD = re.compile(r"[a-z]{2,}")


def words_of(text: str) -> Iterator[str]:
    """The words of a text in lower case: runs of at least two letters."""
    return iter(_WORD.findall(text.lower()))


def run(spark: SparkSession, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    """Count the words of the files listed in ``parameters["files"]``.

    Every word with its number of uses and the number of files that use it, most used first.
    ``parameters["partitions"]`` is the number of map and of reduce tasks.
    """
    partitions = int(parameters["partitions"])

    def read_words(index_and_path: tuple[int, str]) -> Iterator[tuple[str, int]]:
        index, path = index_and_path
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        return ((word, index) for word in words_of(text))

    files = list(enumerate(parameters["files"]))
    occurrences = spark.sparkContext.parallelize(files, partitions).flatMap(read_words)
    # Both counts below start from this one shuffle: its map tasks run once.
    uses_by_file = occurrences.map(lambda pair: (pair, 1)).reduceByKey(add, partitions)
    uses = uses_by_file.map(lambda entry: (entry[0][0], entry[1])).reduceByKey(add, partitions)
    using_files = uses_by_file.map(lambda entry: (entry[0][0], 1)).reduceByKey(add, partitions)
    return (
        uses.join(using_files, partitions)
        .map(lambda entry: ((-entry[1][0], entry[0]), entry[1][1]))
        .sortByKey(numPartitions=partitions)
        .map(lambda entry: (entry[0][1], -entry[0][0], entry[1]))
        .collect()
    )
