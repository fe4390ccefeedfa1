"""Advice on what a view reads next: each byte once, before it is read, and no more."""

from __future__ import annotations

import asyncio
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.serve.look_ahead import (
    CELL_BYTES,
    MAX_CELL_SLICES,
    MAX_RANGES,
    LookAhead,
)
from sluice.shuffle.taskmanager.serve.stored_partition_view import Slice
from sluice.shuffle.taskmanager.store.extent_reader import AHEAD_BYTES
from sluice.transport.fair_queue import OWN_FLOW
from tests.support.peers import turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.shuffle.taskmanager.store.extent_reader import ExtentRange
    from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
    from sluice.shuffle.taskmanager.store.tiers.tier import Extent
    from sluice.transport.fair_queue import Flow

pytestmark = pytest.mark.interpreted


class FakeTier:
    def __init__(self, *, reads_ahead: bool) -> None:
        self.reads_ahead = reads_ahead


class FakeExtent:
    def __init__(self, length: int, *, on_disk: bool) -> None:
        self.tier = FakeTier(reads_ahead=on_disk)
        self.length = length
        self.cells_ahead = 0


class FakeStore:
    """Records what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Extent, int, int]] = []

    async def will_need(self, ranges: Sequence[ExtentRange], flow: Flow) -> None:
        self.told += ranges


def slices_of(lengths: Sequence[tuple[int, int, bool]]) -> list[Slice]:
    return [
        Slice(cast("Extent", FakeExtent(7 + length, on_disk=on_disk)), 7, length, times)
        for length, times, on_disk in lengths
    ]


class View:
    """A view that looks ahead, at its own bytes only unless it may read cells."""

    def __init__(self, slices: Sequence[Slice], max_cell_slices: int = 0) -> None:
        self.store = FakeStore()
        self.ahead = LookAhead(cast("ShuffleStore", self.store), slices, OWN_FLOW, max_cell_slices)
        self._slices = slices

    async def reads(self, read_bytes: int) -> None:
        """Read up to a position, without a step in between."""
        left = read_bytes
        for index, each in enumerate(self._slices):
            if left < each.length * each.times:
                self.ahead.advance(index, left % each.length, read_bytes)
                break
            left -= each.length * each.times
        await turns(2)


async def test_no_more_than_a_bound_is_advised_and_more_when_half_of_it_is_read():
    view = View(slices_of([(5 * AHEAD_BYTES, 1, True)]))
    for read_bytes, advised_bytes in (
        (0, AHEAD_BYTES),
        (AHEAD_BYTES // 2 - 1, AHEAD_BYTES),
        (AHEAD_BYTES // 2, AHEAD_BYTES * 3 // 2),
        (3 * AHEAD_BYTES, 4 * AHEAD_BYTES),
    ):
        await view.reads(read_bytes)
        assert max(offset + length for _, offset, length in view.store.told) == 7 + advised_bytes
    told_bytes = sum(length for _, _, length in view.store.told)
    assert told_bytes == 5 * AHEAD_BYTES // 2  # not what was read without advice


async def test_there_is_one_piece_of_advice_at_a_time_and_a_bound_of_its_ranges():
    view = View(slices_of([(1, 1, True)] * (3 * MAX_RANGES)))
    view.ahead.advance(0, 0, 0)
    view.ahead.advance(MAX_RANGES, 0, MAX_RANGES)
    await turns(2)
    assert len(view.store.told) == MAX_RANGES
    view.ahead.advance(2 * MAX_RANGES, 0, 2 * MAX_RANGES)
    view.ahead.stop()
    await turns(2)
    assert len(view.store.told) == MAX_RANGES


LENGTHS = st.tuples(st.integers(1, AHEAD_BYTES), st.just(1), st.booleans())
STEPS = st.integers(AHEAD_BYTES // 8, AHEAD_BYTES // 2)


@given(st.lists(LENGTHS, min_size=1, max_size=12), STEPS, st.integers(0, 5))
def test_every_byte_on_a_disk_is_advised_once_and_before_it_is_read(lengths, step, first):
    """Except those that were read before the view looked ahead."""

    async def read_all() -> None:
        slices = slices_of(lengths)
        view = View(slices)
        total = sum(each.length for each in slices)
        for read_bytes in range(first * step, total, step):
            await view.reads(read_bytes)
        told: dict[int, list[tuple[int, int]]] = {}
        for extent, offset, length in view.store.told:
            assert length > 0
            told.setdefault(id(extent), []).append((offset, length))
        passed = 0
        for extent, offset, length, _ in slices:
            ranges = told.pop(id(extent), [])
            for (start, size), (following, _) in pairwise(ranges):
                assert start + size == following
            if not extent.tier.reads_ahead:
                assert not ranges
            elif passed >= first * step and total > first * step:
                assert ranges[0][0] == offset
                assert sum(size for _, size in ranges) == length
            passed += length
        assert not told

    asyncio.run(read_all())


async def test_a_slice_that_is_read_again_and_again_is_advised_once():
    view = View(slices_of([(1000, 5, True), (2000, 1, True)]))
    for read_bytes in range(0, 7000, 500):
        await view.reads(read_bytes)
    assert [length for _, _, length in view.store.told] == [1000, 2000]


@given(
    st.lists(
        st.lists(st.integers(1, CELL_BYTES // 2 - 1), min_size=9, max_size=9),
        min_size=1,
        max_size=4,
    )
)
def test_reducers_read_each_other_ahead_and_no_byte_twice(outputs):
    """``outputs`` has the lengths of the subpartitions of nine reducers in each map output."""

    async def read_all() -> None:
        extents = [cast("Extent", FakeExtent(sum(lengths), on_disk=True)) for lengths in outputs]
        starts = [[*accumulate(lengths, initial=0)] for lengths in outputs]
        told: list[tuple[Extent, int, int]] = []
        for reducer in range(9):
            slices = [
                Slice(extent, start[reducer], lengths[reducer], 1)
                for extent, start, lengths in zip(extents, starts, outputs, strict=True)
            ]
            view = View(slices, MAX_CELL_SLICES)
            for read_bytes in range(0, sum(each.length for each in slices), AHEAD_BYTES // 2):
                await view.reads(read_bytes)
            told += view.store.told
            for extent, offset, length, _ in slices:
                mine = sorted(each[1:] for each in told if each[0] is extent)
                for (start, size), (following, _) in pairwise(mine):
                    assert start + size == following
                assert mine[0][0] == 0
                end = mine[-1][0] + mine[-1][1]
                assert end == extent.length or (end % CELL_BYTES == 0 and end >= offset + length)
        assert not any(extent.cells_ahead for extent in extents)

    asyncio.run(read_all())


async def test_the_next_cell_is_read_before_a_reader_is_there():
    extent = cast("Extent", FakeExtent(4 * CELL_BYTES, on_disk=True))
    told = []
    for start, end in pairwise(share * CELL_BYTES // 8 for share in (0, 3, 5, 8, 11, 13)):
        view = View([Slice(extent, start, end - start, 1)], MAX_CELL_SLICES)
        await view.reads(0)
        told.append([(offset, length) for _, offset, length in view.store.told])
    cells = [[(number * CELL_BYTES, CELL_BYTES)] for number in range(3)]
    assert told == [cells[0], cells[1], [], [], cells[2]]


async def test_cells_are_advised_again_for_later_readers():
    extent = cast("Extent", FakeExtent(2 * CELL_BYTES, on_disk=True))
    quarter = CELL_BYTES // 4
    for _ in range(2):
        told_bytes = 0
        for start in range(0, extent.length, quarter):
            view = View([Slice(extent, start, quarter, 1)], MAX_CELL_SLICES)
            await view.reads(0)
            told_bytes += sum(length for _, _, length in view.store.told)
        assert told_bytes == extent.length


async def test_advice_that_is_withdrawn_is_given_to_the_next_reader():
    extent = cast("Extent", FakeExtent(CELL_BYTES, on_disk=True))
    slices = [Slice(extent, 0, 100, 1)]
    ended = View(slices, MAX_CELL_SLICES)
    ended.ahead.advance(0, 0, 0)
    ended.ahead.stop()
    await turns(2)
    assert not ended.store.told
    view = View(slices, MAX_CELL_SLICES)
    await view.reads(0)
    view.ahead.stop()
    assert view.store.told == [(extent, 0, CELL_BYTES)]
    assert extent.cells_ahead == 1


async def test_large_slices_are_read_exactly():
    extent = cast("Extent", FakeExtent(4 * CELL_BYTES, on_disk=True))
    view = View([Slice(extent, 10, CELL_BYTES, 1)], MAX_CELL_SLICES)
    await view.reads(0)
    assert view.store.told == [(extent, 10, CELL_BYTES)]


async def test_a_view_of_many_slices_reads_its_own_bytes_only():
    extents = [
        cast("Extent", FakeExtent(CELL_BYTES, on_disk=True)) for _ in range(MAX_CELL_SLICES + 1)
    ]
    view = View([Slice(extent, 10, 20, 1) for extent in extents], MAX_CELL_SLICES)
    await view.reads(0)
    assert {(offset, length) for _, offset, length in view.store.told} == {(10, 20)}
