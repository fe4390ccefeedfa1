"""Receiving a map output: every message in every state, both tiers, memory and failures."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from sluice.protocol.errors import CreditExceeded, ErrorCode, SluiceError
from sluice.shuffle.errors import ChecksumMismatch, MapOutputMismatch
from sluice.shuffle.memory import InsufficientNetworkBuffers, LocalBufferPool, NetworkBufferPool
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.ingest.map_output_writer import MapOutputWriter, WriterState
from sluice.shuffle.taskmanager.store.store import ShuffleStore, release_regions
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, configs, eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

SEGMENT = 1024
KEY = ShuffleKey("app", 1)
DATA = random.Random(1).randbytes(10 * SEGMENT + 100)


class Rig:
    """A writer on a real store, with the credit and the failures it told."""

    def __init__(
        self,
        store: ShuffleStore,
        write_segments: int,
        total_segments: int,
        large_payload_bytes: int = SEGMENT,
    ) -> None:
        self.store = store
        self.network_pool = NetworkBufferPool(total_segments, SEGMENT)
        self.pool: LocalBufferPool | None = None
        self.write_segments = write_segments
        self.granted: list[int] = []
        self.failures: list[SluiceError] = []
        self.changed = asyncio.Event()
        self.payload_bytes = 0
        self.writer = MapOutputWriter(
            store,
            KEY,
            1,
            4,
            payload_bytes=SEGMENT,
            large_payload_bytes=large_payload_bytes,
            verify_checksums=True,
            pool=self._pool,
            opened=self._opened,
            grant=self._grant,
            failed=self._failed,
        )

    def _pool(self) -> LocalBufferPool:
        if self.pool is None:
            self.pool = self.network_pool.create_local_pool("writes", 1, self.write_segments)
        return self.pool

    def _opened(self, region: int, payload_bytes: int) -> None:
        self.payload_bytes = payload_bytes

    def _grant(self, credit: int) -> None:
        self.granted.append(credit)
        self.changed.set()

    def _failed(self, error: SluiceError) -> None:
        self.failures.append(error)
        self.changed.set()

    def begin(self, lengths: Sequence[int], data: bytes, region: int = 0, first: int = 0) -> None:
        self.writer.begin_region(region, first, lengths, crc32c(data))

    def payload(self, offset: int, data: bytes) -> None:
        self._receive(offset, data)
        self.writer.data_received(offset, len(data))

    def _receive(self, offset: int, data: bytes) -> None:
        memory = self.writer.payload_buffer(offset, len(data))
        assert memory is not None
        for piece in memory if isinstance(memory, list) else [memory]:
            part, data = data[: len(piece)], data[len(piece) :]
            piece[: len(part)] = part
        assert not data

    async def send(self, data: bytes) -> None:
        """Send a begun region as its credit comes."""
        size = self.payload_bytes
        for used, offset in enumerate(range(0, len(data), size)):
            async with asyncio.timeout(10):
                while used >= sum(self.granted) and not self.failures:
                    self.changed.clear()
                    await self.changed.wait()
            self.payload(offset, data[offset : offset + size])

    def used_bytes(self) -> int:
        return sum(tier.used_bytes for tier in self.store.tiers())


@pytest.fixture(params=[MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"])
async def rig(request, tmp_path):
    """Two segments at a time, so that the disk tier has to wait for its threads."""
    storage = configs(tmp_path, memory_tier_bytes=request.param)[2]
    store = ShuffleStore.open(storage)
    rig = Rig(store, 2, 8)
    rig.on_disk = request.param == DISK_ONLY  # type: ignore[attr-defined]
    yield rig
    rig.writer.abort()
    if rig.pool is not None:
        rig.pool.destroy()
    # threads that write have yet to let go
    await eventually(
        lambda: not rig.used_bytes() and rig.network_pool.available_segments == 8,
        "all segments and extents back",
    )
    await store.close()


async def test_a_map_output_of_several_regions(rig):
    rig.begin([5000, 0, len(DATA) - 5000, 0], DATA)
    await rig.send(DATA)
    rig.granted.clear()
    assert rig.writer.state is WriterState.OPEN
    rig.begin([0], b"", region=1)
    assert rig.granted == []
    rig.begin([3], b"abc", region=2, first=3)
    await rig.send(b"abc")
    output = await rig.writer.finish(len(DATA) + 3, 3)
    assert rig.writer.state.value == "finishing"
    assert [region.length for region in output.regions] == [len(DATA), 0, 3]
    assert output.regions[0].crc32c == crc32c(DATA)
    content = bytearray(len(DATA))
    assert output.regions[0].extent is not None
    await rig.store.read(output.regions[0].extent, 0, [memoryview(content)])
    assert content == DATA
    release_regions(output.regions)


async def test_credit_never_exceeds_what_the_region_needs(rig):
    rig.begin([len(DATA)], DATA)
    assert sum(rig.granted) == (2 if rig.on_disk else 11)
    await rig.send(DATA)
    assert sum(rig.granted) == 11
    release_regions((await rig.writer.finish(len(DATA), 1)).regions)


# ---- payloads of several segments on the disk tier ---------------------------------------------


@pytest.fixture
async def grouped(tmp_path):
    """Eight segments for a map output, of which a payload may take four."""
    store = ShuffleStore.open(configs(tmp_path, memory_tier_bytes=DISK_ONLY)[2])
    rig = Rig(store, 8, 16, large_payload_bytes=16 * SEGMENT)
    yield rig
    rig.writer.abort()
    rig._pool().destroy()
    await eventually(
        lambda: not rig.used_bytes() and rig.network_pool.available_segments == 16,
        "all segments and extents back",
    )
    await store.close()


@pytest.mark.parametrize("length", [1, SEGMENT + 1, 3 * SEGMENT, 21 * SEGMENT + 5])
async def test_a_payload_fills_several_segments(grouped, length):
    data = (DATA * 3)[:length]
    grouped.begin([length], data)
    segments = -(-length // SEGMENT)
    assert grouped.payload_bytes == min(4, segments) * SEGMENT
    assert sum(grouped.granted) == min(2, -(-segments // 4))
    await grouped.send(data)
    assert sum(grouped.granted) == -(-segments // 4)
    output = await grouped.writer.finish(length, 1)
    content = bytearray(length)
    assert output.regions[0].extent is not None
    await grouped.store.read(output.regions[0].extent, 0, [memoryview(content)])
    assert content == data
    assert grouped._pool().lent_segments == 0
    release_regions(output.regions)


async def test_a_payload_fills_segments_that_are_no_neighbours(grouped):
    taken = [grouped._pool().request_segment_nowait() for _ in range(8)]
    for segment in taken[::2]:
        grouped._pool().recycle(segment)
    data = DATA[: 10 * SEGMENT]
    grouped.begin([len(data)], data)
    assert isinstance(grouped.writer.payload_buffer(0, 4 * SEGMENT), list)
    await grouped.send(data)
    output = await grouped.writer.finish(len(data), 1)  # with the right checksum
    release_regions(output.regions)
    grouped._pool().recycle_together(taken[1::2])


async def test_a_region_goes_on_with_the_segments_it_began_with(grouped):
    """Whatever others take of the pool meanwhile: what a payload needs stays with the region."""
    data = (DATA * 2)[: 20 * SEGMENT]
    grouped.begin([len(data)], data)
    grouped._pool().set_limit(1)
    await grouped.send(data)
    release_regions((await grouped.writer.finish(len(data), 1)).regions)


async def test_payloads_are_as_small_as_the_pool_at_the_beginning(grouped):
    taken = [grouped._pool().request_segment_nowait() for _ in range(7)]
    data = DATA[: 5 * SEGMENT]
    grouped.begin([len(data)], data)
    assert (grouped.payload_bytes, grouped.granted) == (SEGMENT, [1])
    await grouped.send(data)
    release_regions((await grouped.writer.finish(len(data), 1)).regions)
    grouped._pool().recycle_together(taken)


# ---- the state table, exhaustively ------------------------------------------------------------


async def reach(rig: Rig, state: str) -> None:
    if state in ("in region", "in region, part received"):
        rig.begin([2 * SEGMENT], DATA[: 2 * SEGMENT])
        if state != "in region":
            rig.payload(0, DATA[:SEGMENT])
    elif state == "finishing":
        release_regions((await rig.writer.finish(0, 0)).regions)
    elif state == "aborted":
        rig.writer.abort()


async def say(rig: Rig, message: str) -> None:
    if message == "begin":
        rig.begin([1], b"x", region=len(rig.writer._written))
    elif message == "data":
        rig.payload(0, DATA[:SEGMENT])
    else:
        release_regions((await rig.writer.finish(0, 0)).regions)


STATES = ["open", "in region", "in region, part received", "finishing", "aborted"]
ALLOWED = {
    ("open", "begin"): WriterState.IN_REGION,
    ("open", "finish"): WriterState.FINISHING,
    ("in region", "data"): WriterState.IN_REGION,
    **{(state, "abort"): WriterState.ABORTED for state in STATES},
}


@pytest.mark.parametrize("message", ["begin", "data", "finish", "abort"])
@pytest.mark.parametrize("state", STATES)
async def test_every_message_in_every_state(rig, state, message):
    await reach(rig, state)
    before = rig.writer.state
    after = ALLOWED.get((state, message))
    if (state, message) == ("in region, part received", "data"):
        rig.payload(SEGMENT, DATA[SEGMENT : 2 * SEGMENT])  # the last of it
        assert rig.writer.state is WriterState.OPEN
    elif message == "abort":
        rig.writer.abort()
        assert rig.writer.state is WriterState.ABORTED
    elif after is None:
        with pytest.raises(MapOutputMismatch) as caught:
            await say(rig, message)
        assert caught.value.map_attempt_id == 1
        assert str(before.value) in str(caught.value.value)
        assert rig.writer.state is before
    else:
        await say(rig, message)
        assert rig.writer.state is after


async def test_an_abort_while_it_finishes(rig):
    rig.begin([len(DATA)], DATA)
    await rig.send(DATA)
    finishing = asyncio.ensure_future(rig.writer.finish(len(DATA), 1))
    rig.writer.abort()
    with pytest.raises(MapOutputMismatch):
        await finishing


# ---- failures ---------------------------------------------------------------------------------


async def test_a_wrong_checksum_at_the_end_of_a_region(rig):
    rig.writer.begin_region(0, 0, [3], 1)
    with pytest.raises(ChecksumMismatch) as caught:
        rig.payload(0, b"abc")
    assert caught.value.retryable
    assert caught.value.value == f"{crc32c(b'abc'):#010x}"


@pytest.mark.parametrize(
    ("region", "first", "lengths"),
    [(1, 0, [1]), (0, 4, [1]), (0, 0, [1] * 5), (0, 2**32 - 1, []), (0, 0, [2**64 - 1] * 2)],
)
async def test_regions_that_do_not_add_up(rig, region, first, lengths):
    with pytest.raises(MapOutputMismatch):
        rig.writer.begin_region(region, first, lengths, 0)
    assert rig.writer.state is WriterState.OPEN
    assert rig.used_bytes() == 0


@pytest.mark.parametrize(("offset", "length"), [(1, 1), (SEGMENT, 1), (0, 101)])
async def test_data_that_is_not_the_next_part(rig, offset, length):
    rig.begin([100], DATA[:100])
    with pytest.raises(MapOutputMismatch) as caught:
        rig.writer.payload_buffer(offset, length)
    assert caught.value.limit == "100 bytes at 0"


async def test_totals_that_differ(rig):
    rig.begin([3], b"abc")
    rig.payload(0, b"abc")
    for total, regions in ((2, 1), (3, 0), (3, 2)):
        with pytest.raises(MapOutputMismatch, match="do not add up"):
            await rig.writer.finish(total, regions)
    release_regions((await rig.writer.finish(3, 1)).regions)


async def test_memory_for_the_disk_tier_that_is_not_there_costs_no_extent(tmp_path):
    store = ShuffleStore.open(configs(tmp_path, memory_tier_bytes=DISK_ONLY)[2])
    rig = Rig(store, 2, 1)
    other = rig.network_pool.create_local_pool("another map output", 1, 1)
    with pytest.raises(InsufficientNetworkBuffers):
        rig.begin([100], DATA[:100])
    assert rig.used_bytes() == 0
    assert rig.writer.state is WriterState.OPEN
    other.destroy()
    rig.begin([100], DATA[:100])
    rig.writer.abort()
    rig._pool().destroy()
    assert rig.used_bytes() == 0
    await store.close()
    assert rig.network_pool.available_segments == 1


@pytest.fixture
async def failing(tmp_path):
    """A rig whose disk takes nothing."""
    store = ShuffleStore.open(configs(tmp_path, memory_tier_bytes=DISK_ONLY)[2])

    def fail(offset, buffers):
        raise OSError(28, "No space left on device")

    (disk,) = store._storage.disks
    disk.write = fail  # type: ignore[method-assign]
    rig = Rig(store, 2, 8)
    yield rig
    rig.writer.abort()
    rig._pool().destroy()
    # threads that write have yet to let go
    await eventually(
        lambda: not rig.used_bytes() and rig.network_pool.available_segments == 8,
        "all segments and extents back",
    )
    await store.close()


async def test_a_failed_write_is_told_at_once(failing):
    """Not when the region is complete: it never will be, for want of credit."""
    failing.begin([len(DATA)], DATA)
    failing.payload(0, DATA[:SEGMENT])
    async with asyncio.timeout(10):
        await failing.changed.wait()
        while not failing.failures:
            failing.changed.clear()
            await failing.changed.wait()
    (failure,) = failing.failures
    assert failure.code is ErrorCode.STORAGE_UNAVAILABLE
    with pytest.raises(SluiceError, match="No space left"):
        failing.writer.payload_buffer(SEGMENT, 1)


async def test_a_failure_waits_for_the_payload_that_is_arriving(failing):
    """Its segment must not be anybody else's while the transport fills it."""
    failing.begin([len(DATA)], DATA)
    failing.payload(0, DATA[:SEGMENT])
    failing.writer.payload_buffer(SEGMENT, SEGMENT)
    async with asyncio.timeout(10):
        while failing.writer._failure is None:  # noqa: ASYNC110 - nobody is told yet
            await asyncio.sleep(0)
    assert failing.failures == []
    with pytest.raises(SluiceError, match="No space left"):
        failing.writer.data_received(SEGMENT, SEGMENT)


async def test_data_without_credit_on_the_disk_tier(tmp_path):
    store = ShuffleStore.open(configs(tmp_path, memory_tier_bytes=DISK_ONLY)[2])
    rig = Rig(store, 2, 2)
    rig.begin([len(DATA)], DATA)
    assert rig.granted == [2]
    rig.payload(0, DATA[:10])
    rig.payload(10, DATA[10:20])
    with pytest.raises(CreditExceeded):
        rig.writer.payload_buffer(20, 10)
    rig.writer.abort()
    rig._pool().destroy()
    await store.close()
    await asyncio.sleep(0)
    assert rig.network_pool.available_segments == 2
