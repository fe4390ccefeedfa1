"""bench-hybrid: a producer with an absent, a slow, a fast and a repeated reader.

A producer in this process and a reader in another, both on ``sluice.shuffle.client``, and a
TaskManager between them. The producer writes whole buffers to one subpartition as fast as it can;
its rate is bytes over the time until the TaskManager has everything. A round has five turns:

* *absent*: a selective hybrid partition, whose reader comes when the producer has finished,
* *slow*: the same, and the reader takes a tenth of the rate of the turn before until the producer
  has finished, then what is left as fast as it can,
* *fast*: a selective hybrid partition, read as fast as possible,
* *full*: a full hybrid partition, read as fast as possible, and then once more,
* *pipelined*: a bounded pipelined partition, read as fast as possible.

The reader checks that all bytes have come, in order. ``slow_over_absent``, ``fast_over_pipelined``
and ``full_over_pipelined`` are the medians of the ratios within a round. ``again_mb_per_second`` is
the rate of the reader that comes when all of a full one is spilled.
"""

import argparse
import asyncio
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.line_process import LineProcess, line_process, next_command, say
from benchmarks.report import Report, median_and_spread, open_console
from sluice.protocol.schema import DATA, ReleaseShuffle, ShuffleReleased
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.partition_location import PartitionLocation
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.transport.address import Address
from tests.support.daemons import Daemons
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar
from tests.support.wire_clients import driver

TURNS: Final = ("absent", "slow", "fast", "full", "pipelined")
BUFFER_BYTES: Final = 32 * 1024
SLOW_PART: Final = 10
APPLICATION: Final = "bench"
HOST: Final = "127.0.0.1"
AIMS: Final = {
    "slow_over_absent": "≥ 0.9",
    "fast_over_pipelined": "≥ 0.95",
    "full_over_pipelined": "≥ 0.95",
}
TYPES: Final = {
    "full": ResultPartitionType.HYBRID_FULL,
    "pipelined": ResultPartitionType.PIPELINED_BOUNDED,
}

_STAMP: Final = struct.Struct(">Q")


# ---- the reader ----------------------------------------------------------------------------------


class Pace:
    """Holds a reader to a rate until it is told to hurry."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._began = time.perf_counter()
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Read the rest as fast as possible."""
        self._hurry.set()

    async def keep(self, taken_bytes: int) -> None:
        """Wait until this many bytes are due."""
        if not self._bytes_per_second or self._hurry.is_set():
            return
        early = self._began + taken_bytes / self._bytes_per_second - time.perf_counter()
        if early > 0:
            try:
                async with asyncio.timeout(early):
                    await self._hurry.wait()
            except TimeoutError:
                pass


async def read_partition(client: ShuffleClient, location: PartitionLocation, pace: Pace) -> int:
    """Read a partition to its end; return its bytes.

    Raises:
        RuntimeError: A byte is missing, or at another place.
    """
    taken_bytes = 0
    async with client.open_gate([location], 0) as gate:
        while (taken := await gate.next_buffer_or_event()) is not None:
            payload, release, data_type = taken.buffer
            if data_type == DATA:
                # Every 8 bytes of the stream are their position; buffers may be cut anywhere.
                skip = -taken_bytes % _STAMP.size
                if len(payload) >= skip + _STAMP.size:
                    (position,) = _STAMP.unpack_from(payload, skip)
                    if position != (taken_bytes + skip) // BUFFER_BYTES:
                        raise RuntimeError(f"buffer {position} came at byte {taken_bytes + skip}")
                taken_bytes += len(payload)
            if release is not None:
                release()
            await pace.keep(taken_bytes)
    return taken_bytes


async def consume(endpoint: str) -> None:
    """Read the partition that a line names, at its rate, until the next line says to hurry."""
    async with await ShuffleClient.connect(endpoint, APPLICATION) as client:
        say("ready")
        while (command := await next_command()) is not None:
            fields, bytes_per_second = command
            pace = Pace(bytes_per_second)
            reading = asyncio.create_task(read_partition(client, PartitionLocation(*fields), pace))
            await next_command()
            pace.hurry()
            say(await reading)


# ---- the producer --------------------------------------------------------------------------------


async def take_turn(
    client: ShuffleClient,
    consumer: LineProcess,
    number: int,
    turn: str,
    buffers: int,
    bytes_per_second: float,
) -> tuple[float, PartitionLocation]:
    """Write a partition and have it read; return the rate of the producer, and where it is.

    Args:
        client: The client of the producer.
        consumer: The reader's process.
        number: Number of the partition, not used before.
        turn: One of TURNS.
        buffers: Buffers to write.
        bytes_per_second: The reader's rate until the producer has finished; 0: as fast as it can.
    """
    kind = TYPES.get(turn, ResultPartitionType.HYBRID_SELECTIVE)
    async with client.open_result_partition(number, number, 1, partition_type=kind) as partition:
        command = [list(partition.location), bytes_per_second]
        if turn != "absent":
            consumer.tell(command)
        began = time.perf_counter()
        for index in range(buffers):
            await partition.emit_buffer(_STAMP.pack(index) * (BUFFER_BYTES // _STAMP.size), 0)
        await partition.finish()
        seconds = time.perf_counter() - began
    if turn == "absent":
        consumer.tell(command)
    consumer.tell("hurry")
    read_bytes = await consumer.answer()
    await partition.wait_consumed(60)
    if read_bytes != buffers * BUFFER_BYTES:
        raise RuntimeError(f"{read_bytes} bytes came, of {buffers * BUFFER_BYTES}")
    return buffers * BUFFER_BYTES / seconds, partition.location


async def read_again(consumer: LineProcess, location: PartitionLocation) -> float:
    """Have a kept partition read once more; return the rate of the reader."""
    began = time.perf_counter()
    consumer.tell([list(location), 0.0])
    consumer.tell("hurry")
    read_bytes = await consumer.answer()
    return float(read_bytes / (time.perf_counter() - began))


async def release(endpoint: str, shuffle_id: int) -> None:
    """Release a kept partition, so that the next turn finds the memory tier empty."""
    client = await driver(Address.parse(endpoint), APPLICATION)
    client.send(ReleaseShuffle(shuffle_id))
    await client.expect(ShuffleReleased)
    await client.close()


async def measure(taskmanager: Daemons, rounds: int, megabytes: int) -> list[dict[str, Any]]:
    """Take all turns; return the rates of each round."""
    buffers = (megabytes << 20) // BUFFER_BYTES
    endpoint = taskmanager.endpoints.format(host=HOST)
    runs: list[dict[str, Any]] = []
    with line_process("-m", "benchmarks.hybrid", "--consume", endpoint) as consumer:
        await consumer.answer()
        async with await ShuffleClient.connect(endpoint, APPLICATION) as client:
            number = 0
            for round_number in with_bar(range(-1, rounds), "rounds"):
                found: dict[str, Any] = {"round": round_number}
                for turn in TURNS:
                    pace = found["absent"] / SLOW_PART if turn == "slow" else 0.0
                    found[turn], location = await take_turn(
                        client, consumer, number, turn, buffers, pace
                    )
                    if turn == "full":
                        found["again"] = await read_again(consumer, location)
                        await release(endpoint, number)
                    number += 1
                if round_number >= 0:  # the first one warms up
                    runs.append(found)
    return runs


def report(runs: Sequence[dict[str, Any]]) -> Report:
    """Make the figures."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}

    def put(key: str, found: Sequence[float]) -> None:
        figures[key], spread[key] = median_and_spread(found)

    put("slow_over_absent", [run["slow"] / run["absent"] for run in runs])
    put("fast_over_pipelined", [run["fast"] / run["pipelined"] for run in runs])
    put("full_over_pipelined", [run["full"] / run["pipelined"] for run in runs])
    for turn in (*TURNS, "again"):
        put(f"{turn}_mb_per_second", [run[turn] / 1e6 for run in runs])
    return Report("hybrid", figures, runs, spread)


def main() -> None:
    """Run the benchmark, or its reader."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--consume", metavar="ENDPOINT", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=256, help="of each turn")
    parser.add_argument("--memory-tier", default="512 MiB", help="0 for a disk tier only")
    arguments = parser.parse_args()
    if arguments.consume is not None:
        uvloop.run(consume(arguments.consume))
        return
    stop_on_termination()
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
        Daemons(
            Path(directory),
            hosts=(HOST,),
            authenticated=False,
            memory_tier_bytes=arguments.memory_tier,
        ) as taskmanager,
    ):
        runs = uvloop.run(measure(taskmanager, arguments.rounds, arguments.megabytes))
    found = report(runs)
    found.write()
    found.show(open_console(), AIMS)


if __name__ == "__main__":
    main()
