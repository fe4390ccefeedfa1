"""bench-memory: the memory that a TaskManager needs beside its pool and its memory tier.

Two TaskManagers with a memory tier of 256 MiB take a shuffle that is many times larger, so that
most of it goes through segments to the disk tier, and serve it again: each reader reads one half
from its own TaskManager and one from the other. All the while stalled consumers hold open gates
that they never read. The figure is the peak of resident memory (VmHWM of the process, shared
pages of the memory tier included) less the pool and the memory tier, of the larger one.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop
from crc32c import crc32c

from benchmarks.report import Report, open_console
from sluice.protocol.errors import SluiceError
from sluice.protocol.events import EndOfPartition, decode_event
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    DATA,
    AddCredit,
    BeginRegion,
    BufferResponse,
    CloseGate,
    ErrorResponse,
    FinishPartition,
    GateChannel,
    GateClosed,
    HelloAck,
    OpenGate,
    OpenPartition,
    PartitionFinished,
    RegionData,
)
from sluice.shuffle.taskmanager.config.storage_config import StorageConfig
from sluice.transport.address import Address
from tests.support.daemons import Daemons
from tests.support.processes import stop_on_termination
from tests.support.wire_clients import Client, consumer, producer

MIB = 1024 * 1024
POOL_BYTES = 2048 * 32 * 1024
MEMORY_TIER_BYTES = 256 * MIB
REGION_BYTES = 8 * MIB
RESERVE_PERCENT = StorageConfig.model_fields["memory_tier_reserve_percent"].default
FILLED_BYTES = MEMORY_TIER_BYTES * (100 - RESERVE_PERCENT) // 100 // REGION_BYTES * REGION_BYTES
"""A lone application fills so much of the memory tier: whole regions, and not the reserve."""

SUBPARTITIONS = 16
SHUFFLE = 0
STALLED_CONSUMERS = 16
CREDIT = 16
LIMIT_MIB = 96
"""Most memory that a TaskManager may need beside its pool and its memory tier."""
SAMPLE_SECONDS = 0.25
MAX_SAMPLES = 24
"""Kept of each TaskManager, evenly spaced: for the chart."""


async def write(client: Client, map_attempt_ids: range, data: bytes) -> None:
    """Write one region for each map attempt."""
    size = client.ack.segment_size_bytes
    lengths = [len(data) // SUBPARTITIONS] * SUBPARTITIONS
    checksum = crc32c(data)
    view = memoryview(data)
    for map_attempt_id in map_attempt_ids:
        client.send(OpenPartition(0, SHUFFLE, map_attempt_id, SUBPARTITIONS))
        client.send(BeginRegion(0, 0, 0, lengths, checksum))
        credit = 0
        for offset in range(0, len(data), size):
            while credit == 0:
                message = await client.expect(AddCredit)
                if isinstance(message, AddCredit):
                    credit += message.credit
            credit -= 1
            client.send(RegionData(0, offset), view[offset : offset + size])
        client.send(FinishPartition(0, len(data), 1))
        await client.expect(PartitionFinished)


def open_gate(sources: list[tuple[HelloAck, range]], start: int, end: int) -> OpenGate:
    """Open a gate over a range of subpartitions of all map outputs."""
    channels = [
        GateChannel(number, ack.taskmanager_id, ack.advertised_host, ack.data_port, list(ids))
        for number, (ack, ids) in enumerate(sources, start=1)
    ]
    return OpenGate(0, SHUFFLE, start, end, CREDIT, channels)


async def read(client: Client, gate: OpenGate) -> int:
    """Read a gate to its end; return its bytes, which the TaskManagers' totals confirm.

    Raises:
        SluiceError: A channel failed, or its totals do not agree.
    """
    client.send(gate)
    received = {channel.channel: 0 for channel in gate.channels}
    left = len(received)
    while left:
        message, payload = await client.receive()
        if isinstance(message, ErrorResponse):
            raise RemoteError(message)
        if not isinstance(message, BufferResponse):
            continue
        if message.data_type == DATA:
            received[message.channel] += len(payload)
            client.send(AddCredit(message.channel, 1))
        else:
            end = decode_event(payload)
            total = end.total_bytes if isinstance(end, EndOfPartition) else -1
            if total != received[message.channel]:
                raise SluiceError("A channel lost bytes", value=received, limit=total)
            left -= 1
    client.send(CloseGate(0))
    await client.expect(GateClosed)
    return sum(received.values())


async def through(sockets: list[Path], total_bytes: int) -> int:
    """Move the shuffle through the TaskManagers; return the bytes written and read."""
    data = os.urandom(REGION_BYTES)
    count = total_bytes // 2 // len(sockets) // REGION_BYTES
    ids = [range(n * count, (n + 1) * count) for n in range(len(sockets))]
    addresses = [Address(str(path), 0) for path in sockets]
    producers = [await producer(address) for address in addresses]
    await asyncio.gather(
        *(write(client, own, data) for client, own in zip(producers, ids, strict=True))
    )
    sources = list(zip((client.ack for client in producers), ids, strict=True))
    stalled = [await consumer(addresses[n % len(addresses)]) for n in range(STALLED_CONSUMERS)]
    for client in stalled:
        client.send(open_gate(sources, 0, SUBPARTITIONS))
    readers = [await consumer(address) for address in addresses]
    halves = [(0, SUBPARTITIONS // 2), (SUBPARTITIONS // 2, SUBPARTITIONS)]
    moved = await asyncio.gather(
        *(
            read(client, open_gate(sources, start, end))
            for client, (start, end) in zip(readers, halves, strict=True)
        )
    )
    for client in (*producers, *stalled, *readers):
        client.connection.close()
    written = count * REGION_BYTES * len(sockets)
    if sum(moved) != written:
        raise SluiceError(
            "The bytes read differ from the bytes written", value=sum(moved), limit=written
        )
    return written + sum(moved)


def resident_bytes(pid: int, which: str) -> int:
    """Read a process's resident memory: ``VmRSS`` now, ``VmHWM`` at its peak."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no {which}")


class Samples:
    """Resident memory of processes over time."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._began = time.monotonic()
        self.taken: list[tuple[float, list[int]]] = []

    async def take(self) -> None:
        """Take samples until the task is cancelled."""
        while True:
            now = time.monotonic() - self._began
            self.taken.append((now, [resident_bytes(pid, "VmRSS") for pid in self._pids]))
            await asyncio.sleep(SAMPLE_SECONDS)  # a sample over time has no event

    def kept(self) -> list[tuple[float, list[int]]]:
        """Return a few samples, evenly spaced, with the last one among them."""
        step = max(1, -(-len(self.taken) // MAX_SAMPLES))
        return self.taken[::-1][::step][::-1]


async def sampled_through(sockets: list[Path], total_bytes: int, samples: Samples) -> int:
    """As :func:`through`, while samples are taken."""
    sampling = asyncio.create_task(samples.take())
    try:
        return await through(sockets, total_bytes)
    finally:
        sampling.cancel()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=10.0, help="written plus read")
    arguments = parser.parse_args()
    stop_on_termination()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        tier = f"{MEMORY_TIER_BYTES // MIB} MiB"
        with Daemons(Path(directory), authenticated=False, memory_tier_bytes=tier) as taskmanagers:
            sockets = [Path(directory, f"{host}.sock") for host in taskmanagers.hosts]
            pids = [daemon.pid for daemon in taskmanagers]
            samples = Samples(pids)
            moved = uvloop.run(sampled_through(sockets, int(arguments.gigabytes * 1e9), samples))
            peaks = [resident_bytes(pid, "VmHWM") for pid in pids]
    kept = samples.kept()
    overheads = [(peak - POOL_BYTES - FILLED_BYTES) / MIB for peak in peaks]
    report = Report(
        name="memory",
        figures={"overhead_mib": max(overheads), "moved_gb": moved / 1e9},
        runs=[
            {
                "peak_resident_bytes": peak,
                "sampled_at_seconds": [round(at, 1) for at, _ in kept],
                "resident_bytes": [found[number] for _, found in kept],
            }
            for number, peak in enumerate(peaks)
        ],
        spread={"overhead_mib": (min(overheads), max(overheads))},
    )
    report.write()
    report.show(open_console(), {"overhead_mib": f"≤ {LIMIT_MIB}"})


if __name__ == "__main__":
    main()
