"""bench-remote: a job whose data are three times memory and disk tier together, over disks alone.

Four writers send map outputs to a TaskManager, four readers then read a quarter of the partitions
each, and the shuffle is released. Three TaskManagers take turns after a warm-up each:

* ``disk``: a memory tier, and a disk that holds the rest;
* ``s3``: the same memory tier, a disk tier as large as it, and the rest in a bucket of a real S3
  server (versitygw) on loopback, which runs on the same machine and competes for its processors;
* ``directory``: the same with a directory in place of the bucket, as of a shared file system.

Figures are medians of the ratios of one round: ``remote_over_disk`` and ``directory_over_disk`` of
the time of the whole job, ``write_over_disk`` and ``read_over_disk`` of its halves with S3.
"""

import argparse
import asyncio
import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.report import Report, median_and_spread, open_console
from sluice.protocol.schema import ReleaseShuffle, ShuffleReleased
from sluice.transport.address import Address
from tests.support.cluster import REPOSITORY
from tests.support.processes import ManagedProcess
from tests.support.wire_clients import consumer, driver, producer, read_gate, write_map_output

MIB: Final = 1024 * 1024
TIER_BYTES: Final = 64 * MIB
REGION_BYTES: Final = 2 * MIB
REGIONS: Final = 4
OUTPUTS: Final = 3 * 2 * TIER_BYTES // (REGIONS * REGION_BYTES)
TASKS: Final = 4
"""Writers, readers, and subpartitions."""

S3_SERVER: Final = REPOSITORY / "build/s3-server/versitygw"
START_SECONDS: Final = 30.0
SIDES: Final = ("disk", "s3", "directory")
_READY: Final = re.compile(r"is ready: data port \S*:(\d+),")


@contextlib.contextmanager
def s3_server(directory: Path, keys: dict[str, str]) -> Iterator[str]:
    """Run an S3 server with one bucket, ``bench``; yield its URL."""
    root, sidecar = directory / "root", directory / "sidecar"
    (root / "bench").mkdir(parents=True)
    sidecar.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    credentials = ["--access", keys["AWS_ACCESS_KEY_ID"], "--secret", keys["AWS_SECRET_ACCESS_KEY"]]
    process = subprocess.Popen(
        [
            *(str(S3_SERVER), "--port", f"127.0.0.1:{port}", *credentials, "--quiet"),
            *("--keep-alive", "posix", "--sidecar", str(sidecar), str(root)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def taskmanager(
    directory: Path, settings: dict[str, object], keys: dict[str, str]
) -> Iterator[Address]:
    """Run a TaskManager; yield the address of its data port."""
    memory = Path(tempfile.mkdtemp(prefix="sluice-bench-", dir="/dev/shm"))
    flags = {
        "bind-host": "127.0.0.1",
        "http-host": "127.0.0.1",
        "data-port": 0,
        "http-port": 0,
        "data-directories": directory / "data",
        "memory-directory": memory,
        "memory-tier-bytes": TIER_BYTES,
        "min-free-bytes": 0,
        "region-areas-bytes": 0,
    } | settings
    command = [str(Path(sys.executable).parent / "sluice"), "taskmanager"]
    command += [part for key, value in flags.items() for part in (f"--{key}", str(value))]
    directory.mkdir()
    try:
        with ManagedProcess(
            f"TaskManager in {directory.name}",
            command,
            log_path=directory / "taskmanager.log",
            environment={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
            | keys,
            directory=directory,
        ) as process:
            yield Address("127.0.0.1", int(process.wait_for_line(_READY, START_SECONDS)[1]))
    finally:
        shutil.rmtree(memory, ignore_errors=True)


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


async def measure(addresses: dict[str, Address], rounds: int) -> list[dict[str, float]]:
    """Let the sides take turns."""
    data = os.urandom(REGION_BYTES)
    runs: list[dict[str, float]] = []
    for number in range(-1, rounds):
        run: dict[str, float] = {}
        for side in SIDES:
            wrote, read = await job(addresses[side], number + 1, data)
            run |= {f"{side}_write_seconds": wrote, f"{side}_read_seconds": read}
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
    if not S3_SERVER.exists():
        parser.error(f"there is no {S3_SERVER}: make s3-server")
    keys = {
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
        "AWS_REGION": "us-east-1",
    }
    with contextlib.ExitStack() as resources:
        top = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        endpoint = resources.enter_context(s3_server(top / "s3", keys))
        small = {"disk-quota-bytes": TIER_BYTES}
        settings: dict[str, dict[str, object]] = {
            "disk": {},
            "s3": small | {"remote": "s3://bench/shuffles", "remote-endpoint": endpoint},
            "directory": small | {"remote": top / "remote"},
        }
        addresses = {
            side: resources.enter_context(taskmanager(top / f"tm-{side}", settings[side], keys))
            for side in SIDES
        }
        runs = uvloop.run(measure(addresses, arguments.rounds))
    report = report_of(runs)
    report.write()
    report.show(open_console())


if __name__ == "__main__":
    main()
