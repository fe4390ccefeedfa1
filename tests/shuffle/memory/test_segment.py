import mmap

import pytest

from sluice.protocol.limits import RECEIVE_TAIL_BYTES
from sluice.shuffle.memory.segment import SegmentMapping


def test_segments_are_slices_of_one_mapping():
    mapping = SegmentMapping(4, 128)
    assert [segment.index for segment in mapping.segments] == [0, 1, 2, 3]
    for segment in mapping.segments:
        assert segment.size_bytes == 128
        assert segment.memory.nbytes == 128
        assert not segment.memory.readonly
        assert segment.memory.obj is mapping.segments[0].memory.obj


def test_segments_do_not_overlap():
    segments = SegmentMapping(3, 1).segments
    for segment in segments:
        segment.memory[:] = bytes([segment.index + 1])
    for segment in segments:
        assert bytes(segment.memory) == bytes([segment.index + 1])


def test_a_run_is_one_view_over_neighbours_and_the_spare_bytes_behind_each():
    segments = SegmentMapping(4, 8).segments
    stride = 8 + RECEIVE_TAIL_BYTES
    run = segments[1].run(2)
    assert len(run) == 2 * stride
    run[:] = b"a" * stride + b"b" * stride
    assert [bytes(segment.memory) for segment in segments] == [
        bytes(8),
        b"a" * 8,
        b"b" * 8,
        bytes(8),
    ]
    assert bytes(segments[3].run(1)) == bytes(stride)


def test_room_is_the_segment_and_the_spare_bytes_behind_it():
    first, second = SegmentMapping(2, 8).segments
    first.room[:] = b"r" * (8 + RECEIVE_TAIL_BYTES)
    assert bytes(first.memory) == b"r" * 8
    assert bytes(second.room) == bytes(8 + RECEIVE_TAIL_BYTES)


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
