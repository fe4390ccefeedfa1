import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.schema import EVERY_SUBPARTITION
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.stored_outputs import (
    MapOutput,
    Region,
    cumulative_offsets,
    region_index,
)

runs = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0, 0, 3])), max_size=6)


@given(
    lengths=st.lists(st.integers(0, 1000), max_size=30)
    | runs.map(lambda runs: [length for times, length in runs for _ in range(times)]),
    first=st.integers(0, 20),
    start=st.integers(0, 260),
    end=st.integers(0, 260),
)
def test_a_slice_is_the_joined_bytes_of_its_subpartitions(lengths, first, start, end):
    offsets, numbers = region_index(lengths)
    region = Region(None, first, offsets, 0, numbers)
    pieces = [bytes([i % 251]) * n for i, n in enumerate(lengths)]
    offset, length = region.slice(start, end)
    expected = b"".join(pieces[max(start - first, 0) : max(end - first, 0)])
    assert b"".join(pieces)[offset : offset + length] == expected
    assert length == len(expected)
    assert region.length == sum(lengths)
    assert lengths[: len(region.lengths())] == region.lengths()
    assert not any(lengths[len(region.lengths()) :])


@pytest.mark.parametrize("full", [0, 1, 1000])
def test_empty_subpartitions_take_no_memory_in_an_index(full):
    lengths = [0] * 1_000_000
    lengths[5 : 5 + full] = [7] * full
    offsets, numbers = region_index(lengths)
    assert numbers is not None
    region = Region(None, 0, offsets, 0, numbers)
    assert region.index_bytes == 4 + 8 * full
    assert region.lengths() == lengths[: 5 + full if full else 0]
    assert region.slice(0, 1_000_000) == (0, 7 * full)


def test_an_index_without_many_empty_subpartitions_has_all():
    for lengths in ([0] * 32, [0, 1] * 500, [1] * 1000, []):
        assert region_index(lengths) == (cumulative_offsets(lengths), None)


def test_offsets_take_four_bytes_each_until_they_need_eight():
    assert cumulative_offsets([2**32 - 1]).itemsize == 4
    wide = cumulative_offsets([2**32 - 1, 1])
    assert wide.itemsize == 8
    assert list(wide) == [0, 2**32 - 1, 2**32]


@pytest.mark.parametrize("lengths", [[5, -1, 3], [2**64]])
def test_impossible_lengths_are_refused(lengths):
    with pytest.raises(ValueError, match="cannot be"):
        cumulative_offsets(lengths)


def test_the_total_goes_over_all_regions():
    regions = tuple(Region(None, i, cumulative_offsets([i, 10]), 0) for i in range(3))
    assert MapOutput(ShuffleKey("a", 1), 7, 4, regions).total_bytes == 33


@pytest.mark.parametrize(
    ("start", "end", "piece", "repeats"),
    [(0, 1, (0, 9), 1), (3, 7, (0, 9), 4), (0, 2**32 - 1, (0, 9), 2**32 - 1), (5, 5, (0, 0), 0)],
)
def test_a_broadcast_region_is_read_for_each_subpartition(start, end, piece, repeats):
    region = Region(None, EVERY_SUBPARTITION, cumulative_offsets([9]), 0)
    assert region.is_broadcast
    assert region.slice(start, end) == piece
    assert region.repeats(start, end) == repeats
    assert MapOutput(ShuffleKey("a", 1), 7, 4, (region,)).total_bytes == 9


def test_another_region_is_read_once():
    region = Region(None, 1, cumulative_offsets([1, 2, 3]), 0)
    assert not region.is_broadcast
    assert region.repeats(0, 3) == 1
