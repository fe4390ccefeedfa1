"""Any use of a hybrid partition that is kept: readers come at any time, and each gets it all.

The machine is that of selective hybrid partitions. Besides its one reader of each subpartition,
others come, read some and leave.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.events import EndOfPartition, decode_event
from sluice.protocol.schema import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import PartitionReleased
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.partition_states import PartitionState
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.pipelined_result_partition import (
    PartitionListeners,
    PipelinedResultPartition,
)
from sluice.shuffle.partition.shared_buffer import finished_consumer
from sluice.shuffle.taskmanager.hybrid.hybrid_full_subpartition import MAX_READERS
from sluice.shuffle.taskmanager.hybrid.hybrid_spiller import (
    HybridSpiller,
    SpillerState,
    SpillingWriter,
)
from sluice.shuffle.taskmanager.serve.stored_partition_view import ReadSizes
from tests.shuffle.taskmanager.hybrid.machine import KEY, HybridMachine
from tests.shuffle.taskmanager.hybrid.rig import FakeTiers, read
from tests.support.mini_cluster import eventually
from tests.support.partition_machine import SIZE, add_to

pytestmark = pytest.mark.interpreted  # the tiers are the test's

SIZES = ReadSizes(SIZE, SIZE, SIZE)


class Reader:
    """One more reader of a subpartition, with what it has not got yet."""

    def __init__(self, index, view, content):
        self.index = index
        self.view = view
        self.expected = copy.copy(content)
        self.is_blocked = False


class HybridFullMachine(HybridMachine):
    kind = ResultPartitionType.HYBRID_FULL

    @initialize(subpartitions=st.integers(1, 3), segments=st.integers(1, 5), late=st.integers(0, 3))
    def start(self, subpartitions, segments, late):
        self.history: list[list[Any]] = [[] for _ in range(subpartitions)]
        self.readers: list[Reader] = []
        self.was_read = [False] * subpartitions
        super().start(subpartitions, segments, late)

    def teardown(self):
        for reader in getattr(self, "readers", []):
            reader.view.release()
        super().teardown()

    def expect(self, subpartition, item):
        super().expect(subpartition, item)
        add_to(self.history[subpartition], item)
        for reader in self.readers:
            if reader.index == subpartition:
                add_to(reader.expected, item)

    def check(self, buffer, channel):
        if not channel and buffer.data_type == EVENT:
            index = next(i for i in range(self.count) if self.expected[i] is channel)
            self.was_read[index] = True
            self.check_end(buffer, index)
        super().check(buffer, channel)

    def check_end(self, buffer, index):
        sizes = [len(item) for item in self.history[index] if isinstance(item, bytes)]
        end = decode_event(buffer.payload)
        assert isinstance(end, EndOfPartition)
        assert end.total_bytes == sum(sizes)

    def is_consumed(self):
        """A subpartition is consumed only after a whole read."""
        assert not self.consumed or all(self.was_read)
        return self.consumed

    # ---- rules

    @rule(data=st.data())
    def another_reader(self, data):
        index = data.draw(st.integers(0, self.count - 1))
        try:
            view = self.create_view(index)
        except SluiceError:
            assert self.partition.state in (PartitionState.FAILED, PartitionState.RELEASED)
            return
        self.readers.append(Reader(index, view, self.history[index]))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), keep=st.booleans())
    def read_another(self, data, keep):
        reader = data.draw(st.sampled_from(self.readers))
        if reader.view.failure is not None:
            return
        if reader.is_blocked:
            reader.view.resume_consumption()
            reader.is_blocked = False
        available = reader.view.is_available(1)
        buffer = reader.view.next_buffer(1)
        assert available == (buffer is not None)  # these tiers are in memory
        if buffer is None:
            return
        if not reader.expected and buffer.data_type == EVENT:
            assert self.partition.state is PartitionState.FINISHED
            self.check_end(buffer, reader.index)
            self.was_read[reader.index] = True
            return
        super().check(buffer, reader.expected)
        reader.is_blocked = buffer.data_type == BLOCKING_EVENT
        if buffer.release is not None and keep:
            self.taken.append(buffer)
        elif buffer.release is not None:
            buffer.release()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def another_leaves(self, data):
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        reader.view.release()

    @invariant()
    def every_reader_is_told(self):
        for reader in getattr(self, "readers", []):
            if reader.view.failure is None and not reader.is_blocked and reader.expected:
                assert (reader.view.backlog > 0) >= reader.view.is_available(1)


class TestHybridFullMachine(HybridFullMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


class Rig:
    """A partition of one subpartition over a pool of four buffers; nobody waits at first."""

    def __init__(self) -> None:
        self.tiers = cast("Any", FakeTiers())  # not all of a store
        self.network = NetworkBufferPool(4, SIZE)
        self.pool = self.network.create_local_pool("partition", 1, 4)
        self.waits = False
        self.consumed = 0
        self.lost: list[SluiceError] = []
        writer = SpillingWriter(lambda: self.waits, self.failed, self.lost.append)
        self.spiller = HybridSpiller(
            ResultPartitionType.HYBRID_FULL, self.pool, self.tiers, KEY, writer
        )
        self.partition = PipelinedResultPartition(
            "test",
            1,
            self.pool,
            partition_type=ResultPartitionType.HYBRID_FULL,
            listeners=PartitionListeners(fully_consumed=self.count),
            overflow=self.spiller,
        )
        self.calls: list[str] = []

    def failed(self, error: SluiceError) -> bool:
        raise AssertionError("nothing fails here") from error

    def count(self) -> None:
        self.consumed += 1

    def write(self, content: bytes, *, flush: bool = False) -> Any:
        builder = self.partition.request_builder(0)
        assert builder is not None
        builder.append_and_commit(content)
        self.partition.add_consumer(builder.create_consumer(), 0)
        if flush:
            self.partition.flush(0)
        else:
            builder.finish()
        return builder

    def view(self, name: str = "") -> Any:
        view: Any = self.partition.create_view(0, lambda: self.calls.append(name))
        view.read_back_by(SIZES, None)
        return view

    async def spill(self) -> None:
        self.waits = True
        self.spiller.memory_short()
        await eventually(lambda: self.spiller.state is SpillerState.IDLE)
        self.waits = False


async def test_a_new_reader_starts_over_after_one_left_early():
    rig = Rig()
    rig.write(b"first")
    await rig.spill()
    rig.write(b"second")
    view = rig.view()
    assert [read(view), read(view)] == [b"first", b"second"]
    view.release()
    await rig.partition.finish()
    assert rig.consumed == 0
    again = rig.view()
    found = [read(again) for _ in range(3)]
    assert found[:2] == [b"first", b"second"]
    assert rig.consumed == 0  # its reader may still fail
    again.release()
    assert (rig.consumed, rig.partition.is_consumed) == (1, True)
    once_more = rig.view()
    assert read(once_more) == b"first"
    once_more.release()
    assert rig.consumed == 1
    rig.partition.release()
    assert not rig.tiers.extents


async def test_readers_share_what_is_in_memory():
    rig = Rig()
    rig.write(b"both")
    one, two = rig.view(), rig.view()
    first, second = one.next_buffer(1), two.next_buffer(1)
    assert bytes(first.payload) == bytes(second.payload) == b"both"
    await rig.spill()
    assert rig.pool.lent_segments == 1  # until both are sent
    first.release()
    second.release()
    assert rig.pool.lent_segments == 0
    rig.partition.release()


async def test_readers_at_a_time_are_limited():
    rig = Rig()
    views = [rig.view() for _ in range(MAX_READERS)]
    with pytest.raises(SluiceError, match=f"limit {MAX_READERS}") as caught:
        rig.view()
    assert caught.value.code is ErrorCode.SUBPARTITION_IN_USE
    views[3].release()
    rig.view()
    rig.partition.release()


async def test_a_flush_gives_the_open_buffer_to_readers_and_ends_it():
    rig = Rig()
    view = rig.view("one")
    builder = rig.write(b"open", flush=True)
    assert rig.calls == ["one"]
    assert not builder.is_finished
    assert read(view) == b"open"
    assert builder.is_finished
    assert read(view) is None
    rig.partition.release()


async def test_bytes_are_not_added_to_a_buffer_that_a_reader_has_taken():
    rig = Rig()
    buffer = rig.pool.request_buffer_nowait()
    assert buffer is not None
    buffer.segment.memory[:2] = b"ab"
    buffer.length = 2
    rig.partition.add_consumer(finished_consumer(buffer, DATA), 0)
    assert rig.partition.extend_last(0, memoryview(b"c"))
    view = rig.view()
    assert read(view) == b"abc"
    assert not rig.partition.extend_last(0, memoryview(b"d"))
    view.release()
    assert rig.partition.extend_last(0, memoryview(b"d"))  # a new reader begins before it
    assert read(rig.view()) == b"abcd"
    rig.partition.release()


async def test_a_priority_event_keeps_its_place():
    rig = Rig()
    rig.write(b"before")
    rig.partition.emit_event(b"event", PRIORITY_EVENT, 0)
    view = rig.view()
    buffers = [view.next_buffer(1), view.next_buffer(1)]
    assert [buffer.data_type for buffer in buffers] == [DATA, EVENT]
    assert not view.has_priority_event
    buffers[0].release()
    rig.partition.release()


async def test_every_reader_gets_the_failure():
    rig = Rig()
    rig.write(b"run, ")
    rig.write(b"lost")
    await rig.spill()
    middle = rig.view()
    part = middle.next_buffer(1)
    part.release()
    rig.write(b"lost")
    one, two = rig.view("one"), rig.view("two")
    rig.calls.clear()
    rig.partition.fail(PartitionReleased("gone"))
    assert rig.calls == ["", "one", "two"]
    assert not rig.tiers.extents
    for view in (one, two, middle):
        with pytest.raises(PartitionReleased, match="gone"):
            view.next_buffer(1)
        assert view.backlog == 0
        view.release()
    with pytest.raises(PartitionReleased, match="gone"):
        rig.view()
    assert rig.consumed == 0


async def test_a_run_that_is_being_read_does_not_grow():
    rig = Rig()
    rig.write(b"first")
    await rig.spill()
    view = rig.view()
    buffer = view.next_buffer(1)
    rig.write(b"second")
    await rig.spill()
    assert bytes(buffer.payload) == b"first"
    assert read(view) == b"second"
    buffer.release()
    rig.partition.release()
    assert not rig.tiers.extents
