"""AbortPartition during the commit: the answer tells whether the map output is committed."""

from __future__ import annotations

import asyncio
import errno
import threading

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import (
    AbortPartition,
    ErrorResponse,
    FinishPartition,
    OpenPartition,
    PartitionAborted,
    PartitionFinished,
    PartitionOpened,
)
from sluice.shuffle.taskmanager.store.journal.journal import Journal
from tests.support.mini_cluster import mini_cluster
from tests.support.wire_clients import read_gate, write_map_output, write_region

PATIENCE_SECONDS = 20


class HeldJournal:
    """Holds the next writes of journals, and lets them go on or fail."""

    def __init__(self, monkeypatch) -> None:
        append = Journal.append
        self._loop = asyncio.get_running_loop()
        self.entered = asyncio.Event()
        self._proceed = threading.Event()
        self.full = False

        def held(journal, entries, releases):
            self._loop.call_soon_threadsafe(self.entered.set)
            assert self._proceed.wait(PATIENCE_SECONDS)
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            append(journal, entries, releases)

        monkeypatch.setattr(Journal, "append", held)

    async def until_entered(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.entered.wait()

    def proceed(self, *, full: bool = False) -> None:
        self.full = full
        self._proceed.set()


async def test_a_commit_that_cannot_be_called_back_wins(tmp_path, monkeypatch):
    """PartitionFinished and then PartitionAborted: it is committed, and the number is free."""
    async with mini_cluster(tmp_path, 1) as cluster:
        journal = HeldJournal(monkeypatch)
        client = await cluster.producer(0)
        client.send(OpenPartition(0, 1, 7, 1))
        await write_region(client, 0, 0, [b"durable"])
        client.send(FinishPartition(0, 7, 1))
        await journal.until_entered()
        client.send(AbortPartition(0))
        client.send(AbortPartition(5))  # of another number: answered at once, behind the first
        await client.expect(PartitionAborted)
        journal.proceed()
        answers = [(await client.receive())[0] for _ in range(2)]
        assert answers == [PartitionFinished(0), PartitionAborted(0)]
        await write_map_output(client, 1, 8, [[b"next"]], partition=0)
        consumer = await cluster.consumer(0)
        assert await read_gate(consumer, 1, [(client.ack, [7, 8])], 0, 1) == [b"durablenext"]


async def test_a_commit_that_fails_is_told_before_the_abort(tmp_path, monkeypatch):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        with monkeypatch.context() as patched:
            journal = HeldJournal(patched)
            client.send(OpenPartition(0, 1, 7, 1))
            client.send(FinishPartition(0, 0, 0))
            assert await client.expect(PartitionOpened) == PartitionOpened(0)
            await journal.until_entered()
            client.send(AbortPartition(0))
            client.send(AbortPartition(5))
            await client.expect(PartitionAborted)
            journal.proceed(full=True)
            error, _ = await client.receive()
            assert isinstance(error, ErrorResponse)
            assert (error.channel, error.code) == (0, ErrorCode.STORAGE_UNAVAILABLE)
            assert await client.receive() == (PartitionAborted(0), b"")
        await write_map_output(client, 1, 7, [[b"again"]])


async def test_a_connection_lost_in_that_moment_leaves_a_whole_map_output(tmp_path, monkeypatch):
    async with mini_cluster(tmp_path, 1) as cluster:
        journal = HeldJournal(monkeypatch)
        client = await cluster.producer(0)
        client.send(OpenPartition(0, 1, 7, 1))
        await write_region(client, 0, 0, [b"durable"])
        client.send(FinishPartition(0, 7, 1))
        await journal.until_entered()
        client.send(AbortPartition(0))
        client.vanish()
        await client.until_lost()
        journal.proceed()
        consumer = await cluster.consumer(0)
        assert await read_gate(consumer, 1, [(client.ack, [7])], 0, 1) == [b"durable"]
