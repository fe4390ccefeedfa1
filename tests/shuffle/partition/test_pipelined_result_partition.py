"""A partition that is read while it is written: memory, broadcast, order, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.events import EndOfPartition, decode_event
from sluice.protocol.schema import DATA, EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import (
    InvalidPartitionType,
    InvalidRequest,
    PartitionAlreadyFinished,
    PartitionReleased,
)
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.flush_pace import ThreadPace
from sluice.shuffle.partition.partition_states import PartitionState
from sluice.shuffle.partition.partition_type import ConsumptionConstraint, ResultPartitionType
from sluice.shuffle.partition.pipelined_result_partition import (
    PartitionListeners,
    PipelinedResultPartition,
)
from sluice.shuffle.partition.result_partition_writer import (
    ALL_SUBPARTITIONS,
    ResultPartitionWriter,
)
from sluice.shuffle.partition.shared_buffer import finished_consumer
from tests.shuffle.partition.rig import Notifications, read

SIZE = 8


class Rig:
    def __init__(self, subpartitions=3, segments=8, *, per_channel=None, **options) -> None:
        self.network = NetworkBufferPool(segments, SIZE)
        self.pool = self.network.create_local_pool(
            "partition", 1, segments, max_buffers_per_channel=per_channel
        )
        self.consumable = Notifications()
        self.consumed = Notifications()
        self.partition = PipelinedResultPartition(
            "test",
            subpartitions,
            self.pool,
            listeners=PartitionListeners(self.consumable, self.consumed),
            **options,
        )
        self.writer: ResultPartitionWriter = self.partition
        self.told = [Notifications() for _ in range(subpartitions)]

    def views(self):
        return [self.partition.create_view(i, told) for i, told in enumerate(self.told)]

    def write(self, content: bytes, subpartition: int):
        """Begin a buffer with some bytes."""
        builder = self.builder(subpartition)
        self.writer.add_consumer(builder.create_consumer(), subpartition)
        builder.append_and_commit(content)
        return builder

    def builder(self, subpartition: int = 0):
        builder = self.writer.request_builder(subpartition)
        assert builder is not None
        return builder

    def received(self, content: bytes):
        """Return a buffer as the producer leg gets it."""
        buffer = self.pool.request_buffer_nowait()
        assert buffer is not None
        buffer.segment.memory[: len(content)] = content
        buffer.length = len(content)
        return buffer


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.partition.release()
    settled(rig)


def settled(rig) -> None:
    assert rig.network.available_segments == rig.network.total_segments, "a buffer was not given up"


def contents(view) -> list[bytes]:
    return list(iter(lambda: read(view), None))


# ---- writing --------------------------------------------------------------------------------


def test_a_record_goes_from_builder_to_reader(rig):
    views = rig.views()
    builder = rig.write(b"abc", 1)
    assert [told.take() for told in rig.told] == [0, 0, 0]
    rig.writer.flush(1)
    assert [told.take() for told in rig.told] == [0, 1, 0]
    assert [contents(view) for view in views] == [[], [b"abc"], []]
    builder.append_and_commit(b"d")
    rig.writer.flush_all()
    rig.writer.flush(ALL_SUBPARTITIONS)
    assert [told.take() for told in rig.told] == [0, 1, 0]
    assert contents(views[1]) == [b"d"]
    builder.finish()


def test_a_broadcast_buffer_is_stored_once(rig):
    views = rig.views()
    builder = rig.write(b"all", ALL_SUBPARTITIONS)
    rig.writer.flush_all()
    assert rig.pool.lent_segments == 1
    assert contents(views[0]) == [b"all"]
    builder.append_and_commit(b"more")
    builder.finish()
    taken = [view.next_buffer(1) for view in views]
    assert [bytes(buffer.payload) for buffer in taken] == [b"more", b"allmore", b"allmore"]
    for buffer in taken:
        assert rig.pool.lent_segments == 1
        buffer.release()
    assert rig.pool.lent_segments == 0


def test_received_buffers_and_events(rig):
    """Buffers and events are added as the producer leg of a TaskManager adds them."""
    views = rig.views()
    for content, data_type, subpartition in (
        (b"one", DATA, 0),
        (b"all", DATA, ALL_SUBPARTITIONS),
        (b"event", EVENT, 0),
        (b"now", PRIORITY_EVENT, ALL_SUBPARTITIONS),
    ):
        consumer = finished_consumer(rig.received(content), data_type)
        rig.writer.add_consumer(consumer, subpartition)
    assert rig.pool.lent_segments == 4
    assert [told.take() for told in rig.told] == [2, 2, 2]
    assert [contents(view) for view in views] == [
        [b"now", b"one", b"all", b"event"],
        [b"now", b"all"],
        [b"now", b"all"],
    ]
    assert rig.pool.lent_segments == 0


@pytest.mark.parametrize("subpartition", [-2, 3, 2**32 - 1])
def test_a_subpartition_that_does_not_exist_is_refused(rig, subpartition):
    with pytest.raises(InvalidRequest, match="limit 2"):
        rig.writer.flush(subpartition)
    with pytest.raises(InvalidRequest, match="limit 2"):
        rig.partition.create_view(subpartition, lambda: None)


def test_a_broadcast_event_takes_one_buffer_until_all_have_taken_it(rig):
    views = rig.views()
    rig.writer.emit_event(b"event", EVENT, ALL_SUBPARTITIONS)
    assert rig.pool.lent_segments == 1
    assert [read(view) for view in views[1:]] == [b"event"] * 2
    assert rig.pool.lent_segments == 1
    assert read(views[0]) == b"event"
    assert rig.pool.lent_segments == 0


async def test_unread_events_hold_back_a_task_that_waits_for_the_pool():
    rig = Rig(subpartitions=1, segments=2)
    (view,) = rig.views()
    for _ in range(2):
        await rig.writer.wait_available()
        rig.writer.emit_event(b"x", EVENT, 0)
    assert not rig.writer.is_available
    waiting = asyncio.create_task(rig.writer.wait_available())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert read(view) == b"x"
    await waiting
    rig.partition.release()
    settled(rig)


# ---- memory ---------------------------------------------------------------------------------


async def test_a_writer_waits_for_memory_and_gets_it_from_the_reader():
    rig = Rig(subpartitions=1, segments=2)
    (view,) = rig.views()
    rig.write(b"a", 0).finish()
    rig.write(b"b", 0).finish()
    assert rig.writer.request_builder(0) is None
    assert not rig.writer.is_available
    waiting = asyncio.create_task(rig.writer.wait_for_builder(0))
    soft = asyncio.create_task(rig.writer.wait_available())
    await asyncio.sleep(0)
    taken = view.next_buffer(1)
    await asyncio.sleep(0)
    assert not waiting.done()  # the reader has it still
    taken.release()
    builder = await waiting
    assert not soft.done()
    builder.recycle()
    await soft
    assert rig.writer.is_available
    assert rig.partition.memory.hard_back_pressured_seconds > 0
    assert rig.partition.memory.soft_back_pressured_seconds > 0
    await rig.writer.wait_available()
    rig.partition.release()
    settled(rig)


async def test_a_cancelled_wait_has_no_effect():
    rig = Rig(subpartitions=1, segments=1)
    builder = rig.builder()
    early = asyncio.create_task(rig.writer.wait_for_builder(0))
    late = asyncio.create_task(rig.writer.wait_for_builder(0))
    await asyncio.sleep(0)
    early.cancel()
    await asyncio.sleep(0)
    builder.recycle()
    late.cancel()  # it has been handed the segment already
    await asyncio.gather(early, late, return_exceptions=True)
    assert early.cancelled()
    assert late.cancelled()
    assert rig.writer.is_available
    rig.partition.release()
    settled(rig)


async def test_open_buffers_are_finished_in_a_pool_too_small_for_all_of_them():
    """With two segments for three subpartitions writing goes on, for open buffers are read."""
    rig = Rig(subpartitions=3, segments=2)
    views = rig.views()
    first, second = rig.write(b"a", 0), rig.write(b"b", 1)
    waiting = asyncio.create_task(rig.writer.wait_for_builder(2))
    await asyncio.sleep(0)
    assert first.is_finished
    assert second.is_finished
    assert contents(views[1]) == [b"b"]
    (await waiting).recycle()
    rig.partition.release()
    settled(rig)


async def test_a_channel_at_its_maximum_makes_the_partition_unavailable():
    rig = Rig(subpartitions=2, segments=8, per_channel=2)
    views = rig.views()
    rig.write(b"a", 0).finish()
    rig.write(b"b", 1).finish()
    assert rig.writer.is_available
    rig.write(b"c", 0).finish()
    assert not rig.writer.is_available
    waiting = asyncio.create_task(rig.writer.wait_available())
    assert contents(views[1]) == [b"b"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    # A record that has begun still gets its buffers.
    rig.write(b"d", 0).finish()
    assert contents(views[0]) == [b"a", b"c", b"d"]
    await waiting
    # Buffers that were waited for count too.
    builders = [rig.builder(1) for _ in range(8)]
    late = asyncio.create_task(rig.writer.wait_for_builder(0))
    await asyncio.sleep(0)
    for builder in builders:
        builder.recycle()
    last = await late
    assert rig.writer.is_available
    another = rig.builder(0)
    assert not rig.writer.is_available
    last.recycle()
    another.recycle()
    rig.partition.release()
    settled(rig)


@pytest.mark.parametrize("end", ["fail", "release", "finish", "pool"])
async def test_the_end_of_the_partition_ends_every_wait(end):
    rig = Rig(subpartitions=1, segments=1)
    builder = rig.builder()
    waiting = asyncio.create_task(rig.writer.wait_for_builder(0))
    soft = asyncio.create_task(rig.writer.wait_available())
    await asyncio.sleep(0)
    cause = SluiceError("the task failed")
    if end == "fail":
        rig.writer.fail(cause)
    elif end == "release":
        rig.writer.release()
    elif end == "finish":
        await rig.writer.finish()
    else:
        rig.pool.destroy()
    expected = {"fail": SluiceError, "finish": PartitionAlreadyFinished}.get(end, PartitionReleased)
    with pytest.raises(expected):
        await waiting
    if end == "pool":
        with pytest.raises(PartitionReleased):
            await soft
    else:
        await soft
        with pytest.raises(expected):
            await rig.writer.wait_for_builder(0)
        await rig.writer.wait_available()
        assert not rig.writer.is_available
    builder.recycle()
    settled(rig)


async def test_memory_handed_over_as_the_partition_ends_is_given_back():
    rig = Rig(subpartitions=1, segments=1)
    builder = rig.builder()
    waiting = asyncio.create_task(rig.writer.wait_for_builder(0))
    await asyncio.sleep(0)
    builder.recycle()  # handed over ...
    rig.writer.fail(SluiceError("too late"))  # ... and the task has not run yet
    with pytest.raises(SluiceError, match="too late"):
        await waiting
    settled(rig)


# ---- the readers ----------------------------------------------------------------------------


async def test_readers_read_on_after_the_end_and_then_free_the_memory(rig):
    views = rig.views()
    rig.write(b"a", 0)
    rig.write(b"b", 1).finish()
    await rig.writer.finish()
    await rig.writer.finish()
    assert rig.pool.is_destroyed
    assert bytes(views[0].next_buffer(1).payload) == b"a"  # kept until the release
    assert read(views[1]) == b"b"
    ends = [decode_event(read(view) or b"") for view in views]
    assert ends == [EndOfPartition(*totals) for totals in ((1, 1), (1, 1), (0, 0))]
    rig.writer.fail(SluiceError("no effect: it is complete"))
    for view in views:
        assert view.failure is None
        assert rig.consumed.count == 0
        view.release()
    assert rig.consumed.count == 1
    with pytest.raises(PartitionAlreadyFinished):
        rig.writer.emit_event(b"x", EVENT, 0)
    with pytest.raises(PartitionAlreadyFinished):
        rig.writer.request_builder(0)
    rig.network.destroy()
    rig.network = NetworkBufferPool(1, 1)


async def test_a_failure_reaches_all_readers_and_the_writer(rig):
    views = rig.views()
    rig.write(b"a", 0)
    rig.write(b"b", ALL_SUBPARTITIONS)
    late = rig.received(b"late")
    cause = SluiceError("the producer died")
    rig.writer.fail(cause)
    rig.writer.fail(SluiceError("another"))
    assert [told.take() for told in rig.told] == [2, 1, 1]
    assert [view.failure for view in views] == [cause] * 3
    with pytest.raises(SluiceError, match="died"):
        views[0].next_buffer(1)
    with pytest.raises(SluiceError, match="died"):
        rig.writer.add_consumer(finished_consumer(late), 0)
    with pytest.raises(SluiceError, match="died"):
        await rig.writer.finish()
    rig.writer.release()
    rig.writer.release()
    assert rig.partition.state is PartitionState.RELEASED
    with pytest.raises(SluiceError, match="died"):
        await rig.writer.finish()


# ---- type and constraint --------------------------------------------------------------------


@pytest.mark.parametrize("first", ["data", "event", "finish", "fail"])
async def test_a_partition_is_consumable_at_its_first_output(first):
    rig = Rig(consumption=ConsumptionConstraint.AT_FIRST_OUTPUT)
    assert not rig.partition.is_consumable
    with pytest.raises(InvalidRequest, match="AT_FIRST_OUTPUT"):
        rig.views()
    if first == "data":
        rig.write(b"a", 2)
    elif first == "event":
        rig.writer.emit_event(b"e", EVENT, 1)
    elif first == "finish":
        await rig.writer.finish()
    else:
        rig.writer.fail(SluiceError("died"))
    assert (rig.partition.is_consumable, rig.consumable.count) == (True, 1)
    if first == "fail":
        with pytest.raises(SluiceError, match="died"):
            rig.views()
    else:
        rig.views()
        await rig.writer.finish()
    assert rig.consumable.count == 1
    rig.partition.release()
    settled(rig)


def test_other_types_are_refused():
    with pytest.raises(InvalidPartitionType, match="WHEN_FINISHED"):
        Rig(consumption=ConsumptionConstraint.WHEN_FINISHED)
    with pytest.raises(InvalidPartitionType, match="BLOCKING"):
        Rig(
            partition_type=ResultPartitionType.BLOCKING,
            consumption=ConsumptionConstraint.WHEN_FINISHED,
        )


# ---- status and flushes ----------------------------------------------------------------------


def test_status(rig):
    (view, *_) = rig.views()
    rig.write(b"ab", 0).finish()
    rig.write(b"c", 0).finish()
    rig.writer.emit_event(b"event", EVENT, 1)
    assert read(view) == b"ab"
    seen = rig.partition.status()
    assert (seen.state, seen.subpartitions, seen.queued_buffers) == ("open", 3, 2)
    assert (seen.shortest_queue, seen.longest_queue) == (0, 1)
    assert (seen.bytes_out, seen.buffers_out) == (2, 1)
    assert (seen.used_segments, seen.back_pressured_seconds) == (2, 0)


def test_a_flush_waits_while_flushed_buffers_do_and_others_become_full():
    """Another flush would only cut in two a buffer that is about to go whole."""
    rig = Rig(subpartitions=1)
    (view,) = rig.views()
    first = rig.write(b"flush", 0)
    assert rig.partition.flush_open() == 1
    first.finish()  # full, as far as the partition knows, before the reader had the flushed bytes
    second = rig.write(b"also", 0)
    rig.partition.flush(0)
    second.append_and_commit(b"!")
    assert rig.partition.flush_open() == 1  # put off
    assert read(view) == b"flush"
    assert read(view) == b"also!"
    third = rig.write(b"next", 0)
    assert rig.partition.flush_open() == 1  # the pause that follows
    assert read(view) is None
    third.finish()
    assert read(view) == b"next"
    rig.partition.release()
    settled(rig)


def test_a_reader_that_stops_delays_no_flush_to_its_neighbors():
    rig = Rig(subpartitions=2)
    rig.partition._thread_pace = ThreadPace(cpu_clock=lambda: 0.0)  # it has time to spare
    stopped, other = rig.views()
    rig.write(b"first", 0)
    rig.partition.flush_open()
    rig.write(b"second", 0)  # the first is complete and waits, flushed, for a reader that stopped
    for _ in range(10):
        builder = rig.write(b"n", 1)
        assert rig.partition.flush_open() == 2
        assert read(other) == b"n"
        builder.finish()
    assert read(stopped) == b"first"
    rig.partition.release()
    settled(rig)
