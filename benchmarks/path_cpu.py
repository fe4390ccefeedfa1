"""bench-path-cpu: CPU seconds of all processes for a gigabyte from producer to consumer.

A producer process writes through ``sluice.shuffle.client`` to a TaskManager over a Unix socket; a
consumer process reads it through another TaskManager, which fetches it over TCP. *Stored*
partitions (memory tier, not compressed) are written, committed and then read; *pipelined* ones are
read while they are written. Buffers of 32 KiB, eight subpartitions, eight gates. Bare: the same
hops as four processes that forward bytes (``bare_path``); bare and shared: with the segments on the
TCP hop alone, the work that would remain if clients and TaskManagers shared memory. Direct: stored
partitions again, read by a client of the TaskManager that has them; ``KIND_read_seconds_per_gb`` is
of reading alone.

All alternate after a warm-up each. ``cpu_seconds_per_gb`` is the higher median of stored and
pipelined; ``cpu_over_bare`` the higher median of ratios to the bare run of the same round.
``KIND_messages_per_gb`` and ``KIND_wake_ups_per_gb`` are the messages of both TaskManagers, and the
times that their data loops waited.
``--profile`` runs both kinds once under cProfile and prints the most expensive functions of each
process, without figures, because the profiler costs more than the work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import itertools
import os
import pstats
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import uvloop

from benchmarks.bare_path import NOTICE_BYTES, BarePath, bare_path
from benchmarks.line_process import (
    ANSWER_DEADLINE_SECONDS,
    LineProcess,
    line_process,
    next_command,
    say,
)
from benchmarks.report import Report, median_and_spread, open_console
from sluice.protocol.schema import DATA, ReleaseShuffle, ShuffleReleased
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.partition_location import PartitionLocation
from sluice.shuffle.partition.blocks import BlockCodec
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.transport.address import Address
from tests.support.cpu_time import of_process
from tests.support.daemons import Daemons
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar
from tests.support.wire_clients import driver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

BUFFER_BYTES: Final = 32 * 1024
SUBPARTITIONS: Final = 8
APPLICATION: Final = "bench"
STORED: Final = "stored"
PIPELINED: Final = "pipelined"
KINDS: Final = {
    STORED: ResultPartitionType.BLOCKING,
    PIPELINED: ResultPartitionType.PIPELINED_BOUNDED,
}
DIRECT: Final = "direct"
PROCESSES: Final = ("producer", "first_taskmanager", "second_taskmanager", "consumer")
DEAREST: Final = 5


# ---- the two clients ----------------------------------------------------------------------------


async def produce(endpoint: str) -> None:
    """Write a partition for each command, and print its place as soon as it is open."""
    data = os.urandom(BUFFER_BYTES)
    async with await ShuffleClient.connect(endpoint, APPLICATION) as client:
        say("ready")
        while (command := await next_command()) is not None:
            kind, shuffle_id, total_bytes = command
            async with client.open_result_partition(
                shuffle_id, 0, SUBPARTITIONS, partition_type=KINDS[kind], codec=BlockCodec.NONE
            ) as partition:
                say(list(partition.location))
                for number in range(total_bytes // BUFFER_BYTES):
                    await partition.emit_buffer(data, number % SUBPARTITIONS)
            say("written")


async def read_subpartition(
    client: ShuffleClient, location: PartitionLocation, subpartition: int
) -> int:
    """Read to the end; return bytes."""
    total = 0
    async with client.open_gate([location], subpartition) as gate:
        while (taken := await gate.next_buffer_or_event()) is not None:
            payload, release, data_type = taken.buffer
            if data_type == DATA:
                total += len(payload)
            if release is not None:
                release()
    return total


async def consume(endpoint: str) -> None:
    """Read a partition for each command; answer with its bytes."""
    async with await ShuffleClient.connect(endpoint, APPLICATION) as client:
        say("ready")
        while (fields := await next_command()) is not None:
            location = PartitionLocation(*fields)
            async with asyncio.timeout(ANSWER_DEADLINE_SECONDS):
                totals = await asyncio.gather(
                    *(
                        read_subpartition(client, location, number)
                        for number in range(SUBPARTITIONS)
                    )
                )
            say(sum(totals))


# ---- measuring ----------------------------------------------------------------------------------


class Path4(NamedTuple):
    """The path through Sluice: both clients, and the TaskManagers between them."""

    producer: LineProcess
    consumer: LineProcess
    pids: Sequence[int]
    """Of the processes of PROCESSES."""
    producer_endpoint: str
    direct_consumer: LineProcess
    """A client of the first TaskManager, over TCP."""


@contextlib.asynccontextmanager
async def our_path(taskmanagers: Daemons, *options: str) -> AsyncIterator[Path4]:
    """Run both clients."""
    here, there = (taskmanagers.endpoints.format(host=host) for host in taskmanagers.hosts)
    program = ("-m", "benchmarks.path_cpu", *options)
    with (
        line_process(*program, "--produce", here) as producer,
        line_process(*program, "--consume", there) as consumer,
        line_process(*program, "--consume", taskmanagers.tcp_endpoints.split(",")[0]) as direct,
    ):
        for client in (producer, consumer, direct):
            await client.answer()
        first, second = (daemon.pid for daemon in taskmanagers)
        pids = [producer.pid, first, second, consumer.pid]
        yield Path4(producer, consumer, pids, here, direct)


async def move(path: Path4, kind: str, shuffle_id: int, total_bytes: int) -> list[list[float]]:
    """Move bytes from producer to consumer.

    Returns:
        CPU seconds of each process, for writing and for reading or for both at once. For DIRECT the
        last figure is that of the direct consumer.

    Raises:
        RuntimeError: Not every byte came.
    """
    consumer = path.direct_consumer if kind == DIRECT else path.consumer
    pids = [*path.pids[:-1], consumer.pid]
    marks = [[of_process(pid) for pid in pids]]

    def mark() -> None:
        marks.append([of_process(pid) for pid in pids])

    path.producer.tell([STORED if kind == DIRECT else kind, shuffle_id, total_bytes])
    location = await path.producer.answer()
    if kind == PIPELINED:
        consumer.tell(location)
        await path.producer.answer()
    else:
        await path.producer.answer()
        mark()
        consumer.tell(location)
    read_bytes = await consumer.answer()
    mark()
    if read_bytes != total_bytes:
        raise RuntimeError(f"{read_bytes} of {total_bytes} bytes came through")
    await release(path.producer_endpoint, shuffle_id)
    return [
        [after - before for before, after in zip(*pair, strict=True)]
        for pair in itertools.pairwise(marks)
    ]


async def release(endpoint: str, shuffle_id: int) -> None:
    """Release the stored partition, so that the next run finds the memory tier empty."""
    client = await driver(Address.parse(endpoint), APPLICATION)
    client.send(ReleaseShuffle(shuffle_id))
    await client.expect(ShuffleReleased)
    await client.close()


async def move_bare(path: BarePath, total_bytes: int) -> float:
    """Move bytes through the bare path; return CPU seconds of all processes."""
    before = sum(map(of_process, path.pids))
    await path.move(total_bytes)
    return sum(map(of_process, path.pids)) - before


async def measure(
    directory: Path, taskmanagers: Daemons, rounds: int, total_bytes: int
) -> list[dict[str, Any]]:
    """Alternate stored, pipelined, direct and bare; return the CPU of each."""
    gb = total_bytes / 1e9
    buffers = total_bytes / BUFFER_BYTES
    runs: list[dict[str, Any]] = []
    async with (
        our_path(taskmanagers) as ours,
        bare_path(directory) as bare,
        bare_path(directory, NOTICE_BYTES) as shared,
    ):
        for round_number in with_bar(range(rounds + 1), "rounds"):
            run: dict[str, Any] = {"load_average": os.getloadavg()[0]}
            for number, kind in enumerate((*KINDS, DIRECT)):
                before = taskmanagers.work()
                phases = await move(ours, kind, 3 * round_number + number, total_bytes)
                if kind != PIPELINED:
                    run[f"{kind}_read_seconds_per_gb"] = sum(phases[1]) / gb
                if kind == DIRECT:
                    continue
                work = taskmanagers.work().since(before)
                run[f"{kind}_messages_per_gb"] = work.messages / gb
                run[f"{kind}_wake_ups_per_gb"] = work.wake_ups / gb
                run[f"{kind}_seconds_per_gb"] = sum(map(sum, phases)) / gb
                for phase, spent in zip(phase_names(kind), phases, strict=True):
                    for process, seconds in zip(PROCESSES, spent, strict=True):
                        run[f"{kind}_{phase}{process}_us_per_buffer"] = seconds / buffers * 1e6
            run["bare_seconds_per_gb"] = await move_bare(bare, total_bytes) / gb
            run["bare_shared_seconds_per_gb"] = await move_bare(shared, total_bytes) / gb
            for kind in KINDS:
                run[f"{kind}_over_bare"] = (
                    run[f"{kind}_seconds_per_gb"] / run["bare_seconds_per_gb"]
                )
            if round_number:  # the first one warms up
                runs.append(run)
    return runs


def phase_names(kind: str) -> Sequence[str]:
    """Return the names of the phases that :func:`move` tells apart."""
    return ("write_", "read_") if kind == STORED else ("",)


def report(runs: Sequence[dict[str, Any]]) -> Report:
    """Make the figures."""
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for key in runs[0]:
        if key == "load_average":
            continue
        found, bounds = median_and_spread([run[key] for run in runs])
        if found > 0.05 or not key.endswith(
            "us_per_buffer"
        ):  # not the processes without a part in a phase
            figures[key], spread[key] = found, bounds
    headline: dict[str, float] = {}
    for key, of in (("cpu_seconds_per_gb", "seconds_per_gb"), ("cpu_over_bare", "over_bare")):
        chosen = max((f"{kind}_{of}" for kind in KINDS), key=figures.__getitem__)
        headline[key], spread[key] = figures[chosen], spread[chosen]
    return Report("path_cpu", headline | figures, runs, spread)


# ---- profiles -----------------------------------------------------------------------------------


def most_expensive(profile: Path) -> list[tuple[str, float]]:
    """Return the functions with the most time of their own, and their shares in per cent."""
    entries: dict[tuple[str, int, str], Any] = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    spent = {
        where: own
        for where, (_, _, own, _, _) in entries.items()
        if "run_until_complete" not in where[2]
    }
    total = sum(spent.values())
    first = sorted(spent.items(), key=lambda entry: -entry[1])[:DEAREST]
    return [
        (f"{'/'.join(Path(file).parts[-2:])}:{line} {name}", 100 * own / total)
        for (file, line, name), own in first
    ]


async def profile(directory: Path, memory_tier: str, total_bytes: int) -> None:
    """Move each kind once under the profiler and print the expensive functions by process."""
    for number, kind in enumerate(KINDS):
        place = directory / kind
        with Daemons(
            place,
            authenticated=False,
            wrapper=[sys.executable, "-m", "benchmarks.profiled", f"{place}/{{host}}.profile"],
            memory_tier_bytes=memory_tier,
        ) as taskmanagers:
            hosts = taskmanagers.hosts
            async with our_path(taskmanagers, "--profile-to", str(place)) as path:
                await move(path, kind, number, total_bytes)
        files = ["produce", *hosts, "consume"]
        for process, file in zip(PROCESSES, files, strict=True):
            print(f"\n{kind}, {process}: own time")
            for name, share in most_expensive(place / f"{file}.profile"):
                print(f"  {share:5.1f} %  {name}")


def run_client(name: str, endpoint: str, profile_to: Path | None) -> None:
    """Run one of the client processes."""
    profiler = None if profile_to is None else cProfile.Profile(time.thread_time)
    if profiler is not None:
        profiler.enable()
    uvloop.run((produce if name == "produce" else consume)(endpoint))
    if profiler is not None and profile_to is not None:
        profiler.disable()
        profiler.dump_stats(profile_to / f"{name}.profile")


def main() -> None:
    """Run the benchmark, or one of its clients."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for client in ("produce", "consume"):
        parser.add_argument(f"--{client}", metavar="ENDPOINT", help=argparse.SUPPRESS)
    parser.add_argument("--profile-to", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=512, help="of each run")
    parser.add_argument(
        "--memory-tier", default="768 MiB", help="of each TaskManager; '0 MiB': the disk tier"
    )
    parser.add_argument("--profile", action="store_true", help="print the most expensive functions")
    arguments = parser.parse_args()
    for client in ("produce", "consume"):
        endpoint = getattr(arguments, client)
        if endpoint is not None:
            run_client(client, endpoint, arguments.profile_to)
            return
    stop_on_termination()
    total_bytes = arguments.mib << 20
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        directory = Path(scratch)
        if arguments.profile:
            uvloop.run(profile(directory, arguments.memory_tier, total_bytes))
            return
        with Daemons(
            directory / "tm", authenticated=False, memory_tier_bytes=arguments.memory_tier
        ) as taskmanagers:
            runs = uvloop.run(measure(directory, taskmanagers, arguments.rounds, total_bytes))
    found = report(runs)
    found.write()
    found.show(open_console(), {"cpu_seconds_per_gb": "≤ 1.8", "cpu_over_bare": "≤ 1.5"})


if __name__ == "__main__":
    main()
