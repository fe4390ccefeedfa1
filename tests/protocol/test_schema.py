"""The schema: every message, its bytes, the check of every field, and the memory that it takes."""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from sluice.protocol import schema as m
from sluice.protocol.errors import MalformedMessage
from sluice.protocol.limits import (
    MAX_CONTROL_BYTES,
    MAX_GATE_CHANNELS,
    MAX_HANDSHAKE_CONTROL_BYTES,
    MAX_I64,
    MAX_LOST_ATTEMPTS,
    MAX_U32,
    MAX_U64,
    MIN_I64,
    PREFIX_BYTES,
    RECEIVE_TAIL_BYTES,
)
from sluice.protocol.states import ALLOWED_WHEN_OPEN, CONTROL_LIMITS, ROLES, Side
from tests.support.strategies import MESSAGES, MESSAGES_BY_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([-1, 0, 1, 2, MAX_U32, MAX_U32 + 1, MAX_I64, MAX_U64, MIN_I64])
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
KINDS = sorted(m.TYPE_IDS, key=lambda kind: kind.__name__)


def control_of(message: m.Message) -> bytes:
    return m.encode(message)[PREFIX_BYTES:]


def refusal(control: bytes) -> str:
    """Return the text with which a control part is refused."""
    with pytest.raises(MalformedMessage) as caught:
        m.decode_control(control)
    assert len(str(caught.value)) < 400
    return str(caught.value)


# ---- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_immutable(kind: type[m.Message]) -> None:
    message = kind(*range(len(kind.__struct_fields__)))
    for field in kind.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(message, field, 0)


def test_messages_of_different_types_are_not_equal() -> None:
    messages: list[m.Message] = [m.AddCredit(1, 2), m.BacklogAnnouncement(1, 2)]
    assert messages[0] != messages[1]
    assert messages[0] == m.AddCredit(1, 2)


@pytest.mark.parametrize(
    "prefix",
    ["ROLE_", "FLOW_", "PARTITION_", "CONSUME_", ("DATA", "EVENT", "PRIORITY_", "BLOCKING_")],
)
def test_constants_of_one_field_differ(prefix: str | tuple[str, ...]) -> None:
    names = [name for name, value in vars(m).items() if name.isupper() and name.startswith(prefix)]
    assert len(names) > 1
    assert len({getattr(m, name) for name in names}) == len(names)


def test_every_role_has_its_messages_on_both_sides() -> None:
    roles = {value for name, value in vars(m).items() if name.startswith("ROLE_")}
    assert roles == ROLES
    assert {role for _, role in ALLOWED_WHEN_OPEN} == roles


def test_there_is_a_strategy_for_every_message() -> None:
    assert MESSAGES_BY_TYPE.keys() == m.TYPE_IDS.keys()


# ---- bytes --------------------------------------------------------------------------------------


@given(MESSAGES)
def test_round_trip(message: m.Message) -> None:
    control = control_of(message)
    again = m.decode_control(memoryview(control))
    assert type(again) is type(message)
    assert again == message
    assert control_of(again) == control


def in_long_form(message: m.Message) -> bytes:
    """Return a control part whose array header and type id are longer than they need be."""
    fields = astuple(message)
    header = b"\xdd" + (1 + len(fields)).to_bytes(4, "big")
    type_id = b"\xcd" + m.TYPE_IDS[type(message)].to_bytes(2, "big")
    return header + type_id + b"".join(map(msgpack.packb, map(plain, fields)))


def plain(field: Any) -> Any:
    if isinstance(field, list):
        return [astuple(each) if isinstance(each, m.GateChannel) else each for each in field]
    return field


@given(MESSAGES)
def test_forms_that_are_not_the_shortest_are_legal(message: m.Message) -> None:
    assert m.decode_control(in_long_form(message)) == message


@given(st.binary(max_size=100))
def test_arbitrary_bytes(control: bytes) -> None:
    try:
        message = m.decode_control(control)
    except MalformedMessage as error:
        assert len(str(error)) < 400  # noqa: PT017
    else:
        assert m.decode_control(control_of(message)) == message


@given(st.sampled_from(sorted(m.TYPE_IDS.values())), st.lists(VALUES, max_size=10))
def test_arbitrary_fields(type_id: int, fields: list[Any]) -> None:
    try:
        message = m.decode_control(msgpack.packb([type_id, *fields]))
    except MalformedMessage as error:
        assert len(str(error)) < 400  # noqa: PT017
    else:
        assert m.decode_control(control_of(message)) == message


@given(MESSAGES, st.data())
def test_one_wrong_field_is_named(message: m.Message, data: st.DataObject) -> None:
    fields: list[Any] = list(map(plain, astuple(message)))
    if not fields:
        return
    index = data.draw(st.integers(0, len(fields) - 1))
    # A map is legal nowhere.
    fields[index] = {"a": 1}
    text = refusal(msgpack.packb([m.TYPE_IDS[type(message)], *fields]))
    assert f"{type(message).__name__}.{message.__struct_fields__[index]} " in text


@pytest.mark.parametrize("bad", [-1, MAX_U32 + 1, True, None, 1.0, "1", b"1", [1]], ids=repr)
@pytest.mark.parametrize(
    ("message", "index"),
    [
        (message, index)
        for message in (
            m.BufferResponse(1, 1, 1, 1),
            m.ChecksummedBuffer(1, 1, 1, 1, 1),
            m.AddCredit(1, 1),
            m.PipelinedData(1, 1, 1),
            m.RegionData(1, 1),
        )
        for index in range(len(message.__struct_fields__))
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Message) else value,
)
def test_each_field_of_the_data_path(message: m.Message, index: int, bad: object) -> None:
    if isinstance(message, m.RegionData) and index == 1 and bad == MAX_U32 + 1:
        bad = -2  # an offset may be that large
    fields: list[Any] = list(astuple(message))
    fields[index] = bad
    text = refusal(msgpack.packb([m.TYPE_IDS[type(message)], *fields]))
    assert f"{type(message).__name__}.{message.__struct_fields__[index]} " in text


@pytest.mark.parametrize(
    ("control", "parts"),
    [
        ([5, 1, 0], ("AddCredit.credit", "value 0", "limit int >= 1")),
        ([7, MAX_U32 + 1], ("ResumeConsumption.channel", "value 4294967296", "int <= 4294967295")),
        ([12, "x"], ("Ping.nonce", "value 'x'", "limit int, got str")),
        ([5, 1, 2, 3], ("AddCredit has the wrong number of fields", "value 3", "limit 2")),
        ([99, 1], ("Unknown message type", "value 99")),
        ([14], ("Unknown message type", "value 14")),
        ({"a": 1}, ("not an array that starts with a message type", "array, got object")),
        ([22, 1, 0, 0, [1, -1], 0], ("BeginRegion.lengths", "int >= 0 at [1]")),
        (
            [30, 1, 3, 0, 1, 2, [[2, "tm", "h", 70000, [1]]]],
            ("OpenGate.channels", "int <= 65535 at [0][3]"),
        ),
        ([8, msgpack.ExtType(1, b"x")], ("CancelPartitionRequest.channel", "int, got ext")),
    ],
)
def test_the_error_names_message_field_value_and_limit(
    control: Any, parts: tuple[str, ...]
) -> None:
    text = refusal(msgpack.packb(control))
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    "control",
    [
        b"",
        b"\x90",
        b"\x92\x0c",  # cut
        b"\x91\x0b\xc0",  # a byte behind
        b"\x92\x07" + b"\x91" * 4000,  # deep
        b"\x96\x16\x01\x00\x00\xdd\x00\x00\x00\x14" + bytes(19),  # cut in an array
        b"\xdc\x05\x00" + bytes(100),
        b"\xc1" * 20,
    ],
)
def test_bytes_that_are_not_msgpack_are_malformed(control: bytes) -> None:
    assert "Control part is not an array that starts with a message type" in refusal(control)


# In the order of the schema: each worker of a run of the tests must name them in the same one.
@pytest.mark.parametrize(
    "kind",
    [kind for kind in m.TYPE_IDS if kind in m.CARRIES_PAYLOAD],
    ids=lambda kind: kind.__name__,
)
def test_head_of_a_message_with_payload_fits_the_tail(kind: Any) -> None:
    fields = kind.__struct_fields__
    largest = kind(*[m.EVENT if name == "data_type" else MAX_U32 for name in fields])
    if isinstance(largest, m.RegionData):
        largest = replace(largest, offset=MAX_U64)
    assert len(m.encode(largest, MAX_U32)) <= 8 + 23 <= RECEIVE_TAIL_BYTES


def test_payload_length_is_in_the_prefix() -> None:
    assert m.encode(m.RegionData(1, 0), 32768)[:PREFIX_BYTES].hex() == "0000000400008000"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (m.Ping(MAX_U64 + 1), OverflowError),
        (m.OpenPartition(1, 1, MIN_I64 - 1, 1), OverflowError),
        (m.HelloAck(1, "\ud800", 0, 0, 0, "h", 1, "i", 0, 1), ValueError),
    ],
)
def test_a_failed_encoding_does_not_spoil_the_next(
    message: m.Message, error: type[Exception]
) -> None:
    with pytest.raises(error):
        m.encode(message)
    assert m.encode(m.Ping(1)).hex() == "0000000300000000920c01"


def test_error_for_a_long_control_part_is_short() -> None:
    for control in (
        msgpack.packb([11] * 1_000_000),
        msgpack.packb([[1] * 1_000_000]),
        msgpack.packb([10, None, 1, 1, True, ["x" * 1_000_000], "", "", None]),
        msgpack.packb([11]) + bytes(1_000_000),
    ):
        refusal(control)


def test_gate_channels_are_named() -> None:
    gate = m.OpenGate(1, 2, 0, 1, 2, [m.GateChannel(3, "tm", "h", 80, [1])])
    again = m.decode_control(control_of(gate))
    assert isinstance(again, m.OpenGate)
    assert again.channels[0].taskmanager_id == "tm"


# ---- arrays and memory --------------------------------------------------------------------------

ARRAY_MESSAGES: dict[str, tuple[int, list[Any], list[Any]]] = {
    "PartitionRequest": (3, [1, "app", 1], [0, 1, 1]),
    "BeginRegion": (22, [0, 0, 0], [0]),
    "SharedRegion": (36, [0, 0, 0], [0, 0]),
    "OpenGate": (30, [0, 1, 0, 1, 1], []),
}


def header(length: int) -> bytes:
    """An array header of five bytes."""
    return b"\xdd" + length.to_bytes(4, "big")


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
        refusal(control)
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
    element = FILLINGS[filling]
    count = (MAX_CONTROL_BYTES - 64) // len(element)
    control = with_array(name, header(count) + element * count)
    assert MAX_CONTROL_BYTES - 100 < len(control) <= MAX_CONTROL_BYTES
    assert peak_bytes(control) < 64 * 1024


@pytest.mark.parametrize("name", ARRAY_MESSAGES)
def test_an_array_that_claims_more_than_there_is_takes_nothing(name):
    for claimed in (100, 65_536, 4_000_000, 2**32 - 1):
        assert peak_bytes(with_array(name, header(claimed))) < 64 * 1024


@pytest.mark.parametrize("filling", FILLINGS)
def test_control_parts_before_the_handshake_take_little_memory(filling):
    element = FILLINGS[filling]
    count = MAX_HANDSHAKE_CONTROL_BYTES // len(element)
    assert peak_bytes((element * count)[:MAX_HANDSHAKE_CONTROL_BYTES]) < 64 * 1024


def test_many_small_channels_take_little_while_they_are_refused():
    """Half a million channels of seven bytes each would be objects of 170 MiB."""
    channel = msgpack.packb([1, "", "", 0, [1]])
    count = (MAX_CONTROL_BYTES - 64) // len(channel)
    control = with_array("OpenGate", header(count) + channel * count)
    assert peak_bytes(control) < 64 * 1024


@pytest.mark.parametrize("wrong", [b"\xa0", b"\xff"], ids=["text", "negative"])
def test_the_last_element_is_refused_in_memory_of_a_legal_array(wrong):
    """A list has 8 bytes for an element of one byte; small integers are no objects of their own."""
    count = MAX_CONTROL_BYTES - 64
    control = with_array("BeginRegion", header(count) + bytes(count - 1) + wrong)
    assert peak_bytes(control) < 12 * MAX_CONTROL_BYTES


def test_the_largest_gate_is_legal():
    channels = [m.GateChannel(n, "tm", "host", 1, [n]) for n in range(MAX_GATE_CHANNELS)]
    gate = m.OpenGate(0, 1, 0, 1, 1, channels)
    assert m.decode_control(control_of(gate)) == gate
    more = replace(gate, channels=[*channels, channels[0]])
    text = refusal(control_of(more))
    assert "OpenGate.channels" in text
    assert "array of length <= 16384" in text


@pytest.mark.parametrize("count", [1, 15, 16, MAX_LOST_ATTEMPTS])
def test_messages_of_drivers_name_as_many_map_attempts_as_they_may(count):
    attempts = [2**40 + n if n % 3 else -n for n in range(count)]
    for message in (
        m.OutputsLost(1, attempts),
        m.OutputsHeld(1, attempts),
        m.OutputsRemote(1, attempts),
        m.OutputsMoved(1, 1, "tm", "host", 1, attempts),
        m.CheckOutputs(1, 1, attempts),
    ):
        assert m.decode_control(control_of(message)) == message
        for wrong in ([], [1] * (MAX_LOST_ATTEMPTS + 1)):
            assert "map_attempt_ids" in refusal(control_of(replace(message, map_attempt_ids=wrong)))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 5000, 800_000])
def test_long_arrays_are_taken_whole(count):
    attempts = [2**40 + n if n % 3 else -n for n in range(count)]
    region = m.BeginRegion(0, 0, 0, [abs(n) for n in attempts], 0)
    assert m.decode_control(control_of(region)) == region
    if count:
        gate = m.OpenGate(0, 1, 0, 1, 1, [m.GateChannel(1, "tm", "host", 1, attempts)])
        request = m.PartitionRequest(1, "app", 1, attempts, 0, 1, 1)
        assert m.decode_control(control_of(gate)) == gate
        assert m.decode_control(control_of(request)) == request


def test_a_length_for_each_of_many_subpartitions_takes_no_step_of_its_own():
    """Even a tiny map output has a length for each subpartition of its shuffle."""
    control = control_of(m.SharedRegion(0, 0, 0, [0, 100] * 5000, 0, 0))
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        m.decode_control(control)
    finally:
        sys.setprofile(None)
    assert calls < 10


@pytest.mark.parametrize("count", [1, 15, 16, 5000])
@pytest.mark.parametrize("wrong", [True, 1.0, None, "x", -1, 2**63, [], b""])
def test_each_number_of_an_array_is_checked(count: int, wrong: object) -> None:
    numbers = [*range(count - 1), wrong]
    for name, legal in (("BeginRegion", wrong == 2**63), ("PartitionRequest", wrong == -1)):
        control = with_array(name, msgpack.packb(numbers))
        if legal:
            m.decode_control(control)
        else:
            assert f"{name}." in refusal(control)


def fields_of_any_length(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a message, and of the structs in it, whose length has no limit."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        info = msgspec.inspect.type_info(hint)
        if isinstance(info, msgspec.inspect.ListType) and isinstance(
            info.item_type, msgspec.inspect.StructType
        ):
            yield from fields_of_any_length(info.item_type.cls)
        if getattr(info, "max_length", 0) is None:
            yield f"{kind.__name__}.{name}", hint


def test_each_field_of_any_length_says_what_is_kept_of_it() -> None:
    """A new one needs a charge to its application: tests/attack/test_kept_bytes.py has them all."""
    said = {
        name: next(each for each in get_args(hint) if isinstance(each, m.Keeping))
        for kind in m.TYPE_IDS
        for name, hint in fields_of_any_length(kind)
    }
    assert {name for name, keeping in said.items() if keeping is m.Keeping.CHARGED} == {
        "PartitionRequest.map_attempt_ids",
        "GateChannel.map_attempt_ids",
        "BeginRegion.lengths",
        "SharedRegion.lengths",
    }


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("role", sorted(ROLES))
def test_only_messages_with_map_attempts_or_subpartitions_may_be_long(side, role):
    assert (side, role) in ALLOWED_WHEN_OPEN
    much = side is Side.ACCEPTED and role != m.ROLE_DRIVER
    limit = MAX_CONTROL_BYTES if much else MAX_HANDSHAKE_CONTROL_BYTES
    assert CONTROL_LIMITS[side, role] == limit
