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

All alternate after a warm-up, each once with the default 8 floating buffers of a gate and a
partition and once with 32, in figures that begin with ``wide_``. A figure is the median over the
rounds. CPU is that of both processes. ``rate_1ms_over_100ms`` is the median of the ratios within a
round.
"""

import argparse
import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import uvloop

from benchmarks.bare_pair import BareSender, read_bare
from benchmarks.line_process import (
    ANSWER_DEADLINE_SECONDS,
    LineProcess,
    line_process,
    next_command,
    say,
)
from benchmarks.report import Report, median_and_spread, open_console
from sluice import BytesSerializer, PartitionLocation, TaskManager
from sluice.protocol.schema import DATA
from sluice.shuffle.client.result_partition import ResultPartition
from sluice.shuffle.records.record_reader import ChannelRecord, ChannelRecords
from sluice.shuffle.taskmanager.embedded.client import EmbeddedClient
from sluice.shuffle.taskmanager.embedded.temporary_config import temporary_config
from tests.support.cpu_time import of_process
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

BUFFER_BYTES: Final = 32 * 1024
RECORD_BYTES: Final = 8 * 1024
SMALL_BYTES: Final = 100
BATCH_RECORDS: Final = 1000
CHANNELS: Final = 100
SECONDS: Final = 1.0
"""How long the writer writes in a turn."""
APPLICATION: Final = "bench"
FLOATING: Final = {"": 8, "wide_": 32}
"""Floating buffers of gates and partitions, by the beginning of the names of their figures."""
AIMS: Final = {
    "wide_buffer_cpu_us": "≤ 30",
    "wide_records_cpu_seconds_per_gb": "≤ 1.3",
    "wide_batch_records_per_second": "≥ 3.6 M",
    "wide_rate_1ms_over_100ms": "≥ 0.9",
}

Run: TypeAlias = dict[str, dict[str, float]]
"""The findings of a round, by turn."""

_BUFFER: Final = os.urandom(BUFFER_BYTES)
_RECORD: Final = os.urandom(RECORD_BYTES)
_BATCH: Final = [os.urandom(SMALL_BYTES) for _ in range(BATCH_RECORDS)]


@contextlib.asynccontextmanager
async def clients() -> AsyncIterator[dict[str, EmbeddedClient]]:
    """Run a TaskManager for each number of floating buffers; yield their clients."""
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for name, floating in FLOATING.items():
            config = stack.enter_context(temporary_config())
            memory = config.memory.model_copy(update={"floating_buffers_per_gate": floating})
            taskmanager = await stack.enter_async_context(
                TaskManager.embedded(config.model_copy(update={"memory": memory}))
            )
            found[name] = await stack.enter_async_context(taskmanager.client(APPLICATION))
        yield found


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
    async with clients() as by_name:
        say("ready")
        while (command := await next_command()) is not None:
            name, kind, fields, channels = command
            client = by_name[name]
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
        name: A key of FLOATING.
        client: The client of the writer's tasks.
        reader: The process of the reader.
        seconds: How long to write in a turn.
    """

    def __init__(
        self, name: str, client: EmbeddedClient, reader: LineProcess, seconds: float
    ) -> None:
        self._name = name
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
                self._reader.tell([self._name, kind, fields, channels])
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
        server = await loop.create_server(lambda: BareSender(data), "127.0.0.1", 0)
        cpu = self._cpu()
        began = time.perf_counter()
        self._reader.tell([self._name, "bare", [server.sockets[0].getsockname()[1], total], 1])
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

    async def round(self) -> Run:
        """Take all turns once."""
        found = {"buffers": await self.turn("buffers")}
        if not self._name:
            found["bare"] = await self.bare_turn(int(found["buffers"]["bytes"]))
            found["local"] = await self.turn("buffers", local=True)
        found["records"] = await self.turn("records")
        found["batches"] = await self.turn("batches")
        found["1ms"] = await self.turn("batches", channels=CHANNELS, timeout=0.001)
        found["100ms"] = await self.turn("batches", channels=CHANNELS, timeout=0.1)
        return {self._name + kind: result for kind, result in found.items()}


async def measure(rounds: int, seconds: float) -> list[Run]:
    """Take all turns of all rounds after a warm-up; return the findings of each round."""
    with line_process("-m", "benchmarks.embedded", "--consume") as reader:
        await reader.answer()
        async with clients() as by_name:
            benches = [Bench(name, client, reader, seconds) for name, client in by_name.items()]
            runs: list[Run] = []
            for _ in with_bar(range(rounds + 1), "rounds"):
                run: Run = {}
                for bench in benches:
                    run |= await bench.round()
                runs.append(run)
            return runs[1:]  # the first round warms up


# ---- the report ---------------------------------------------------------------------------------


def report(runs: Sequence[Run]) -> Report:
    """Make the figures."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}

    def put(key: str, value: Callable[[Run], float]) -> None:
        figures[key], spread[key] = median_and_spread([value(run) for run in runs])

    per_buffer = BUFFER_BYTES / 1e9 * 1e6
    for name in FLOATING:
        _put_turns(put, name)
    put("bare_gb_per_second", lambda run: run["bare"]["bytes_per_second"] / 1e9)
    put("bare_buffer_cpu_us", lambda run: run["bare"]["cpu_seconds_per_gb"] * per_buffer)
    put("local_gb_per_second", lambda run: run["local"]["bytes_per_second"] / 1e9)
    put("local_buffer_cpu_us", lambda run: run["local"]["cpu_seconds_per_gb"] * per_buffer)
    put(
        "local_over_remote",
        lambda run: run["local"]["bytes_per_second"] / run["buffers"]["bytes_per_second"],
    )
    return Report("embedded", figures, list(runs), spread)


def _put_turns(put: Callable[[str, Callable[[Run], float]], None], name: str) -> None:
    """Make the figures of the turns with one number of floating buffers."""
    per_buffer = BUFFER_BYTES / 1e9 * 1e6

    def rate(kind: str) -> Callable[[Run], float]:
        return lambda run: run[name + kind]["bytes_per_second"]

    def cpu(kind: str) -> Callable[[Run], float]:
        return lambda run: run[name + kind]["cpu_seconds_per_gb"]

    put(f"{name}buffers_gb_per_second", lambda run: rate("buffers")(run) / 1e9)
    put(f"{name}buffer_cpu_us", lambda run: cpu("buffers")(run) * per_buffer)
    put(f"{name}records_gb_per_second", lambda run: rate("records")(run) / 1e9)
    put(f"{name}records_cpu_seconds_per_gb", cpu("records"))
    put(f"{name}batch_records_per_second", lambda run: rate("batches")(run) / SMALL_BYTES)
    put(f"{name}batch_cpu_seconds_per_gb", cpu("batches"))
    put(f"{name}rate_1ms_over_100ms", lambda run: rate("1ms")(run) / rate("100ms")(run))
    put(f"{name}channels_records_per_second", lambda run: rate("100ms")(run) / SMALL_BYTES)


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
