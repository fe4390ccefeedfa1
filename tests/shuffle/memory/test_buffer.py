import pytest

from sluice.protocol.limits import MAX_LARGE_PAYLOAD_BYTES, RECEIVE_TAIL_BYTES
from sluice.shuffle.memory import (
    BufferAlreadyRecycled,
    InvalidPoolSize,
    NetworkBuffer,
    ScratchMemory,
)
from sluice.shuffle.memory.buffer import SCRATCH_BYTES
from sluice.shuffle.memory.segment import SegmentMapping


@pytest.fixture
def segment():
    return SegmentMapping(1, 64).segments[0]


def test_payload_is_the_first_length_bytes_and_not_a_copy(segment):
    buffer = NetworkBuffer(segment, 0, lambda _: None)
    assert buffer.payload.nbytes == 0
    segment.memory[:5] = b"hello"
    buffer.length = 5
    payload = buffer.payload
    segment.memory[0:1] = b"H"
    assert bytes(payload) == b"Hello"


@pytest.mark.parametrize(
    ("length", "pieces"),
    [(1, 1), (SCRATCH_BYTES, 1), (SCRATCH_BYTES + 1, 2), (MAX_LARGE_PAYLOAD_BYTES, 32)],
)
def test_a_discarded_payload_of_any_length_goes_into_one_piece(length, pieces):
    scratch = ScratchMemory()
    taken = scratch.take(length)
    found = taken if isinstance(taken, list) else [taken]
    assert len(found) == pieces
    assert all(len(each) == SCRATCH_BYTES for each in found[:-1])
    assert len(found[-1]) == SCRATCH_BYTES + RECEIVE_TAIL_BYTES
    assert all(each.obj is found[0].obj for each in found)


@pytest.mark.parametrize("length", [-1, 65])
def test_a_length_outside_the_segment_is_an_error(segment, length):
    buffer = NetworkBuffer(segment, length, lambda _: None)
    with pytest.raises(InvalidPoolSize) as caught:
        _ = buffer.payload
    assert (caught.value.value, caught.value.limit) == (length, 64)


def test_the_last_recycle_gives_the_segment_to_the_recycler_once(segment):
    recycled: list = []
    buffer = NetworkBuffer(segment, 0, recycled.append)
    assert buffer.retain() is buffer
    buffer.retain()
    assert buffer.reference_count == 3
    buffer.recycle()
    buffer.recycle()
    assert recycled == []
    buffer.recycle()
    assert recycled == [segment]
    assert buffer.reference_count == 0


def test_use_after_the_last_recycle_is_a_typed_error(segment):
    recycled: list = []
    buffer = NetworkBuffer(segment, 0, recycled.append)
    buffer.recycle()
    for use in (buffer.recycle, buffer.retain, lambda: buffer.payload):
        with pytest.raises(BufferAlreadyRecycled):
            use()
    assert recycled == [segment]
    assert buffer.reference_count == 0
