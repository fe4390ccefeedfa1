"""A shuffle by the Python API inside ``mapPartitions``: Spark itself moves only where it lies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sluice.shuffle.client.partition_location import decode_locations, encode_locations
from sluice.shuffle.dataflow.sync import SyncShuffleClient
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.selectors import HashSelector
from sluice.shuffle.records.serializers import StringSerializer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from tests.support.jobs.kinds import Job

MAPS = 3
REDUCERS = 2
WORDS = [f"word {number * number % 97}" for number in range(3000)]


def word_count(spark: SparkSession, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """How often each word is there; ``parameters["endpoint"]`` is the TaskManager."""
    endpoint, application = parameters["endpoint"], "map-partitions"

    def write(index: int, words: Iterable[str]) -> Iterator[str]:
        with (
            SyncShuffleClient(endpoint, application) as client,
            client.open_result_partition(
                1,
                index,
                REDUCERS,
                StringSerializer(),
                HashSelector(str.encode),
                partition_type=ResultPartitionType.BLOCKING,
            ) as out,
        ):
            for word in words:
                out.emit(word)
        yield encode_locations([out.location])

    def read(index: int, _: Iterable[Any]) -> Iterator[tuple[str, int]]:
        sources = [location for text in told for location in decode_locations(text)]
        with (
            SyncShuffleClient(endpoint, application) as client,
            client.open_gate(sources, index) as gate,
        ):
            yield from Counter(gate.records(StringSerializer())).items()

    context = spark.sparkContext
    told = context.parallelize(WORDS, MAPS).mapPartitionsWithIndex(write).collect()
    rows: list[tuple[Any, ...]] = (
        context.parallelize(range(REDUCERS), REDUCERS).mapPartitionsWithIndex(read).collect()
    )
    return rows


JOBS: dict[str, Job] = {"python_api_word_count": word_count}
