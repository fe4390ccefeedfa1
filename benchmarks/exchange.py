"""bench-exchange: TaskManager → TaskManager over loopback TCP, beside a bare socket pair.

Both sides are two processes on uvloop that move the same number of bytes in buffers of 32 KiB.
Ours: stored partitions in the memory tier of one network environment, read through ten input gates
of another one with credit flow control; the reader checksums every buffer (CRC-32C), as a reduce
task does. Bare: one ``transport.write`` a buffer out of as much data in the same kind of memory,
and a ``BufferedProtocol`` that counts bytes on the other side, no checksum. Beside it the same with
one buffer sent again and again, which never leaves the processor's cache (``ratio_to_cached_raw``).
They alternate after a warm-up each; a figure is the median of the pairwise ratios of rates.
"""

import argparse
import asyncio
import contextlib
import gc
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvloop
from crc32c import crc32c

from benchmarks.report import Report, open_console
from protocol.messages import DATA
from shuffle.config import ApplicationConfig, NetworkMemoryConfig, StorageConfig
from shuffle.environment import NetworkEnvironment
from shuffle.gate.channel_opener import ChannelOpener, ChannelSource
from shuffle.gate.input_gate import InputGate
from shuffle.network.serving import ReadPool
from shuffle.storage.outputs import MapOutput, ShuffleKey
from transport.config import TransportConfig
from transport.connector import Address

SEGMENT_SIZE_BYTES = 32 * 1024
CHANNELS = 10
"""Channels on the one connection: as many reduce tasks, each with a gate and a channel to the
other TaskManager."""
MAP_OUTPUTS = 2 * CHANNELS
MAP_OUTPUT_BYTES = 8 * 1024 * 1024
KEY = ShuffleKey("bench", 0)
START_DEADLINE_SECONDS = 30


@contextlib.asynccontextmanager
async def environment(
    directory: Path, host: str, congestion: str | None, **transport: Any
) -> AsyncIterator[NetworkEnvironment]:
    """Run a network environment with a memory tier that holds all the data."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir="/dev/shm") as memory:
        running = NetworkEnvironment(
            TransportConfig(
                bind_host=host, data_port=0, congestion_control=congestion, **transport
            ),
            NetworkMemoryConfig(segment_size_bytes=SEGMENT_SIZE_BYTES),
            StorageConfig(
                data_directories=(directory / host,),
                memory_directory=Path(memory),
                memory_tier_bytes=2 * MAP_OUTPUTS * MAP_OUTPUT_BYTES,
                min_free_bytes=0,
            ),
            ApplicationConfig(),
        )
        await running.start()
        try:
            yield running
        finally:
            await running.close()


async def store_outputs(running: NetworkEnvironment) -> None:
    """Put the data of the benchmark into the store: one subpartition a map output."""
    data = os.urandom(MAP_OUTPUT_BYTES)
    checksum = crc32c(data)
    for number in range(MAP_OUTPUTS):
        writer = running.store.begin_region(KEY, 0, [len(data)])
        writer.view[:] = data
        region = writer.finish(checksum)
        await running.partitions.commit(MapOutput(KEY, number, 1, (region,)))


async def serve_partitions(directory: Path, congestion: str | None) -> None:
    """The process that is read from; says its id and port, ends with its standard input."""
    async with environment(directory, "127.0.0.1", congestion) as running:
        await store_outputs(running)
        print(running.taskmanager_id, running.address.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def read_partitions(
    running: NetworkEnvironment, sources: list[ChannelSource], rounds: int, *, checksum: bool
) -> tuple[int, float]:
    """Read all sources at once, as so many reduce tasks; return bytes and seconds."""
    began = time.perf_counter()
    totals = await asyncio.gather(
        *(read_gate(running, source, rounds, checksum=checksum) for source in sources)
    )
    return sum(totals), time.perf_counter() - began


async def read_gate(
    running: NetworkEnvironment, source: ChannelSource, rounds: int, *, checksum: bool
) -> int:
    """Read one source ``rounds`` times, each time through a gate of its own; return bytes."""
    total = 0
    for _ in range(rounds):
        read_pool = ReadPool(running.network_pool, "bench", 1)
        opener = ChannelOpener("bench", running.gate_services, KEY, 0, 1, read_pool)
        gate = InputGate("bench", KEY, opener)
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


class BareSender(asyncio.Protocol):
    """Sends a number of bytes, named in the first line it receives, as fast as it may.

    Args:
        data: What to send, again and again; a multiple of the segment size.
        congestion: Congestion control; the system's by default.
    """

    def __init__(self, data: memoryview, congestion: str | None) -> None:
        self._data = data
        self._congestion = congestion
        self._next = 0
        self._left = 0
        self._writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the watermarks that our own connections have."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        if self._congestion is not None:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._congestion.encode())
        self._transport.set_write_buffer_limits(2 * SEGMENT_SIZE_BYTES, SEGMENT_SIZE_BYTES + 1)

    def data_received(self, data: bytes) -> None:
        """Take the request: a number of bytes."""
        self._left = int(data)
        self._send()

    def pause_writing(self) -> None:
        """Wait."""
        self._writable = False

    def resume_writing(self) -> None:
        """Go on."""
        self._writable = True
        self._send()

    def _send(self) -> None:
        while self._writable and self._left > 0:
            end = self._next + SEGMENT_SIZE_BYTES
            self._transport.write(self._data[self._next : end])
            self._next = end if end < len(self._data) else 0
            self._left -= SEGMENT_SIZE_BYTES


class BareReceiver(asyncio.BufferedProtocol):
    """Counts what it receives into one segment."""

    def __init__(self, expected_bytes: int) -> None:
        self._segment = memoryview(bytearray(SEGMENT_SIZE_BYTES))
        self._left = expected_bytes
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Receive into the same segment again and again."""
        return self._segment

    def buffer_updated(self, nbytes: int) -> None:
        """Count."""
        self._left -= nbytes
        if self._left <= 0 and not self.done.done():
            self.done.set_result(None)


async def serve_bare(congestion: str | None, *, cached: bool) -> None:
    """The bare process that is read from.

    Args:
        congestion: Congestion control of the sender; the system's by default.
        cached: Send one buffer again and again, instead of as much data as ours has.
    """
    loop = asyncio.get_running_loop()
    size = SEGMENT_SIZE_BYTES if cached else MAP_OUTPUTS * MAP_OUTPUT_BYTES
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(size)
        with mmap.mmap(file.fileno(), size) as mapping, memoryview(mapping) as data:
            for start in range(0, size, SEGMENT_SIZE_BYTES):
                data[start : start + SEGMENT_SIZE_BYTES] = os.urandom(SEGMENT_SIZE_BYTES)
            server = await loop.create_server(lambda: BareSender(data, congestion), "127.0.0.1", 0)
            print("bare", server.sockets[0].getsockname()[1], flush=True)
            await loop.run_in_executor(None, sys.stdin.read)
            server.close()
            gc.collect()  # slices of the mapping


async def read_bare(port: int, total: int) -> float:
    """Read ``total`` bytes from the bare sender; return seconds."""
    loop = asyncio.get_running_loop()
    transport, receiver = await loop.create_connection(
        lambda: BareReceiver(total), "127.0.0.1", port
    )
    began = time.perf_counter()
    transport.write(str(total).encode())
    await receiver.done
    elapsed = time.perf_counter() - began
    transport.close()
    return elapsed


@contextlib.contextmanager
def child(
    role: str, *arguments: str, module: str = "benchmarks.exchange"
) -> Iterator[tuple[str, int]]:
    """Run this module, or another one, in a process of its own; give what its first line says."""
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
        process.wait(START_DEADLINE_SECONDS)
        process.stdout.close()


async def measure(
    directory: Path, pairs: int, rounds: int, congestion: str | None, *, checksum: bool
) -> list[dict[str, float]]:
    """Alternate both sides; return the rates of each pair in bytes a second."""
    options = () if congestion is None else ("--congestion-control", congestion)
    with (
        child("partitions", "--directory", str(directory), *options) as (taskmanager_id, port),
        child("bare", *options) as (_, bare_port),
        child("cached", *options) as (_, cached_port),
    ):
        address = Address("127.0.0.1", port)
        sources = [
            ChannelSource(taskmanager_id, address, range(first, MAP_OUTPUTS, CHANNELS))
            for first in range(CHANNELS)
        ]
        runs: list[dict[str, float]] = []
        async with environment(directory, "127.0.0.2", congestion) as running:
            for pair in range(pairs + 1):
                cpu = [time.process_time()]
                total, ours = await read_partitions(running, sources, rounds, checksum=checksum)
                cpu.append(time.process_time())
                bare = await read_bare(bare_port, total)
                cpu.append(time.process_time())
                cached = await read_bare(cached_port, total)
                buffers = total / SEGMENT_SIZE_BYTES
                if pair:  # the first one warms up
                    runs.append(
                        {
                            "bytes": total,
                            "sluice_bytes_per_second": total / ours,
                            "bare_bytes_per_second": total / bare,
                            "cached_bytes_per_second": total / cached,
                            "sluice_receiver_cpu_us_per_buffer": (cpu[1] - cpu[0]) / buffers * 1e6,
                            "bare_receiver_cpu_us_per_buffer": (cpu[2] - cpu[1]) / buffers * 1e6,
                        }
                    )
        return runs


def main() -> None:
    """Run the benchmark, or one of its child processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--role", choices=("main", "partitions", "bare", "cached"), default="main")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=12, help="times 160 MiB a measurement")
    parser.add_argument("--congestion-control", default=None)
    parser.add_argument("--no-checksum", action="store_true")
    arguments = parser.parse_args()
    congestion = arguments.congestion_control
    if arguments.role == "partitions":
        uvloop.run(serve_partitions(arguments.directory, congestion))
        return
    if arguments.role in ("bare", "cached"):
        uvloop.run(serve_bare(congestion, cached=arguments.role == "cached"))
        return
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        runs = uvloop.run(
            measure(
                Path(directory),
                arguments.pairs,
                arguments.rounds,
                congestion,
                checksum=not arguments.no_checksum,
            )
        )
    ratios, cached_ratios = (
        [run["sluice_bytes_per_second"] / run[f"{baseline}_bytes_per_second"] for run in runs]
        for baseline in ("bare", "cached")
    )
    report = Report(
        name="exchange",
        figures={
            "ratio_to_raw": statistics.median(ratios),
            "ratio_to_cached_raw": statistics.median(cached_ratios),
            "sluice_gb_per_second": statistics.median(
                run["sluice_bytes_per_second"] for run in runs
            )
            / 1e9,
            "bare_gb_per_second": statistics.median(run["bare_bytes_per_second"] for run in runs)
            / 1e9,
        },
        runs=runs,
        spread={
            "ratio_to_raw": (min(ratios), max(ratios)),
            "ratio_to_cached_raw": (min(cached_ratios), max(cached_ratios)),
        },
    )
    report.write()
    report.show(open_console(), {"ratio_to_raw": "≥ 0.80"})


if __name__ == "__main__":
    main()
