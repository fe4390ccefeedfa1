"""The flusher: it flushes in time, only while a buffer is open, and harmlessly."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.output_flusher import (
    IDLE_INTERVALS,
    OutputFlusher,
)
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from tests.shuffle.partition.rig import read
from tests.support.mini_cluster import eventually

INTERVAL_SECONDS = 0.005
TIMEOUT_SECONDS = 60


class Rig:
    def __init__(self, interval_seconds: float) -> None:
        self.flusher = OutputFlusher(interval_seconds)
        self.network = NetworkBufferPool(8, 64)
        self.pool = self.network.create_local_pool("partition", 3, 8)
        self.partition = PipelinedResultPartition("test", 2, self.pool, flusher=self.flusher)
        self.available = asyncio.Event()
        self.told = 0
        self.view = self.partition.create_view(0, self._tell)

    def _tell(self) -> None:
        self.told += 1
        self.available.set()

    def open(self, content: bytes, subpartition: int = 0):
        builder = self.partition.request_builder(subpartition)
        assert builder is not None
        self.partition.add_consumer(builder.create_consumer(), subpartition)
        builder.append_and_commit(content)
        return builder

    async def next(self) -> bytes | None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.available.wait()
        self.available.clear()
        return read(self.view)

    async def stopped(self) -> None:
        await eventually(lambda: not self.flusher.is_running)

    def end(self) -> None:
        self.partition.release()
        assert self.network.available_segments == self.network.total_segments


class Counter:
    """A partition that always has something to flush."""

    has_open_buffers = True

    def __init__(self) -> None:
        self.flushes = 0

    def flush_open(self) -> int:
        self.flushes += 1
        return 1

    def finish_read_buffers(self) -> None:
        raise AssertionError("it is not idle")


async def test_an_open_buffer_is_flushed_in_time():
    rig = Rig(INTERVAL_SECONDS)
    assert not rig.flusher.is_running
    began = asyncio.get_running_loop().time()
    builder = rig.open(b"a")
    assert rig.flusher.is_running
    assert await rig.next() == b"a"
    assert asyncio.get_running_loop().time() - began >= INTERVAL_SECONDS * 0.9
    builder.append_and_commit(b"b")
    assert await rig.next() == b"b"
    builder.finish()
    await rig.stopped()
    assert rig.told == 2
    rig.open(b"c")
    assert await rig.next() == b"c"
    rig.end()
    rig.flusher.close()
    assert not rig.flusher.is_running


async def test_under_back_pressure_it_tells_the_reader_once():
    """The reader has no credit; further flushes have no effect."""
    rig = Rig(INTERVAL_SECONDS)
    builder = rig.open(b"a")
    counter = Counter()
    rig.flusher.arm(counter)
    await eventually(lambda: counter.flushes > 3 * IDLE_INTERVALS)
    assert rig.told == 1
    assert not builder.is_finished  # it waits to be read: that is not idle
    builder.append_and_commit(b"b")
    assert read(rig.view) == b"ab"
    rig.end()
    rig.flusher.close()


async def test_an_idle_channel_costs_no_timer_and_no_memory():
    rig = Rig(INTERVAL_SECONDS)
    builder, other = rig.open(b"a"), rig.open(b"", 1)
    assert await rig.next() == b"a"
    await rig.stopped()
    assert builder.is_finished
    assert other.is_finished
    assert rig.pool.lent_segments == 0
    rig.open(b"b")
    assert await rig.next() == b"b"
    rig.end()
    rig.flusher.close()


@pytest.mark.parametrize("interval_seconds", [0, -1])
async def test_without_an_interval_it_never_runs(interval_seconds):
    rig = Rig(interval_seconds)
    builder = rig.open(b"a")
    assert not rig.flusher.is_running
    if interval_seconds == 0:  # then the writer does it
        rig.partition.flush(0)
        assert await rig.next() == b"a"
        builder.append_and_commit(b"b")
        rig.partition.flush(0)
    else:
        await asyncio.sleep(2 * INTERVAL_SECONDS)
        assert rig.told == 0
        builder.finish()  # full
    assert await rig.next() == (b"b" if interval_seconds == 0 else b"a")
    rig.end()


async def test_a_partition_that_raises_does_not_stop_the_flusher_for_others(caplog):
    rig = Rig(INTERVAL_SECONDS)

    class Broken:
        has_open_buffers = True

        def flush_open(self):
            raise RuntimeError("a bug")

        def finish_read_buffers(self):
            raise AssertionError

    rig.flusher.arm(Broken())
    rig.open(b"a")
    assert await rig.next() == b"a"
    assert "a bug" in caplog.text
    assert caplog.text.count("flushing a partition failed") == 1
    rig.end()
    await rig.stopped()  # the released partition is not flushed any more
    rig.flusher.arm(rig.partition)
    rig.flusher.remove(rig.partition)
    rig.flusher.close()
    rig.flusher.arm(rig.partition)
    assert not rig.flusher.is_running
