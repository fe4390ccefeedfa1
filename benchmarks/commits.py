"""Cost of ``journal_sync``: ``python -m benchmarks.commits DIRECTORY``.

Commits map outputs of one region to a store on a real disk, without sockets, for each mode, and
prints commits and megabytes a second. The directory must not be on tmpfs. Modes alternate, and each
number is the median of the rounds. Within a round all map outputs are released at the end, so the
later rounds use space that was written before, as a TaskManager does after its first minutes.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.config.storage_config import StorageConfig
from sluice.shuffle.taskmanager.store.journal.journal_sync import SyncMode
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.progress_bar import with_bar

MODES: Final[tuple[SyncMode, ...]] = ("never", "interval", "commit")

WARM_ROUNDS: Final = 1
"""Rounds that do not count: the first one allocates the blocks of the arena."""


class Load(NamedTuple):
    """The map outputs of a round.

    Attributes:
        writers: Map tasks that write and commit at the same time.
        region_bytes: Bytes of each map output.
        outputs: Map outputs of a round.
    """

    writers: int
    region_bytes: int
    outputs: int


async def _write_one(store: ShuffleStore, key: ShuffleKey, attempt: int, data: memoryview) -> None:
    writer = store.begin_region(key, 0, [len(data)], attempt)
    await writer.write(0, [data])
    region = writer.finish(crc32c(data))
    await store.commit(MapOutput(key, attempt, 1, (region,)))


async def _round(directory: Path, mode: SyncMode, number: int, load: Load) -> float:
    """Return the seconds from the first write to the last acknowledgment."""
    store = ShuffleStore.open(
        StorageConfig(
            data_directories=(directory / mode,),
            memory_directory=None,
            memory_tier_bytes=0,
            min_free_bytes=0,
            journal_sync=mode,
        )
    )
    try:
        key = ShuffleKey("benchmark", number)
        data = memoryview(bytearray(load.region_bytes))
        attempts = iter(range(load.outputs))

        async def write() -> None:
            for attempt in attempts:
                await _write_one(store, key, attempt, data)

        begin = time.perf_counter()
        await asyncio.gather(*(write() for _ in range(load.writers)))
        seconds = time.perf_counter() - begin
        store.release_shuffle(key)
        released = store.released()
        if released is not None:
            await released
        return seconds
    finally:
        await store.close()


def measure(directory: Path, load: Load, rounds: int) -> dict[SyncMode, list[float]]:
    """Return the seconds of each counted round, by mode."""
    seconds: dict[SyncMode, list[float]] = {mode: [] for mode in MODES}
    for number in with_bar(range(WARM_ROUNDS + rounds), "rounds"):
        for mode in MODES:
            spent = asyncio.run(_round(directory, mode, number, load))
            if number >= WARM_ROUNDS:
                seconds[mode].append(spent)
    return seconds


def _loads(count: int) -> list[Load]:
    return [
        Load(1, 64 * 1024, count),
        Load(16, 64 * 1024, 4 * count),
        Load(1, 8 * 1024 * 1024, max(1, count // 8)),
        Load(16, 8 * 1024 * 1024, max(1, count // 4)),
    ]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="an existing directory on a real disk")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each mode that count")
    parser.add_argument("--count", type=int, default=200, help="map outputs of the first load")
    given = parser.parse_args()
    top = Path(tempfile.mkdtemp(prefix="sluice-commits-", dir=given.directory))
    try:
        sys.stdout.write(
            "writers  region KiB  mode      commits/s      MB/s  (least to most MB/s)\n"
        )
        for load in _loads(given.count):
            for mode, seconds in measure(top, load, given.rounds).items():
                megabytes = load.outputs * load.region_bytes / 1e6
                rates = sorted(megabytes / each for each in seconds)
                middle = statistics.median(seconds)
                sys.stdout.write(
                    f"{load.writers:7}  {load.region_bytes // 1024:10}  {mode:8}"
                    f"{load.outputs / middle:11.0f}{megabytes / middle:10.0f}"
                    f"  ({rates[0]:.0f} to {rates[-1]:.0f})\n"
                )
    finally:
        shutil.rmtree(top)


if __name__ == "__main__":
    main()
