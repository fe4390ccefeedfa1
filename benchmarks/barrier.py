"""bench-barrier: the time of a barrier to a slow reader, with credit over without.

Two processes, two TaskManagers. One task fills a pipelined partition as fast as its pool allows and
emits a checkpoint barrier after every 32 buffers. The other reads a buffer a millisecond, and so
all buffers between them are full: the partition's pool and the channel's buffers, and without
credit the socket's as well. A barrier waits behind all of them. Both processes read the same clock,
so the reader knows how long a barrier took, and how much it still had to read when it was emitted.
"""

import argparse
import asyncio
import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from bisect import bisect
from pathlib import Path

import uvloop

from benchmarks.bare_pair import SEGMENT_SIZE_BYTES
from benchmarks.exchange import KEY, child, environment
from benchmarks.isolation import HOSTS, open_gate
from benchmarks.report import Report, median_and_spread, open_console
from sluice.protocol.errors import SluiceError
from sluice.protocol.events import CheckpointBarrier, decode_event, encode_event
from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.partition.pipelined_result_partition import (
    PartitionListeners,
    PipelinedResultPartition,
)
from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
from sluice.transport.address import Address
from tests.support.progress_bar import with_bar

POOL_SEGMENTS = 10
"""Of the partition: for one channel two buffers and eight floating ones, as the gate has."""

BUFFERS_BETWEEN_BARRIERS = 32
PAUSE_SECONDS = 0.001
"""Between two buffers of the slow reader: 31 MiB a second at most."""

WARM_UP = 0.25
"""The part of a measurement in which the buffers between the tasks fill up."""

MIN_BARRIERS = 3
"""Barriers of a measurement; on a busy machine it lasts until they have come."""

PATIENCE_SECONDS = 60.0
"""Longest time beyond that of a measurement for its barriers to come."""

MODES = ("credit", "watermark")
AIMS = {"barrier_credit_over_uncredited": "≤ 0.5"}


def microseconds() -> int:
    """Return the time of the clock that all processes of this host share."""
    return time.monotonic_ns() // 1000


async def write_partition(running: NetworkEnvironment, map_attempt_id: int) -> None:
    """Write a partition until its reader has gone."""
    pool = running.network_pool.create_local_pool(f"partition {map_attempt_id}", 1, POOL_SEGMENTS)
    reader_gone = asyncio.Event()
    partition = PipelinedResultPartition(
        f"partition {map_attempt_id}",
        1,
        pool,
        listeners=PartitionListeners(fully_consumed=reader_gone.set),
    )
    running.partitions.register_pipelined(KEY, map_attempt_id, partition, partition.fail)
    data = memoryview(bytes(SEGMENT_SIZE_BYTES))
    try:
        for number in itertools.count(1):
            builder = await partition.wait_for_builder(0)
            builder.append_and_commit(data)
            consumer = builder.create_consumer()
            builder.finish()
            partition.add_consumer(consumer, 0)
            if number % BUFFERS_BETWEEN_BARRIERS == 0:
                barrier = CheckpointBarrier(number, microseconds(), unaligned=False)
                partition.emit_event(encode_event(barrier), EVENT, 0)
            if reader_gone.is_set():
                break
    finally:
        running.partitions.unregister_pipelined(KEY, map_attempt_id, partition)
        partition.release()


async def serve_partitions(directory: Path, partitions: int) -> None:
    """Run the process with the partitions; it prints its id and port and ends with its input."""
    async with environment(directory, "127.0.0.1") as running:
        writers = [
            asyncio.ensure_future(write_partition(running, number)) for number in range(partitions)
        ]
        print(running.taskmanager_id, running.address.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


async def read_slowly(
    running: NetworkEnvironment, source: ChannelSource, seconds: float
) -> dict[str, float]:
    """Read a partition and return the figures of its barriers.

    The measurement takes ``seconds``, and longer if ``MIN_BARRIERS`` have not come by then.
    """
    taken_at: list[int] = []
    began = microseconds()
    latencies: list[float] = []
    waiting: list[int] = []
    ends = began + int(seconds * 1e6)
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(seconds + PATIENCE_SECONDS),
            open_gate(running, source) as gate,
        ):
            while microseconds() < ends or len(latencies) < MIN_BARRIERS:
                taken = await gate.next_buffer_or_event()
                if taken is None:
                    break
                payload, release, kind = taken.buffer
                if kind == DATA:
                    await asyncio.sleep(PAUSE_SECONDS)
                    taken_at.append(microseconds())
                    if release is not None:
                        release()
                    continue
                event = decode_event(payload)
                if not isinstance(event, CheckpointBarrier):
                    raise SluiceError("Not a barrier", value=event)
                if event.timestamp_ms > began + WARM_UP * seconds * 1e6:
                    latencies.append((microseconds() - event.timestamp_ms) / 1e6)
                    waiting.append(len(taken_at) - bisect(taken_at, event.timestamp_ms))
    if len(latencies) < MIN_BARRIERS:
        raise RuntimeError(f"{len(latencies)} barriers came, of {MIN_BARRIERS} at least")
    took = (microseconds() - began) / 1e6
    return {
        "barriers": len(latencies),
        "seconds": statistics.median(latencies),
        "bytes_in_flight": statistics.median(waiting) * SEGMENT_SIZE_BYTES,
        "bytes_per_second": len(taken_at) * SEGMENT_SIZE_BYTES / took,
    }


async def measure(directory: Path, pairs: int, seconds: float) -> list[dict[str, float]]:
    """Alternate both modes, each time on a partition of its own; return the figures."""
    partitions = len(MODES) * (pairs + 1)
    runs: list[dict[str, float]] = []
    options = ("--directory", str(directory), "--partitions", str(partitions))
    async with contextlib.AsyncExitStack() as stack:
        taskmanager_id, port = stack.enter_context(
            child("partitions", *options, module="benchmarks.barrier")
        )
        address = Address("127.0.0.1", port)
        reading = {
            mode: await stack.enter_async_context(
                environment(directory, HOSTS[mode], flow_control=mode)
            )
            for mode in MODES
        }
        numbers = itertools.count()
        for turn in with_bar(range(pairs + 1), "pairs"):
            run: dict[str, float] = {}
            for mode, running in reading.items():
                source = ChannelSource(taskmanager_id, address, [next(numbers)])
                seen = await read_slowly(running, source, seconds)
                run |= {f"{mode}_{name}": value for name, value in seen.items()}
            if turn:  # the first one warms up
                runs.append(run)
    return runs


def report_of(runs: list[dict[str, float]]) -> Report:
    """Make the report."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}

    def add(name: str, values: list[float]) -> None:
        figures[name], spread[name] = median_and_spread(values)

    add(
        "barrier_credit_over_uncredited",
        [run["credit_seconds"] / run["watermark_seconds"] for run in runs],
    )
    for mode, name in zip(MODES, ("credit", "uncredited"), strict=True):
        add(f"barrier_ms_{name}", [run[f"{mode}_seconds"] * 1e3 for run in runs])
        add(f"mib_in_flight_{name}", [run[f"{mode}_bytes_in_flight"] / 2**20 for run in runs])
    return Report("barrier", figures, runs, spread)


def main() -> None:
    """Run the benchmark, or its child process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--role", choices=("main", "partitions"), default="main")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    arguments = parser.parse_args()
    if arguments.role == "partitions":
        uvloop.run(serve_partitions(arguments.directory, arguments.partitions))
        return
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        runs = uvloop.run(measure(Path(directory), arguments.pairs, arguments.seconds))
    report = report_of(runs)
    report.write()
    report.show(open_console(), AIMS)


if __name__ == "__main__":
    main()
