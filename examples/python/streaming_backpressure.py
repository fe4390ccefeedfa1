"""Back pressure in a streaming pipeline: source -> map -> sink over two TaskManagers.

::

    source ──▶ TaskManager 1 ──▶ TaskManager 2 ──▶ map ──▶ TaskManager 2 ──▶ TaskManager 1 ──▶ sink

All partitions are pipelined: a record can be read while the next one is written. First the sink is
fast. Then it becomes slow: buffers fill from the sink back to the source, and the source waits for
memory, because every pool in between has a bound. No record is lost and no pool grows.
A table shows, at every interval, the records per second of each task, the usage of the writers'
pools, and the share of the time that the writers have waited for a buffer. A pool above 100 % has
lent overdraft buffers, so that a batch under way could be finished.

    python examples/python/streaming_backpressure.py
    python examples/python/streaming_backpressure.py --endpoints host1:7337,host2:7337
"""

import argparse
import asyncio
import contextlib
import os
import time
from collections.abc import Sequence

import uvloop

from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.client.partition_location import PartitionLocation
from sluice.shuffle.client.result_partition import ResultPartition
from sluice.shuffle.records.record_reader import ChannelRecords
from sluice.shuffle.records.serializers import BytesSerializer
from sluice.spark_integration.local_taskmanager import LocalTaskManager

RECORD_BYTES = 100
BATCH_RECORDS = 200
MAX_SEGMENTS = 16
"""Of each writer's own pool: 512 KiB."""


class Stage:
    """Progress of a task, and its partition if it writes one."""

    def __init__(self) -> None:
        self.records = 0
        self.partition: ResultPartition | None = None

    def back_pressured_seconds(self) -> float:
        """Return the time spent waiting for a buffer."""
        if self.partition is None:
            return 0.0
        memory = self.partition.writer.memory
        return memory.hard_back_pressured_seconds + memory.soft_back_pressured_seconds

    def pool_usage(self) -> float:
        """Return the share of the pool that is in use."""
        if self.partition is None:
            return 0.0
        pool = self.partition.writer.memory.pool
        return pool.held_segments / max(pool.size_segments, 1)


class Pipeline:
    """Source, map and sink, and the switches that the main program turns."""

    def __init__(self, endpoints: Sequence[str], slow_records_per_second: int) -> None:
        self.source, self.map, self.sink = Stage(), Stage(), Stage()
        self.slow = False
        self.stop = False
        self.checksums = [0, 0]
        """Of the numbers that the source wrote, and of those that the sink read."""
        self._first, self._second = endpoints[0], endpoints[-1]
        self._slow_records_per_second = slow_records_per_second
        self._application = f"streaming-{os.getpid()}"
        loop = asyncio.get_running_loop()
        self._locations: list[asyncio.Future[PartitionLocation]] = [
            loop.create_future() for _ in range(2)
        ]

    async def run(self) -> None:
        """Run the three tasks until the source is stopped and all records have arrived."""
        async with asyncio.TaskGroup() as tasks:
            for task in (self._run_source(), self._run_map(), self._run_sink()):
                tasks.create_task(task)

    async def _connect(self, endpoint: str) -> ShuffleClient:
        return await ShuffleClient.connect(
            endpoint, self._application, ClientConfig(buffer_timeout_seconds=0.05)
        )

    async def _run_source(self) -> None:
        async with (
            await self._connect(self._first) as client,
            client.open_result_partition(1, 0, 1, max_segments=MAX_SEGMENTS) as partition,
        ):
            self.source.partition = partition
            self._locations[0].set_result(partition.location)
            writer = partition.record_writer(BytesSerializer())
            while not self.stop:
                first = self.source.records
                numbers = range(first, first + BATCH_RECORDS)
                batch = [number.to_bytes(RECORD_BYTES, "big") for number in numbers]
                if (pending := writer.emit_batch(batch)) is not None:
                    await pending  # back pressure has reached the source
                else:
                    await asyncio.sleep(0)
                self.source.records += BATCH_RECORDS
                self.checksums[0] += sum(numbers)

    async def _run_map(self) -> None:
        async with (
            await self._connect(self._second) as client,
            client.open_gate([await self._locations[0]], 0) as gate,
            client.open_result_partition(2, 0, 1, max_segments=MAX_SEGMENTS) as partition,
        ):
            self.map.partition = partition
            self._locations[1].set_result(partition.location)
            writer = partition.record_writer(BytesSerializer())
            reader = gate.reader(BytesSerializer())
            while (taken := await reader.read_batch()) is not None:
                if isinstance(taken, ChannelRecords):
                    doubled = [(2 * int.from_bytes(each)).to_bytes(RECORD_BYTES, "big")
                               for each in taken.values]  # fmt: skip
                    if (pending := writer.emit_batch(doubled)) is not None:
                        await pending
                    self.map.records += len(doubled)

    async def _run_sink(self) -> None:
        async with (
            await self._connect(self._first) as client,
            client.open_gate([await self._locations[1]], 0) as gate,
        ):
            reader = gate.reader(BytesSerializer())
            while (taken := await reader.read_batch()) is not None:
                if isinstance(taken, ChannelRecords):
                    self.checksums[1] += sum(int.from_bytes(each) // 2 for each in taken.values)
                    self.sink.records += len(taken.values)
                    if self.slow and not self.stop:
                        await asyncio.sleep(len(taken.values) / self._slow_records_per_second)


async def watch(pipeline: Pipeline, what: str, seconds: float, interval_seconds: float) -> float:
    """Print a line at every interval; return the source's records per second in the last half."""
    stages = (pipeline.source, pipeline.map, pipeline.sink)
    began = time.monotonic()
    half: tuple[float, int] | None = None
    while (now := time.monotonic()) < began + seconds:
        before = [(stage.records, stage.back_pressured_seconds()) for stage in stages]
        await asyncio.sleep(interval_seconds)
        passed = time.monotonic() - now
        cells = []
        for stage, (records, waited) in zip(stages, before, strict=True):
            cells.append(f"{(stage.records - records) / passed:>10,.0f}")
            if stage.partition is not None:
                share = (stage.back_pressured_seconds() - waited) / passed
                cells += [f"{stage.pool_usage():>7.0%}", f"{share:>7.0%}"]
        print(f"{what:<6}", *cells, flush=True)
        if half is None and time.monotonic() >= began + seconds / 2:
            half = time.monotonic(), pipeline.source.records
    if half is None or half[0] >= time.monotonic():
        half = began, 0
    return (pipeline.source.records - half[1]) / max(time.monotonic() - half[0], 1e-9)


async def show(endpoints: Sequence[str], options: argparse.Namespace) -> None:
    """Run the pipeline with a fast sink, then with a slow one."""
    pipeline = Pipeline(endpoints, options.slow_records_per_second)
    print(f"{'':<6} {'source/s':>10} {'pool':>7} {'waits':>7} {'map/s':>10} {'pool':>7}"
          f" {'waits':>7} {'sink/s':>10}")  # fmt: skip
    async with asyncio.timeout(4 * options.seconds + 60):
        running = asyncio.create_task(pipeline.run())
        try:
            fast = await watch(pipeline, "fast", options.seconds, options.interval_seconds)
            pipeline.slow = True
            slow = await watch(pipeline, "slow", options.seconds, options.interval_seconds)
            pipeline.stop = True
            await running
        finally:
            running.cancel()
    print(f"source, in the last half of each phase: {fast:,.0f} records/s with a fast sink,"
          f" {slow:,.0f} with one of {options.slow_records_per_second:,}")  # fmt: skip
    if pipeline.checksums[0] != pipeline.checksums[1]:
        raise SystemExit(f"The result is WRONG: {pipeline.checksums}")
    print(f"All of its {pipeline.source.records:,} records have arrived at the sink, unchanged")


def main() -> None:
    """Show back pressure from a slow sink to its source."""
    parser = argparse.ArgumentParser(
        description="Back pressure in a streaming pipeline over two TaskManagers."
    )
    parser.add_argument("--endpoints", help="TaskManagers that run, with commas between them")
    parser.add_argument("--seconds", type=float, default=6, help="of each of the two phases")
    parser.add_argument("--interval-seconds", type=float, default=1, help="between two lines")
    parser.add_argument("--slow-records-per-second", type=int, default=20_000)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.endpoints:
            endpoints = options.endpoints.split(",")
        else:
            endpoints = [stack.enter_context(LocalTaskManager()).endpoint for _ in range(2)]
        uvloop.run(show(endpoints, options))


if __name__ == "__main__":
    main()
