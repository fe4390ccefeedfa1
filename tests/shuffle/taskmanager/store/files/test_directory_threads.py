"""The threads of directories: which share nothing."""

import asyncio
import threading
from pathlib import Path

import pytest

from sluice.shuffle.taskmanager.store.errors import DirectoryHangs
from sluice.shuffle.taskmanager.store.files.directory_threads import (
    StorageThreads,
    threads_of_a_disk,
)
from tests.shuffle.taskmanager.store.files.rig import HangingCall

A, B = Path("/a"), Path("/b")


@pytest.mark.parametrize(
    ("count", "disks", "each"), [(4, 1, 4), (4, 2, 2), (4, 3, 2), (4, 12, 1), (1, 0, 1)]
)
def test_each_disk_has_an_equal_part_of_the_threads(count, disks, each):
    assert threads_of_a_disk(count, disks) == each


async def test_a_directory_that_hangs_fails_its_own_calls_only():
    threads = StorageThreads(1, 2)
    hanging = await HangingCall(threads.of(A).data).begun()
    threads.of(A).abandon("it is slow")
    for call in (hanging.task, threads.of(A).journal.run(int), threads.of(A).data.run(int)):
        with pytest.raises(DirectoryHangs, match="/a cannot be used: it is slow"):
            await call
    assert await threads.of(A).probe.run(int) == 0  # probes notice when it answers
    assert await threads.of(B).data.run(int) == 0
    assert await threads.of(B).journal.run(int) == 0
    assert not threads.of(A).resume()
    idle = threading.Event()
    threads.of(A).when_idle(idle.set)
    assert not idle.is_set()
    await hanging.end(threads.of(A).data)
    assert await asyncio.to_thread(idle.wait, 20)
    assert threads.of(A).resume()
    assert await threads.of(A).data.run(int) == 0
    await threads.close()


async def test_closing_ends_although_every_directory_hangs():
    threads = StorageThreads(1, 1)
    probing = await HangingCall(threads.of(A).probe).begun()
    threads.abandon_all("it did not answer")
    await threads.close()
    with pytest.raises(DirectoryHangs, match="/a"):
        await probing.task
    await probing.end(threads.of(A).probe)
