"""bench-copies: what a copy of a map output on another TaskManager costs, and how fast all move.

Two TaskManagers on the loopback, each with all data in its memory tier. A client writes
``--outputs`` map outputs of ``--megabytes`` each, without copies, with a copy that is made
behind the commit, and with one that each commit waits for; the three take turns, after a warm-up.
Then the first TaskManager moves all of them to the second one.

* ``none_seconds_per_gb``, ``sync_seconds_per_gb``: time of the writer.
* ``async_seconds_per_gb``, ``copied_seconds_per_gb``: time of the writer, and until all are copied.
* ``sender_cpu_seconds_per_gb``, ``receiver_cpu_seconds_per_gb``: CPU time that asynchronous copies
  add to the first TaskManager, and to the second one; ``copy_cpu_seconds_per_gb`` is their sum.
  Nothing is polled meanwhile, so that other load on the machine changes them little.
* ``moved_gb_per_second``: the rate of the move.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from benchmarks.report import Report, median_and_spread, open_console
from sluice.cli.http_client import fetch_json
from sluice.protocol.schema import (
    KnownTaskManager,
    MoveNoted,
    OutputsHeld,
    OutputsMoved,
    ReleaseShuffle,
    ShuffleReleased,
)
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.partition.blocks import BlockCodec
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.transport.address import Address
from tests.support.cpu_time import of_process
from tests.support.daemons import Daemons
from tests.support.progress_bar import with_bar
from tests.support.wire_clients import Client, driver

HOSTS = ("127.0.0.2", "127.0.0.3")
DEADLINE_SECONDS = 120
GB = 1e9
MODES = {"none": (1, False), "async": (2, False), "sync": (2, True)}


class Pair:
    """Two TaskManagers, a driver of each, and a client of the first one."""

    def __init__(self, taskmanagers: Daemons, directory: Path) -> None:
        self.taskmanagers = taskmanagers
        self.sockets = [Address(str(directory / f"{host}.sock"), 0) for host in HOSTS]
        self.drivers: list[Client] = []

    async def connect(self) -> ShuffleClient:
        """Connect, and make the two known to each other."""
        self.drivers = [await driver(address, "bench") for address in self.sockets]
        for number, one in enumerate(self.drivers):
            other = self.drivers[1 - number].ack
            one.send(KnownTaskManager(other.taskmanager_id, other.advertised_host, other.data_port))
        return await ShuffleClient.connect(f"unix:{self.sockets[0].host}", "bench")

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU time of each TaskManager so far."""
        first, second = (of_process(each.pid) for each in self.taskmanagers)
        return first, second

    async def copied(self, shuffle_id: int, outputs: int) -> None:
        """Wait until the second TaskManager has told its driver of all copies of a shuffle."""
        while outputs > 0:
            held = await self.drivers[1].expect(OutputsHeld, DEADLINE_SECONDS)
            if isinstance(held, OutputsHeld) and held.shuffle_id == shuffle_id:
                outputs -= len(held.map_attempt_ids)

    async def release(self, shuffle_id: int) -> None:
        """Release a shuffle on both."""
        for each in self.drivers:
            each.send(ReleaseShuffle(shuffle_id))
            await each.expect(ShuffleReleased)

    async def note_moves(self, count: int) -> None:
        """Acknowledge moves, as a driver does."""
        while count > 0:
            message = await self.drivers[0].expect(OutputsMoved)
            if not isinstance(message, OutputsMoved):
                raise TypeError(message)
            count -= len(message.map_attempt_ids)
            self.drivers[0].send(MoveNoted(message.move))


async def write(
    client: ShuffleClient, shuffle_id: int, outputs: int, data: bytes, mode: str
) -> None:
    """Write map outputs, four at a time."""
    replicas, synchronous = MODES[mode]
    left = iter(range(outputs))

    async def some() -> None:
        for attempt in left:
            async with client.open_result_partition(
                shuffle_id,
                attempt,
                4,
                partition_type=ResultPartitionType.BLOCKING,
                codec=BlockCodec.NONE,
                replicas=replicas,
                replicas_synchronous=synchronous,
            ) as partition:
                for subpartition in range(4):
                    await partition.emit_buffer(data, subpartition)

    await asyncio.gather(*(some() for _ in range(4)))


async def measure(pair: Pair, outputs: int, megabytes: int, rounds: int) -> list[dict[str, float]]:
    """Return the figures of each round."""
    client = await pair.connect()
    data = os.urandom(megabytes * 1_000_000 // 4)
    gb = outputs * megabytes * 1e6 / GB
    runs: list[dict[str, float]] = []
    shuffle_id = 0
    # Pages of the memory tiers that were never used cost more than others.
    await write(client, shuffle_id, outputs, data, "sync")
    await pair.copied(shuffle_id, outputs)
    await pair.release(shuffle_id)
    for _ in with_bar(range(rounds), "rounds"):
        run: dict[str, float] = {}
        cpu: dict[str, tuple[float, float]] = {}
        for mode in MODES:
            shuffle_id += 1
            before = pair.cpu_seconds()
            began = time.perf_counter()
            await write(client, shuffle_id, outputs, data, mode)
            run[f"{mode}_seconds_per_gb"] = (time.perf_counter() - began) / gb
            if mode != "none":
                await pair.copied(shuffle_id, outputs)
            if mode == "async":
                run["copied_seconds_per_gb"] = (time.perf_counter() - began) / gb
            first, second = pair.cpu_seconds()
            cpu[mode] = (first - before[0]) / gb, (second - before[1]) / gb
            await pair.release(shuffle_id)
        sender, receiver = (
            copying - alone for copying, alone in zip(cpu["async"], cpu["none"], strict=True)
        )
        run["sender_cpu_seconds_per_gb"], run["receiver_cpu_seconds_per_gb"] = sender, receiver
        run["copy_cpu_seconds_per_gb"] = sender + receiver
        runs.append(run)
    await write(client, shuffle_id + 1, outputs, data, "none")
    noting = asyncio.ensure_future(pair.note_moves(outputs))
    began = time.perf_counter()
    drain = f"/api/v1/drain?wait_seconds={DEADLINE_SECONDS}&migrate=true"
    url = pair.taskmanagers[0].control_url
    await asyncio.to_thread(fetch_json, url, drain, "POST", DEADLINE_SECONDS)
    runs[-1]["moved_gb_per_second"] = gb / (time.perf_counter() - began)
    await noting
    await client.close()
    for each in pair.drivers:
        await each.close()
    return runs


def main() -> None:
    """Parse the command line, run and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--outputs", type=int, default=50)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        directory = Path(name)
        with Daemons(
            directory, hosts=HOSTS, authenticated=False, memory_tier_bytes="3 GiB"
        ) as taskmanagers:
            pair = Pair(taskmanagers, directory)
            runs = asyncio.run(
                measure(pair, arguments.outputs, arguments.megabytes, arguments.rounds)
            )
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for key in dict.fromkeys(key for run in runs for key in run):
        values = [run[key] for run in runs if key in run]
        figures[key], spread[key] = median_and_spread(values)
    report = Report("copies", figures, runs, spread)
    report.write()
    report.show(open_console())


if __name__ == "__main__":
    main()
