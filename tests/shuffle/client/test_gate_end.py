"""A client's gate that is closed with data and events in it."""

from __future__ import annotations

import pytest

from sluice.protocol.events import CheckpointBarrier, encode_event
from sluice.protocol.schema import PRIORITY_EVENT
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.records.record_reader import ChannelRecord
from sluice.shuffle.records.serializers import BytesSerializer, ViewSerializer
from tests.support.api_clients import api_clients, emitted
from tests.support.mini_cluster import eventually, mini_cluster


async def test_a_closed_gate_has_nothing_to_read(tmp_path):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(cluster, 0, buffer_timeout_seconds=0) as (client,),
    ):
        async with client.open_result_partition(1, 7, 1) as partition:
            writer = partition.record_writer(BytesSerializer())
            await emitted(writer.emit(b"record"))
            partition.writer.emit_event(
                encode_event(CheckpointBarrier(1, 2, True)), PRIORITY_EVENT, 0
            )
        async with client.open_gate([partition.location], 0) as gate:
            await eventually(lambda: gate.gate.has_priority_event and gate.gate.is_available)
        assert not gate.gate.has_priority_event
        assert not gate.gate.is_available


async def test_a_closed_gate_takes_the_buffer_of_a_record_back_from_its_reader(tmp_path):
    """All memory of the client is back at the end: api_clients checks it."""
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(cluster, 0, buffer_timeout_seconds=0) as (client,),
    ):
        async with client.open_result_partition(1, 7, 1) as partition:
            writer = partition.record_writer(BytesSerializer())
            await emitted(writer.emit(b"record"))
        async with client.open_gate([partition.location], 0) as gate:
            element = await gate.reader(ViewSerializer()).next()
            assert isinstance(element, ChannelRecord)
            assert element.value == b"record"


async def test_a_channel_of_a_closed_gate_is_resumed_in_vain(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        async with client.open_result_partition(1, 7, 1) as partition:
            await partition.emit_buffer(b"data", 0)
        async with client.open_gate([partition.location], 0) as gate:
            await eventually(lambda: gate.gate.is_available)
        gate.gate.resume_consumption(0)
        with pytest.raises(InvalidRequest):
            gate.gate.resume_consumption(1)


async def test_a_reader_of_a_closed_gate_gives_no_record_that_it_still_had(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        async with client.open_result_partition(1, 7, 1) as partition:
            writer = partition.record_writer(BytesSerializer())
            for record in (b"first", b"second"):
                await emitted(writer.emit(record))
        async with client.open_gate([partition.location], 0) as gate:
            reader = gate.reader(BytesSerializer())
            assert await reader.next() == ChannelRecord(0, b"first")
            assert not reader.is_ended
        assert reader.is_ended
        assert await reader.next() is None
