"""Locations as text, and endpoints as users write them."""

from __future__ import annotations

import json

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.client.partition_location import (
    PartitionLocation,
    decode_locations,
    encode_locations,
)
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.transport.address import Address, InvalidAddress
from tests.support.raises_code import raises_code

STORED = PartitionLocation(1, 7, 0, "tm-1", "host", 4000)
PIPELINED = PartitionLocation(1, 8, 2, "tm-2", "::1", 4001)


def test_locations_travel_as_json():
    text = encode_locations([STORED, PIPELINED])
    assert decode_locations(text) == [STORED, PIPELINED]
    assert decode_locations(text.encode()) == [STORED, PIPELINED]
    assert json.loads(text)[0] == [1, 7, 0, "tm-1", "host", 4000]


def test_a_location_has_a_source_and_a_kind():
    assert STORED.is_stored
    assert not PIPELINED.is_stored
    assert PIPELINED.source == ChannelSource("tm-2", Address("::1", 4001), (8,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[7]",
        "{}x",
        "[[1, 7, 0]]",
        '[[1, 7, 9, "tm", "host", 1]]',
        '[[1, "7", 0, "tm", "host", 1]]',
        '[[true, 7, 0, "tm", "host", 1]]',
    ],
)
def test_other_text_is_refused(text):
    with raises_code(ErrorCode.CONFIGURATION, "encode_locations"):
        decode_locations(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/sluice.sock", Address("/run/sluice.sock", 0)),
        ("host:4000", Address("host", 4000)),
        ("[::1]:4000", Address("::1", 4000)),
    ],
)
def test_endpoints(text, address):
    assert Address.parse(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "unix:", "unix:here", "/a"],
)
def test_bad_endpoints_are_refused(text):
    with pytest.raises(InvalidAddress):
        Address.parse(text)
