"""The allocator of slots against a model that marks every 64 bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.store.tiers.slot_allocator import (
    MIN_SLOT_BYTES,
    PAGE_BYTES,
    SlotAllocator,
    occupied_bytes,
)

LENGTHS = st.one_of(
    st.integers(1, 130), st.integers(1, 3 * PAGE_BYTES), st.sampled_from([2048, 2049, 4096])
)


def units(offset, length):
    end = offset + occupied_bytes(length)
    return set(range(offset // MIN_SLOT_BYTES, end // MIN_SLOT_BYTES))


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0), (1, 64), (64, 64), (65, 128), (2048, 2048), (2049, 4096), (4096, 4096), (4097, 8192)],
)
def test_what_an_extent_takes(length, expected):
    assert occupied_bytes(length) == expected


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.one_of(st.none(), st.integers(0, 8)),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("allocate"), LENGTHS),
            st.tuples(st.just("free"), st.integers(0, 1000)),
            st.tuples(st.just("reserve"), st.tuples(st.integers(0, 300), LENGTHS)),
        ),
        max_size=80,
    ),
)
def test_extents_never_overlap_and_empty_pages_come_back(capacity, steps):
    allocator = SlotAllocator(None if capacity is None else capacity * PAGE_BYTES)
    in_use: dict[int, int] = {}
    taken: set[int] = set()
    for kind, argument in steps:
        if kind == "allocate":
            grows_by = allocator.growth_for(argument)
            frontier = allocator.frontier_bytes
            offset = allocator.allocate(argument)
            if offset is None:
                assert capacity is not None
                continue
            assert allocator.frontier_bytes - frontier == grows_by
            assert capacity is None or offset + argument <= capacity * PAGE_BYTES
        elif kind == "reserve":
            offset, argument = argument[0] * MIN_SLOT_BYTES, argument[1]
            try:
                allocator.reserve(offset, argument)
            except ValueError:
                continue
        elif in_use:
            offset = sorted(in_use)[argument % len(in_use)]
            length = in_use.pop(offset)
            taken -= units(offset, length)
            allocator.free(offset, length)
            with pytest.raises(ValueError, match="not in use"):
                allocator.free(offset, length)
            continue
        else:
            continue
        assert not units(offset, argument) & taken
        taken |= units(offset, argument)
        in_use[offset] = argument
        assert allocator.used_bytes >= len(taken) * MIN_SLOT_BYTES
    for offset, length in in_use.items():
        allocator.free(offset, length)
    assert allocator.used_bytes == 0
    assert allocator.tail_free_bytes == allocator.frontier_bytes


def test_slots_of_one_size_share_a_page():
    allocator = SlotAllocator(None)
    assert [allocator.allocate(10) for _ in range(65)] == [64 * n for n in range(65)]
    assert allocator.allocate(100) == 2 * PAGE_BYTES
    assert allocator.used_bytes == 3 * PAGE_BYTES


def test_a_slot_that_was_given_back_is_used_before_a_new_page():
    allocator = SlotAllocator(None)
    offsets = [allocator.allocate(1000) for _ in range(8)]
    allocator.free(1024, 1000)
    assert allocator.growth_for(1000) == 0
    assert allocator.allocate(600) == 1024
    assert offsets == [1024 * n for n in range(8)]


@pytest.mark.parametrize(
    ("offset", "length"), [(-64, 10), (32, 10), (64, 100), (0, 10), (128, 100)]
)
def test_a_range_that_is_no_free_slot_cannot_be_reserved(offset, length):
    allocator = SlotAllocator(None)
    allocator.reserve(0, 64)
    with pytest.raises(ValueError, match="extent"):
        allocator.reserve(offset, length)


def test_a_full_tier_has_no_page_for_a_slot():
    allocator = SlotAllocator(PAGE_BYTES)
    assert allocator.allocate(PAGE_BYTES) == 0
    assert allocator.allocate(1) is None
