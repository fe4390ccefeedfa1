"""Frames of records, and batches sorted by subpartition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.records.framing import (
    LENGTH,
    BatchPart,
    BytesLike,
    Turns,
    batch_parts,
    join_frames,
    split_equal_frames,
)
from tests.support.raises_code import raises_code


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def test_frames_of_any_memory_are_joined_in_order():
    payloads: list[BytesLike] = [b"", bytearray(b"ab"), memoryview(b"cdef")]
    assert join_frames(payloads, 4) == frame(b"") + frame(b"ab") + frame(b"cdef")


def test_more_lengths_than_are_kept_packed():
    payloads = [bytes(length) for length in range(5000)]
    assert join_frames(payloads, 5000) == b"".join(map(frame, payloads))


def test_a_batch_is_sorted_by_subpartition_and_keeps_the_order_in_each():
    parts = batch_parts([b"a", b"b", b"c", b"d"], [1, 0, 1, 0], 2, 10)
    assert parts == [
        BatchPart(1, frame(b"a") + frame(b"c")),
        BatchPart(0, frame(b"b") + frame(b"d")),
    ]


def test_a_broadcast_record_keeps_its_place_among_the_others():
    parts = batch_parts([b"a", b"b", b"c", b"d"], [0, ALL_SUBPARTITIONS, 0, 0], 2, 10)
    assert parts == [
        BatchPart(0, frame(b"a")),
        BatchPart(ALL_SUBPARTITIONS, frame(b"b")),
        BatchPart(0, frame(b"c") + frame(b"d")),
    ]


@pytest.mark.parametrize("subpartition", [-2, 2])
def test_a_subpartition_that_does_not_exist_is_refused(subpartition):
    for subpartitions in (subpartition, [subpartition]):
        with raises_code(ErrorCode.CONFIGURATION, "does not exist .*limit 1") as caught:
            batch_parts([b"a"], subpartitions, 2, 10)
        assert caught.value.value == subpartition


@given(st.lists(st.binary(max_size=3), max_size=40), st.integers(0, 4), st.integers(1, 5))
def test_turns_are_the_same_as_the_subpartition_of_each_record(payloads, first, count):
    first %= count
    each = [(first + turn) % count for turn in range(len(payloads))]
    by_turns = batch_parts(payloads, Turns(first, count), count, 100)
    one_by_one = batch_parts(payloads, each, count, 100)
    assert [(part.subpartition, part.frames) for part in by_turns] == [
        (part.subpartition, part.frames) for part in one_by_one
    ]


def walked(stream, start, end):
    """Return the records of a stream from one to the next."""
    records = []
    while start + 4 <= end:
        length = int.from_bytes(stream[start : start + 4])
        if start + 4 + length > end:
            break
        records.append(stream[start + 4 : start + 4 + length])
        start += 4 + length
    return records, start


@given(
    st.one_of(
        st.lists(st.binary(min_size=5, max_size=5), max_size=80),
        st.lists(st.just(b""), max_size=2000),
        st.lists(st.binary(max_size=6), max_size=80),
    ),
    st.binary(max_size=3),
    st.integers(0, 9),
)
def test_records_of_one_length_are_split_as_by_a_walk(records, before, cut):
    stream = before + (join_frames(records, 100) if records else b"")
    end = max(len(stream) - cut, len(before))
    taken, after = split_equal_frames(stream, len(before), end, least=2)
    expected, stop = walked(stream, len(before), end)
    if taken:
        assert list(taken) == expected[: len(taken)]
        # What is left is no longer a frame, or one of another length.
        assert after <= stop
    else:
        assert after == len(before)
    if len(expected) >= 2 and len({len(each) for each in expected}) == 1 and stop == end:
        assert len(taken) == len(expected)


def test_a_number_of_records_that_is_no_power_of_two_is_split_whole():
    for count in (16, 17, 1000, 1537):
        records = [b"%07d" % number for number in range(count)]
        stream = join_frames(records, 100)
        assert split_equal_frames(stream, 0, len(stream)) == (records, len(stream))
