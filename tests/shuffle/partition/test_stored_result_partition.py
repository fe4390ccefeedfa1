"""A partition that is stored in regions: memory, order, broadcast, failure, and reading it back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import (
    BLOCKING_EVENT,
    DATA,
    EVENT,
    EVERY_SUBPARTITION,
    PRIORITY_EVENT,
)
from sluice.shuffle.errors import (
    PartitionAlreadyFinished,
    PartitionReleased,
    TooManyEvents,
)
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.partition import stored_result_partition as module
from sluice.shuffle.partition.blocks import BlockDecoder
from sluice.shuffle.partition.partition_states import PartitionState
from sluice.shuffle.partition.result_partition_writer import (
    ALL_SUBPARTITIONS,
    ResultPartitionWriter,
)
from sluice.shuffle.partition.stored_result_partition import StoredResultPartition
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, Region
from tests.shuffle.partition.rig import MemorySink
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, taskmanager_config
from tests.support.raises_code import raises_code

if TYPE_CHECKING:
    from sluice.shuffle.partition.region_builder import OutgoingRegion

KEY = ShuffleKey("app", 1)
SIZE = 64


class Rig:
    def __init__(self, subpartitions=3, segments=4, sink=None, size=SIZE, **options) -> None:
        self.network = NetworkBufferPool(segments, size)
        self.pool = self.network.create_local_pool("partition", 1, segments)
        self.sink: Any = sink or MemorySink()
        self.partition = StoredResultPartition(
            "test", subpartitions, self.pool, self.sink, **options
        )
        self.writer: ResultPartitionWriter = self.partition

    def buffer(self):
        buffer = self.pool.request_buffer_nowait()
        assert buffer is not None
        return buffer

    async def open(self, content: bytes, subpartition: int):
        builder = self.writer.request_builder(subpartition)
        if builder is None:
            async with asyncio.timeout(10):
                builder = await self.writer.wait_for_builder(subpartition)
        self.writer.add_consumer(builder.create_consumer(), subpartition)
        assert builder.append_and_commit(content) == len(content)
        return builder

    async def write(self, content: bytes, subpartition: int) -> None:
        (await self.open(content, subpartition)).finish()

    def settled(self) -> None:
        assert self.network.available_segments == self.network.total_segments, (
            "a buffer was not given up"
        )


def data(*contents: bytes) -> list[tuple[bytes, int]]:
    return [(content, DATA) for content in contents]


# ---- regions --------------------------------------------------------------------------------


async def test_one_region_at_the_end_in_subpartition_order():
    rig = Rig()
    await rig.write(b"c", 2)
    await rig.write(b"a" * SIZE, 0)
    await rig.write(b"cc", 2)
    assert rig.sink.regions == []  # no region before the end
    await rig.writer.finish()
    await rig.writer.finish()
    assert [rig.sink.content(i) for i in range(3)] == [data(b"a" * SIZE), [], data(b"c", b"cc")]
    assert rig.sink.totals == (rig.partition.total_bytes, 1) == (len(rig.sink.regions[0][1]), 1)
    # The counters before and after compression: only the long run got smaller.
    assert rig.partition.encoder.raw_bytes == SIZE + 3
    assert rig.partition.encoder.stored_bytes < SIZE
    assert rig.pool.is_destroyed
    rig.settled()
    with pytest.raises(PartitionAlreadyFinished):
        await rig.open(b"x", 0)
    rig.writer.fail(SluiceError("no effect: it is complete"))
    rig.writer.release()
    assert rig.sink.aborted == 0


async def test_a_flush_writes_a_region_and_recycles_its_buffers():
    rig = Rig()
    builder = await rig.open(b"a", 0)
    rig.writer.flush(1)  # a region is of all subpartitions
    await rig.sink.entered.wait()
    await rig.partition.wait_closed()
    assert builder.is_finished
    assert (rig.sink.content(0), rig.pool.lent_segments) == (data(b"a"), 0)
    assert rig.sink.totals is None
    rig.writer.flush_all()  # nothing there
    await rig.writer.finish()
    rig.writer.flush_all()
    assert len(rig.sink.regions) == 1


async def test_a_flush_behind_a_region_under_way_is_not_forgotten():
    rig = Rig()
    rig.sink.proceed.clear()
    await rig.write(b"a", 0)
    rig.writer.flush_all()
    await rig.sink.entered.wait()
    await rig.write(b"b", 0)
    rig.writer.flush_all()
    rig.sink.proceed.set()
    while len(rig.sink.regions) < 2:
        await rig.partition.wait_closed()
        await asyncio.sleep(0)
    assert rig.sink.content(0) == data(b"a", b"b")
    await rig.writer.finish()
    rig.settled()


async def test_the_writer_goes_on_while_a_region_is_written():
    rig = Rig(segments=3)
    rig.sink.proceed.clear()
    await rig.write(b"a", 0)
    rig.writer.flush_all()
    await rig.sink.entered.wait()
    await rig.write(b"b", 1)
    await rig.write(b"c", 1)
    assert not rig.writer.is_available
    waiting = asyncio.create_task(rig.write(b"d", 1))
    soft = asyncio.create_task(rig.writer.wait_available())
    await asyncio.sleep(0)
    assert not waiting.done()
    rig.sink.proceed.set()
    await waiting
    await soft
    await rig.writer.finish()
    assert rig.sink.content(1) == data(b"b", b"c", b"d")
    assert rig.partition.memory.hard_back_pressured_seconds > 0
    rig.settled()


async def test_waiting_for_availability_writes_a_region():
    rig = Rig(segments=1)
    await rig.open(b"a", 0)
    async with asyncio.timeout(10):
        await rig.writer.wait_available()
    assert rig.sink.content(0) == data(b"a")
    assert rig.writer.is_available
    await rig.writer.finish()


async def test_a_pool_that_shrinks_while_a_region_is_written_blocks_no_writer():
    """The freed buffers go to another pool, so those gathered since must be written too."""
    rig = Rig(segments=4)
    rig.sink.proceed.clear()
    await rig.write(b"a", 0)
    rig.writer.flush_all()
    await rig.sink.entered.wait()
    for content in (b"b", b"c", b"d"):
        await rig.write(content, 0)
    waiting = asyncio.create_task(rig.write(b"e", 0))
    await asyncio.sleep(0)
    rig.network.create_local_pool("other", 3, 3)
    rig.sink.proceed.set()
    async with asyncio.timeout(10):
        await waiting
    await rig.writer.finish()
    assert rig.sink.content(0) == data(b"a", b"b", b"c", b"d", b"e")


# ---- broadcast, events, order ---------------------------------------------------------------


async def test_alternating_broadcast_unicast_and_events_keeps_the_order():
    rig = Rig(subpartitions=2, segments=8)
    first = await rig.open(b"a", 0)
    second = await rig.open(b"b", ALL_SUBPARTITIONS)
    third = await rig.open(b"c", 1)
    assert [first.is_finished, second.is_finished, third.is_finished] == [True, True, False]
    rig.writer.emit_event(b"1", BLOCKING_EVENT, ALL_SUBPARTITIONS)
    assert third.is_finished
    fourth = await rig.open(b"d", 0)
    rig.writer.emit_event(b"2", PRIORITY_EVENT, 1)
    assert not fourth.is_finished
    fifth = await rig.open(b"", 0)
    assert fourth.is_finished
    await rig.writer.finish()
    assert fifth.is_finished
    assert rig.sink.content(0) == [*data(b"a", b"b"), (b"1", BLOCKING_EVENT), *data(b"d")]
    assert rig.sink.content(1) == [
        *data(b"b", b"c"),
        (b"1", BLOCKING_EVENT),
        (b"2", PRIORITY_EVENT),
    ]
    rig.settled()


@pytest.mark.interpreted
async def test_the_events_of_a_region_are_bounded(monkeypatch):
    rig = Rig()
    monkeypatch.setattr(module, "MAX_GATHERED_EVENTS", 3)
    for _ in range(3):
        rig.writer.emit_event(b"x", EVENT, 0)
    with pytest.raises(TooManyEvents):
        rig.writer.emit_event(b"x", EVENT, 0)
    rig.writer.flush_all()
    rig.writer.emit_event(b"x", EVENT, 0)
    await rig.writer.finish()
    assert len(rig.sink.content(0)) == 4
    rig.settled()


# ---- failure --------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", [False, True])
async def test_a_region_that_cannot_be_stored_fails_the_partition(bug):
    rig = Rig(segments=1)
    rig.sink.failure = ValueError("a bug") if bug else SluiceError("disk full")
    builder = await rig.open(b"a", 0)
    with pytest.raises(SluiceError, match="Internal error" if bug else "disk full") as told:
        await rig.open(b"b", 0)
    assert builder.is_finished
    assert rig.partition.state is PartitionState.FAILED
    with pytest.raises(SluiceError) as again:
        await rig.writer.finish()
    assert again.value is told.value
    await rig.writer.wait_available()
    rig.settled()
    assert rig.sink.aborted == 1
    rig.writer.release()
    assert rig.sink.aborted == 1


@pytest.mark.parametrize("gathered", [True, False])
async def test_an_end_that_cannot_be_stored_fails_the_partition(gathered):
    rig = Rig()
    if gathered:
        await rig.open(b"a", 0)
    rig.sink.failure = SluiceError("journal full")
    with pytest.raises(SluiceError, match="journal full"):
        await rig.writer.finish()
    assert rig.partition.state is PartitionState.FAILED
    rig.settled()


async def test_a_release_keeps_the_memory_of_a_region_until_it_is_written():
    rig = Rig(segments=2)
    rig.sink.proceed.clear()
    await rig.open(b"a", 0)
    await rig.open(b"b", 1)
    waiting = asyncio.create_task(rig.writer.wait_for_builder(0))
    finishing = asyncio.create_task(rig.writer.wait_available())
    await rig.sink.entered.wait()
    rig.writer.release()
    rig.writer.release()
    assert rig.pool.lent_segments == 2
    with pytest.raises(PartitionReleased):
        await waiting
    await finishing
    await rig.partition.wait_closed()
    rig.settled()
    assert (rig.sink.aborted, rig.sink.totals) == (1, None)
    with pytest.raises(PartitionReleased):
        await rig.writer.finish()


async def test_a_release_before_and_while_finishing():
    early = Rig()
    await early.open(b"a", 0)
    early.writer.emit_event(b"x", EVENT, 0)
    early.writer.release()
    early.settled()
    late = Rig()
    await late.open(b"a", 0)
    late.sink.proceed.clear()
    finishing = asyncio.create_task(late.writer.finish())
    await late.sink.entered.wait()
    with pytest.raises(PartitionAlreadyFinished):
        late.writer.request_builder(0)
    late.writer.release()
    with pytest.raises(PartitionReleased):
        await finishing
    late.settled()
    assert late.sink.totals is None


async def test_a_cancelled_wait_has_no_effect():
    rig = Rig(segments=1)
    rig.sink.proceed.clear()
    await rig.open(b"a", 0)
    waiting = asyncio.create_task(rig.writer.wait_for_builder(0))
    await rig.sink.entered.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    rig.sink.proceed.set()
    await rig.write(b"b", 0)
    await rig.writer.finish()
    assert rig.sink.content(0) == data(b"a", b"b")
    rig.settled()


# ---- anything, with any memory --------------------------------------------------------------


@settings(max_examples=60)
@given(
    subpartitions=st.integers(1, 4),
    segments=st.integers(1, 4),
    steps=st.lists(
        st.tuples(
            st.integers(-1, 3),
            st.one_of(st.binary(max_size=16), st.just(b"z" * 16)),
            st.sampled_from(["open", "open", "finish", "event", "flush", "turn"]),
        ),
        max_size=40,
    ),
)
def test_every_channel_gets_what_was_written_in_order(subpartitions, segments, steps):
    async def run():
        rig = Rig(subpartitions, segments, None, 16)
        expected: list[list[tuple[bytes, int]]] = [[] for _ in range(subpartitions)]
        for number, content, step in steps:
            target = number if number < 0 else number % subpartitions
            reached = expected if target < 0 else [expected[target]]
            if step == "flush":
                rig.writer.flush(0)
            elif step == "turn":
                await asyncio.sleep(0)
            elif step == "event":
                rig.writer.emit_event(content, EVENT, target)
                for channel in reached:
                    channel.append((content, EVENT))
            else:
                builder = await rig.open(content, target)
                if step == "finish":
                    builder.finish()
                for channel in reached:
                    channel += data(content) if content else []
        await rig.writer.finish()
        assert [rig.sink.content(i) for i in range(subpartitions)] == expected
        rig.settled()

    asyncio.run(run())


# ---- with the store: reading it back --------------------------------------------------------


class StoreSink:
    """A sink that is the store of the same TaskManager."""

    def __init__(self, manager, store, subpartitions: int) -> None:
        self.manager = manager
        self.store = store
        self.subpartitions = subpartitions
        self.written: list[Region] = []

    async def write_region(self, region: OutgoingRegion) -> None:
        first = EVERY_SUBPARTITION if region.is_broadcast else 0
        writer = self.store.begin_region(KEY, first, region.lengths)
        parts = [memoryview(part) for part in region.parts]
        if writer.in_memory:
            writer.view[:] = b"".join(parts)
        else:
            await writer.write(0, parts)
        self.written.append(writer.finish(region.crc32c))

    async def finish(self, total_bytes: int, regions: int) -> None:
        output = MapOutput(KEY, 7, self.subpartitions, tuple(self.written))
        await self.manager.commit(output)

    def abort(self) -> None:
        for region in self.written:
            region.release()


async def read_back(manager, subpartition: int, pool) -> list[tuple[bytes, int]]:
    available = asyncio.Event()
    view = await manager.request_view(
        SubpartitionRange(KEY, subpartition, subpartition + 1),
        [7],
        1024,
        lambda: pool,
        available.set,
    )
    decoder = BlockDecoder()
    blocks: list[tuple[bytes, int]] = []
    try:
        async with asyncio.timeout(20):
            while True:
                buffer = view.next_buffer(10)
                if buffer is None:
                    await available.wait()
                    available.clear()
                    continue
                if buffer.data_type == EVENT:
                    break
                blocks += [(bytes(b.payload), b.data_type) for b in decoder.feed(buffer.payload)]
                if buffer.release is not None:
                    buffer.release()
        decoder.finish()
    finally:
        view.release()
    return blocks


@pytest.mark.parametrize("tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"])
async def test_ten_readers_at_once_get_identical_data(tmp_path, tier_bytes):
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=tier_bytes).storage)
    manager = ResultPartitionManager(store, 1024, 0.05)
    reads = NetworkBufferPool(16, 1024)
    pool = reads.create_local_pool("reads", 1, 16)
    rig = Rig(2, 3, StoreSink(manager, store, 2), size=512)
    try:
        for number in range(30):
            await rig.write(b"%d" % number * 100, number % 2)
        with raises_code(ErrorCode.PARTITION_NOT_FOUND):  # a read before the end
            await read_back(manager, 0, pool)
        await rig.writer.finish()
        found = await asyncio.gather(*(read_back(manager, 1, pool) for _ in range(10)))
        expected = data(*(b"%d" % number * 100 for number in range(1, 30, 2)))
        assert found == [expected] * 10
        assert len(rig.sink.written) == 10
        rig.settled()
    finally:
        store.release_application("app")
        pool.destroy()
        await store.close()
