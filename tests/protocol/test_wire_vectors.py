"""The code against the golden file; ``wire_vectors.py`` says how to regenerate it."""

import json
from typing import Any

import crc32c
import msgpack
import pytest

from sluice.protocol import events
from sluice.protocol import schema as m
from sluice.protocol.errors import MalformedMessage
from sluice.protocol.limits import HEAD_BYTES, MAX_HANDSHAKE_CONTROL_BYTES, PREFIX_BYTES
from tests.protocol import wire_vectors

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    wire_vectors.VECTORS.read_text(encoding="utf-8")
)


def _named(section: str) -> Any:
    return pytest.mark.parametrize(
        "vector", GOLDEN[section], ids=[vector["name"] for vector in GOLDEN[section]]
    )


def _field(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes_hex"])
    if isinstance(value, list):
        return [_field(item) for item in value]
    return value


def _type(vector: dict[str, Any]) -> type[m.Message]:
    kind: type[m.Message] = getattr(m, vector["type"])
    return kind


def _message(vector: dict[str, Any]) -> m.Message:
    fields = [_field(value) for value in vector["fields"]]
    message_type = _type(vector)
    if message_type is m.OpenGate:
        fields[5] = [m.GateChannel(*item) for item in fields[5]]
    return message_type(*fields)


def test_the_file_is_what_the_command_would_write() -> None:
    assert wire_vectors.build() == GOLDEN


def test_names_are_unique_in_each_section() -> None:
    for section, vectors in GOLDEN.items():
        assert len({vector["name"] for vector in vectors}) == len(vectors), section


def test_every_message_has_a_vector() -> None:
    assert {vector["type"] for vector in GOLDEN["messages"]} == {
        kind.__name__ for kind in m.TYPE_IDS
    }


@_named("messages")
def test_message_encodes_to_the_golden_bytes(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["payload_hex"])
    head = m.encode(_message(vector), len(payload))
    assert (head + payload).hex() == vector["frame_hex"]
    assert head[PREFIX_BYTES:].hex() == vector["control_hex"]


@_named("messages")
def test_golden_bytes_decode_to_the_message(vector: dict[str, Any]) -> None:
    control = bytes.fromhex(vector["control_hex"])
    expected = _message(vector)
    for form in (control, bytearray(control), memoryview(control)):
        message = m.decode_control(form)
        assert type(message) is type(expected)
        assert message == expected


@_named("messages")
def test_golden_frame_is_prefix_control_payload(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["frame_hex"])
    control, payload = bytes.fromhex(vector["control_hex"]), bytes.fromhex(vector["payload_hex"])
    lengths = len(control).to_bytes(4, "big") + len(payload).to_bytes(4, "big")
    assert frame == lengths + control + payload


@_named("messages")
def test_golden_control_is_an_independent_decoders_array(vector: dict[str, Any]) -> None:
    unpacker = msgpack.Unpacker()
    unpacker.feed(bytes.fromhex(vector["control_hex"]))
    type_id, *fields = unpacker.unpack()
    assert type_id == m.TYPE_IDS[_type(vector)]
    assert fields == [_field(value) for value in vector["fields"]]
    with pytest.raises(msgpack.OutOfData):
        unpacker.unpack()
    assert msgpack.packb([type_id, *fields]).hex() == vector["control_hex"]


@pytest.mark.parametrize(
    ("message", "control_hex"),
    [
        # Written by hand from docs/reference/wire.md and the msgpack specification.
        (m.BufferResponse(1, 0, 2, 0), "95 04 01 00 02 00"),
        (m.BufferResponse(128, 65536, 300, 1), "95 04 cc80 ce00010000 cd012c 01"),
        (m.ChecksummedBuffer(1, 0, 2, 0, 2**32 - 1), "96 27 01 00 02 00 ceffffffff"),
        (m.AddCredit(2**32 - 1, 127), "93 05 ceffffffff 7f"),
        (m.RegionData(1, 2**32), "93 18 01 cf0000000100000000"),
        (m.CloseRequest(), "91 0b"),
        (m.OpenPartition(1, 2, -33, 3), "95 14 01 02 d0df 03"),
        (m.BeginRegion(1, 0, 0, [], 0), "96 16 01 00 00 90 00"),
        (
            m.HelloAck(1, "ab", 0, 0, 0, "", 80, "i", 0, 1),
            "9b 02 01 a26162 00 00 00 a0 50 a169 00 01",
        ),
        (
            m.ErrorResponse(None, 1, 2, True, "é", "", "", None),
            "99 0a c0 01 02 c3 a2c3a9 a0 a0 c0",
        ),
    ],
)
def test_control_written_by_hand(message: m.Message, control_hex: str) -> None:
    control = bytes.fromhex(control_hex)
    assert m.encode(message)[PREFIX_BYTES:] == control
    assert m.decode_control(control) == message


def test_every_event_has_a_vector() -> None:
    assert {(vector["type"], vector["id"]) for vector in GOLDEN["events"]} == {
        (kind.__name__, number) for kind, number in events.EVENT_IDS.items()
    }


@_named("events")
def test_event(vector: dict[str, Any]) -> None:
    fields = [_field(value) for value in vector["fields"]]
    event = getattr(events, vector["type"])(*fields)
    payload = bytes.fromhex(vector["payload_hex"])
    assert events.encode_event(event) == payload
    assert events.decode_event(payload) == event
    assert msgpack.unpackb(payload) == [vector["id"], *fields]


@_named("malformed")
def test_malformed_control_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        m.decode_control(bytes.fromhex(vector["control_hex"]))


@_named("blocks")
def test_block(vector: dict[str, Any]) -> None:
    block = bytes.fromhex(vector["block_hex"])
    stored = bytes.fromhex(vector["stored_hex"])
    header = wire_vectors.BLOCK_HEADER.unpack_from(block)
    assert wire_vectors.BLOCK_HEADER.size == 28
    assert header == (
        vector["map_attempt_id"],
        vector["subpartition"],
        len(stored),
        vector["raw_length"],
        crc32c.crc32c(stored),
        vector["codec"],
        vector["flags"],
        vector["number"],
    )
    assert block[28:] == stored
    assert vector["raw_length"] == len(stored)


def test_checksum_is_crc_32c_and_not_crc_32() -> None:
    # The check value of CRC-32C (Castagnoli) in the catalogue of CRC algorithms.
    only = next(vector for vector in GOLDEN["blocks"] if vector["name"] == "only block")
    assert bytes.fromhex(only["stored_hex"]) == b"123456789"
    assert bytes.fromhex(only["block_hex"])[20:24].hex() == "e3069283"


def test_the_longest_hello_fits_the_handshake_limit_and_the_head_buffer() -> None:
    longest = max(
        len(bytes.fromhex(vector["control_hex"]))
        for vector in GOLDEN["messages"]
        if vector["type"] in ("Hello", "HelloAck")
    )
    assert longest <= MAX_HANDSHAKE_CONTROL_BYTES
    assert longest + PREFIX_BYTES <= HEAD_BYTES
