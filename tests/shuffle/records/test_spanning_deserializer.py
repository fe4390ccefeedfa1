"""The spanning deserializer: results, ownership of records, release of buffers."""

import itertools
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.errors import RecordTooLarge
from sluice.shuffle.records.framing import DeserializationResult
from sluice.shuffle.records.spanning_deserializer import SpanningRecordDeserializer
from tests.support.raises_code import raises_code

PARTIAL = DeserializationResult.PARTIAL_RECORD
INTERMEDIATE = DeserializationResult.INTERMEDIATE_RECORD_FROM_BUFFER
LAST = DeserializationResult.LAST_RECORD_FROM_BUFFER
CUT = ErrorCode.END_OF_PARTITION_MISMATCH


def frame(record: bytes) -> bytes:
    return struct.pack(">I", len(record)) + record


class Lent:
    """A buffer that is spoilt when it is released."""

    def __init__(self, payload: bytes) -> None:
        self.memory = bytearray(payload)
        self.releases = 0

    def release(self) -> None:
        self.releases += 1
        self.memory[:] = b"\xdd" * len(self.memory)


def feed(deserializer: SpanningRecordDeserializer, payload: bytes) -> Lent:
    lent = Lent(payload)
    deserializer.set_next_buffer(memoryview(lent.memory), lent.release)
    return lent


def read(deserializer: SpanningRecordDeserializer) -> list[tuple[DeserializationResult, bytes]]:
    """Take all records of the buffer."""
    found = []
    while True:
        result, record = deserializer.next_record()
        if record is not None:
            found.append((result, bytes(record)))
        else:
            assert result is PARTIAL
        if result.is_buffer_consumed:
            return found


@pytest.mark.parametrize(
    ("buffers", "results"),
    [
        ([frame(b"ab")], [[(LAST, b"ab")]]),
        ([frame(b"")], [[(LAST, b"")]]),
        ([frame(b"a") + frame(b"b")], [[(INTERMEDIATE, b"a"), (LAST, b"b")]]),
        ([frame(b"a") + frame(b"")], [[(INTERMEDIATE, b"a"), (LAST, b"")]]),
        ([frame(b"ab")[:5], b"b"], [[], [(LAST, b"ab")]]),
        ([frame(b"ab")[:4], b"ab"], [[], [(LAST, b"ab")]]),
        ([frame(b"ab")[:2], frame(b"ab")[2:]], [[], [(LAST, b"ab")]]),
        ([b"\0", b"\0", b"\0", b"\1", b"x"], [[], [], [], [], [(LAST, b"x")]]),
        ([b"\0\0\0", b"\0" + frame(b"y")], [[], [(INTERMEDIATE, b""), (LAST, b"y")]]),
        ([frame(b"ab")[:5], b"b" + frame(b"c") + b"\0"],
         [[], [(INTERMEDIATE, b"ab"), (INTERMEDIATE, b"c")]]),
        ([b""], [[]]),
        ([frame(b"ab")[:5], b"", b"b"], [[], [], [(LAST, b"ab")]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("threshold", [1000, 0])
def test_the_result_of_each_call(buffers, results, threshold):
    deserializer = SpanningRecordDeserializer(spill_threshold_bytes=threshold)
    lent = []
    for payload, expected in zip(buffers, results, strict=True):
        lent.append(feed(deserializer, payload))
        assert read(deserializer) == expected
    deserializer.release_consumed()
    assert [each.releases for each in lent] == [1] * len(lent)
    deserializer.close()
    assert [each.releases for each in lent] == [1] * len(lent)


def test_a_record_in_one_buffer_is_a_view_until_the_next_call():
    deserializer = SpanningRecordDeserializer()
    lent = feed(deserializer, frame(b"ab"))
    result, record = deserializer.next_record()
    assert result is LAST
    assert type(record) is memoryview
    assert record.obj is lent.memory
    assert lent.releases == 0
    assert deserializer.next_record() == (PARTIAL, None)
    assert lent.releases == 1


def test_a_record_over_buffers_is_copied_once_and_both_buffers_go_back_at_once():
    deserializer = SpanningRecordDeserializer()
    first = feed(deserializer, frame(b"abcd")[:6])
    assert deserializer.next_record() == (PARTIAL, None)
    assert first.releases == 1
    second = feed(deserializer, b"cd")
    result, record = deserializer.next_record()
    assert (result, second.releases) == (LAST, 1)
    assert type(record) is bytearray
    assert record == b"abcd"


def test_a_buffer_before_the_last_one_is_read_is_refused():
    deserializer = SpanningRecordDeserializer()
    feed(deserializer, frame(b"a") + frame(b"b"))
    deserializer.next_record()
    second = Lent(b"")
    with raises_code(ErrorCode.INTERNAL, "still has records .value 5"):
        deserializer.set_next_buffer(second.memory, second.release)
    assert read(deserializer) == [(LAST, b"b")]
    assert second.releases == 0


def test_an_end_in_the_middle_of_a_record_is_an_error():
    deserializer = SpanningRecordDeserializer()
    deserializer.end()
    feed(deserializer, frame(b"ab") + b"\0\0")
    with raises_code(CUT, "middle of a record"):
        deserializer.end()
    read(deserializer)
    with raises_code(CUT, "middle of a record .value 2, limit 4"):
        deserializer.end()
    feed(deserializer, b"\0\x07xyz")
    read(deserializer)
    with raises_code(CUT, "middle of a record .value 3, limit 7"):
        deserializer.end()
    feed(deserializer, b"1234")
    assert read(deserializer) == [(LAST, b"xyz1234")]
    deserializer.end()


@pytest.mark.parametrize("cut", [0, 2, 4])
@pytest.mark.parametrize("batch", [False, True])
def test_a_length_above_the_limit_is_an_error(cut, batch):
    deserializer = SpanningRecordDeserializer(maximum_record_bytes=10)
    payload = b"\0\0\0\x0bABCDEFGHIJKL"
    lent = []
    if cut:
        lent.append(feed(deserializer, payload[:cut]))
        if cut < 4:
            assert deserializer.next_record() == (PARTIAL, None)
    if cut < 4:
        lent.append(feed(deserializer, payload[cut:]))
    for _ in range(2):  # the error stays
        with pytest.raises(RecordTooLarge, match="value 11, limit 10"):
            deserializer.take_records() if batch else deserializer.next_record()
    deserializer.close()
    assert [each.releases for each in lent] == [1] * len(lent)


def test_a_length_within_the_limit_takes_no_memory_before_the_bytes_are_there(tmp_path):
    """Above the threshold the file grows with the bytes that arrive."""
    deserializer = SpanningRecordDeserializer(
        spill_threshold_bytes=100, spill_directory=str(tmp_path)
    )
    feed(deserializer, struct.pack(">I", 1 << 30) + b"abc")
    assert deserializer.next_record() == (PARTIAL, None)
    with raises_code(CUT, f"middle of a record .value 3, limit {1 << 30}"):
        deserializer.end()
    deserializer.close()
    assert not deserializer.has_partial_record


def test_a_very_long_record_goes_through_a_file(tmp_path):
    deserializer = SpanningRecordDeserializer(
        spill_threshold_bytes=100, spill_directory=str(tmp_path)
    )
    before = len(os.listdir("/proc/self/fd"))
    record = bytes(index % 251 for index in range(1000))
    stream = frame(record) + frame(b"x")
    feed(deserializer, stream[:500])
    assert deserializer.next_record() == (PARTIAL, None)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    feed(deserializer, stream[500:])
    result, found = deserializer.next_record()
    assert result is INTERMEDIATE
    assert found == record
    assert type(found) is memoryview
    assert deserializer.next_record()[1] == b"x"
    with pytest.raises(ValueError, match="released"):
        found[0]
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(tmp_path) == []


def test_a_record_of_the_threshold_does_not_spill_and_one_byte_more_does():
    deserializer = SpanningRecordDeserializer(spill_threshold_bytes=100)
    for length, kind in ((100, bytearray), (101, memoryview)):
        stream = frame(bytes(length))
        feed(deserializer, stream[:50])
        deserializer.next_record()
        feed(deserializer, stream[50:])
        assert type(deserializer.next_record()[1]) is kind
    deserializer.close()


def test_a_spill_that_fails_is_typed_and_leaves_nothing(tmp_path):
    deserializer = SpanningRecordDeserializer(
        spill_threshold_bytes=3, spill_directory=str(tmp_path / "missing")
    )
    lent = feed(deserializer, frame(b"abcd")[:6])
    with raises_code(ErrorCode.STORAGE_UNAVAILABLE, "temporary file"):
        deserializer.next_record()
    deserializer.close()
    assert lent.releases == 1


@pytest.mark.parametrize("read_bytes", [0, 1])
def test_close_releases_the_buffer_and_forgets_the_record(read_bytes):
    deserializer = SpanningRecordDeserializer(spill_threshold_bytes=1)
    feed(deserializer, frame(b"abcd")[:6])
    deserializer.next_record()
    lent = feed(deserializer, b"cd" + frame(b"x") * 3)
    for _ in range(read_bytes):
        deserializer.next_record()
    deserializer.close()
    deserializer.close()
    assert lent.releases == 1
    assert not deserializer.has_partial_record
    assert deserializer.next_record() == (PARTIAL, None)


# ---- all records of a buffer at once


def test_owned_records_outlive_the_buffer_and_views_do_not():
    for owned, expected in ((True, b"ab"), (False, b"\xdd\xdd")):
        deserializer = SpanningRecordDeserializer()
        feed(deserializer, frame(b"ab"))
        (record,) = deserializer.take_records(owned)
        deserializer.release_consumed()
        assert record == expected


def test_records_after_some_were_read_singly():
    deserializer = SpanningRecordDeserializer()
    feed(deserializer, frame(b"a") + frame(b"b") + frame(b"c"))
    deserializer.next_record()
    assert deserializer.take_records(True) == [b"b", b"c"]
    assert deserializer.take_records(True) == []


@pytest.mark.parametrize("owned", [False, True])
def test_a_spilled_record_among_others(owned):
    deserializer = SpanningRecordDeserializer(spill_threshold_bytes=10)
    long = bytes(range(20))
    stream = frame(b"a") + frame(long) + frame(b"b") + frame(long)
    feed(deserializer, stream[:15])
    assert deserializer.take_records(owned) == [b"a"]
    feed(deserializer, stream[15:45])
    found = deserializer.take_records(owned)
    assert found == [long, b"b"]
    deserializer.set_next_buffer(stream[45:50])
    assert deserializer.take_records(owned) == []
    with pytest.raises(ValueError, match="released"):
        found[0][0]
    feed(deserializer, stream[50:])
    assert deserializer.take_records(owned) == [long]
    deserializer.close()


@given(
    records=st.lists(st.binary(max_size=30), max_size=12),
    cuts=st.lists(st.integers(0, 400), max_size=20),
    threshold=st.sampled_from([0, 10, 1000]),
    mode=st.sampled_from(["single", "views", "owned"]),
)
def test_any_cuts_give_the_same_records(records, cuts, threshold, mode):
    stream = b"".join(map(frame, records))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    deserializer = SpanningRecordDeserializer(spill_threshold_bytes=threshold)
    lent, found = [], []
    for begin, end in itertools.pairwise(edges):
        lent.append(feed(deserializer, stream[begin:end]))
        if mode == "single":
            found += [record for _, record in read(deserializer)]
        else:
            found += [bytes(each) for each in deserializer.take_records(mode == "owned")]
    deserializer.end()
    deserializer.close()
    assert found == records
    assert [each.releases for each in lent] == [1] * len(lent)


@given(st.lists(st.binary(max_size=40), max_size=10), st.booleans())
def test_arbitrary_bytes_are_records_or_a_typed_error(buffers, batch):
    deserializer = SpanningRecordDeserializer(spill_threshold_bytes=30, maximum_record_bytes=1000)
    lent = []
    try:
        for payload in buffers:
            lent.append(feed(deserializer, payload))
            if batch:
                deserializer.take_records()
            else:
                read(deserializer)
        deserializer.end()
    except SluiceError as error:
        if error.code not in {ErrorCode.FRAME_TOO_LARGE, ErrorCode.END_OF_PARTITION_MISMATCH}:
            raise
    finally:
        deserializer.close()
    assert [each.releases for each in lent] == [1] * len(lent)
