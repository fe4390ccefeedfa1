"""bench-debloating: the time from the writer's ``emit`` to the reader's ``next``, over the target.

A producer and a consumer, both on ``sluice.shuffle.client``, and two TaskManagers between them. The
producer writes as much as it may; the reader takes records at a rate of its own, so that all
buffers on the way are in use: those of the producing client, of both TaskManagers and of the gate.
Every record tells when it was written. The first half of each turn, in which the sizes settle, does
not count.
"""

import argparse
import asyncio
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.processes import stop_on_termination
from benchmarks.report import Report, median_and_spread, open_console
from benchmarks.taskmanagers import TaskManagers
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.client.result_partition import ResultPartition
from sluice.shuffle.records.record_reader import ChannelRecord
from sluice.shuffle.records.serializers import BytesSerializer

TARGETS_SECONDS: Final = (0.025, 0.05, 0.1)
BYTES_PER_SECOND: Final = 4_000_000
"""Rate of the reader: at each target the size is between the least and a whole segment."""
RECORD_BYTES: Final = 500
PERIOD_SECONDS: Final = 0.05
LEAST_SLEEP_SECONDS: Final = 0.002
APPLICATION: Final = "bench"

_STAMP: Final = struct.Struct(">q")


def stamped() -> bytes:
    """Return a record with the time of its writing."""
    return _STAMP.pack(time.perf_counter_ns()).ljust(RECORD_BYTES, b"\0")


async def write(partition: ResultPartition, ended: asyncio.Event) -> None:
    """Write as much as may be until the reader has enough."""
    writer = partition.record_writer(BytesSerializer())
    written = 0
    while not ended.is_set():
        if (pending := writer.emit(stamped())) is not None:
            await pending
        written += 1
        if written % 64 == 0:
            await asyncio.sleep(0)
    await partition.finish()


async def read_paced(
    producer: ShuffleClient, consumer: ShuffleClient, number: int, seconds: float
) -> list[float]:
    """Read at the rate for a while; return the seconds from writing to reading, of later records.

    Args:
        producer: Writes the partition.
        consumer: Reads it.
        number: Number of the partition, not used before.
        seconds: How long to read at the rate; the rest is read at once.
    """
    latencies: list[float] = []
    ended = asyncio.Event()
    async with producer.open_result_partition(number, number, 1) as partition:
        writing = asyncio.create_task(write(partition, ended))
        async with consumer.open_gate([partition.location], 0) as gate:
            reader = gate.reader(BytesSerializer())
            began = time.perf_counter()
            records = 0
            while (element := await reader.next()) is not None:
                if not isinstance(element, ChannelRecord):
                    continue
                now = time.perf_counter()
                if now - began >= seconds:
                    ended.set()
                    continue
                if now - began >= seconds / 2:
                    written = _STAMP.unpack_from(element.value)[0]
                    latencies.append((time.perf_counter_ns() - written) / 1e9)
                records += 1
                due = began + records * RECORD_BYTES / BYTES_PER_SECOND
                if due - now > LEAST_SLEEP_SECONDS:
                    await asyncio.sleep(due - now)  # the work of a slow reader
        await writing
    return latencies


async def measure(
    taskmanagers: TaskManagers, rounds: int, seconds: float
) -> list[dict[str, float]]:
    """Take turns with all targets, and without one; return the findings of each turn."""
    here, there = (taskmanagers.endpoints.format(host=host) for host in taskmanagers.hosts)
    runs: list[dict[str, float]] = []
    number = 0
    async with await ShuffleClient.connect(here, APPLICATION) as producer:
        for round_number in range(rounds):
            for target_seconds in (None, *TARGETS_SECONDS):
                config = ClientConfig(
                    debloat_target_seconds=target_seconds, debloat_period_seconds=PERIOD_SECONDS
                )
                number += 1
                async with await ShuffleClient.connect(there, APPLICATION, config) as consumer:
                    latencies = sorted(await read_paced(producer, consumer, number, seconds))
                runs.append(
                    {
                        "round": round_number,
                        "target_seconds": target_seconds or 0.0,
                        "median_seconds": statistics.median(latencies),
                        "p99_seconds": latencies[len(latencies) * 99 // 100],
                    }
                )
    return runs


def report_of(runs: list[dict[str, float]]) -> Report:
    """Make the report."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    over_target: dict[float, list[float]] = {
        target: [run["median_seconds"] / target for run in runs if run["target_seconds"] == target]
        for target in TARGETS_SECONDS
    }
    for target, overs in over_target.items():
        name = f"latency_over_target_{target * 1000:g}ms"
        figures[name], spread[name] = median_and_spread(overs)
    worst = max(figures, key=figures.__getitem__)
    headline = {"latency_over_target": figures[worst]}
    spread["latency_over_target"] = spread[worst]
    without = [run["median_seconds"] * 1e3 for run in runs if not run["target_seconds"]]
    name = "latency_ms_without_debloating"
    figures[name], spread[name] = median_and_spread(without)
    return Report("debloating", headline | figures, list(runs), spread)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    arguments = parser.parse_args()
    stop_on_termination()
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
        TaskManagers(Path(directory), memory_tier="64 MiB") as taskmanagers,
    ):
        runs = uvloop.run(measure(taskmanagers, arguments.rounds, arguments.seconds))
    report = report_of(runs)
    report.write()
    report.show(open_console(), {"latency_over_target": "≤ 1.25"})


if __name__ == "__main__":
    main()
