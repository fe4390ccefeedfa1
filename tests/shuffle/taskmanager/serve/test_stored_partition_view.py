# Longer than 450 lines, because all tests share the rig of three kinds of stores.
"""Views of committed map outputs: dense, zero-copy where it pays, and owners of their memory."""

from __future__ import annotations

import asyncio
import random

import pytest
from crc32c import crc32c

from sluice.protocol.errors import SluiceError
from sluice.protocol.events import EndOfPartition, decode_event
from sluice.protocol.limits import MAX_LARGE_PAYLOAD_BYTES, MAX_U32
from sluice.protocol.schema import EVENT, EVERY_SUBPARTITION
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.partition.view import OutgoingBuffer, release_all
from sluice.shuffle.taskmanager.serve.credit_based_view_reader import (
    CreditBasedViewReader,
    UncreditedViewReader,
)
from sluice.shuffle.taskmanager.serve.read_ahead_view import stored_view
from sluice.shuffle.taskmanager.serve.stored_partition_view import (
    MAX_COPIED_BYTES,
    MIN_PIECE_BYTES,
    ReadSizes,
    StoredPartitionView,
)
from sluice.shuffle.taskmanager.store.extent_reader import CACHED_READS
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, eventually, taskmanager_config
from tests.support.store import slices_of

SIZE = 1024
KEY = ShuffleKey("app", 1)
MUCH = 1000
SUBPARTITIONS = 2**32 - 1


class Rig:
    """A store, a pool for reads, and one view at a time."""

    def __init__(self, store: ShuffleStore, segments: int = 16) -> None:
        self.store = store
        self.network_pool = NetworkBufferPool(segments, SIZE)
        self.pool = self.network_pool.create_local_pool("reads", 1, segments)
        self.available = asyncio.Event()

    async def commit(self, attempt: int, *regions: list[bytes]) -> MapOutput:
        written = []
        for parts in regions:
            content = b"".join(parts)
            writer = self.store.begin_region(KEY, 0, [len(part) for part in parts])
            if writer.in_memory and content:
                writer.view[:] = content
            elif content:
                await writer.write(0, [memoryview(content)])
            written.append(writer.finish(crc32c(content)))
        output = MapOutput(KEY, attempt, len(regions[0]), tuple(written))
        await self.store.commit(output)
        return output

    async def commit_broadcast(self, attempt: int, content: bytes, *, behind=()) -> MapOutput:
        """Commit a broadcast region, and behind it one with parts for subpartitions 0 and on."""
        written = []
        for first, parts in ((EVERY_SUBPARTITION, [content]), (0, list(behind))):
            joined = b"".join(parts)
            writer = self.store.begin_region(KEY, first, [len(part) for part in parts])
            if writer.in_memory and joined:
                writer.view[:] = joined
            elif joined:
                await writer.write(0, [memoryview(joined)])
            written.append(writer.finish(crc32c(joined)))
        output = MapOutput(KEY, attempt, SUBPARTITIONS, tuple(written))
        await self.store.commit(output)
        return output

    def view(
        self, outputs, start=0, end=1, *, most=SIZE, cost=SIZE, segment=SIZE
    ) -> StoredPartitionView:
        return stored_view(
            self.store,
            slices_of(outputs, SubpartitionRange(KEY, start, end)),
            SubpartitionRange(KEY, start, end),
            ReadSizes(segment, most, cost),
            lambda: self.pool,
            self.available.set,
            lambda _: None,
        )

    async def next(self, view: StoredPartitionView, credit: int = MUCH):
        async with asyncio.timeout(10):
            while (buffer := view.next_buffer(credit)) is None:
                self.available.clear()
                await self.available.wait()
        return buffer

    async def read(self, view: StoredPartitionView, credit: int = MUCH) -> list[bytes]:
        """Read to the end; return the buffers. Checks totals and backlogs on the way."""
        buffers: list[bytes] = []
        while True:
            buffer = await self.next(view, credit)
            if buffer.data_type == EVENT:
                totals = decode_event(buffer.payload)
                assert totals == EndOfPartition(len(b"".join(buffers)), len(buffers))
                assert view.next_buffer(credit) is None
                assert not view.is_available(credit)
                assert view.backlog == 0
                return buffers
            buffers.append(bytes(buffer.payload))
            assert buffers[-1], "an empty buffer costs a credit and brings nothing"
            if buffer.release is not None:
                buffer.release()

    def used_bytes(self) -> int:
        return sum(tier.used_bytes for tier in self.store.tiers())


def cold(store: ShuffleStore) -> None:
    """Leave every read of the disk tier to threads, as if nothing were in the page cache."""
    for disk in store._storage.disks:
        disk.can_read_cached = False


@pytest.fixture(params=["memory", "disk", "cold disk"])
async def rig(request, tmp_path):
    tier_bytes = MEMORY_TIER if request.param == "memory" else DISK_ONLY
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=tier_bytes).storage)
    if request.param == "cold disk":
        cold(store)
    rig = Rig(store)
    yield rig
    store.release_application("app")
    rig.pool.destroy()
    # until threads that read have released it
    await eventually(
        lambda: not rig.used_bytes() and rig.network_pool.available_segments == 16,
        "all segments and extents back",
    )
    await store.close()


def noise(length: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(length)


@pytest.mark.parametrize("credit", [1, 2, 3, MUCH])
@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 20 * SIZE + 5])
async def test_one_region_is_read_in_as_few_buffers_as_possible(rig, length, credit):
    output = await rig.commit(1, [noise(length)])
    view = rig.view([output])
    assert view.backlog == -(-length // SIZE)
    buffers = await rig.read(view, credit)
    assert b"".join(buffers) == noise(length)
    assert len(buffers) == -(-length // SIZE)
    view.release()


@pytest.mark.parametrize("credit", [1, 3, 8, MUCH])
@pytest.mark.parametrize("cost", [SIZE, 8 * SIZE], ids=["a segment each", "a group each"])
@pytest.mark.parametrize("length", [1, 8 * SIZE, 21 * SIZE + 5])
async def test_neighbouring_segments_are_sent_as_one(rig, length, cost, credit):
    """Neighbouring segments of the disk tier are one message, like a slice of the mapping."""
    output = await rig.commit(1, [noise(length)])
    view = rig.view([output], most=8 * SIZE, cost=cost)
    assert view.backlog == -(-length // cost)
    sizes: list[int] = []
    content = b""
    while (buffer := await rig.next(view, credit)).data_type != EVENT:
        assert len(buffer.payload) <= min(8 * SIZE, credit * cost)
        sizes.append(len(buffer.payload))
        content += bytes(buffer.payload)
        assert view.backlog == -(-(length - len(content)) // cost)
        if buffer.release is not None:
            buffer.release()
    assert content == noise(length)
    assert decode_event(buffer.payload) == EndOfPartition(length, sum(-(-n // cost) for n in sizes))
    if credit >= 8:
        assert len(sizes) == -(-length // (8 * SIZE))
    view.release()


async def test_a_reader_that_takes_less_than_a_segment(rig):
    output = await rig.commit(1, [noise(9 * SIZE)])
    view = rig.view([output], segment=700, most=700, cost=700)
    buffers = await rig.read(view)
    assert b"".join(buffers) == noise(9 * SIZE)
    assert max(map(len, buffers)) == 700
    view.release()


async def test_many_small_slices_are_joined_densely(rig):
    outputs = [await rig.commit(n, [b"", noise(60, n), noise(900, 7)]) for n in range(200)]
    view = rig.view(outputs, 1, 2)
    buffers = await rig.read(view)
    content = b"".join(buffers)
    pieces = {content[n : n + 60] for n in range(0, len(content), 60)}
    assert pieces == {noise(60, n) for n in range(200)}
    assert len(buffers) == -(-200 * 60 // SIZE)
    view.release()


async def test_map_outputs_come_in_the_order_of_the_request(rig):
    """This order does not depend on their places, which follow the order of commits."""
    outputs = [await rig.commit(n, [noise(300, n)]) for n in range(40)]
    random.Random(5).shuffle(outputs)
    view = rig.view(outputs)
    content = b"".join(await rig.read(view, 3))
    assert content == b"".join(noise(300, output.map_attempt_id) for output in outputs)
    view.release()


async def test_regions_of_a_map_output_stay_in_order(rig):
    regions = [[noise(700, 1), noise(5, 2)], [b"", b""], [noise(2000, 3), b"z"]]
    output = await rig.commit(1, *regions)
    view = rig.view([output], 0, 2)
    assert b"".join(await rig.read(view)) == b"".join(b"".join(parts) for parts in regions)
    view.release()


@pytest.mark.parametrize("length", [1, 60, SIZE, 3 * SIZE + 5])
async def test_a_broadcast_region_is_read_once_for_each_subpartition(rig, length):
    content = noise(length)
    output = await rig.commit_broadcast(1, content, behind=[b"first", noise(2 * SIZE, 2), b""])
    assert rig.used_bytes() < 2 * (length + 2 * SIZE) + 16 * SIZE  # extents consist of whole pages
    for start, end, behind in (
        (0, 1, b"first"),
        (2, 3, b""),
        (0, 3, b"first" + noise(2 * SIZE, 2)),
        (SUBPARTITIONS - 1, SUBPARTITIONS, b""),
        (1, 40, noise(2 * SIZE, 2)),
    ):
        view = rig.view([output], start, end)
        buffers = await rig.read(view, 3)
        assert b"".join(buffers) == content * (end - start) + behind
        assert len(buffers) <= -(-len(content) * (end - start) // SIZE) * 2 + 3
        view.release()


async def test_a_broadcast_region_in_the_widest_range_takes_no_memory_and_can_be_released(rig):
    """Neither the list of slices nor the backlog grows with the range."""
    output = await rig.commit_broadcast(1, noise(2 * SIZE))
    view = rig.view([output], 0, SUBPARTITIONS)
    assert view.backlog == MAX_U32
    expected = noise(2 * SIZE) * 4
    content = b""
    while len(content) < len(expected):
        buffer = await rig.next(view)
        content += bytes(buffer.payload)
        if buffer.release is not None:
            buffer.release()
    assert content.startswith(expected)
    view.release()


async def test_nothing_to_read_is_an_end_at_once(rig):
    output = await rig.commit(1, [b"", b"x"])
    view = rig.view([output], 0, 1)
    assert view.is_available(0)
    assert await rig.read(view, 0) == []
    view.release()


async def test_no_data_without_credit(rig):
    output = await rig.commit(1, [noise(3000)])
    view = rig.view([output])
    assert not view.is_available(0)
    assert view.next_buffer(0) is None
    assert rig.network_pool.lent_segments == 0
    view.release()


async def test_a_release_in_the_middle_keeps_only_the_buffers_already_taken(rig):
    """Buffers already taken stay valid, also when the shuffle is released."""
    output = await rig.commit(1, [noise(20 * SIZE)])
    view = rig.view([output])
    held = await rig.next(view)
    view.release()
    view.release()
    rig.store.release_shuffle(KEY)
    assert view.next_buffer(MUCH) is None
    assert not view.is_available(MUCH)
    assert bytes(held.payload) == noise(20 * SIZE)[:SIZE]
    held.release()


@pytest.mark.parametrize("turns", range(6))
async def test_a_release_at_any_moment_of_a_read(rig, turns):
    """No segment is lost, no freed extent is read, whatever the threads are doing."""
    output = await rig.commit(1, [noise(20 * SIZE)])
    view = rig.view([output])
    first = view.next_buffer(MUCH)
    rig.store.release_shuffle(KEY)
    for _ in range(turns):
        await asyncio.sleep(0)
    view.release()
    if first is not None:
        first.release()


@pytest.fixture
async def on_disk(tmp_path):
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=DISK_ONLY).storage)
    rig = Rig(store, 4)
    yield rig
    await store.close()
    await asyncio.sleep(0)
    rig.pool.destroy()
    assert rig.network_pool.available_segments == 4


async def test_reading_ahead_is_bounded_by_credit_and_pool(on_disk):
    output = await on_disk.commit(1, [noise(50 * SIZE)])
    view = on_disk.view([output])
    first = await on_disk.next(view, 3)
    assert on_disk.pool.lent_segments == 3
    assert view.backlog == 49
    first.release()
    view.release()
    view = on_disk.view([output])
    second = await on_disk.next(view, MUCH)
    assert on_disk.pool.lent_segments == 4
    second.release()
    view.release()


async def test_the_backlog_counts_what_is_being_read(on_disk):
    """While threads read, their buffers stay in the backlog."""
    cold(on_disk.store)
    output = await on_disk.commit(1, [noise(4 * SIZE)])
    view = on_disk.view([output])
    assert view.next_buffer(MUCH) is None
    assert view.backlog == 4
    await on_disk.read(view)
    view.release()


async def test_bytes_in_the_page_cache_are_read_at_once(on_disk):
    output = await on_disk.commit(1, [noise(4 * SIZE)])
    view = on_disk.view([output])
    received = b""
    while (buffer := view.next_buffer(MUCH)).data_type != EVENT:
        received += buffer.payload
        buffer.release()
    assert received == noise(4 * SIZE)
    view.release()


async def test_very_many_small_reads_are_left_to_threads(on_disk):
    """Each is a read of its own: a thousand of them would hold up other tasks."""
    regions = [[noise(100, seed)] for seed in range(CACHED_READS + 1)]
    output = await on_disk.commit(1, *regions)
    view = on_disk.view([output])
    assert view.next_buffer(MUCH) is None
    assert b"".join(await on_disk.read(view)) == b"".join(part for (part,) in regions)
    view.release()


async def test_a_view_waits_for_a_segment_when_the_pool_has_none(on_disk):
    output = await on_disk.commit(1, [noise(4 * SIZE)])
    taken = [on_disk.pool.request_segment_nowait() for _ in range(4)]
    view = on_disk.view([output])
    assert view.next_buffer(MUCH) is None
    assert not view.is_available(MUCH)
    assert on_disk.pool.waiting_listeners == 1
    for segment in taken:
        on_disk.pool.recycle(segment)
    assert b"".join(await on_disk.read(view)) == noise(4 * SIZE)
    view.release()


async def test_a_release_while_it_waits_for_a_segment(on_disk):
    output = await on_disk.commit(1, [noise(4 * SIZE)])
    taken = [on_disk.pool.request_segment_nowait() for _ in range(4)]
    view = on_disk.view([output])
    view.next_buffer(MUCH)
    view.release()
    assert on_disk.pool.waiting_listeners == 0
    for segment in taken:
        on_disk.pool.recycle(segment)


@pytest.mark.interpreted
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ZeroDivisionError("a bug")])
async def test_a_failed_read_never_passes_for_data(on_disk, error):
    output = await on_disk.commit(1, [noise(4 * SIZE)])

    def fail(offset, buffers):
        raise error

    cold(on_disk.store)
    (disk,) = on_disk.store._storage.disks
    disk.read = fail
    view = on_disk.view([output])
    with pytest.raises(SluiceError):
        await on_disk.read(view)
    assert view.failure is not None
    view.release()
    assert on_disk.pool.lent_segments == 0


async def test_a_map_output_in_both_tiers(tmp_path):
    """Regions went to memory while there was room: their order stays."""
    store = ShuffleStore.open(
        taskmanager_config(tmp_path, memory_tier_bytes=8192, memory_tier_reserve_percent=0).storage
    )
    rig = Rig(store)
    regions = [[noise(3000, 1)], [noise(50_000, 2)], [noise(100, 3)], [noise(9000, 4)]]
    output = await rig.commit(1, *regions)
    kinds = [region.extent is not None and region.extent.in_memory for region in output.regions]
    assert kinds == [True, False, True, False]
    for credit in (1, 3, MUCH):
        view = rig.view([output])
        assert b"".join(await rig.read(view, credit)) == b"".join(parts[0] for parts in regions)
        view.release()
    await store.close()
    rig.pool.destroy()
    assert rig.network_pool.available_segments == 16


@pytest.mark.parametrize("kind", [CreditBasedViewReader, UncreditedViewReader])
async def test_a_message_takes_a_third_of_the_buffers_of_a_channel_with_credit(rig, kind):
    """With ten buffers: so the next message goes while the one before is being read."""
    output = await rig.commit(1, [bytes(100 * SIZE)])
    reader = kind(1, 10, lambda reader: None, SIZE)
    reader.attach(rig.view([output], most=8 * SIZE), 8 * SIZE)

    async def message() -> int:
        async with asyncio.timeout(10):
            while not (pieces := reader.next_message()):
                rig.available.clear()
                await rig.available.wait()
        for piece in pieces:
            piece.release()
        return sum(len(piece.payload) for piece in pieces) // SIZE

    found = [await message() for _ in range(3)]
    if kind is UncreditedViewReader:
        assert max(found) == 8
    else:
        assert found == [4, 4, 2]
        reader.add_credit(30)  # the channel has more buffers than it seemed
        await message()
        assert max([await message() for _ in range(3)]) > 4
    reader.release()


@pytest.mark.parametrize("length", [100, MIN_PIECE_BYTES, 3 * MIN_PIECE_BYTES + 5])
async def test_slices_of_many_map_outputs_fill_a_message(rig, length):
    """Large ones are pieces of it, small ones are copied; a message is full if there is credit."""
    outputs = [await rig.commit(n, [noise(length, n)]) for n in range(30)]
    message_bytes = 8 * MIN_PIECE_BYTES
    reader = CreditBasedViewReader(1, 8, lambda reader: None, MIN_PIECE_BYTES)
    view = rig.view(outputs, most=message_bytes, cost=MIN_PIECE_BYTES)
    reader.attach(view, message_bytes)
    content, cost, messages = b"", 0, 0
    while True:
        async with asyncio.timeout(10):
            while not (pieces := reader.next_message()):
                rig.available.clear()
                await rig.available.wait()
        if pieces[0].data_type == EVENT:
            break
        message = b"".join(piece.payload for piece in pieces)
        assert len(message) <= message_bytes
        content += message
        assert view.backlog == -(-(30 * length - len(content)) // MIN_PIECE_BYTES)
        for piece in pieces:
            if piece.release is not None:
                piece.release()
        spent = -(-len(message) // MIN_PIECE_BYTES)
        reader.add_credit(spent)
        cost, messages = cost + spent, messages + 1
    assert content == b"".join(noise(length, n) for n in range(30))
    assert decode_event(pieces[0].payload) == EndOfPartition(len(content), cost)
    if all(each.regions[0].extent.in_memory for each in outputs):
        # Credit of eight buffers allows messages of four.
        assert messages == -(-len(content) // (4 * MIN_PIECE_BYTES))
    reader.release()


async def test_the_messages_of_a_view_can_be_limited(rig):
    output = await rig.commit(1, [bytes(12 * SIZE)])
    view = rig.view([output], most=8 * SIZE)
    view.limit_message(2)
    for _ in range(6):
        buffer = await rig.next(view, 12)
        assert len(buffer.payload) == 2 * SIZE
        buffer.release()
    view.release()


@pytest.mark.parametrize("credit", [1, 3, MUCH])
async def test_map_outputs_of_both_tiers_come_in_the_order_of_the_request(tmp_path, credit):
    """Outputs of the tiers alternate; the small ones share buffers nevertheless."""
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes=64 * 1024).storage)
    rig = Rig(store)
    # Those on disk are there because they did not fit; their first part is as small as the others.
    kinds = [n % 2 == 0 for n in range(14)]
    outputs = [
        await rig.commit(n, [noise(100, n), b"" if memory else noise(70_000)])
        for n, memory in enumerate(kinds)
    ]
    extents = [output.regions[0].extent for output in outputs]
    assert [extent is not None and extent.in_memory for extent in extents] == kinds
    view = rig.view(outputs)
    buffers = await rig.read(view, credit)
    assert b"".join(buffers) == b"".join(noise(100, n) for n in range(14))
    # The first output is in memory, and what follows it is read into segments.
    assert len(buffers) == 3
    view.release()
    await store.close()
    rig.pool.destroy()
    assert rig.network_pool.available_segments == 16


@pytest.mark.parametrize("with_large", [False, True])
async def test_a_message_has_a_bound_of_copied_bytes(tmp_path, with_large):
    """They are memory that no budget counts, unlike slices that are sent where they lie."""
    store = ShuffleStore.open(taskmanager_config(tmp_path, memory_tier_bytes="8 MiB").storage)
    rig = Rig(store)
    small = [b"x" * 7000] * 200
    if with_large:
        small[50] = b"y" * 300_000
    outputs = [await rig.commit(number, [part]) for number, part in enumerate(small)]
    view = rig.view(outputs, most=MAX_LARGE_PAYLOAD_BYTES, cost=MAX_LARGE_PAYLOAD_BYTES)
    total = 0
    while (first := await rig.next(view)).data_type != EVENT:
        message: list[OutgoingBuffer] = [first]
        while (more := view.take_more(MAX_LARGE_PAYLOAD_BYTES)) is not None:
            message.append(more)
        copied = [len(each.payload) for each in message if each.release is None]
        assert sum(copied) <= MAX_COPIED_BYTES
        total += sum([len(each.payload) for each in message])
        release_all(message)
    assert total == sum(map(len, small))
    view.release()
    store.release_application("app")
    rig.pool.destroy()
    await store.close()
