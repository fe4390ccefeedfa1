"""The allocator against a model that marks every unit of space."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.store.tiers.extent_allocator import ExtentAllocator

UNIT = 16


def taken(allocator: ExtentAllocator, length: int) -> int:
    """Allocate an extent that must fit."""
    offset = allocator.allocate(length)
    assert offset is not None
    return offset


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.one_of(st.none(), st.integers(0, 40)),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("allocate"), st.integers(1, 8 * UNIT)),
            st.tuples(st.just("free"), st.integers(0, 1000)),
            st.tuples(st.just("reserve"), st.tuples(st.integers(0, 50), st.integers(1, 100))),
            st.tuples(st.just("trim"), st.just(0)),
        ),
        max_size=60,
    ),
)
def test_extents_never_overlap_and_space_is_conserved(capacity, steps):
    limit = None if capacity is None else capacity * UNIT
    allocator = ExtentAllocator(limit, UNIT)
    in_use: dict[int, int] = {}  # offset -> length as asked for
    units: set[int] = set()
    highest = 0  # end of the reserved extents

    def span(offset, length):
        return set(range(offset // UNIT, (offset + length + UNIT - 1) // UNIT))

    for kind, argument in steps:
        if kind == "allocate":
            largest = allocator.largest_free_bytes
            grows_by = allocator.growth_for(argument)
            frontier = allocator.frontier_bytes
            offset = allocator.allocate(argument)
            assert (offset is not None) == (allocator.rounded(argument) <= largest)
            if offset is None:
                continue
            assert allocator.frontier_bytes - frontier == grows_by
            assert not span(offset, argument) & units
            in_use[offset] = argument
            units |= span(offset, argument)
            if limit is not None:
                assert offset + allocator.rounded(argument) <= limit
                assert allocator.used_bytes <= limit
        elif kind == "free" and in_use:
            offset = sorted(in_use)[argument % len(in_use)]
            length = in_use.pop(offset)
            units -= span(offset, length)
            allocator.free(offset, length)
        elif kind == "reserve":
            offset, length = argument[0] * UNIT, argument[1]
            if span(offset, length) & units:
                with pytest.raises(ValueError, match="extent"):
                    allocator.reserve(offset, length)
            else:
                allocator.reserve(offset, length)
                in_use[offset] = length
                units |= span(offset, length)
                highest = max(highest, offset + allocator.rounded(length))
        elif kind == "trim":
            last = max(units, default=-1) + 1
            allocator.trim_to(last * UNIT)
            assert allocator.frontier_bytes == last * UNIT
        assert allocator.used_bytes == len(units) * UNIT
        assert allocator.frontier_bytes >= (max(units, default=-1) + 1) * UNIT
        if limit is not None:
            assert allocator.frontier_bytes <= max(limit, highest)
            assert allocator.is_beyond_capacity == (allocator.frontier_bytes > limit)
            above = {
                n for n in set(range(allocator.frontier_bytes // UNIT)) - units if n >= capacity
            }
            found = [span(*hole) for hole in allocator.holes_above_capacity()]
            assert set().union(*found) == above
        # every free unit below the frontier is in exactly one hole, and holes never touch
        free = set(range(allocator.frontier_bytes // UNIT)) - units
        holes = [s for s in free if s - 1 not in free]
        assert len(allocator._starts) == len(holes) == len(allocator._by_size)

    for offset, length in in_use.items():
        allocator.free(offset, length)
    assert allocator.used_bytes == 0
    assert allocator.tail_free_bytes == allocator.frontier_bytes
    assert allocator.largest_free_bytes == (2**64 - 1 if limit is None else limit)


def test_the_tightest_warm_hole_is_taken_first_and_the_lowest_among_equals():
    allocator = ExtentAllocator(None, 1)
    a = taken(allocator, 100)
    allocator.allocate(1)
    b = taken(allocator, 50)
    allocator.allocate(1)
    c = taken(allocator, 50)
    allocator.allocate(1)
    for offset, length in ((a, 100), (c, 50), (b, 50)):
        allocator.free(offset, length)
    assert allocator.allocate(40) == b
    assert allocator.allocate(50) == c
    assert allocator.allocate(60) == a
    frontier = allocator.frontier_bytes
    assert allocator.allocate(70) == frontier  # no warm hole is long enough


def test_growth_starts_in_the_hole_at_the_frontier():
    allocator = ExtentAllocator(1000, 1)
    first = taken(allocator, 100)
    allocator.free(first, 100)
    assert allocator.growth_for(150) == 50
    assert allocator.allocate(150) == 0
    assert allocator.frontier_bytes == 150


def test_freeing_twice_or_misplaced_is_refused_and_changes_nothing():
    allocator = ExtentAllocator(1000, 10)
    offset = taken(allocator, 30)
    other = taken(allocator, 30)
    allocator.free(offset, 30)
    for bad in ((offset, 30), (offset + 20, 20), (other, 60), (other + 5, 10), (-10, 10)):
        with pytest.raises(ValueError, match="not in use"):
            allocator.free(*bad)
    assert allocator.used_bytes == 30


@pytest.mark.parametrize(("capacity", "alignment"), [(-1, 1), (10, 0)])
def test_invalid_sizes_are_refused(capacity, alignment):
    with pytest.raises(ValueError, match="got"):
        ExtentAllocator(capacity, alignment)


def test_invalid_requests_are_refused():
    allocator = ExtentAllocator(100, 10)
    with pytest.raises(ValueError, match="at least 1 byte"):
        allocator.allocate(0)
    with pytest.raises(ValueError, match="not aligned"):
        allocator.reserve(5, 10)
    allocator.allocate(10)
    with pytest.raises(ValueError, match="cannot move"):
        allocator.trim_to(0)
