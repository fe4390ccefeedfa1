"""When a buffer is spilled, and what becomes of it if it cannot be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from sluice.protocol.events import EndOfData, encode_event
from sluice.protocol.schema import EVENT
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.partition_states import PartitionState
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.partition.shared_buffer import finished_consumer
from sluice.shuffle.taskmanager.bounds.accounts import QuotaExceeded, Resource
from sluice.shuffle.taskmanager.hybrid import hybrid_spiller
from sluice.shuffle.taskmanager.hybrid.hybrid_spiller import (
    HybridSpiller,
    SpillerState,
    SpillingWriter,
)
from sluice.shuffle.taskmanager.hybrid.spilled_run import SPILLED_SLICE_BYTES
from sluice.shuffle.taskmanager.serve.stored_partition_view import ReadSizes
from sluice.shuffle.taskmanager.store.errors import (
    DirectoryHangs,
    StorageError,
    StorageFull,
    StorageWriteFailed,
)
from tests.shuffle.taskmanager.hybrid.rig import FakeTiers, read
from tests.support.mini_cluster import eventually

if TYPE_CHECKING:
    from sluice.protocol.errors import SluiceError

pytestmark = pytest.mark.interpreted  # FakeExtent is a kind of Referenced

SIZE = 64
SEGMENTS = 4
SIZES = ReadSizes(SIZE, SIZE, SIZE)


class Rig:
    """A partition of two subpartitions, over a pool that a few buffers use up."""

    def __init__(self, segments: int = SEGMENTS) -> None:
        self.tiers = cast("Any", FakeTiers())  # not all of a store
        self.network = NetworkBufferPool(segments, SIZE)
        self.pool = self.network.create_local_pool("partition", 1, segments)
        self.waits = True
        self.errors: list[SluiceError] = []
        self.spiller = HybridSpiller(
            ResultPartitionType.HYBRID_SELECTIVE,
            self.pool,
            self.tiers,
            ShuffleKey("app", 1),
            SpillingWriter(lambda: self.waits, self.failed, self.errors.append),
        )
        self.partition = PipelinedResultPartition("test", 2, self.pool, overflow=self.spiller)

    def failed(self, error: SluiceError) -> bool:
        self.errors.append(error)
        return self.partition.state is PartitionState.FINISHED

    def add(self, content: bytes, subpartition: int = 0) -> None:
        buffer = self.pool.request_buffer_nowait()
        assert buffer is not None
        buffer.segment.memory[: len(content)] = content
        buffer.length = len(content)
        self.partition.add_consumer(finished_consumer(buffer), subpartition)

    def view(self, subpartition: int = 0) -> Any:
        view = cast("Any", self.partition.create_view(subpartition, lambda: None))
        view.read_back_by(SIZES, None)
        return view

    def state(self) -> SpillerState:
        return self.spiller.state

    @property
    def free(self) -> int:
        return SEGMENTS - self.pool.lent_segments


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_buffers_are_spilled_while_the_writer_waits():
    rig = Rig()
    for content in (b"a", b"b", b"c"):
        rig.add(content)
    assert rig.free == 1
    rig.spiller.memory_short()
    rig.spiller.memory_short()
    assert rig.state() is SpillerState.DEFERRED
    await turns()
    assert rig.free == SEGMENTS
    assert rig.state() is SpillerState.IDLE
    assert rig.tiers.written_bytes == rig.spiller.spilled_bytes == 3
    view = rig.view()
    rig.add(b"d")
    assert view.backlog == 2
    assert [read(view), read(view), read(view)] == [b"abc", b"d", None]
    assert not rig.tiers.extents
    rig.partition.release()


async def test_a_reader_that_takes_them_in_the_same_turn_prevents_it():
    rig = Rig()
    view = rig.view()
    rig.add(b"a")
    rig.spiller.memory_short()
    assert read(view) == b"a"
    rig.waits = False
    await turns()
    assert rig.state() is SpillerState.IDLE
    assert rig.tiers.written_bytes == 0
    rig.partition.release()


async def test_a_buffer_filled_while_another_writer_waits_is_spilled():
    rig = Rig()
    builder = rig.partition.request_builder(0)
    assert builder is not None
    rig.partition.add_consumer(builder.create_consumer(), 0)
    builder.append_and_commit(b"a")
    rig.spiller.memory_short()
    await turns()
    assert rig.state() is SpillerState.IDLE
    assert rig.tiers.written_bytes == 0
    builder.finish()
    await turns()
    assert rig.tiers.written_bytes == 1
    assert rig.free == SEGMENTS
    rig.partition.release()


async def test_a_reader_takes_a_buffer_that_is_being_written():
    rig = Rig()
    rig.tiers.may_write.clear()
    rig.add(b"a")
    rig.add(b"b")
    rig.spiller.memory_short()
    await turns()
    assert rig.state() is SpillerState.WRITING
    view = rig.view()
    assert view.backlog == 2
    assert read(view) == b"a"
    assert rig.free == SEGMENTS - 2  # the write still reads it
    rig.tiers.may_write.set()
    await turns()
    assert rig.free == SEGMENTS
    assert read(view) == b"b"
    assert not rig.tiers.extents
    rig.partition.release()


async def test_a_partition_that_ends_during_a_write_leaves_nothing():
    rig = Rig()
    rig.tiers.may_write.clear()
    rig.add(b"a")
    rig.spiller.memory_short()
    await turns()
    rig.partition.release()
    assert rig.state() is SpillerState.CLOSED
    assert rig.network.lent_segments == 1  # the write still reads it
    rig.tiers.may_write.set()
    await turns()
    assert rig.network.lent_segments == 0
    assert not rig.tiers.extents
    assert not rig.errors


async def test_a_broadcast_buffer_is_written_once():
    rig = Rig()
    rig.add(b"all", ALL_SUBPARTITIONS)
    rig.spiller.memory_short()
    await turns()
    assert rig.tiers.written_bytes == 3
    assert [read(rig.view(0)), read(rig.view(1))] == [b"all", b"all"]
    assert not rig.tiers.extents
    rig.partition.release()


async def test_regions_have_a_size(monkeypatch):
    monkeypatch.setattr(hybrid_spiller, "MAX_SPILLED_REGION_BYTES", 2)
    rig = Rig()
    for content in (b"a", b"b", b"ccc", b"d"):
        rig.add(content)
    rig.spiller.memory_short()
    await turns(8)
    assert sorted(extent.length for extent in rig.tiers.extents) == [1, 2, 3]
    view = rig.view()
    content = b""
    while (piece := read(view)) is not None:
        content += piece
    assert content == b"abcccd"
    rig.partition.release()


async def test_a_turn_spills_a_limited_number_of_small_buffers():
    rig = Rig(segments=2500)
    for _ in range(2500):
        rig.add(b"a")
    rig.spiller.memory_short()
    taken = []
    while rig.pool.lent_segments:
        before = rig.pool.lent_segments
        await asyncio.sleep(0)
        taken.append(before - rig.pool.lent_segments)
    assert max(taken) <= 1024
    assert rig.tiers.regions == 3
    rig.partition.release()


@pytest.mark.parametrize("has_reader", [False, True], ids=["then a reader", "beside a reader"])
async def test_the_backlog_of_what_is_spilled_is_what_a_reader_takes(has_reader):
    """A credit for each of the small buffers, which are read together, would stay unused."""
    rig = Rig(segments=20)
    view = rig.view() if has_reader else None
    for _ in range(10):
        rig.add(bytes(40))
    rig.partition.emit_event(encode_event(EndOfData()), EVENT, 0)
    rig.add(bytes(40))
    rig.spiller.memory_short()
    await turns()
    assert rig.network.lent_segments == 0
    subpartition: Any = rig.partition.subpartitions[0]
    assert subpartition.queued_buffers == 12
    view = view or rig.view()
    announced = [view.backlog]
    while read(view) is not None:
        announced.append(view.backlog)
    assert announced == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]  # 400 bytes, the event, 40 bytes
    rig.partition.release()


async def test_subpartitions_are_spilled_in_turn(monkeypatch):
    monkeypatch.setattr(hybrid_spiller, "MAX_SPILLED_REGION_BYTES", 1)
    rig = Rig()
    for subpartition in (0, 0, 1, 1):
        rig.add(b"a", subpartition)
    spilled = []
    for _ in range(2):
        rig.tiers.may_write.clear()
        rig.waits = True
        rig.spiller.memory_short()
        await turns()
        subpartitions: Any = rig.partition.subpartitions
        spilled.append([len(each._spilling) for each in subpartitions])
        rig.waits = False
        rig.tiers.may_write.set()
        await turns()
    assert spilled == [[1, 0], [0, 1]]
    rig.partition.release()


async def test_a_partition_that_cannot_spill_fails_and_stays_readable():
    rig = Rig()
    rig.tiers.failure = StorageFull(1, 0, "full")
    rig.add(b"a")
    rig.spiller.memory_short()
    await turns()
    assert rig.errors == [rig.tiers.failure]
    assert rig.state() is SpillerState.CLOSED
    assert not rig.tiers.extents
    assert read(rig.view()) == b"a"
    rig.spiller.memory_short()  # no effect
    assert rig.state() is SpillerState.CLOSED
    rig.partition.release()


async def test_a_finished_partition_tries_again_to_spill_after_a_pause(monkeypatch, caplog):
    """A reader gets its buffers meanwhile, in order, and no attempt is made before its time."""
    rig = Rig()
    rig.tiers.failure = StorageFull(1, 0, "full")
    for content in (b"a", b"b", b"c"):
        rig.add(content)
    await rig.partition.finish()
    await turns()
    assert rig.errors == [rig.tiers.failure]
    assert rig.state() is SpillerState.PAUSED
    assert not rig.tiers.extents
    view = rig.view()
    assert view.backlog == 3
    assert read(view) == b"a"
    rig.spiller.memory_short()
    await turns()
    assert (rig.state(), rig.tiers.regions) == (SpillerState.PAUSED, 1)
    monkeypatch.setattr(hybrid_spiller, "PAUSE_SECONDS", 0)
    rig.spiller._try_again()
    await eventually(lambda: rig.tiers.regions > 3)
    assert rig.network.lent_segments == 2
    assert len(caplog.records) == 1
    assert "shuffle 1 of app keeps its unread buffers in memory" in caplog.text
    rig.tiers.failure = None
    await eventually(lambda: rig.tiers.written_bytes)
    assert rig.network.lent_segments == 0
    assert rig.state() is SpillerState.IDLE
    assert read(view) == b"bc"
    assert not rig.tiers.extents
    rig.partition.release()


async def test_the_end_of_a_partition_ends_its_pause():
    rig = Rig()
    rig.tiers.failure = StorageFull(1, 0, "full")
    rig.add(b"a")
    await rig.partition.finish()
    await turns()
    pause = rig.spiller._pause
    assert pause is not None
    rig.partition.release()
    assert pause.cancelled()
    assert rig.state() is SpillerState.CLOSED
    assert rig.network.lent_segments == 0


@pytest.mark.parametrize("error", [StorageWriteFailed, DirectoryHangs])
async def test_bytes_that_one_tier_does_not_take_go_to_the_next(error):
    rig = Rig()
    rig.tiers.names = ["a", "b", "c"]
    rig.tiers.failures = {each: failure_of_a(error) for each in "ab"}
    rig.add(b"a")
    rig.add(b"b", 1)
    rig.spiller.memory_short()
    await turns()
    assert not rig.errors
    assert rig.tiers.written_bytes == rig.spiller.spilled_bytes == 2
    assert len(rig.tiers.extents) == 1
    assert rig.free == SEGMENTS
    assert [read(rig.view(0)), read(rig.view(1))] == [b"a", b"b"]
    rig.partition.release()


async def test_each_tier_is_tried_once_and_the_first_error_counts():
    rig = Rig()
    rig.tiers.names = ["a", "b"]
    rig.tiers.failures = {each: failure_of_a(StorageWriteFailed) for each in "ab"}
    rig.add(b"a")
    rig.spiller.memory_short()
    await turns()
    assert rig.errors == [rig.tiers.failures["a"]]
    assert rig.tiers.regions == 3  # the last one without a write
    assert not rig.tiers.extents
    assert read(rig.view()) == b"a"
    rig.partition.release()


def failure_of_a(kind: type[StorageError]) -> StorageError:
    if kind is DirectoryHangs:
        return DirectoryHangs("/disk", "does not answer")
    return StorageWriteFailed(Path("/disk"), 0, 1, "Input/output error")


@pytest.mark.parametrize("quota_slices", [5, 4])
async def test_slices_of_spilled_buffers_count_to_the_quota_of_metadata(quota_slices):
    rig = Rig(segments=100)
    account = rig.tiers.accounts.of("app")
    limits: list[int | None] = [None] * len(Resource)
    limits[Resource.METADATA_BYTES] = quota_slices * SPILLED_SLICE_BYTES
    account.set_limits(tuple(limits))
    for _ in range(50):
        rig.add(b"a")
    rig.partition.emit_event(encode_event(EndOfData()), EVENT, 0)
    rig.add(b"b")
    rig.add(b"c", 1)
    rig.add(b"all", ALL_SUBPARTITIONS)  # beside the b, not beside the c
    rig.spiller.memory_short()
    await turns()
    if quota_slices < 5:
        assert [type(error) for error in rig.errors] == [QuotaExceeded]
        assert account.amount(Resource.METADATA_BYTES) == 0
    else:
        assert not rig.errors
        assert account.amount(Resource.METADATA_BYTES) == 5 * SPILLED_SLICE_BYTES
    rig.partition.release()
