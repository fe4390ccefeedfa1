"""bench-adoption: the cost of many tiny map outputs in a store, and the time to adopt them.

A store in a process of its own takes ``--outputs`` map outputs of ``--partitions`` partitions with
``--partition-bytes`` each and ends; a new process opens it again.

* ``adopt_cpu_seconds_per_100000``: processor time to open the store, which adopts them all.
* ``adopt_seconds_per_100000``: elapsed time to open it.
* ``tier_mib_per_100000``: what they take in their tier.
* ``memory_bytes_each``: memory of the process for each of them, before the restart.
* ``journal_bytes_each``: what each takes in the journal.
"""

import argparse
import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.report import Report, median_and_spread, open_console
from sluice.shuffle.names import shuffle_key
from sluice.shuffle.taskmanager.config.storage_config import StorageConfig
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.progress_bar import with_bar

KEY: Final = shuffle_key("application", 0)
TOGETHER: Final = 500
"""Commits that are under way at a time."""

AIMS: Final = {
    "adopt_cpu_seconds_per_100000": "≤ 1",
}


def resident_bytes() -> int:
    """Return the memory of this process that belongs to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("Linux tells no RssAnon here")


def a_store(directory: Path) -> ShuffleStore:
    """Open a store whose memory tier has room for all outputs."""
    return ShuffleStore.open(
        StorageConfig(
            data_directories=(directory / "data",),
            memory_directory=directory / "memory",
            memory_tier_bytes=1 << 28,
            min_free_bytes=0,
        )
    )


async def fill(directory: Path, outputs: int, partitions: int, partition_bytes: int) -> list[float]:
    """Commit map outputs; return the figures of the tier, the memory and the journal."""
    lengths = [partition_bytes] * partitions
    data = bytes(partitions * partition_bytes)
    store = a_store(directory)
    gc.collect()
    before = resident_bytes()
    for first in range(0, outputs, TOGETHER):
        commits = []
        for attempt in range(first, min(first + TOGETHER, outputs)):
            writer = store.begin_region(KEY, 0, lengths)
            writer.view[:] = data
            region = writer.finish(10**9 + attempt)
            commits.append(store.commit(MapOutput(KEY, 10**6 + attempt, partitions, (region,))))
        await asyncio.gather(*commits)
    gc.collect()
    memory = (resident_bytes() - before) / outputs
    tier = sum(tier.used_bytes for tier in store.tiers())
    journal = store.statistics().journal_bytes / outputs
    await store.close()
    return [tier / 2**20 * 100_000 / outputs, memory, journal]


async def adopt(directory: Path) -> list[float]:
    """Open the store again; return processor time and elapsed time per 100,000 map outputs."""
    began = time.process_time(), time.perf_counter()
    store = a_store(directory)
    cpu_seconds, seconds = time.process_time() - began[0], time.perf_counter() - began[1]
    found = store.statistics().adopted_map_outputs
    await store.close()
    return [cpu_seconds * 100_000 / found, seconds * 100_000 / found]


def in_a_process(step: str, directory: Path, arguments: argparse.Namespace) -> list[float]:
    """Run a step in a process of its own; return its figures."""
    command = [sys.executable, "-m", "benchmarks.adoption", step, str(directory)]
    for name in ("outputs", "partitions", "partition_bytes"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(figure) for figure in done.stdout.split()]


def main() -> None:
    """Parse the command line, run and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--outputs", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--partition-bytes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--adopt", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fill is not None:
        sizes = arguments.outputs, arguments.partitions, arguments.partition_bytes
        print(*asyncio.run(fill(arguments.fill, *sizes)))
        return
    if arguments.adopt is not None:
        print(*asyncio.run(adopt(arguments.adopt)))
        return
    runs: list[dict[str, float]] = []
    for _ in with_bar(range(arguments.rounds), "rounds"):
        with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir="/dev/shm") as name:
            tier, memory, journal = in_a_process("--fill", Path(name), arguments)
            cpu_seconds, seconds = in_a_process("--adopt", Path(name), arguments)
        runs.append(
            {
                "adopt_cpu_seconds_per_100000": cpu_seconds,
                "adopt_seconds_per_100000": seconds,
                "tier_mib_per_100000": tier,
                "memory_bytes_each": memory,
                "journal_bytes_each": journal,
            }
        )
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for name in runs[0]:
        figures[name], spread[name] = median_and_spread([run[name] for run in runs])
    report = Report("adoption", figures, runs, spread)
    report.write()
    report.show(open_console(), AIMS)


if __name__ == "__main__":
    main()
