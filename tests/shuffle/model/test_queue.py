"""The stream between two tasks is one bounded blocking queue."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.records.record_reader import ChannelEvent, ChannelRecord
from tests.shuffle.model.rig import PATIENCE_SECONDS, POOL_2, full_record, pipe
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually

if TYPE_CHECKING:
    from tests.shuffle.model.rig import Pipe

SEGMENTS = 5
remotes = pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])


def capacity(remote: bool) -> int:
    """Count the buffers of both pools; a local consumer has no pool of its own."""
    return SEGMENTS + POOL_2 if remote else SEGMENTS


class BlockingQueue:
    """The pipe as a queue: a put blocks or not, a take returns the oldest record."""

    def __init__(self, between: Pipe) -> None:
        self._between = between
        self._put: asyncio.Task[None] | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether the last put is still waiting."""
        return self._put is not None and not self._put.done()

    def put(self, number: int) -> None:
        """Write a record that fills a buffer; the put before must not be blocked."""
        pending = self._between.writer.emit(full_record(number))
        self._put = None if pending is None else asyncio.ensure_future(pending)

    async def take(self) -> int:
        """Read a record."""
        element = await self._between.reader.next()
        assert isinstance(element, ChannelRecord)
        # The oldest record's buffer is free at once: a take ends the use of its record.
        number = int.from_bytes(element.value[:4], "big")
        assert element.value == full_record(number)
        return number

    async def settled(self, inside: int, *, blocked: bool) -> None:
        """Wait until so many records are inside, and the last put is, or is not, blocked."""
        between = self._between
        await eventually(
            lambda: between.held_1 + between.held_2 == inside and self.is_blocked is blocked,
            f"{inside} records inside, put blocked: {blocked}; "
            f"{between.held_1} and {between.held_2} buffers",
        )


@remotes
@pytest.mark.parametrize("seed", range(3))
async def test_it_behaves_like_a_bounded_blocking_queue(tmp_path, remote, seed):
    """In any order of puts and takes it holds and blocks as a queue of that capacity does."""
    most = capacity(remote)
    choices = random.Random(seed)
    async with pipe(tmp_path, SEGMENTS, remote=remote) as between:
        queue, model = BlockingQueue(between), deque[int]()
        number = 0
        was_full = was_empty = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            for step in range(150):
                # In turns mostly puts and mostly takes, to reach both ends.
                putting = choices.random() < (0.8 if step // 30 % 2 == 0 else 0.2)
                if putting and not queue.is_blocked:
                    queue.put(number)
                    model.append(number)
                    number += 1
                elif model:
                    assert await queue.take() == model.popleft()
                blocked = len(model) > most
                await queue.settled(min(len(model), most), blocked=blocked)
                was_full += blocked
                was_empty += not model
            assert was_full
            assert was_empty
            while model:
                assert await queue.take() == model.popleft()
            await between.writer.finish()
            assert isinstance(await between.reader.next(), ChannelEvent)


@remotes
async def test_a_spike_with_a_slow_user_function_loses_nothing_and_stays_bounded(tmp_path, remote):
    """The producer is as slow as the function, and no pool exceeds its limit."""
    records = [
        bytes([number % 251]) * random.Random(number).choice((10, 900, 9000))
        for number in range(300)
    ]
    async with (
        pipe(tmp_path, SEGMENTS, remote=remote, interval_seconds=0.002) as between,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        most_seen = 0
        written_bytes = read_bytes = 0

        async def produce() -> None:
            nonlocal written_bytes
            for record in records:  # all of them, without a pause
                if (pending := between.writer.emit(record)) is not None:
                    await pending
                written_bytes += len(record)
            await between.writer.finish()

        producing = asyncio.ensure_future(produce())
        found = []
        while not between.reader.is_ended:
            element = await between.reader.next()
            if isinstance(element, ChannelRecord):
                found.append(element.value)
                read_bytes += len(element.value)
                if len(found) % 10 == 0:
                    await asyncio.sleep(0.001)  # the user function
            most_seen = max(most_seen, between.held_1 + between.held_2)
            largest = max(map(len, records))
            inside = written_bytes - read_bytes
            assert inside <= (capacity(remote) + 1) * SEGMENT_SIZE_BYTES + largest
        await producing
        assert found == records
        assert SEGMENTS <= most_seen <= capacity(remote)
