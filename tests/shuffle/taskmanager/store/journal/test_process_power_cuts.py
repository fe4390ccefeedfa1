"""Power cuts of a TaskManager process under load, each at another moment."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.journal import power_cuts
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support import synced_daemon
from tests.support.daemon import SLUICE, Daemon
from tests.support.lost_writes import files_of, kept_by, lay_out, random_loss
from tests.support.store import content, fetch, on_disks
from tests.support.wire_clients import producer, write_map_output

if TYPE_CHECKING:
    from pathlib import Path

CUTS = int(os.environ.get("SLUICE_POWER_CUTS", "12"))
"""Cuts of each mode. SLUICE_POWER_CUTS=200 takes minutes, as each cut is followed by a start."""

MODES = ("commit", "interval", "never")
WRITERS = 3
LENGTHS = (1, 3000, 9000)
KEY = ShuffleKey("app", 1)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def bytes_of(attempt: int) -> bytes:
    return content(attempt, LENGTHS[attempt % len(LENGTHS)])


class Writers:
    """Map tasks that write one map output after another."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self._news = asyncio.Condition()

    async def write(self, daemon: Daemon, number: int) -> None:
        client = await producer(daemon.address, KEY.application_id)
        attempt = number
        while True:
            attempt += WRITERS
            await write_map_output(client, KEY.shuffle_id, attempt, [[bytes_of(attempt)]], attempt)
            async with self._news:
                self.acknowledged.add(attempt)
                self._news.notify_all()

    async def more(self, count: int) -> None:
        """Wait for the acknowledgments of a number of further map outputs."""
        wanted = len(self.acknowledged) + count
        async with self._news:
            await self._news.wait_for(lambda: len(self.acknowledged) >= wanted)


async def check(directory: Path, must: set[int]) -> None:
    """Start on what is left: each map output has its own bytes or is not there."""
    store = ShuffleStore.open(on_disks(directory, "a"))
    try:
        found = store.map_outputs(KEY)
        for attempt, output in found.items():
            assert await fetch(store, output) == bytes_of(attempt)
        assert must <= found.keys()
    finally:
        await store.close()


@pytest.mark.parametrize("mode", MODES)
async def test_a_power_cut_leaves_what_was_acknowledged(tmp_path, monkeypatch, mode):
    generator = random.Random(mode)
    keep, data = tmp_path / "keep", tmp_path / "store"
    keep.mkdir()
    data.mkdir(mode=0o700)
    daemon = Daemon(
        tmp_path,
        program=(sys.executable, synced_daemon.__file__, str(keep), str(data), str(SLUICE)),
        data_directories=data / "a",
        memory_tier_bytes=0,
        min_free_bytes=0,
        journal_sync=mode,
        journal_sync_interval_seconds=0.2,
    )
    with daemon:
        writers = Writers()
        tasks = [asyncio.create_task(writers.write(daemon, each)) for each in range(WRITERS)]
        for cut in range(CUTS):
            more = asyncio.create_task(writers.more(generator.randint(1, 3)))
            await asyncio.wait({more, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            await more
            for _ in range(generator.randrange(30)):  # any moment of the next commits
                await asyncio.sleep(0)
            must = set(writers.acknowledged) if mode == "commit" else set()
            daemon.pause()
            flags = os.WSTOPPED | os.WNOWAIT
            await asyncio.to_thread(os.waitid, os.P_PID, daemon.pid, flags)
            try:  # stopped until the check has ended, so that its writers are not far ahead
                files = files_of(data, kept_by(keep))
                lay_out(files, tmp_path / "cut", random_loss(files, generator))
                if mode != "commit":
                    monkeypatch.setattr(power_cuts, "boot_id", lambda cut=cut: f"boot-{cut}")
                await check(tmp_path / "cut", must)
            finally:
                daemon.resume()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)
