"""Unpacking takes memory in proportion to the bytes, however large the claims in them are."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol import messages as m
from sluice.protocol.codec import TYPE_IDS, decode_control, encode
from sluice.protocol.copy_messages import OutputsHeld, OutputsMoved
from sluice.protocol.driver_messages import CheckOutputs
from sluice.protocol.errors import MalformedMessage
from sluice.protocol.limits import (
    MAX_CONTROL_BYTES,
    MAX_GATE_CHANNELS,
    MAX_HANDSHAKE_CONTROL_BYTES,
    MAX_LOST_ATTEMPTS,
    PREFIX_BYTES,
)
from sluice.protocol.messages import ROLE_DRIVER
from sluice.protocol.states import ALLOWED_WHEN_OPEN, CONTROL_LIMITS, ROLES, Side
from sluice.protocol.unpacking import (
    _ARRAYS,
    FLAT_BYTES,
    MOST_FIELDS,
    unpack_by_fields,
    unpack_flat,
)

ARRAY_MESSAGES: dict[str, tuple[int, list[Any], list[Any]]] = {
    "PartitionRequest": (3, [1, "app", 1], [0, 1, 1]),
    "BeginRegion": (22, [0, 0, 0], [0]),
    "SharedRegion": (36, [0, 0, 0], [0, 0]),
    "OpenGate": (30, [0, 1, 0, 1, 1], []),
}


def control_of(message: m.Message) -> bytes:
    return encode(message)[PREFIX_BYTES:]


def header(length: int) -> bytes:
    """An array header of five bytes."""
    return b"\xdd" + length.to_bytes(4)


def with_array(name: str, array: bytes) -> bytes:
    """A control part whose array field is these bytes."""
    type_id, before, behind = ARRAY_MESSAGES[name]
    fields = [type_id, *before]
    start = bytes([0x90 + len(fields) + 1 + len(behind)])
    return (
        start
        + b"".join(msgpack.packb(field) for field in fields)
        + array
        + b"".join(msgpack.packb(field) for field in behind)
    )


def peak_bytes(control: bytes) -> int:
    """Memory at its peak while a control part is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage) as caught:
            decode_control(control)
        assert len(str(caught.value)) < 400
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


FILLINGS = {
    "empty arrays": b"\x90",
    "empty maps": b"\x80",
    "empty strings, not integers": b"\xa0",
    "arrays in arrays": b"\x91",
    "headers that claim four million": header(4_000_000),
    "headers that claim sixty thousand": b"\xdc\xff\xff",
    "extensions of no bytes": b"\xc7\x00\x01",
    "short strings": b"\xa2ab",
    "floats": msgpack.packb(1.5),
}


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("name", ARRAY_MESSAGES)
def test_four_mebibytes_of_objects_take_little_while_they_are_refused(name, filling):
    """Input of this kind took 259 MiB once, and headers that claim too much took any number."""
    element = FILLINGS[filling]
    count = (MAX_CONTROL_BYTES - 64) // len(element)
    control = with_array(name, header(count) + element * count)
    assert MAX_CONTROL_BYTES - 100 < len(control) <= MAX_CONTROL_BYTES
    assert peak_bytes(control) < 3 * MAX_CONTROL_BYTES


@pytest.mark.parametrize("filling", FILLINGS)
def test_control_parts_before_the_handshake_take_little_memory(filling):
    """Before the handshake: 4 KiB of headers took 33 MiB."""
    element = FILLINGS[filling]
    count = MAX_HANDSHAKE_CONTROL_BYTES // len(element)
    assert peak_bytes((element * count)[:MAX_HANDSHAKE_CONTROL_BYTES]) < 1024 * 1024


def test_many_small_channels_take_little_while_they_are_refused():
    """Half a million channels of seven bytes each would be objects of 170 MiB."""
    channel = msgpack.packb([1, "", "", 0, [1]])
    count = (MAX_CONTROL_BYTES - 64) // len(channel)
    control = with_array("OpenGate", header(count) + channel * count)
    assert peak_bytes(control) < 3 * MAX_CONTROL_BYTES


def test_the_largest_gate_is_legal():
    channels = [m.GateChannel(n, "tm", "host", 1, [n]) for n in range(MAX_GATE_CHANNELS)]
    gate = m.OpenGate(0, 1, 0, 1, 1, channels)
    assert decode_control(control_of(gate)) == gate
    more = gate._replace(channels=[*channels, channels[0]])
    with pytest.raises(MalformedMessage, match=r"OpenGate.channels .*16385 channels.*16384"):
        decode_control(control_of(more))


@pytest.mark.parametrize("count", [1, MOST_FIELDS, MOST_FIELDS + 1, MAX_LOST_ATTEMPTS])
def test_messages_of_drivers_name_as_many_map_attempts_as_they_may(count):
    attempts = [2**40 + n if n % 3 else -n for n in range(count)]
    for message in (
        m.OutputsLost(1, attempts),
        OutputsHeld(1, attempts),
        OutputsMoved(1, 1, "tm", "host", 1, attempts),
        CheckOutputs(1, 1, attempts),
    ):
        assert decode_control(control_of(message)) == message


@pytest.mark.parametrize("count", [0, 1, MOST_FIELDS, MOST_FIELDS + 1, 5000, 800_000])
def test_long_arrays_are_taken_whole(count):
    attempts = [2**40 + n if n % 3 else -n for n in range(count)]
    region = m.BeginRegion(0, 0, 0, [abs(n) for n in attempts], 0)
    assert decode_control(control_of(region)) == region
    if count:
        gate = m.OpenGate(0, 1, 0, 1, 1, [m.GateChannel(1, "tm", "host", 1, attempts)])
        request = m.PartitionRequest(1, "app", 1, attempts, 0, 1, 1)
        if len(control_of(gate)) <= MAX_CONTROL_BYTES:
            assert decode_control(control_of(gate)) == gate
            assert decode_control(control_of(request)) == request


def test_a_length_for_each_of_many_subpartitions_takes_no_step_of_its_own():
    """Even a tiny map output has a length for each subpartition of its shuffle."""
    control = control_of(m.SharedRegion(0, 0, 0, [0, 100] * 5000, 0, 0))
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        decode_control(control)
    finally:
        sys.setprofile(None)
    assert calls < 100


@pytest.mark.parametrize("count", [1, MOST_FIELDS, MOST_FIELDS + 1, 5000])
@pytest.mark.parametrize("wrong", [True, 1.0, None, "x", -1, 2**63])
def test_each_number_of_an_array_is_checked(count: int, wrong: object) -> None:
    numbers = [*range(count - 1), wrong]
    for name, legal in (("BeginRegion", wrong == 2**63), ("PartitionRequest", wrong == -1)):
        control = with_array(name, msgpack.packb(numbers))
        if legal:
            decode_control(control)
            continue
        with pytest.raises(MalformedMessage, match=rf"{name}\."):
            decode_control(control)


WRONG: dict[str, tuple[bytes, str]] = {
    "cut in an array of integers": (
        with_array("BeginRegion", header(20) + bytes(19))[:-1],
        r"BeginRegion\.lengths",
    ),
    "a string among integers": (
        with_array("BeginRegion", header(20) + bytes(19) + b"\xa1x"),
        r"BeginRegion\.lengths",
    ),
    "an array among integers": (
        with_array("PartitionRequest", header(20) + bytes(19) + b"\x90"),
        r"PartitionRequest\.map_attempt_ids",
    ),
    "no array": (with_array("BeginRegion", b"\x05") + bytes(FLAT_BYTES), r"BeginRegion\.lengths"),
    "a channel that is none": (
        with_array("OpenGate", header(20) + b"\x05" * 20),
        r"OpenGate\.channels",
    ),
    "a channel of four fields": (
        with_array("OpenGate", header(20) + b"\x94\1\2\3\4" * 20),
        r"OpenGate\.channels .*5 fields",
    ),
    "a long array where there is none": (
        b"\x93\x05" + header(20) + bytes(20) + b"\1",
        r"AddCredit\.channel",
    ),
    "more fields than any message": (header(16) + bytes(16), "16 fields"),
    "bytes behind": (
        with_array("BeginRegion", header(20) + bytes(20)) + b"\0",
        "bytes behind the message",
    ),
    "an unknown type with a long array": (b"\x92\x63" + header(20) + bytes(20), "Unknown message"),
    "a field too many": (b"\x93\x0b\x01" + header(20) + bytes(20), "Unknown message"),
    "a type that is no integer": (b"\x92\xa1x" + header(20) + bytes(20), "Unknown message"),
    "no array at all": (b"\xda\x20\x00" + bytes(0x2000), "not valid msgpack"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_error_is_named(name):
    control, pattern = WRONG[name]
    with pytest.raises(MalformedMessage, match=pattern):
        decode_control(control)


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8)


@given(st.sampled_from(sorted(TYPE_IDS.values())), st.lists(PLAIN, max_size=10))
def test_both_ways_of_unpacking_agree(type_id: int, fields: list[Any]) -> None:
    if type_id in _ARRAYS:
        del fields[min(_ARRAYS[type_id]) :]  # their arrays come behind
    control = msgpack.packb([type_id, *fields])
    assert unpack_by_fields(control) == unpack_flat(control) == [type_id, *fields]


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("role", sorted(ROLES))
def test_only_messages_with_map_attempts_or_subpartitions_may_be_long(side, role):
    assert (side, role) in ALLOWED_WHEN_OPEN
    much = side is Side.ACCEPTED and role != ROLE_DRIVER
    limit = MAX_CONTROL_BYTES if much else MAX_HANDSHAKE_CONTROL_BYTES
    assert CONTROL_LIMITS[side, role] == limit
