"""bench-buffer-timeout: record throughput and latency by buffer timeout.

The setup is a user's: a producer and a consumer process, both on ``sluice.shuffle.client``, and two
TaskManagers between them. 100-byte records go round robin through the 100 subpartitions of one
pipelined partition to 100 gates, one reading task each. The producer gives the event loop a turn
after every 1000 records, as a task does that reads input of its own.

*Saturated*, as fast as it goes: records per second, from the first record written to the last one
read. *Paced*, at a rate far below that: how long a record takes. In both, latency is from the call
that writes a record to the reader's having it. The *batch* path uses ``emit_batch`` and
``read_batch``, the *single* path a call for each record on either side.

Within a round every timeout has its turn on both paths; 1 and 100 ms have two, at the start and at
the end, so that a machine that gets faster or slower meanwhile favours neither.
``rate_1ms_over_100ms`` is the lower one of the two paths' medians of the ratio within a round,
``p99_latency_ms_at_1ms`` the higher one of their medians when paced. Latencies when saturated are
those of the queue in front of the bottleneck: they tell the amount of memory in between.

``records_per_cpu_second_1ms_over_100ms`` is the same ratio of records to the CPU time of all four
processes: the cost of a shorter timeout, independent of other load on the machine.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from benchmarks.line_process import (
    ANSWER_DEADLINE_SECONDS,
    LineProcess,
    line_process,
    next_command,
    say,
)
from benchmarks.report import Report, median_and_spread, open_console
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.client.partition_location import PartitionLocation
from sluice.shuffle.client.pipelined_writer import PipelinedWriter
from sluice.shuffle.client.result_partition import ResultPartition
from sluice.shuffle.records.record_reader import ChannelRecord, ChannelRecords, RecordReader
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.cpu_time import of_process
from tests.support.daemons import Daemons
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

TIMEOUTS_MS: Final = (0, 1, 2, 5, 10, 100)
SATURATED_ORDER_MS: Final = (1, 100, 0, 2, 5, 10, 100, 1)
PATHS: Final = ("batch", "single")
CHANNELS: Final = 100
RECORD_BYTES: Final = 100
TURN_RECORDS: Final = 1000
PACED_RECORDS_PER_SECOND: Final = 5000
PACED_TICK_SECONDS: Final = 0.002
TURN_SECONDS: Final = 1.0
"""How long the producer writes in a saturated turn; half of that in a paced one."""
APPLICATION: Final = "bench"
CONSUMER_CONFIG: Final = ClientConfig(network_segments=2048)
"""A hundred gates in one client need more than the default; the producer has the default."""

_STAMP: Final = struct.Struct(">Bq")
_PLAIN: Final = bytes(RECORD_BYTES)


class Turn(NamedTuple):
    """One timeout's turn on one path."""

    path: str
    timeout_ms: int
    paced: bool


def stamped() -> bytes:
    """Return a record with the time of its writing; its first byte marks it."""
    return _STAMP.pack(1, time.perf_counter_ns()).ljust(RECORD_BYTES, b"\0")


# ---- the consumer -------------------------------------------------------------------------------


class Reading:
    """The findings of the readers of a turn."""

    def __init__(self) -> None:
        self.records = 0
        self.latencies_ns: list[int] = []

    def arrived(self, values: Sequence[bytes]) -> None:
        """Count records, and look at the stamps."""
        self.records += len(values)
        for value in values:
            if value[0]:
                written = _STAMP.unpack_from(value)[1]
                self.latencies_ns.append(time.perf_counter_ns() - written)

    def result(self) -> dict[str, float]:
        """Return the count, the end and the percentiles."""
        latencies = sorted(self.latencies_ns) or [0]
        return {
            "records": self.records,
            "ended": time.perf_counter(),
            "p50_ms": latencies[len(latencies) // 2] / 1e6,
            "p99_ms": latencies[len(latencies) * 99 // 100] / 1e6,
        }


async def read_channel(
    client: ShuffleClient, location: PartitionLocation, subpartition: int, path: str, into: Reading
) -> None:
    """Read one subpartition to its end."""
    async with client.open_gate([location], subpartition) as gate:
        reader: RecordReader[bytes] = gate.reader(BytesSerializer())
        while not reader.is_ended:
            if path == "batch":
                taken = await reader.read_batch()
                if isinstance(taken, ChannelRecords):
                    into.arrived(taken.values)
            else:
                one = await reader.next()
                if isinstance(one, ChannelRecord):
                    into.arrived((one.value,))


async def consume(endpoint: str) -> None:
    """Read the partition that each line of standard input names; answer with a line."""
    async with await ShuffleClient.connect(endpoint, APPLICATION, CONSUMER_CONFIG) as client:
        say("ready")
        while (command := await next_command()) is not None:
            path, fields = command
            location = PartitionLocation(*fields)
            reading = Reading()
            async with asyncio.timeout(ANSWER_DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
                for number in range(CHANNELS):
                    tasks.create_task(read_channel(client, location, number, path, reading))
            say(reading.result())


# ---- the producer -------------------------------------------------------------------------------


async def write_turn(writer: RecordWriter[bytes], path: str, count: int) -> None:
    """Write records of which one has a stamp, then let the event loop go round."""
    records = [_PLAIN] * (count - 1) + [stamped()]
    if path == "batch":
        if (pending := writer.emit_batch(records)) is not None:
            await pending
    else:
        for record in records:
            if (pending := writer.emit(record)) is not None:
                await pending
    await asyncio.sleep(0)  # a writer that never waits lets the flusher and the connection run


async def write_saturated(writer: RecordWriter[bytes], path: str, seconds: float) -> None:
    """Write as fast as it goes."""
    ends = time.perf_counter() + seconds
    sent = 0
    while time.perf_counter() < ends:
        # Another channel than last time has the stamp.
        await write_turn(writer, path, TURN_RECORDS + sent % 7)
        sent += 1


async def write_paced(writer: RecordWriter[bytes], path: str, seconds: float) -> None:
    """Write a few records each tick, all of them stamped."""
    began = time.perf_counter()
    written = 0
    while (elapsed := time.perf_counter() - began) < seconds:
        due = int(elapsed * PACED_RECORDS_PER_SECOND) - written
        if due:
            records = [stamped() for _ in range(due)]
            written += due
            if path == "batch":
                if (pending := writer.emit_batch(records)) is not None:
                    await pending
            else:
                for record in records:
                    if (pending := writer.emit(record)) is not None:
                        await pending
        await asyncio.sleep(PACED_TICK_SECONDS)  # the pace of the measurement


async def take_turn(
    client: ShuffleClient,
    consumer: LineProcess,
    pids: Sequence[int],
    number: int,
    turn: Turn,
    seconds: float,
) -> dict[str, Any]:
    """Move records from here to the consumer for a while; return its findings.

    Args:
        client: The client of the producer.
        consumer: The consumer process.
        pids: All processes whose CPU time counts.
        number: Number of the partition, not used before.
        turn: Path, timeout and pace.
        seconds: How long to write.
    """
    if turn.paced:
        seconds /= 2
    cpu = sum(map(of_process, pids))
    async with client.open_result_partition(
        number, number, CHANNELS, buffer_timeout_seconds=turn.timeout_ms / 1000
    ) as partition:
        consumer.tell([turn.path, list(partition.location)])
        writer = partition.record_writer(BytesSerializer())
        began = time.perf_counter()
        await (write_paced if turn.paced else write_saturated)(writer, turn.path, seconds)
    sent_buffers = _buffers_out(partition)
    found = await consumer.answer()
    cpu = sum(map(of_process, pids)) - cpu
    return {
        **turn._asdict(),
        "records": found["records"],
        "records_per_second": found["records"] / (found["ended"] - began),
        "buffers_sent": sent_buffers,
        "records_per_cpu_second": found["records"] / cpu,
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
    }


def _buffers_out(partition: ResultPartition) -> int:
    writer = partition.writer
    return writer.buffers_out if isinstance(writer, PipelinedWriter) else 0


@contextlib.asynccontextmanager
async def both_sides(
    taskmanagers: Daemons,
) -> AsyncIterator[tuple[ShuffleClient, LineProcess]]:
    """A client on the first TaskManager, and a consumer process on the second."""
    here, there = (taskmanagers.endpoints.format(host=host) for host in taskmanagers.hosts)
    with line_process("-m", "benchmarks.buffer_timeout", "--consume", there) as consumer:
        await consumer.answer()
        async with await ShuffleClient.connect(here, APPLICATION) as client:
            yield client, consumer


async def measure(taskmanagers: Daemons, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Take all turns; return the findings of each."""
    turns = [
        Turn(path, timeout_ms, paced)
        for path in PATHS
        for paced, order in ((False, SATURATED_ORDER_MS), (True, TIMEOUTS_MS))
        for timeout_ms in order
    ]
    runs: list[dict[str, Any]] = []
    async with both_sides(taskmanagers) as (client, consumer):
        pids = [os.getpid(), consumer.pid, *(daemon.pid for daemon in taskmanagers)]
        number = 0
        for path in PATHS:  # warms up
            await take_turn(client, consumer, pids, number, Turn(path, 1, paced=False), seconds)
            number += 1
        for round_number in with_bar(range(rounds), "rounds"):
            for turn in turns:
                found = await take_turn(client, consumer, pids, number, turn, seconds)
                runs.append({"round": round_number, **found})
                number += 1
    return runs


# ---- the report ---------------------------------------------------------------------------------


def values(runs: Sequence[dict[str, Any]], turn: Turn, key: str) -> list[float]:
    """Return a figure of one kind of turn, by round: the mean if it had several turns."""
    rounds: defaultdict[int, list[float]] = defaultdict(list)
    for run in runs:
        if turn._asdict().items() <= run.items():
            rounds[run["round"]].append(run[key])
    return [statistics.mean(found) for _, found in sorted(rounds.items())]


def report(runs: Sequence[dict[str, Any]]) -> Report:
    """Make the figures."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}

    def put(key: str, found: Sequence[float]) -> None:
        figures[key], spread[key] = median_and_spread(found)

    for path in PATHS:
        for name, key in (
            ("rate", "records_per_second"),
            ("records_per_cpu_second", "records_per_cpu_second"),
        ):
            fast, slow = (values(runs, Turn(path, ms, paced=False), key) for ms in (1, 100))
            ratios = [a / b for a, b in zip(fast, slow, strict=True)]
            put(f"{path}_{name}_1ms_over_100ms", ratios)
        for timeout_ms in TIMEOUTS_MS:
            full = Turn(path, timeout_ms, paced=False)
            put(
                f"{path}_records_per_second_{timeout_ms}ms",
                values(runs, full, "records_per_second"),
            )
            put(f"{path}_saturated_p50_latency_ms_{timeout_ms}ms", values(runs, full, "p50_ms"))
            put(f"{path}_saturated_p99_latency_ms_{timeout_ms}ms", values(runs, full, "p99_ms"))
            paced = Turn(path, timeout_ms, paced=True)
            put(f"{path}_p50_latency_ms_{timeout_ms}ms", values(runs, paced, "p50_ms"))
            put(f"{path}_p99_latency_ms_{timeout_ms}ms", values(runs, paced, "p99_ms"))
    headline: dict[str, float] = {}
    for key, of, choose in (
        ("rate_1ms_over_100ms", "rate_1ms_over_100ms", min),
        (
            "records_per_cpu_second_1ms_over_100ms",
            "records_per_cpu_second_1ms_over_100ms",
            min,
        ),
        ("p99_latency_ms_at_1ms", "p99_latency_ms_1ms", max),
    ):
        chosen = choose((f"{path}_{of}" for path in PATHS), key=figures.__getitem__)
        headline[key] = figures[chosen]
        spread[key] = spread[chosen]
    return Report("buffer_timeout", headline | figures, runs, spread)


def main() -> None:
    """Run the benchmark, or its consumer process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--consume", metavar="ENDPOINT", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS, help="of each turn")
    arguments = parser.parse_args()
    if arguments.consume is not None:
        uvloop.run(consume(arguments.consume))
        return
    stop_on_termination()
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
        Daemons(Path(directory), authenticated=False, memory_tier_bytes="64 MiB") as taskmanagers,
    ):
        runs = uvloop.run(measure(taskmanagers, arguments.rounds, arguments.seconds))
    found = report(runs)
    found.write()
    found.show(open_console(), {"rate_1ms_over_100ms": "≥ 0.90", "p99_latency_ms_at_1ms": "report"})


if __name__ == "__main__":
    main()
