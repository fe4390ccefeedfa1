"""A bit of pipelined data that flips between two TaskManagers is found, and never delivered."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import CheckpointBarrier, encode_event
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    BLOCKING_EVENT,
    DATA,
    PARTITION_PIPELINED,
    BufferResponse,
    ChecksummedBuffer,
    ErrorResponse,
)
from sluice.shuffle.gate.partition_request_client import PartitionRequestClient
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter
from tests.support.tcp_proxy import Fault, FaultProxy, Flips
from tests.support.wire_clients import read_gate

if TYPE_CHECKING:
    from sluice.protocol.schema import Message

BARRIER = encode_event(CheckpointBarrier(1, 2, False))
FIRST = b"first" * 100


@pytest.fixture
def heard(monkeypatch) -> Counter[type[Message]]:
    """Kinds of the messages that consuming TaskManagers received of others."""
    kinds: Counter[type[Message]] = Counter()
    receive = PartitionRequestClient.message_received

    def message_received(self, message, payload_length):
        kinds[type(message)] += 1
        receive(self, message, payload_length)

    monkeypatch.setattr(PartitionRequestClient, "message_received", message_received)
    return kinds


@pytest.mark.parametrize(
    ("payload", "data_type", "at"),
    [
        (bytes(SEGMENT_SIZE_BYTES), DATA, 1000),
        (bytes(SEGMENT_SIZE_BYTES), DATA, SEGMENT_SIZE_BYTES),
        (BARRIER, BLOCKING_EVENT, 21),
    ],
    ids=["data", "the end of data", "an event"],
)
async def test_a_flipped_bit_fails_its_channel_and_no_other(tmp_path, payload, data_type, at):
    async with (
        mini_cluster(tmp_path) as cluster,
        FaultProxy(cluster[0].address) as proxy,
    ):
        writers = [
            await PipelinedWriter.open(
                await cluster.producer(0), attempt, 1, partition_type=PARTITION_PIPELINED
            )
            for attempt in (0, 1)
        ]
        by_proxy = replace(writers[0].client.ack, data_port=proxy.address[1])
        reader = PipelinedReader(await cluster.consumer(1), [(by_proxy, 0), (by_proxy, 1)])
        for index, writer in enumerate(writers):
            await writer.send(0, FIRST)
            await reader.read_until(1, index)
        down = (await proxy.connection(0)).down
        flips = Flips(1)
        down.fault = Fault(flip_at_byte=down.passed_bytes + at, flips=flips)
        await writers[0].send(0, payload, data_type)
        while 0 in reader.open:
            await reader.read_one()
        assert flips.done == 1
        assert reader.errors[0].code is ErrorCode.CHECKSUM_MISMATCH
        assert "was damaged on its way" in str(reader.errors[0])
        assert reader.received[0] == [(DATA, FIRST)]
        with pytest.raises(RemoteError, match="readers of the pipelined partition have gone"):
            await writers[0].hear(ErrorResponse)
        await writers[1].send(0, payload, data_type)
        await reader.read_until(2, index=1)
        assert reader.received[1] == [(DATA, FIRST), (data_type, payload)]
        assert cluster[1].counters.errors_by_code["CHECKSUM_MISMATCH"] == 1
        await reader.close()


async def test_only_pipelined_data_of_other_hosts_has_checksums(tmp_path, heard):
    """Stored blocks have their own, and what stays on a host crosses no network."""
    async with mini_cluster(tmp_path) as cluster:
        ack = await cluster.write(0, 1, [[FIRST]])
        client = await cluster.consumer(1)
        assert await read_gate(client, 1, [(ack, [1])], 0, 1) == [FIRST]
        assert heard[BufferResponse] == 2
        assert heard[ChecksummedBuffer] == 0
        writer = await PipelinedWriter.open(await cluster.producer(0), 7, 2)
        readers = [
            PipelinedReader(await cluster.consumer(at), [(writer.client.ack, 7)], at)
            for at in (0, 1)
        ]
        for at, reader in enumerate(readers):
            await writer.send(at, FIRST)
            await reader.read_until(1)
        await writer.finish()
        for reader in readers:
            await reader.read_all()
            assert reader.data() == FIRST
            await reader.close()
        await eventually(lambda: heard[ChecksummedBuffer] == 2)
        assert heard[BufferResponse] == 2
