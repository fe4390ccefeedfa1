"""Events: the payloads that are not data."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from sluice.protocol import events
from sluice.protocol.errors import ErrorCode, InvalidEvent, ProtocolViolation
from sluice.protocol.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    CustomEvent,
    EndOfData,
    EndOfPartition,
    Event,
    decode_event,
    encode_end_of_partition,
    encode_event,
    is_end_of_partition,
)
from sluice.protocol.limits import MAX_EVENT_BYTES, MAX_NAME_CHARACTERS, MAX_U64

U64 = st.integers(0, MAX_U64)
NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(EndOfPartition, U64, U64),
    st.builds(CheckpointBarrier, U64, U64, st.booleans()),
    st.builds(CancelCheckpointMarker, U64),
    st.builds(EndOfData),
    st.builds(CustomEvent, NAME, st.binary(max_size=700)),
)


@given(EVENTS)
def test_round_trip(event: Event) -> None:
    payload = encode_event(event)
    assert len(payload) <= MAX_EVENT_BYTES
    for form in (payload, bytearray(payload), memoryview(payload)):
        again = decode_event(form)
        assert type(again) is type(event)
        assert again == event
        assert is_end_of_partition(form) is (type(event) is EndOfPartition)


@given(U64, U64)
def test_end_of_partition(total_bytes: int, total_buffers: int) -> None:
    payload = encode_end_of_partition(total_bytes, total_buffers)
    assert decode_event(payload) == EndOfPartition(total_bytes, total_buffers)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb(1),
        msgpack.packb([]),
        msgpack.packb([1, 2]),
        msgpack.packb([1, 2, 3, 4]),
        msgpack.packb([1, -1, 3]),
        msgpack.packb([1, 2, -1]),
        msgpack.packb([1, 2, None]),
        msgpack.packb([1, True, 3]),
        msgpack.packb([1, "2", 3]),
        msgpack.packb([True, 2, 3]),
        msgpack.packb([1.0, 2, 3]),
        msgpack.packb([1, 2, 3]) + b"\x00",
        msgpack.packb({"1": 2}),
        msgpack.packb([2, 1, 2]),
        msgpack.packb([2, 1, 2, 1]),
        msgpack.packb([3, -1]),
        msgpack.packb([4, 0]),
        msgpack.packb([5, b"name", b""]),
        msgpack.packb([5, "name", "text"]),
        msgpack.packb([5, "x" * (MAX_NAME_CHARACTERS + 1), b""]),
    ],
)
def test_malformed_events_are_refused(payload: bytes) -> None:
    with pytest.raises(InvalidEvent) as caught:
        decode_event(payload)
    assert caught.value.code is ErrorCode.INVALID_EVENT


@pytest.mark.parametrize("number", [0, 6, -1, MAX_U64])
def test_unknown_event_names_what_is_known(number: int) -> None:
    payload = msgpack.packb([number, 1, 2])
    with pytest.raises(InvalidEvent, match="Unknown event") as caught:
        decode_event(payload)
    assert caught.value.value == number
    assert caught.value.limit == "1, 2, 3, 4, 5"
    assert not is_end_of_partition(payload)


def test_a_bad_event_does_not_close_the_connection() -> None:
    assert not issubclass(InvalidEvent, ProtocolViolation)


def test_size_limit_both_ways() -> None:
    most = MAX_EVENT_BYTES - len(encode_event(CustomEvent("n", b"x" * 900))) + 900
    payload = encode_event(CustomEvent("n", b"x" * most))
    assert len(payload) == MAX_EVENT_BYTES
    assert decode_event(payload) == CustomEvent("n", b"x" * most)
    with pytest.raises(InvalidEvent, match="limit 1024 bytes"):
        encode_event(CustomEvent("n", b"x" * (most + 1)))
    with pytest.raises(InvalidEvent, match="too large"):
        decode_event(payload + b"x")


@given(st.binary(max_size=40))
def test_arbitrary_bytes(payload: bytes) -> None:
    try:
        event = decode_event(payload)
    except InvalidEvent as error:
        assert len(str(error)) < 400  # noqa: PT017
    else:
        assert decode_event(encode_event(event)) == event


@given(
    st.sampled_from(sorted(events.EVENT_IDS.values())),
    st.lists(st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3), max_size=4),
)
def test_arbitrary_fields(number: int, fields: list[Any]) -> None:
    try:
        event = decode_event(msgpack.packb([number, *fields]))
    except InvalidEvent as error:
        assert str(error)  # noqa: PT017
    else:
        assert list(astuple(event)) == fields
