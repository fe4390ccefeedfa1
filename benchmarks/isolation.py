"""bench-isolation: a reader beside a stuck reader, over the same reader alone, in both modes.

Two processes, two TaskManagers, one connection. Subtask B.4 opens a gate over stored partitions,
takes one buffer and is stuck. Subtask B.3 reads over the same connection for a fixed time, once
beside it and once alone. With credit B.4 stops its own channel; without it stops the connection.

``alone_credit_over_uncredited`` is the rate of B.3 alone with credit over that without, with the
same buffers in both modes: two of its channel and the 32 floating ones that a gate of stored map
outputs has by default. In the figure that ends in ``_ten_buffers`` they are eight, as for pipelined
data: then the two ends often wait for each other, and the time in which an idle processor core
wakes up decides.

``socket_bytes_credit`` and ``socket_bytes_uncredited`` are the bytes that wait in the two socket
buffers of the connection while B.4 is stuck: the memory of a mode beside its segments.
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop

from benchmarks.exchange import CHANNELS, KEY, MAP_OUTPUTS, child, environment
from benchmarks.report import Report, median_and_spread, open_console
from sluice.protocol.limits import MAX_LARGE_PAYLOAD_BYTES
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.names import SubpartitionRange
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import (
    GateLimits,
    TaskManagerChannelOpener,
)
from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
from sluice.transport.address import Address
from tests.support.progress_bar import with_bar

HOSTS = {"credit": "127.0.0.2", "watermark": "127.0.0.3"}
FIGURES = {"credit": "isolation_credit", "watermark": "isolation_uncredited"}
FLOATING = {"": 32, "_ten_buffers": 8}
"""Floating buffers of the gates, by the end of the names of their figures."""
AIMS = {
    "isolation_credit": "≥ 0.95",
    "isolation_uncredited": "near 0",
    "alone_credit_over_uncredited": "≥ 0.95",
}

SETTLE_SECONDS = 0.3
"""Time until data for the stuck reader fills every buffer, for which there is no event."""


@contextlib.asynccontextmanager
async def open_gate(
    running: NetworkEnvironment,
    source: ChannelSource,
    floating_buffers: int = FLOATING["_ten_buffers"],
) -> AsyncIterator[InputGate]:
    """Open a gate with one channel, as a subtask does."""
    read_pool = ReadPool(running.network_pool, "bench", 1)
    wanted = SubpartitionRange(KEY, 0, 1)
    limits = GateLimits(MAX_LARGE_PAYLOAD_BYTES, floating_buffers=floating_buffers)
    gate = InputGate(
        TaskManagerChannelOpener("bench", running.gate_services, wanted, read_pool, limits)
    )
    gate.add_channel(source)
    try:
        yield gate
    finally:
        gate.release()
        read_pool.destroy()


async def read_for(
    running: NetworkEnvironment, source: ChannelSource, seconds: float, floating_buffers: int
) -> float:
    """Read the source again and again; return bytes a second."""
    total = 0
    began = time.perf_counter()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                async with open_gate(running, source, floating_buffers) as gate:
                    while (taken := await gate.next_buffer_or_event()) is not None:
                        total += len(taken.buffer.payload)
                        if taken.buffer.release is not None:
                            taken.buffer.release()
    return total / (time.perf_counter() - began)


async def read_beside_stuck(
    running: NetworkEnvironment, source: ChannelSource, stuck: ChannelSource, seconds: float
) -> tuple[float, int]:
    """Read as :func:`read_for` while another gate has taken one buffer and is stuck.

    Returns:
        Bytes a second, and the bytes in socket buffers.
    """
    floating = FLOATING["_ten_buffers"]
    async with open_gate(running, stuck, floating) as gate:
        taken = await gate.next_buffer_or_event()
        await asyncio.sleep(SETTLE_SECONDS)
        waiting = socket_bytes(stuck.address.port)
        rate = await read_for(running, source, seconds, floating)
        if taken is not None and taken.buffer.release is not None:
            taken.buffer.release()
        return rate, waiting


def socket_bytes(port: int) -> int:
    """Return the bytes that wait in both buffers of all TCP connections with a port."""
    total = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if port in (int(end.rpartition(":")[2], 16) for end in fields[1:3]):
            sent, _, received = fields[4].partition(":")
            total += int(sent, 16) + int(received, 16)
    return total


async def measure(directory: Path, pairs: int, seconds: float) -> list[dict[str, float]]:
    """Alternate alone and beside a stuck reader, and both modes; return the rates of each turn."""
    runs: list[dict[str, float]] = []
    async with contextlib.AsyncExitStack() as stack:
        taskmanager_id, port = stack.enter_context(
            child("partitions", "--directory", str(directory), "--rounds", "1")
        )
        address = Address("127.0.0.1", port)
        b3, b4 = (
            ChannelSource(taskmanager_id, address, range(first, MAP_OUTPUTS, CHANNELS))
            for first in range(2)
        )
        reading = {
            mode: await stack.enter_async_context(environment(directory, host, flow_control=mode))
            for mode, host in HOSTS.items()
        }
        for turn in with_bar(range(pairs + 1), "pairs"):
            run: dict[str, float] = {}
            for mode, running in reading.items():
                for ending, floating in FLOATING.items():
                    run[f"{mode}_alone{ending}_bytes_per_second"] = await read_for(
                        running, b3, seconds, floating
                    )
                beside_stuck, waiting = await read_beside_stuck(running, b3, b4, seconds)
                run[f"{mode}_beside_stuck_bytes_per_second"] = beside_stuck
                run[f"{mode}_socket_bytes"] = waiting
            if turn:  # the first one warms up
                runs.append(run)
    return runs


def report_of(runs: list[dict[str, float]]) -> Report:
    """Make the report."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}

    def put(name: str, values: list[float]) -> None:
        figures[name], spread[name] = median_and_spread(values)

    def ratios(above: str, below: str) -> list[float]:
        rate = "bytes_per_second"
        return [run[f"{above}_{rate}"] / run[f"{below}_{rate}"] for run in runs]

    for mode, figure in FIGURES.items():
        put(figure, ratios(f"{mode}_beside_stuck", f"{mode}_alone_ten_buffers"))
    for ending in FLOATING:
        name = f"alone_credit_over_uncredited{ending}"
        put(name, ratios(f"credit_alone{ending}", f"watermark_alone{ending}"))
    put("socket_bytes_credit", [run["credit_socket_bytes"] for run in runs])
    put("socket_bytes_uncredited", [run["watermark_socket_bytes"] for run in runs])
    return Report("isolation", figures, runs, spread)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        runs = uvloop.run(measure(Path(directory), arguments.pairs, arguments.seconds))
    report = report_of(runs)
    report.write()
    report.show(open_console(), AIMS)


if __name__ == "__main__":
    main()
