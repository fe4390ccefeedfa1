import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle.storage.outputs import MapOutput, Region, ShuffleKey, cumulative_offsets


@given(
    lengths=st.lists(st.integers(0, 1000), max_size=30),
    first=st.integers(0, 20),
    start=st.integers(0, 60),
    end=st.integers(0, 60),
)
def test_a_slice_is_the_joined_bytes_of_its_subpartitions(lengths, first, start, end):
    region = Region(None, first, cumulative_offsets(lengths), 0)
    pieces = [bytes([i % 251]) * n for i, n in enumerate(lengths)]
    offset, length = region.slice(start, end)
    expected = b"".join(pieces[max(start - first, 0) : max(end - first, 0)])
    assert b"".join(pieces)[offset : offset + length] == expected
    assert length == len(expected)
    assert region.length == sum(lengths)
    assert region.num_subpartitions == len(lengths)


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
