import mmap

import pytest

from protocol.limits import RECEIVE_TAIL_BYTES
from shuffle.memory.segment import SegmentMapping


def test_segments_are_slices_of_one_mapping_with_a_tail_each():
    mapping = SegmentMapping(4, 128)
    assert [segment.index for segment in mapping.segments] == [0, 1, 2, 3]
    for segment in mapping.segments:
        assert segment.size_bytes == 128
        assert segment.memory.nbytes == 128 + RECEIVE_TAIL_BYTES
        assert not segment.memory.readonly
        assert segment.memory.obj is mapping.segments[0].memory.obj


def test_segments_do_not_overlap():
    segments = SegmentMapping(3, 1).segments
    for segment in segments:
        segment.memory[:] = bytes([segment.index + 1]) * (1 + RECEIVE_TAIL_BYTES)
    for segment in segments:
        assert bytes(segment.memory) == bytes([segment.index + 1]) * (1 + RECEIVE_TAIL_BYTES)


def test_close_gives_the_memory_back_and_is_idempotent():
    mapping = SegmentMapping(2, 64)
    owner = mapping.segments[0].memory.obj
    assert isinstance(owner, mmap.mmap)
    mapping.close()
    mapping.close()
    with pytest.raises(ValueError, match="released"):
        mapping.segments[0].memory[0]
    assert owner.closed


def test_close_leaves_bytes_readable_for_a_view_that_is_still_held():
    mapping = SegmentMapping(2, 64)
    mapping.segments[1].memory[:3] = b"abc"
    late = mapping.segments[1].memory[:3]
    mapping.close()
    assert bytes(late) == b"abc"
