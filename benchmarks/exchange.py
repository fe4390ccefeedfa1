"""bench-exchange: TaskManager → TaskManager over loopback TCP, beside a bare socket pair.

Both sides are two processes on uvloop that move the same number of bytes in buffers of 32 KiB.
Sluice: stored partitions in the memory tier of a network environment, read through ten input gates
of another one with credit flow control; the reader checksums every buffer (CRC-32C), as a reduce
task does. Bare: one ``transport.write`` a buffer out of as much data in the same kind of memory,
and a ``BufferedProtocol`` that counts bytes on the other side, without a checksum. A second bare
side sends the same buffer again and again, which never leaves the processor's cache
(``ratio_to_cached_raw``). Two more sides are Sluice with credit off (watermark mode), and Sluice
with a hundred channels a gate, a thousand on the one connection, which together read as many bytes.
All alternate after a warm-up each; a figure is the median of the pairwise ratios of rates.

By default the modes differ in memory: credit lends a channel the gate's floating buffers too, and
so sends larger groups; without it a message has to fit the exclusive ones. Therefore both modes are
also compared with ten exclusive buffers a channel and no floating ones: the same memory, and the
same limit for a group (``credit_over_uncredited_equal_memory``).
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from crc32c import crc32c

from benchmarks.bare_pair import SEGMENT_SIZE_BYTES, read_bare, serve_bare
from benchmarks.report import Report, median_and_spread, open_console
from sluice.protocol.limits import MAX_LARGE_PAYLOAD_BYTES
from sluice.protocol.schema import DATA
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.taskmanager.bounds.quotas import QuotaConfig
from sluice.shuffle.taskmanager.config.network_memory_config import NetworkMemoryConfig
from sluice.shuffle.taskmanager.config.storage_config import StorageConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import (
    GateLimits,
    TaskManagerChannelOpener,
)
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
from sluice.transport.address import Address
from sluice.transport.config import TransportConfig
from tests.support.progress_bar import with_bar

CHANNELS = 10
"""Channels on the one connection: as many reduce tasks, each with a gate and a channel to the
other TaskManager."""
MAP_OUTPUTS = 2 * CHANNELS
MAP_OUTPUT_BYTES = 8 * 1024 * 1024
KEY = ShuffleKey("bench", 0)
BARE_BYTES = {"bare": MAP_OUTPUTS * MAP_OUTPUT_BYTES, "cached": SEGMENT_SIZE_BYTES}
"""Data of each bare sender: as much as Sluice has, and one buffer."""
MANY_CHANNELS = 1000
MANY_OUTPUTS = 80
MANY_KEY = ShuffleKey("bench", 1)
"""Map outputs for many channels, which read one each; the sum over all channels is as for few."""
_DEFAULTS = NetworkMemoryConfig()
_EXCLUSIVE = _DEFAULTS.exclusive_buffers_per_channel
_FLOATING = _DEFAULTS.floating_buffers_per_stored_gate
NETWORK_SEGMENTS = MANY_CHANNELS * _EXCLUSIVE + CHANNELS * _FLOATING
"""The exclusive ones of all channels, and the floating ones of all gates: more than by default."""
EQUAL_MEMORY = {
    "exclusive_buffers_per_channel": _EXCLUSIVE + _FLOATING,
    "floating_buffers_per_stored_gate": 0,
}
"""As many buffers as credit may give the one channel of a gate, all of them the channel's own."""
START_DEADLINE_SECONDS = 30


@contextlib.asynccontextmanager
async def environment(
    directory: Path,
    host: str,
    *,
    buffers: Mapping[str, int] | None = None,
    **transport: Any,
) -> AsyncIterator[NetworkEnvironment]:
    """Run a network environment with a memory tier that holds all the data.

    Args:
        directory: Directory of its files.
        host: Address to bind.
        buffers: Settings of channels and gates, if not the defaults.
        transport: Settings of the transport.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir="/dev/shm") as memory:
        running = await NetworkEnvironment.build(
            TaskManagerConfig(
                transport=TransportConfig(bind_host=host, data_port=0, **transport),
                memory=NetworkMemoryConfig(
                    segment_size_bytes=SEGMENT_SIZE_BYTES,
                    network_segments=NETWORK_SEGMENTS,
                    **(buffers or {}),
                ),
                storage=StorageConfig(
                    data_directories=(directory / host,),
                    memory_directory=Path(memory),
                    memory_tier_bytes=4 * MAP_OUTPUTS * MAP_OUTPUT_BYTES,
                    min_free_bytes=0,
                ),
                quotas=QuotaConfig(quota_network_segments=None),
            )
        )
        try:
            yield running
        finally:
            await running.close()


def many_output_bytes(rounds: int) -> int:
    """Return the bytes of each of many channels that add up to those of a few in many rounds."""
    return rounds * MAP_OUTPUTS * MAP_OUTPUT_BYTES // MANY_CHANNELS


async def store_outputs(
    running: NetworkEnvironment,
    key: ShuffleKey = KEY,
    outputs: int = MAP_OUTPUTS,
    output_bytes: int = MAP_OUTPUT_BYTES,
) -> None:
    """Put data into the store, one subpartition per map output."""
    data = os.urandom(output_bytes)
    checksum = crc32c(data)
    for number in range(outputs):
        writer = running.store.begin_region(key, 0, [len(data)])
        writer.view[:] = data
        region = writer.finish(checksum)
        await running.partitions.commit(MapOutput(key, number, 1, (region,)))


async def serve_partitions(directory: Path, rounds: int) -> None:
    """Run the process with the partitions; it prints its id and port and ends with its input."""
    async with environment(directory, "127.0.0.1") as running:
        await store_outputs(running)
        await store_outputs(running, MANY_KEY, MANY_OUTPUTS, many_output_bytes(rounds))
        print(running.taskmanager_id, running.address.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def read_partitions(
    running: NetworkEnvironment,
    gates: Sequence[Sequence[ChannelSource]],
    rounds: int,
    *,
    checksum: bool,
    key: ShuffleKey = KEY,
) -> tuple[int, float]:
    """Read all gates at once, as reduce tasks do; return bytes and seconds."""
    began = time.perf_counter()
    totals = await asyncio.gather(
        *(read_gate(running, sources, rounds, checksum=checksum, key=key) for sources in gates)
    )
    return sum(totals), time.perf_counter() - began


async def read_gate(
    running: NetworkEnvironment,
    sources: Sequence[ChannelSource],
    rounds: int,
    *,
    checksum: bool,
    key: ShuffleKey = KEY,
) -> int:
    """Read sources ``rounds`` times, each time through a gate of its own; return bytes."""
    total = 0
    for _ in range(rounds):
        read_pool = ReadPool(running.network_pool, "bench", 1)
        services = running.gate_services
        opener = TaskManagerChannelOpener(
            "bench",
            services,
            SubpartitionRange(key, 0, 1),
            read_pool,
            GateLimits(
                buffer_bytes=MAX_LARGE_PAYLOAD_BYTES,
                floating_buffers=services.config.floating_buffers_per_stored_gate,
            ),
        )
        gate = InputGate(opener)
        for source in sources:
            gate.add_channel(source)
        try:
            while (taken := await gate.next_buffer_or_event()) is not None:
                payload, release, kind = taken.buffer
                if kind == DATA:
                    total += len(payload)
                    if checksum:
                        crc32c(payload)
                if release is not None:
                    release()
        finally:
            gate.release()
            read_pool.destroy()
    return total


@contextlib.contextmanager
def child(
    role: str, *arguments: str, module: str = "benchmarks.exchange"
) -> Iterator[tuple[str, int]]:
    """Run this or another module in a process of its own; give the words of its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--role", role, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if process.stdout is None or process.stdin is None:
        raise RuntimeError("a child without pipes")
    try:
        name, port = process.stdout.readline().split()
        yield name, int(port)
    finally:
        process.stdin.close()
        try:
            process.wait(START_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # it must not spin beside the next measurement
            process.wait()
            raise
        finally:
            process.stdout.close()


async def measure(
    directory: Path, pairs: int, rounds: int, *, checksum: bool
) -> list[dict[str, float]]:
    """Alternate all sides; return the rates of each turn in bytes a second."""
    serving = ("--directory", str(directory), "--rounds", str(rounds))
    with (
        child("partitions", *serving) as (taskmanager_id, port),
        child("bare") as (_, bare_port),
        child("cached") as (_, cached_port),
    ):
        address = Address("127.0.0.1", port)
        few = [
            [ChannelSource(taskmanager_id, address, range(first, MAP_OUTPUTS, CHANNELS))]
            for first in range(CHANNELS)
        ]
        many = [
            [
                ChannelSource(taskmanager_id, address, [number % MANY_OUTPUTS])
                for number in range(first, MANY_CHANNELS, CHANNELS)
            ]
            for first in range(CHANNELS)
        ]
        runs: list[dict[str, float]] = []
        async with (
            environment(directory, "127.0.0.2") as running,
            environment(directory, "127.0.0.3", flow_control="watermark") as uncredited,
            environment(directory, "127.0.0.4", buffers=EQUAL_MEMORY) as equal,
            environment(
                directory,
                "127.0.0.5",
                buffers=EQUAL_MEMORY,
                flow_control="watermark",
            ) as equal_uncredited,
        ):
            for turn in with_bar(range(pairs + 1), "pairs"):
                cpu = [time.process_time()]
                total, ours = await read_partitions(running, few, rounds, checksum=checksum)
                cpu.append(time.process_time())
                bare = await read_bare(bare_port, total)
                cpu.append(time.process_time())
                cached = await read_bare(cached_port, total)
                _, without = await read_partitions(uncredited, few, rounds, checksum=checksum)
                _, with_equal = await read_partitions(equal, few, rounds, checksum=checksum)
                _, without_equal = await read_partitions(
                    equal_uncredited, few, rounds, checksum=checksum
                )
                total_many, ours_many = await read_partitions(
                    running, many, 1, checksum=checksum, key=MANY_KEY
                )
                buffers = total / SEGMENT_SIZE_BYTES
                if turn:  # the first one warms up
                    runs.append(
                        {
                            "bytes": total,
                            "sluice_bytes_per_second": total / ours,
                            "bare_bytes_per_second": total / bare,
                            "cached_bytes_per_second": total / cached,
                            "uncredited_bytes_per_second": total / without,
                            "equal_bytes_per_second": total / with_equal,
                            "equal_uncredited_bytes_per_second": total / without_equal,
                            "many_channels_bytes_per_second": total_many / ours_many,
                            "sluice_receiver_cpu_us_per_buffer": (cpu[1] - cpu[0]) / buffers * 1e6,
                            "bare_receiver_cpu_us_per_buffer": (cpu[2] - cpu[1]) / buffers * 1e6,
                        }
                    )
        return runs


FIGURES = {
    "ratio_to_raw": ("sluice_bytes_per_second", "bare_bytes_per_second"),
    "ratio_to_cached_raw": ("sluice_bytes_per_second", "cached_bytes_per_second"),
    "credit_over_uncredited": ("sluice_bytes_per_second", "uncredited_bytes_per_second"),
    "credit_over_uncredited_equal_memory": (
        "equal_bytes_per_second",
        "equal_uncredited_bytes_per_second",
    ),
    "rate_1000_over_10_channels": ("many_channels_bytes_per_second", "sluice_bytes_per_second"),
}
"""Each figure as the ratio of two rates of a turn."""

AIMS = {
    "ratio_to_raw": "≥ 0.85",
    "credit_over_uncredited": "≥ 1.0",
    "rate_1000_over_10_channels": "≥ 0.7",
}


def report_of(runs: list[dict[str, float]]) -> Report:
    """Make the report."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for figure, (over, under) in FIGURES.items():
        ratios = [run[over] / run[under] for run in runs]
        figures[figure], spread[figure] = median_and_spread(ratios)
    for side in ("sluice", "bare"):
        rates = [run[f"{side}_bytes_per_second"] for run in runs]
        figures[f"{side}_gb_per_second"] = statistics.median(rates) / 1e9
    return Report("exchange", figures, runs, spread)


def main() -> None:
    """Run the benchmark, or one of its child processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--role", choices=("main", "partitions", "bare", "cached"), default="main")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument(
        "--rounds", type=int, default=12, help="times 160 MiB a measurement, at most 24"
    )
    parser.add_argument("--no-checksum", action="store_true")
    arguments = parser.parse_args()
    if arguments.role == "partitions":
        uvloop.run(serve_partitions(arguments.directory, arguments.rounds))
        return
    if arguments.role in BARE_BYTES:
        uvloop.run(serve_bare(BARE_BYTES[arguments.role]))
        return
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        runs = uvloop.run(
            measure(
                Path(directory),
                arguments.pairs,
                arguments.rounds,
                checksum=not arguments.no_checksum,
            )
        )
    report = report_of(runs)
    report.write()
    report.show(open_console(), AIMS)


if __name__ == "__main__":
    main()
