"""bench-remote: what the remote tier costs, as a tier and for a copy of each map output.

First, a job whose data are three times memory and disk tier together, over disks alone.
Four writers send map outputs to a TaskManager, four readers then read a quarter of the partitions
each, and the shuffle is released. Three TaskManagers take turns after a warm-up each:

* ``disk``: a memory tier, and a disk that holds the rest;
* ``s3``: the same memory tier, a disk tier as large as it, and the rest in a bucket of a real S3
  server (versitygw) on loopback, which runs on the same machine and competes for its processors;
* ``directory``: the same with a directory in place of the bucket, as of a shared file system.

Figures are medians of the ratios of one round: ``remote_over_disk`` and ``directory_over_disk`` of
the time of the whole job, ``write_over_disk`` and ``read_over_disk`` of its halves with S3.

Then the copies, at a TaskManager with all its data in the memory tier. The writers take turns:
without copies in the bucket, with copies that are made behind the commit, and with commits that
wait for them. ``async_over_none`` and ``sync_over_none`` are of the time of the writers. A map
output can be lost with its TaskManager from its commit until its copy is made: ``window_seconds``
is the median of that time over all map outputs of a turn, ``longest_window_seconds`` the longest.
``copy_cpu_seconds_per_gb`` is the CPU time that copies behind the commit add to the TaskManager.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

from benchmarks.report import Report, median_and_spread, open_console
from sluice.protocol.schema import (
    OutputsRemote,
    ReleaseShuffle,
    ReplicateToRemote,
    ShuffleReleased,
)
from sluice.transport.address import Address
from tests.support.cpu_time import of_process
from tests.support.daemon import Daemon
from tests.support.daemons import Daemons
from tests.support.progress_bar import with_bar
from tests.support.s3 import CREDENTIALS, SERVER, s3_server
from tests.support.wire_clients import consumer, driver, producer, read_gate, write_map_output

MIB: Final = 1024 * 1024
TIER_BYTES: Final = 64 * MIB
REGION_BYTES: Final = 2 * MIB
REGIONS: Final = 4
OUTPUTS: Final = 3 * 2 * TIER_BYTES // (REGIONS * REGION_BYTES)
TASKS: Final = 4
"""Writers, readers, and subpartitions."""

SIDES: Final = ("disk", "s3", "directory")
MODES: Final = ("none", "async", "sync")
COPIED_OUTPUTS: Final = 16
COPY_DEADLINE_SECONDS: Final = 60.0


async def copied_job(daemon: Daemon, shuffle_id: int, data: bytes, mode: str) -> dict[str, float]:
    """Write and release a shuffle whose map outputs get copies, or none; return its figures."""
    before = of_process(daemon.pid)
    alive = await driver(daemon.address)
    committed: dict[int, float] = {}
    copied: dict[int, float] = {}

    async def write(number: int) -> None:
        client = await producer(daemon.address)
        for attempt in range(number, COPIED_OUTPUTS, TASKS):
            to_remote = None if mode == "none" else ReplicateToRemote(0, mode == "sync")
            await write_map_output(
                client, shuffle_id, attempt, [[data]] * REGIONS, to_remote=to_remote
            )
            committed[attempt] = time.perf_counter()
        await client.close()

    async def watch() -> None:
        while len(copied) < COPIED_OUTPUTS:
            told = await alive.expect(OutputsRemote, COPY_DEADLINE_SECONDS)
            if isinstance(told, OutputsRemote):
                now = time.perf_counter()
                copied.update((attempt, now) for attempt in told.map_attempt_ids)

    began = time.perf_counter()
    watching = asyncio.create_task(watch()) if mode != "none" else None
    await asyncio.gather(*map(write, range(TASKS)))
    seconds = time.perf_counter() - began
    if watching is not None:
        await watching
    cpu_seconds = of_process(daemon.pid) - before
    alive.send(ReleaseShuffle(shuffle_id))
    await alive.expect(ShuffleReleased)
    await alive.close()
    windows = [max(0.0, copied[each] - committed[each]) for each in copied] or [0.0]
    return {
        f"{mode}_copy_seconds": seconds,
        f"{mode}_cpu_seconds": cpu_seconds,
        f"{mode}_window_seconds": median(windows),
        f"{mode}_longest_window_seconds": max(windows),
    }


async def job(address: Address, shuffle_id: int, data: bytes) -> tuple[float, float]:
    """Write, read and release a shuffle; return the seconds of writing and of reading."""
    part = REGION_BYTES // TASKS
    parts = [data[number * part : (number + 1) * part] for number in range(TASKS)]
    alive = await driver(address)

    async def write(number: int) -> None:
        client = await producer(address)
        for attempt in range(number, OUTPUTS, TASKS):
            await write_map_output(client, shuffle_id, attempt, [parts] * REGIONS)
        await client.close()

    async def read(number: int) -> None:
        client = await consumer(address)
        source = (client.ack, list(range(OUTPUTS)))
        (found,) = await read_gate(client, shuffle_id, [source], number, number + 1, credit=32)
        if found != parts[number] * (REGIONS * OUTPUTS):
            raise AssertionError(f"reader {number} got other bytes than were written")
        await client.close()

    began = time.perf_counter()
    await asyncio.gather(*map(write, range(TASKS)))
    written = time.perf_counter()
    await asyncio.gather(*map(read, range(TASKS)))
    read_at = time.perf_counter()
    alive.send(ReleaseShuffle(shuffle_id))
    await alive.expect(ShuffleReleased)
    await alive.close()
    return written - began, read_at - written


async def measure(
    addresses: dict[str, Address], copying: Daemon, rounds: int
) -> list[dict[str, float]]:
    """Let the sides take turns, then the modes of copies."""
    data = os.urandom(REGION_BYTES)
    runs: list[dict[str, float]] = []
    for number in with_bar(range(-1, rounds), "rounds"):
        run: dict[str, float] = {}
        for side in SIDES:
            wrote, read = await job(addresses[side], number + 1, data)
            run |= {f"{side}_write_seconds": wrote, f"{side}_read_seconds": read}
        for turn, mode in enumerate(MODES):
            run |= await copied_job(copying, 3 * (number + 1) + turn, data, mode)
        if number >= 0:
            runs.append(run)
    return runs


def report_of(runs: list[dict[str, float]]) -> Report:
    """Make the figures of the runs."""

    def seconds(run: dict[str, float], side: str, *steps: str) -> float:
        return sum(run[f"{side}_{step}_seconds"] for step in steps)

    whole = ("write", "read")
    named = {
        "remote_over_disk": ("s3", whole),
        "write_over_disk": ("s3", ("write",)),
        "read_over_disk": ("s3", ("read",)),
        "directory_over_disk": ("directory", whole),
    }
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for name, (side, steps) in named.items():
        ratios = [seconds(run, side, *steps) / seconds(run, "disk", *steps) for run in runs]
        figures[name], spread[name] = median_and_spread(ratios)
    gb = COPIED_OUTPUTS * REGIONS * REGION_BYTES / 1e9
    copies = {
        "async_over_none": [run["async_copy_seconds"] / run["none_copy_seconds"] for run in runs],
        "sync_over_none": [run["sync_copy_seconds"] / run["none_copy_seconds"] for run in runs],
        "window_seconds": [run["async_window_seconds"] for run in runs],
        "longest_window_seconds": [run["async_longest_window_seconds"] for run in runs],
        "copy_cpu_seconds_per_gb": [
            (run["async_cpu_seconds"] - run["none_cpu_seconds"]) / gb for run in runs
        ],
    }
    for name, found in copies.items():
        figures[name], spread[name] = median_and_spread(found)
    for side in SIDES:
        rates = [
            OUTPUTS * REGIONS * REGION_BYTES / seconds(run, side, *whole) / 1e6 for run in runs
        ]
        name = f"{side}_mb_per_second"
        figures[name], spread[name] = median_and_spread(rates)
    return Report("remote", figures, runs, spread)


def main() -> None:
    """Parse the command line, run and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not SERVER.exists():
        parser.error(f"there is no {SERVER}: make s3-server")
    with contextlib.ExitStack() as resources:
        top = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        server = resources.enter_context(s3_server(top / "s3"))
        bucket = f"s3://{server.bucket()}/shuffles"
        small = {"disk_quota_bytes": TIER_BYTES}
        settings: dict[str, dict[str, Any]] = {
            "disk": {},
            "s3": small | {"remote": bucket, "remote_endpoint": server.endpoint},
            "directory": small | {"remote": top / "remote"},
            "copies": {
                "memory_tier_bytes": 2 * COPIED_OUTPUTS * REGIONS * REGION_BYTES,
                "quota_memory_tier_bytes": "100 %",
                "remote": bucket,
                "remote_endpoint": server.endpoint,
            },
        }
        daemons: dict[str, Daemon] = {}
        for side, own in settings.items():
            (daemon,) = resources.enter_context(
                Daemons(
                    top / f"tm-{side}",
                    hosts=["127.0.0.1"],
                    authenticated=False,
                    environment=CREDENTIALS,
                    **{"memory_tier_bytes": TIER_BYTES, **own},
                    min_free_bytes=0,
                    region_areas_bytes=0,
                )
            )
            daemons[side] = daemon
        addresses = {side: daemons[side].address for side in SIDES}
        runs = uvloop.run(measure(addresses, daemons["copies"], arguments.rounds))
    report = report_of(runs)
    report.write()
    report.show(open_console())


if __name__ == "__main__":
    main()
