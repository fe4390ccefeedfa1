"""bench-embedded: two TaskManagers inside Python programs, the writer at its limit.

Two processes, each with a TaskManager of its own (``TaskManager.embedded``), exchange pipelined
data over TCP on the loopback: the writer's task fills the segments that are sent, the reader's task
reads the segments that they arrive in, and no daemon is between them. The turns:

* *buffers*: whole buffers of 32 KiB, through ``emit_buffer`` and ``next_buffer_or_event``. Beside
  them a bare pair: the same bytes from ``transport.write`` to a ``BufferedProtocol``, without
  memory, flow control or framing.
* *records*: records of 8 KiB, a call for each on either side.
* *batches*: records of 100 bytes, 1000 in a batch, through ``emit_batch`` and ``read_batch``.
* *1 ms*, *100 ms*: the same batches, round robin through 100 channels with a task for each, at two
  buffer timeouts.
* *local*: whole buffers as in the first turn, to a reader in the writer's own process.

All alternate after a warm-up. A figure is the median over the rounds. CPU is that of both
processes. ``rate_1ms_over_100ms`` is the median of the ratios within a round.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import uvloop

from benchmarks.bare_pair import BareSender, read_bare
from benchmarks.cpu_time import of_process
from benchmarks.line_process import (
    ANSWER_DEADLINE_SECONDS,
    LineProcess,
    line_process,
    next_command,
    say,
)
from benchmarks.processes import stop_on_termination
from benchmarks.report import Report, median_and_spread, open_console
from sluice import BytesSerializer, PartitionLocation, TaskManager
from sluice.protocol.messages import DATA
from sluice.shuffle.client.result_partition import ResultPartition
from sluice.shuffle.records.record_reader import ChannelRecord, ChannelRecords
from sluice.shuffle.taskmanager.embedded.client import EmbeddedClient

BUFFER_BYTES: Final = 32 * 1024
RECORD_BYTES: Final = 8 * 1024
SMALL_BYTES: Final = 100
BATCH_RECORDS: Final = 1000
CHANNELS: Final = 100
SECONDS: Final = 1.0
"""How long the writer writes in a turn."""
APPLICATION: Final = "bench"
AIMS: Final = {
    "buffer_cpu_us": "≤ 30",
    "records_cpu_seconds_per_gb": "≤ 1.3",
    "batch_records_per_second": "≥ 3.6 M",
    "rate_1ms_over_100ms": "≥ 0.9",
}

_BUFFER: Final = os.urandom(BUFFER_BYTES)
_RECORD: Final = os.urandom(RECORD_BYTES)
_BATCH: Final = [os.urandom(SMALL_BYTES) for _ in range(BATCH_RECORDS)]


# ---- the reader ---------------------------------------------------------------------------------


async def read_buffers(client: EmbeddedClient, location: PartitionLocation, number: int) -> int:
    """Read one subpartition; return its bytes."""
    total = 0
    async with client.open_gate([location], number) as gate:
        while (taken := await gate.next_buffer_or_event()) is not None:
            buffer = taken.buffer
            if buffer.data_type == DATA:
                total += len(buffer.payload)
            if buffer.release is not None:
                buffer.release()
    return total


async def read_records(client: EmbeddedClient, location: PartitionLocation, number: int) -> int:
    """Read one subpartition with a call for each record; return their bytes."""
    total = 0
    async with client.open_gate([location], number) as gate:
        reader = gate.reader(BytesSerializer())
        while (taken := await reader.next()) is not None:
            if isinstance(taken, ChannelRecord):
                total += len(taken.value)
    return total


async def read_batches(client: EmbeddedClient, location: PartitionLocation, number: int) -> int:
    """Read one subpartition in batches; return the bytes of all records."""
    records = 0
    async with client.open_gate([location], number) as gate:
        reader = gate.reader(BytesSerializer())
        while (taken := await reader.read_batch()) is not None:
            if isinstance(taken, ChannelRecords):
                records += len(taken.values)
    return records * SMALL_BYTES


READERS: Final = {"buffers": read_buffers, "records": read_records, "batches": read_batches}


async def read_turn(client: EmbeddedClient, kind: str, fields: Sequence[Any], channels: int) -> int:
    """Read all subpartitions of a partition, each in a task of its own; return their bytes."""
    location = PartitionLocation(*fields)
    async with asyncio.timeout(ANSWER_DEADLINE_SECONDS):
        parts = [READERS[kind](client, location, number) for number in range(channels)]
        return sum(await asyncio.gather(*parts))


async def consume() -> None:
    """Read what each line of standard input names; answer with a line."""
    async with TaskManager.embedded() as taskmanager, taskmanager.client(APPLICATION) as client:
        say("ready")
        while (command := await next_command()) is not None:
            kind, fields, channels = command
            if kind == "bare":
                await read_bare(*fields)
                total = fields[1]
            else:
                total = await read_turn(client, kind, fields, channels)
            say({"bytes": total, "ended": time.perf_counter()})


# ---- the writer ---------------------------------------------------------------------------------


async def write_buffers(partition: ResultPartition, ends: float) -> None:
    """Write whole buffers until a time."""
    while time.perf_counter() < ends:
        for _ in range(16):
            await partition.emit_buffer(_BUFFER, 0)


async def write_records(partition: ResultPartition, ends: float) -> None:
    """Write records one by one until a time."""
    writer = partition.record_writer(BytesSerializer())
    while time.perf_counter() < ends:
        for _ in range(64):
            if (pending := writer.emit(_RECORD)) is not None:
                await pending


async def write_batches(partition: ResultPartition, ends: float) -> None:
    """Write batches of records until a time, and let the event loop go round after each."""
    writer = partition.record_writer(BytesSerializer())
    while time.perf_counter() < ends:
        if (pending := writer.emit_batch(_BATCH)) is not None:
            await pending
        await asyncio.sleep(0)  # a writer that never waits lets the flusher and the connection run


WRITERS: Final[dict[str, Callable[[ResultPartition, float], Awaitable[None]]]] = {
    "buffers": write_buffers,
    "records": write_records,
    "batches": write_batches,
}


class Bench:
    """Runs the turns from the writer's process.

    Args:
        client: The client of the writer's tasks.
        reader: The process of the reader.
        seconds: How long to write in a turn.
    """

    def __init__(self, client: EmbeddedClient, reader: LineProcess, seconds: float) -> None:
        self._client = client
        self._reader = reader
        self._seconds = seconds
        self._number = 0

    async def turn(
        self, kind: str, *, channels: int = 1, timeout: float = 0.1, local: bool = False
    ) -> dict[str, float]:
        """Write for a while, and wait for the reader's end.

        Args:
            kind: A key of READERS and WRITERS.
            channels: Number of subpartitions.
            timeout: The buffer timeout, in seconds.
            local: Whether to read in this process.
        """
        self._number += 1
        reading: asyncio.Task[int] | None = None
        cpu = self._cpu()
        began = time.perf_counter()
        async with self._client.open_result_partition(
            self._number, 0, channels, buffer_timeout_seconds=timeout
        ) as partition:
            fields = list(partition.location)
            if local:
                reading = asyncio.create_task(read_turn(self._client, kind, fields, channels))
            else:
                self._reader.tell([kind, fields, channels])
            await WRITERS[kind](partition, began + self._seconds)
        if reading is not None:
            found = {"bytes": await reading, "ended": time.perf_counter()}
        else:
            found = await self._reader.answer()
        return self._result(found, began, cpu)

    async def bare_turn(self, total: int) -> dict[str, float]:
        """Send as many bytes through bare sockets."""
        loop = asyncio.get_running_loop()
        data = memoryview(os.urandom(64 * BUFFER_BYTES))
        server = await loop.create_server(lambda: BareSender(data, None), "127.0.0.1", 0)
        cpu = self._cpu()
        began = time.perf_counter()
        self._reader.tell(["bare", [server.sockets[0].getsockname()[1], total], 1])
        found = await self._reader.answer()
        server.close()
        return self._result(found, began, cpu)

    def _cpu(self) -> float:
        return of_process(os.getpid()) + of_process(self._reader.pid)

    def _result(self, found: dict[str, float], began: float, cpu: float) -> dict[str, float]:
        total = found["bytes"]
        return {
            "bytes": total,
            "bytes_per_second": total / (found["ended"] - began),
            "cpu_seconds_per_gb": (self._cpu() - cpu) / total * 1e9,
        }

    async def round(self) -> dict[str, dict[str, float]]:
        """Take all turns once."""
        found = {"buffers": await self.turn("buffers")}
        found["bare"] = await self.bare_turn(int(found["buffers"]["bytes"]))
        found["records"] = await self.turn("records")
        found["batches"] = await self.turn("batches")
        found["1ms"] = await self.turn("batches", channels=CHANNELS, timeout=0.001)
        found["100ms"] = await self.turn("batches", channels=CHANNELS, timeout=0.1)
        found["local"] = await self.turn("buffers", local=True)
        return found


async def measure(rounds: int, seconds: float) -> list[dict[str, dict[str, float]]]:
    """Take all turns of all rounds after a warm-up; return the findings of each round."""
    with line_process("-m", "benchmarks.embedded", "--consume") as reader:
        await reader.answer()
        async with TaskManager.embedded() as taskmanager, taskmanager.client(APPLICATION) as client:
            bench = Bench(client, reader, seconds)
            await bench.round()
            return [await bench.round() for _ in range(rounds)]


# ---- the report ---------------------------------------------------------------------------------


def report(runs: Sequence[dict[str, dict[str, float]]]) -> Report:
    """Make the figures."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}

    def put(key: str, value: Callable[[dict[str, dict[str, float]]], float]) -> None:
        figures[key], spread[key] = median_and_spread([value(run) for run in runs])

    per_buffer = BUFFER_BYTES / 1e9 * 1e6
    put("buffers_gb_per_second", lambda run: run["buffers"]["bytes_per_second"] / 1e9)
    put("buffer_cpu_us", lambda run: run["buffers"]["cpu_seconds_per_gb"] * per_buffer)
    put("bare_gb_per_second", lambda run: run["bare"]["bytes_per_second"] / 1e9)
    put("bare_buffer_cpu_us", lambda run: run["bare"]["cpu_seconds_per_gb"] * per_buffer)
    put("records_gb_per_second", lambda run: run["records"]["bytes_per_second"] / 1e9)
    put("records_cpu_seconds_per_gb", lambda run: run["records"]["cpu_seconds_per_gb"])
    put("batch_records_per_second", lambda run: run["batches"]["bytes_per_second"] / SMALL_BYTES)
    put("batch_cpu_seconds_per_gb", lambda run: run["batches"]["cpu_seconds_per_gb"])
    put(
        "rate_1ms_over_100ms",
        lambda run: run["1ms"]["bytes_per_second"] / run["100ms"]["bytes_per_second"],
    )
    put("channels_records_per_second", lambda run: run["100ms"]["bytes_per_second"] / SMALL_BYTES)
    put("local_gb_per_second", lambda run: run["local"]["bytes_per_second"] / 1e9)
    put("local_buffer_cpu_us", lambda run: run["local"]["cpu_seconds_per_gb"] * per_buffer)
    put(
        "local_over_remote",
        lambda run: run["local"]["bytes_per_second"] / run["buffers"]["bytes_per_second"],
    )
    return Report("embedded", figures, list(runs), spread)


def main() -> None:
    """Run the benchmark, or its reader's process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--consume", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each turn")
    arguments = parser.parse_args()
    if arguments.consume:
        uvloop.run(consume())
        return
    stop_on_termination()
    found = report(uvloop.run(measure(arguments.rounds, arguments.seconds)))
    found.write()
    found.show(open_console(), AIMS)


if __name__ == "__main__":
    main()
