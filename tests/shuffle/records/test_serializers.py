"""Value serializers."""

from collections import deque
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.errors import MalformedElement
from sluice.shuffle.records.serializers import (
    BytesSerializer,
    Int64Serializer,
    MsgpackSerializer,
    StringSerializer,
    ViewSerializer,
    deserializing_many,
    serializing_many,
)

MEMORY = st.sampled_from([bytes, bytearray, memoryview])
MSGPACK = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
    | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=10,
)  # fmt: skip


@given(st.binary(), MEMORY)
def test_bytes(value, memory):
    serializer = BytesSerializer()
    back = serializer.deserialize(memory(serializer.serialize(value)))
    assert back == value
    assert type(back) is bytes


@given(st.text(), MEMORY)
def test_text(value, memory):
    serializer = StringSerializer()
    assert serializer.deserialize(memory(serializer.serialize(value))) == value


@given(st.integers(-(1 << 63), (1 << 63) - 1), MEMORY)
def test_integers(value, memory):
    serializer = Int64Serializer()
    assert len(serializer.serialize(value)) == 8
    assert serializer.deserialize(memory(serializer.serialize(value))) == value


@given(MSGPACK, MEMORY)
def test_msgpack(value, memory):
    serializer = MsgpackSerializer()
    assert serializer.deserialize(memory(serializer.serialize(value))) == value


def test_a_view_is_not_copied():
    memory = bytearray(b"abc")
    view = ViewSerializer().deserialize(memory)
    memory[0] = ord("x")
    assert bytes(view) == b"xbc"
    assert ViewSerializer().borrows


@pytest.mark.parametrize(
    ("serializer", "payload"),
    [
        (StringSerializer(), b"\xff"),
        (Int64Serializer(), bytes(7)),
        (Int64Serializer(), bytes(9)),
        (MsgpackSerializer(), b""),
        (MsgpackSerializer(), b"\xc1"),
        (MsgpackSerializer(), b"\x01\x01"),
        (MsgpackSerializer(), b"\x92\x01"),
        (MsgpackSerializer(), b"\xa1\xff"),
        (MsgpackSerializer(), b"\x81\x90\x01"),
        (MsgpackSerializer(), b"\x91" * 2000),
        (MsgpackSerializer(), msgpack.packb(msgpack.ExtType(5, b"x"))),
        (MsgpackSerializer(), b"\xd7\xff" + b"\xff" * 8),
    ],
)
def test_bytes_that_cannot_be_decoded_are_a_typed_error(serializer, payload):
    with pytest.raises(MalformedElement):
        serializer.deserialize(payload)


@given(st.binary())
def test_msgpack_of_arbitrary_bytes_is_a_value_or_a_typed_error(payload):
    try:
        MsgpackSerializer().deserialize(payload)
    except MalformedElement as error:
        assert "not msgpack" in str(error)  # noqa: PT017 - most examples fail, some do not


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (StringSerializer(), "\ud800"),
        (Int64Serializer(), 1 << 63),
        (MsgpackSerializer(), 1 << 64),
        (MsgpackSerializer(), object()),
        (MsgpackSerializer(), {1, 2}),
    ],
)
def test_a_value_that_cannot_be_encoded_is_a_typed_error(serializer, value):
    with pytest.raises(MalformedElement):
        serializer.serialize(value)


def test_the_bytes_serializer_takes_any_memory():
    assert BytesSerializer().serialize(memoryview(b"ab")) == b"ab"


def test_bytes_of_a_batch_are_those_of_each_value():
    serializer = BytesSerializer()
    values: list[Any] = [b"a", bytearray(b"b"), memoryview(b"c")]
    kinds: list[Any] = [list, tuple, deque]
    for kind in kinds:
        given_as = kind(values)
        many = serializing_many(serializer)(given_as)
        assert isinstance(many, list | tuple)
        assert list(many) == [serializer.serialize(value) for value in values]
    got = deserializing_many(serializer)([bytearray(b"first"), b"second"])
    assert got == [b"first", b"second"]
    assert all(type(each) is bytes for each in got)
    assert deserializing_many(serializer)([]) == []


def test_a_serializer_without_batches_is_asked_for_each_value():
    serializer = StringSerializer()
    assert serializing_many(serializer)(("a", "b")) == [b"a", b"b"]
    assert deserializing_many(serializer)([b"a", bytearray(b"b")]) == ["a", "b"]
