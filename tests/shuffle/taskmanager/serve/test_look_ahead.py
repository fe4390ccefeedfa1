"""Advice on what a view reads next: each byte once, before it is read, and no more."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.serve.look_ahead import MAX_RANGES, LookAhead
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


class FakeTier:
    def __init__(self, *, reads_ahead: bool) -> None:
        self.reads_ahead = reads_ahead


class FakeExtent:
    def __init__(self, *, on_disk: bool) -> None:
        self.tier = FakeTier(reads_ahead=on_disk)


class FakeStore:
    """Records what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Extent, int, int]] = []

    async def will_need(self, ranges: Sequence[ExtentRange], flow: Flow) -> None:
        self.told += ranges


def slices_of(lengths: Sequence[tuple[int, int, bool]]) -> list[Slice]:
    return [
        Slice(cast("Extent", FakeExtent(on_disk=on_disk)), 7, length, times)
        for length, times, on_disk in lengths
    ]


class View:
    """A view that looks ahead."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self.store = FakeStore()
        self.ahead = LookAhead(cast("ShuffleStore", self.store), slices, OWN_FLOW)
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
