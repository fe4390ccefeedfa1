"""A word count over TaskManagers, written with the Python API alone.

Mappers count the words of their files and write each word's count to the subpartition that its hash
chooses; reducers add up one subpartition of all mappers. Every task is a process, on one of the
TaskManagers in turn; mappers send the locations of their partitions to reducers, as JSON. The
result is checked against a count in one process.

    python examples/python/wordcount.py               # three TaskManagers of its own, Python's text
    python examples/python/wordcount.py --endpoints unix:/run/sluice/taskmanager.sock README.md
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import uvloop

from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.partition_location import decode_locations, encode_locations
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.selectors import HashSelector
from sluice.shuffle.records.serializers import MsgpackSerializer
from sluice.spark_integration.local_taskmanager import LocalTaskManager

SHUFFLE_ID = 1
BATCH_RECORDS = 1000
WORD = re.compile(r"[a-z]+")


def words_of(files: Sequence[str]) -> Counter[str]:
    """Count the words of some files."""
    counts: Counter[str] = Counter()
    for file in files:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
        counts.update(WORD.findall(text.lower()))
    return counts


async def map_task(
    endpoint: str, application: str, number: int, files: Sequence[str], reducers: int
) -> str:
    """Write the words of some files; return the partition's location."""
    counts = list(words_of(files).items())
    async with (
        await ShuffleClient.connect(endpoint, application) as client,
        client.open_result_partition(
            SHUFFLE_ID, number, reducers, partition_type=ResultPartitionType.BLOCKING
        ) as partition,
    ):
        selector = HashSelector[tuple[str, int]](lambda pair: pair[0].encode())
        writer = partition.record_writer(MsgpackSerializer(), selector)
        for start in range(0, len(counts), BATCH_RECORDS):
            if (pending := writer.emit_batch(counts[start : start + BATCH_RECORDS])) is not None:
                await pending  # no memory: wait until some is free again
    return encode_locations([partition.location])


async def reduce_task(
    endpoint: str, application: str, subpartition: int, locations: Sequence[str]
) -> dict[str, int]:
    """Add up one subpartition of all mappers."""
    counts: Counter[str] = Counter()
    sources = [location for text in locations for location in decode_locations(text)]
    async with (
        await ShuffleClient.connect(endpoint, application) as client,
        client.open_gate(sources, subpartition) as gate,
    ):
        async for word, count in gate.records(MsgpackSerializer()):
            counts[word] += count
    return dict(counts)


def mapper(timeout_seconds: float, *arguments: object) -> str:
    """Run a map task in this process."""
    return uvloop.run(asyncio.wait_for(map_task(*arguments), timeout_seconds))  # type: ignore[arg-type]


def reducer(timeout_seconds: float, *arguments: object) -> dict[str, int]:
    """Run a reduce task in this process."""
    return uvloop.run(asyncio.wait_for(reduce_task(*arguments), timeout_seconds))  # type: ignore[arg-type]


def standard_library(limit_bytes: int) -> list[str]:
    """Return text files of Python's standard library, up to a size."""
    files: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        limit_bytes -= path.stat().st_size
        if limit_bytes < 0 and files:
            break
        files.append(str(path))
    return files


@contextlib.contextmanager
def taskmanagers(endpoints: str | None, count: int) -> Iterator[list[str]]:
    """Give the endpoints of running TaskManagers, or of some that run for the time of a block."""
    with contextlib.ExitStack() as stack:
        if endpoints:
            yield endpoints.split(",")
        else:
            yield [stack.enter_context(LocalTaskManager()).endpoint for _ in range(count)]


def main() -> None:
    """Count words, print the most frequent ones, and check the result."""
    parser = argparse.ArgumentParser(
        description="A word count over TaskManagers, with the Python API alone."
    )
    parser.add_argument("files", nargs="*", help="text; by default that of Python's library")
    parser.add_argument("--endpoints", help="TaskManagers that run, with commas between them")
    parser.add_argument("--mappers", type=int, default=6)
    parser.add_argument("--reducers", type=int, default=3)
    parser.add_argument("--processes", type=int, default=4, help="tasks at a time")
    parser.add_argument("--megabytes", type=float, default=4, help="of text, without files")
    parser.add_argument("--top", type=int, default=10, help="words to print")
    parser.add_argument("--timeout-seconds", type=float, default=120, help="for each task")
    options = parser.parse_args()
    files = options.files or standard_library(int(options.megabytes * 1024 * 1024))
    timeout = options.timeout_seconds
    application = f"wordcount-{os.getpid()}"

    with (
        taskmanagers(options.endpoints, 3) as endpoints,
        ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as processes,
    ):
        began = time.monotonic()

        def endpoint(number: int) -> str:
            return endpoints[number % len(endpoints)]

        mapping: list[Future[str]] = [
            processes.submit(
                mapper,
                timeout,
                endpoint(number),
                application,
                number,
                files[number :: options.mappers],
                options.reducers,
            )
            for number in range(options.mappers)
        ]
        locations = [task.result(2 * timeout) for task in mapping]
        reducing = [
            processes.submit(reducer, timeout, endpoint(number), application, number, locations)
            for number in range(options.reducers)
        ]
        counts: Counter[str] = Counter()
        for task in reducing:
            counts.update(task.result(2 * timeout))
        seconds = time.monotonic() - began

    for word, count in counts.most_common(options.top):
        print(f"{count:>9,}  {word}")
    print(
        f"{counts.total():,} words, {len(counts):,} different ones, of {len(files)} files in"
        f" {seconds:.1f} s: {options.mappers} mappers and {options.reducers} reducers on"
        f" {len(endpoints)} TaskManagers"
    )
    if counts != words_of(files):
        raise SystemExit("The result is WRONG: a count without TaskManagers gives another one")
    print("The result is right: a count without TaskManagers gives the same")


if __name__ == "__main__":
    main()
