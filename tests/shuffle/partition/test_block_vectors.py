"""The code against the golden file of blocks and of records in buffers."""

from __future__ import annotations

import json
import struct
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import CheckpointBarrier
from sluice.protocol.schema import BLOCKING_EVENT, DATA
from sluice.shuffle.client.client_gate import BlockSource
from sluice.shuffle.gate.readable_gate import BufferOrEvent
from sluice.shuffle.partition.blocks import (
    BLOCK_HEADER_BYTES,
    BlockCodec,
    BlockDecoder,
    BlockEncoder,
)
from sluice.shuffle.partition.view import OutgoingBuffer
from sluice.shuffle.records.framing import join_frames
from sluice.shuffle.records.record_reader import ChannelEvent, ChannelRecord, RecordReader
from sluice.shuffle.records.serializers import BytesSerializer
from tests.shuffle.partition import block_vectors
from tests.support.raises_code import raises_code

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    block_vectors.VECTORS.read_text(encoding="utf-8")
)
WIRE_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "wire.md"
of_blocks = pytest.mark.parametrize(
    "vector", GOLDEN["blocks"], ids=[vector["name"] for vector in GOLDEN["blocks"]]
)


def test_the_file_is_the_generated_one_but_for_how_well_lz4_compresses():
    def comparable(content: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        plain = [each for each in content["blocks"] if each["codec"] == BlockCodec.NONE]
        return plain + content["subpartitions"]

    assert comparable(block_vectors.build()) == comparable(GOLDEN)
    assert {each["codec"] for each in GOLDEN["blocks"]} == set(BlockCodec)


@of_blocks
def test_a_block_is_decoded(vector):
    decoder = BlockDecoder()
    (block,) = decoder.feed(bytes.fromhex(vector["block_hex"]))
    decoder.finish()
    assert bytes(block.payload).hex() == vector["payload_hex"]
    assert block.data_type == vector["data_type"]


@of_blocks
def test_a_block_is_encoded(vector):
    payload = bytes.fromhex(vector["payload_hex"])
    header, stored = BlockEncoder(BlockCodec.LZ4).encode(payload, vector["data_type"])
    golden = bytes.fromhex(vector["block_hex"])
    if vector["codec"] == BlockCodec.NONE:
        assert header + bytes(stored) == golden
    else:  # the library may compress otherwise tomorrow
        assert header[4:9] == golden[4:9]
        assert len(stored) < len(payload)
        (checksum,) = struct.unpack(">I", header[9:])
        assert checksum == crc32c(header[:9] + bytes(stored))
    assert len(header) == BLOCK_HEADER_BYTES


class Given:
    """A gate with one channel, whose bytes come in pieces of some length."""

    def __init__(self, content: bytes, piece_bytes: int) -> None:
        self._pieces = deque(
            content[at : at + piece_bytes] for at in range(0, len(content), piece_bytes)
        )
        self.has_ended = False

    def poll(self) -> BufferOrEvent | None:
        if not self._pieces:
            return None
        return BufferOrEvent(0, OutgoingBuffer(self._pieces.popleft(), None, DATA))

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        return self.poll()


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
async def test_a_stored_subpartition_is_read_back(piece_bytes):
    (vector,) = GOLDEN["subpartitions"]
    reader = RecordReader(
        BlockSource(Given(bytes.fromhex(vector["stored_hex"]), piece_bytes)), BytesSerializer(), 1
    )
    read: list[ChannelRecord[bytes] | ChannelEvent] = []
    # The bytes have no end of the partition.
    with raises_code(ErrorCode.PARTITION_RELEASED, "input gate was released"):
        while (element := await reader.next()) is not None:
            read.append(element)
    records = [each.value.hex() for each in read if isinstance(each, ChannelRecord)]
    assert records == vector["records_hex"]
    assert [each.event for each in read if isinstance(each, ChannelEvent)] == [
        CheckpointBarrier(8, 1, False)
    ]


def test_records_are_framed_as_the_golden_buffers():
    (vector,) = GOLDEN["subpartitions"]
    records = [bytes.fromhex(record) for record in vector["records_hex"]]
    assert join_frames(records, 1000).hex() == "".join(vector["buffers_hex"])
    encoder = BlockEncoder(BlockCodec.NONE)
    content = [(bytes.fromhex(buffer), DATA) for buffer in vector["buffers_hex"]]
    content.append((bytes.fromhex(vector["event_hex"]), BLOCKING_EVENT))
    blocks = b"".join(b"".join(encoder.encode(*each)) for each in content)
    assert blocks.hex() == vector["stored_hex"]


def test_the_wire_page_has_the_fields_of_the_header():
    page = WIRE_PAGE.read_text(encoding="utf-8")
    section = page.partition("## Blocks: what Python clients put into regions")[2]
    rows = [line.split(" | ") for line in section.split("\n## ")[0].splitlines()]
    sizes = [int(row[0].strip("| ")) for row in rows if row[0].strip("| ").isdecimal()]
    assert sizes == [4, 4, 1, 4]
    assert sum(sizes) == BLOCK_HEADER_BYTES
