"""Encoding, decoding and the check of every field."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol import codec
from sluice.protocol import messages as m
from sluice.protocol.errors import MalformedMessage
from sluice.protocol.limits import (
    MAX_I64,
    MAX_U32,
    MAX_U64,
    MIN_I64,
    PREFIX_BYTES,
    RECEIVE_TAIL_BYTES,
)
from tests.support.strategies import MESSAGES, MESSAGES_BY_TYPE

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


@given(MESSAGES)
def test_round_trip(message: m.Message) -> None:
    control = codec.encode(message)[PREFIX_BYTES:]
    again = codec.decode_control(memoryview(control))
    assert type(again) is type(message)
    assert again == message
    assert codec.encode(again)[PREFIX_BYTES:] == control


@given(st.binary(max_size=100))
def test_arbitrary_bytes(control: bytes) -> None:
    try:
        message = codec.decode_control(control)
    except MalformedMessage as error:
        assert len(str(error)) < 400  # noqa: PT017
    else:
        assert codec.decode_control(codec.encode(message)[PREFIX_BYTES:]) == message


@given(st.sampled_from(sorted(codec.TYPE_IDS.values())), st.lists(VALUES, max_size=10))
def test_arbitrary_fields(type_id: int, fields: list[Any]) -> None:
    try:
        message = codec.decode_control(msgpack.packb([type_id, *fields]))
    except MalformedMessage as error:
        assert len(str(error)) < 400  # noqa: PT017
    else:
        assert codec.decode_control(codec.encode(message)[PREFIX_BYTES:]) == message


@given(MESSAGES, st.data())
def test_one_wrong_field_is_named(message: m.Message, data: st.DataObject) -> None:
    fields: list[Any] = list(message)
    if not fields:
        return
    index = data.draw(st.integers(0, len(fields) - 1))
    # A map is legal nowhere.
    fields[index] = {"a": 1}
    control = msgpack.packb([codec.TYPE_IDS[type(message)], *fields])
    with pytest.raises(MalformedMessage) as caught:
        codec.decode_control(control)
    assert f"{type(message).__name__}.{message._fields[index]} " in str(caught.value)


HOT_FIELDS = st.integers(-1, 2) | st.sampled_from(
    [MAX_U32, MAX_U32 + 1, MAX_U64, True, False, None, 1.0, "1", b"1", [1]]
)


@given(st.sampled_from(sorted(codec._HOT)), st.lists(HOT_FIELDS, max_size=6))
def test_short_checks_of_the_data_path_agree_with_the_table(
    type_id: int, fields: list[Any]
) -> None:
    control = msgpack.packb([type_id, *fields])
    message_type, checks = codec._FORMAT[type_id]
    legal = len(fields) == len(checks) and all(
        check(field) for check, field in zip(checks, fields, strict=True)
    )
    if legal:
        message = codec.decode_control(control)
        assert type(message) is message_type
        assert list(message) == fields
    else:
        with pytest.raises(MalformedMessage):
            codec.decode_control(control)


@pytest.mark.parametrize("bad", [-1, MAX_U32 + 1, True, None, 1.0, "1"], ids=repr)
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
        for index in range(len(message))
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tuple) else value,
)
def test_each_field_of_the_data_path(message: m.Message, index: int, bad: object) -> None:
    if isinstance(message, m.RegionData) and index == 1 and bad == MAX_U32 + 1:
        bad = -2  # an offset may be that large
    fields: list[Any] = list(message)
    fields[index] = bad
    control = msgpack.packb([codec.TYPE_IDS[type(message)], *fields])
    with pytest.raises(MalformedMessage, match=message._fields[index]):
        codec.decode_control(control)


@pytest.mark.parametrize(
    "message",
    [
        m.BufferResponse(0, 0, 0, m.DATA),
        m.BufferResponse(MAX_U32, MAX_U32, MAX_U32, m.BLOCKING_EVENT),
        m.ChecksummedBuffer(0, 0, 0, m.DATA, 0),
        m.ChecksummedBuffer(MAX_U32, MAX_U32, MAX_U32, m.BLOCKING_EVENT, MAX_U32),
        m.AddCredit(0, 1),
        m.AddCredit(MAX_U32, MAX_U32),
        m.PipelinedData(0, 0, m.DATA),
        m.PipelinedData(MAX_U32, MAX_U32, m.BLOCKING_EVENT),
        m.RegionData(0, 0),
        m.RegionData(MAX_U32, MAX_U64),
    ],
    ids=repr,
)
def test_short_checks_take_all_that_is_legal(message: m.Message) -> None:
    """A message that they pass on to the table would be right and slow."""
    type_id = codec.TYPE_IDS[type(message)]
    assert codec._HOT[type_id]([type_id, *message]) == message


# In the order of the table: each worker of a run of the tests must name them in the same one.
@pytest.mark.parametrize(
    "kind",
    [kind for kind in codec.TYPE_IDS if kind in codec.CARRIES_PAYLOAD],
    ids=lambda kind: kind.__name__,
)
def test_head_of_a_message_with_payload_fits_the_tail(kind: Any) -> None:
    largest = kind(*[m.EVENT if name == "data_type" else MAX_U32 for name in kind._fields])
    if isinstance(largest, m.RegionData):
        largest = largest._replace(offset=MAX_U64)
    assert len(codec.encode(largest, MAX_U32)) <= 8 + 23 <= RECEIVE_TAIL_BYTES


def test_every_field_of_every_message_has_a_check() -> None:
    for message_type, checks in codec._FORMAT.values():
        assert len(message_type._fields) == len(checks), message_type
    assert len(m.GateChannel._fields) == len(codec._GATE_CHANNEL_CHECKS)


def test_payload_length_is_in_the_prefix() -> None:
    assert codec.encode(m.RegionData(1, 0), 32768)[:PREFIX_BYTES].hex() == "0000000400008000"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (m.Ping(MAX_U64 + 1), OverflowError),
        (m.OpenPartition(1, 1, MIN_I64 - 1, 1), OverflowError),
        (m.HelloAck(1, "\ud800", 0, 0, 0, "h", 1), ValueError),
    ],
)
def test_a_failed_encoding_does_not_spoil_the_next(
    message: m.Message, error: type[Exception]
) -> None:
    with pytest.raises(error):
        codec.encode(message)
    assert codec.encode(m.Ping(1)).hex() == "0000000300000000920c01"


def test_error_for_a_long_control_part_is_short() -> None:
    for control in (
        msgpack.packb([11] * 1_000_000),
        msgpack.packb([[1] * 1_000_000]),
        msgpack.packb([10, None, 1, 1, True, ["x" * 1_000_000], "", "", None]),
        msgpack.packb([11]) + bytes(1_000_000),
    ):
        with pytest.raises(MalformedMessage) as caught:
            codec.decode_control(control)
        assert len(str(caught.value)) < 400


def test_gate_channels_are_named() -> None:
    gate = m.OpenGate(1, 2, 0, 1, 2, [m.GateChannel(3, "tm", "h", 80, [1])])
    again = codec.decode_control(codec.encode(gate)[PREFIX_BYTES:])
    assert isinstance(again, m.OpenGate)
    assert again.channels[0].taskmanager_id == "tm"


def test_there_is_a_strategy_for_every_message() -> None:
    assert MESSAGES_BY_TYPE.keys() == codec.TYPE_IDS.keys()
