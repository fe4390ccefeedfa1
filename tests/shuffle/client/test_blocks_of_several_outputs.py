"""A channel of stored data has one end, whatever number of outputs it reads one after the other."""

from __future__ import annotations

import pytest

from sluice.protocol.events import CustomEvent, encode_end_of_partition, encode_event
from sluice.protocol.schema import DATA, EVENT
from sluice.shuffle.client.client_gate import BlockSource
from sluice.shuffle.errors import BlockCorrupt
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.shuffle.gate.readable_gate import BufferOrEvent
from sluice.shuffle.partition.blocks import BlockCodec, BlockEncoder
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.view import OutgoingBuffer
from tests.support.api_clients import api_clients, give_back
from tests.support.mini_cluster import mini_cluster


async def test_the_ends_of_outputs_within_a_channel_are_skipped(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        for attempt in (7, 8, 9):
            async with client.open_result_partition(
                1, attempt, 1, partition_type=ResultPartitionType.BLOCKING
            ) as partition:
                await partition.emit_buffer(b"output %d" % attempt, 0)
        source = ChannelSource(client.taskmanager_id, client.address, [7, 8, 9])
        async with client.open_gate([partition.location], 0) as gate:
            gate.gate.add_channel(source)
            found: dict[int, list[bytes]] = {0: [], 1: []}
            ends = 0
            while (taken := await gate.next_buffer_or_event()) is not None:
                if taken.buffer.data_type == DATA:
                    found[taken.channel_index].append(bytes(taken.buffer.payload))
                else:
                    ends += 1
                give_back(taken.buffer)
        assert found == {0: [b"output 9"], 1: [b"output 7", b"output 8", b"output 9"]}
        assert ends == 2


class OneBuffer:
    """A gate with a single buffer, and events behind it."""

    def __init__(self, content: bytes, *events: bytes) -> None:
        self.waiting = [BufferOrEvent(0, OutgoingBuffer(memoryview(content), None, DATA))]
        self.waiting += [BufferOrEvent(0, OutgoingBuffer(each, None, EVENT)) for each in events]

    def poll(self) -> BufferOrEvent | None:
        return self.waiting.pop(0) if self.waiting else None

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        return self.poll()


def test_an_output_may_begin_in_the_buffer_in_which_another_ends():
    end = encode_end_of_partition(1, 1)
    encoder = BlockEncoder(BlockCodec.NONE)
    content = b""
    for payload, data_type in ((b"first", DATA), (end, EVENT), (b"second", DATA), (end, EVENT)):
        block = encoder.encode(payload, data_type)
        content += block.header + bytes(block.stored)
    source = BlockSource(OneBuffer(content))
    for expected in (b"first", b"second"):
        taken = source.poll()
        assert taken is not None
        assert taken.buffer.payload == expected
    assert source.poll() is None


def test_a_block_without_its_rest_fails_at_the_end_of_the_channel_and_not_at_another_event():
    block = BlockEncoder(BlockCodec.NONE).encode(b"content", DATA)
    content = block.header + bytes(block.stored)
    other = encode_event(CustomEvent("other", b""))
    source = BlockSource(OneBuffer(content[:-1], other, encode_end_of_partition(1, 1)))
    taken = source.poll()
    assert taken is not None
    assert taken.buffer.payload == other
    with pytest.raises(BlockCorrupt):
        source.poll()
