"""bench-isolation: a reader beside a stuck reader, over the same reader alone, in both modes.

Two processes, two TaskManagers, one connection. Subtask B.4 opens a gate over stored partitions,
takes one buffer and is stuck. Subtask B.3 reads over the same connection for a fixed time, once
beside it and once alone. With credit B.4 stops its own channel; without it stops the connection.

``alone_credit_over_uncredited`` is the rate of B.3 alone with credit over that without, with the
same buffers: two of its channel and eight floating ones.
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
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.names import SubpartitionRange
from sluice.shuffle.taskmanager.environment import NetworkEnvironment
from sluice.shuffle.taskmanager.serve.stored_partition_view import ReadPool
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import TaskManagerChannelOpener
from sluice.transport.connector import Address

HOSTS = {"credit": "127.0.0.2", "watermark": "127.0.0.3"}
FIGURES = {"credit": "isolation_credit", "watermark": "isolation_uncredited"}
AIMS = {
    "isolation_credit": "≥ 0.95",
    "isolation_uncredited": "near 0",
    "alone_credit_over_uncredited": "≥ 0.95",
}

SETTLE_SECONDS = 0.3
"""Time until data for the stuck reader fills every buffer, for which there is no event."""


@contextlib.asynccontextmanager
async def open_gate(running: NetworkEnvironment, source: ChannelSource) -> AsyncIterator[InputGate]:
    """Open a gate with one channel, as a subtask does."""
    read_pool = ReadPool(running.network_pool, "bench", 1)
    wanted = SubpartitionRange(KEY, 0, 1)
    gate = InputGate(TaskManagerChannelOpener("bench", running.gate_services, wanted, read_pool))
    gate.add_channel(source)
    try:
        yield gate
    finally:
        gate.release()
        read_pool.destroy()


async def read_for(running: NetworkEnvironment, source: ChannelSource, seconds: float) -> float:
    """Read the source again and again; return bytes a second."""
    total = 0
    began = time.perf_counter()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                async with open_gate(running, source) as gate:
                    while (taken := await gate.next_buffer_or_event()) is not None:
                        total += len(taken.buffer.payload)
                        if taken.buffer.release is not None:
                            taken.buffer.release()
    return total / (time.perf_counter() - began)


async def read_beside_stuck(
    running: NetworkEnvironment, source: ChannelSource, stuck: ChannelSource, seconds: float
) -> float:
    """Read as :func:`read_for` while another gate has taken one buffer and is stuck."""
    async with open_gate(running, stuck) as gate:
        taken = await gate.next_buffer_or_event()
        await asyncio.sleep(SETTLE_SECONDS)
        rate = await read_for(running, source, seconds)
        if taken is not None and taken.buffer.release is not None:
            taken.buffer.release()
        return rate


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
            mode: await stack.enter_async_context(
                environment(directory, host, None, flow_control=mode)
            )
            for mode, host in HOSTS.items()
        }
        for turn in range(pairs + 1):
            run: dict[str, float] = {}
            for mode, running in reading.items():
                run[f"{mode}_alone_bytes_per_second"] = await read_for(running, b3, seconds)
                run[f"{mode}_beside_stuck_bytes_per_second"] = await read_beside_stuck(
                    running, b3, b4, seconds
                )
            if turn:  # the first one warms up
                runs.append(run)
    return runs


def report_of(runs: list[dict[str, float]]) -> Report:
    """Make the report."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for mode, figure in FIGURES.items():
        figures[figure], spread[figure] = median_and_spread(
            [
                run[f"{mode}_beside_stuck_bytes_per_second"] / run[f"{mode}_alone_bytes_per_second"]
                for run in runs
            ]
        )
    name = "alone_credit_over_uncredited"
    figures[name], spread[name] = median_and_spread(
        [
            run["credit_alone_bytes_per_second"] / run["watermark_alone_bytes_per_second"]
            for run in runs
        ]
    )
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
