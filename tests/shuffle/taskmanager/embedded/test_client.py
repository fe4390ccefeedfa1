"""Tasks inside a TaskManager: memory, local reads, channels known later, unions, the end."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import DATA
from sluice.shuffle.dataflow.union_input_gate import UnionInputGate
from sluice.shuffle.errors import InvalidRequest, ProducerFailed
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.records.record_reader import ChannelRecord, RecordReader
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import (
    TASKS,
    api_clients,
    embedded_clients,
    emitted,
    give_back,
    next_of,
)
from tests.support.mini_cluster import (
    DISK_ONLY,
    MEMORY_TIER,
    SEGMENT_SIZE_BYTES,
    eventually,
    mini_cluster,
    network_leftovers,
)
from tests.support.network_memory import take_exclusive

FULL = bytes(range(256)) * (SEGMENT_SIZE_BYTES // 256)


async def test_a_local_reader_gets_the_very_segment_that_the_writer_filled(tmp_path):
    """No socket, no copy: one segment goes from the writer's pool to the reader and back."""
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        pool = cluster[0].network_pool
        async with (
            client.open_result_partition(1, 7, 1) as partition,
            client.open_gate([partition.location], 0) as gate,
        ):
            builder = partition.writer.request_builder(0)
            assert builder is not None
            partition.writer.add_consumer(builder.create_consumer(), 0)
            builder.append_and_commit(FULL)
            builder.finish()
            taken = await gate.next_buffer_or_event()
            assert taken is not None
            payload = taken.buffer.payload
            assert isinstance(payload, memoryview)
            assert payload == FULL
            assert pool.lent_segments == 1
            (other,) = take_exclusive(pool, 1)
            assert payload.obj is other.memory.obj  # the mapping of the TaskManager's segments
            pool.recycle_segments([other])
            give_back(taken.buffer)
            assert pool.lent_segments == 0
            await partition.finish()
        assert not cluster[0].listener.connections


async def test_a_remote_reader_gets_it_in_a_segment_of_its_own_taskmanager(tmp_path):
    async with mini_cluster(tmp_path) as cluster, embedded_clients(cluster, 0, 1) as clients:
        producer, consumer = clients
        async with (
            producer.open_result_partition(1, 7, 1) as partition,
            consumer.open_gate([partition.location], 0) as gate,
        ):
            await partition.emit_buffer(FULL, 0)
            taken = await gate.next_buffer_or_event()
            assert taken is not None
            assert taken.buffer.payload == FULL
            # The sender's segment is free when the transport has let go of it.
            await eventually(lambda: cluster[0].network_pool.lent_segments == 0)
            exclusive = cluster[1].config.memory.exclusive_buffers_per_channel
            assert cluster[1].network_pool.lent_segments >= exclusive
            give_back(taken.buffer)
            await partition.finish()


@TASKS
async def test_a_channel_becomes_known_later(tmp_path, clients_at):
    async with mini_cluster(tmp_path) as cluster, clients_at(cluster, 0, 1) as clients:
        first, second = clients
        async with first.open_result_partition(1, 7, 1) as known:
            await emitted(known.record_writer(BytesSerializer()).emit(b"known"))
        async with first.open_gate([known.location, None], 0) as gate:
            reader = gate.reader(BytesSerializer())
            record = await reader.next()
            assert isinstance(record, ChannelRecord)
            assert (record.channel_index, record.value) == (0, b"known")
            async with second.open_result_partition(1, 8, 1) as late:
                gate.update_channel(1, late.location)
                await emitted(late.record_writer(BytesSerializer()).emit(b"late"))
            got = [each async for each in gate.records(BytesSerializer())]
            assert got == [b"late"]
            with pytest.raises(InvalidRequest, match="known already"):
                gate.update_channel(1, late.location)
            for wrong in (
                late.location._replace(shuffle_id=2),
                late.location._replace(partition_type=ResultPartitionType.BLOCKING),
            ):
                with pytest.raises(InvalidRequest, match="does not belong"):
                    gate.update_channel(1, wrong)


@TASKS
async def test_a_gate_may_open_before_any_producer_is_known(tmp_path, clients_at):
    async with mini_cluster(tmp_path, 1) as cluster, clients_at(cluster, 0) as (client,):
        with pytest.raises(InvalidRequest, match="of one shuffle"):
            async with client.open_gate([None], 0):
                pytest.fail("opened")
        async with client.open_gate([None], 0, shuffle_id=1) as gate:
            async with client.open_result_partition(1, 7, 1) as partition:
                gate.update_channel(0, partition.location)
                await partition.emit_buffer(FULL, 0)
            taken = await next_of(gate)
            assert taken.buffer.data_type == DATA


@TASKS
async def test_a_union_reads_two_upstream_tasks_as_one(tmp_path, clients_at):
    async with mini_cluster(tmp_path) as cluster, clients_at(cluster, 0, 1) as clients:
        first, second = clients
        async with (
            first.open_result_partition(1, 7, 1) as left,
            second.open_result_partition(2, 7, 1) as right,
        ):
            for partition, value in ((left, b"left"), (right, b"right")):
                await emitted(partition.record_writer(BytesSerializer()).emit(value))
        async with (
            first.open_gate([left.location], 0) as gate,
            first.open_gate([right.location], 0) as other,
        ):
            union = UnionInputGate([gate.gate, other.gate])
            reader = RecordReader(union, BytesSerializer(), union.channels)
            records = []
            while (taken := await reader.next()) is not None:
                if isinstance(taken, ChannelRecord):
                    records.append((taken.channel_index, taken.value))
            reader.close()
            assert sorted(records) == [(0, b"left"), (1, b"right")]


@pytest.mark.parametrize("memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"])
@pytest.mark.parametrize("everyone", [False, True], ids=["one", "broadcast"])
async def test_stored_partitions_are_read_by_both_kinds_of_tasks(
    tmp_path, memory_tier_bytes, everyone
):
    content = b"".join(bytes([number]) * 1000 for number in range(200))
    async with (
        mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster,
        embedded_clients(cluster, 0, 1) as embedded,
        api_clients(cluster, 0, 1) as beside,
    ):
        async with embedded[0].open_result_partition(
            1, 7, 2, partition_type=ResultPartitionType.BLOCKING, max_segments=8
        ) as partition:
            await partition.emit_buffer(content, ALL_SUBPARTITIONS if everyone else 1)
        assert cluster[0].counters.regions_written > 1
        for reader in (*embedded, *beside):
            async with reader.open_gate([partition.location], 1) as gate:
                read = b""
                while (taken := await gate.next_buffer_or_event()) is not None:
                    if taken.buffer.data_type == DATA:
                        read += taken.buffer.payload
                        give_back(taken.buffer)
                assert read == content


# ---- failures, and the end


async def test_a_reader_that_asks_late_is_told_why_the_producer_failed(tmp_path):
    async with mini_cluster(tmp_path) as cluster, embedded_clients(cluster, 0, 1) as clients:
        producer, consumer = clients
        opened = []

        async def produce() -> None:
            async with producer.open_result_partition(1, 7, 1) as partition:
                opened.append(partition.location)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await produce()
        async with consumer.open_gate(opened, 0) as gate:
            with pytest.raises(SluiceError, match="ZeroDivisionError") as caught:
                await gate.next_buffer_or_event()
            assert caught.value.code is ErrorCode.PRODUCER_FAILED
        assert cluster[0].counters.pipelined_partitions_failed == 1


async def test_a_producer_fails_when_its_reader_leaves(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):

        async def produce() -> None:
            async with client.open_result_partition(1, 7, 1) as partition:
                async with client.open_gate([partition.location], 0) as gate:
                    await partition.emit_buffer(FULL, 0)
                    await next_of(gate)
                await partition.emit_buffer(FULL, 0)

        with pytest.raises(SluiceError) as caught:
            await produce()
        assert caught.value.code is ErrorCode.PARTITION_RELEASED


async def test_a_task_event_handler_that_raises_fails_its_partition_only(tmp_path):
    def handler(event_type: int, payload: bytes) -> None:
        raise LookupError(event_type)

    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):

        async def exchange() -> None:
            async with (
                client.open_result_partition(1, 7, 1, task_event=handler) as partition,
                client.open_gate([partition.location], 0) as gate,
            ):
                gate.gate.send_task_event(5)
                await next_of(gate)

        async with (
            client.open_result_partition(1, 8, 1) as other,
            client.open_gate([other.location], 0) as gate,
        ):
            with pytest.raises(ProducerFailed):
                await exchange()
            await other.emit_buffer(FULL, 0)
            await next_of(gate)
            await other.finish()
        assert cluster[0].counters.pipelined_partitions_failed == 1


async def test_a_closed_client_fails_what_is_open_and_leaves_what_is_finished(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (other,):
        client = cluster[0].client("app", None, 0.1)
        async with client.open_result_partition(1, 6, 1) as finished:
            await finished.emit_buffer(FULL, 0)

        async def use(kind: ResultPartitionType) -> None:
            async with client.open_result_partition(1, 7, 1, partition_type=kind) as partition:
                await partition.emit_buffer(FULL, 0)
                async with client.open_gate([finished.location], 0) as gate:
                    await client.close()
                    await client.close()
                    assert await gate.next_buffer_or_event() is None
                await partition.emit_buffer(FULL, 0)

        for kind in (ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.BLOCKING):
            with pytest.raises(SluiceError):
                await use(kind)
        with pytest.raises(SluiceError, match="closed"):
            async with client.open_result_partition(1, 8, 1):
                pytest.fail("opened")
        async with other.open_gate([finished.location], 0) as gate:
            await next_of(gate)
        assert network_leftovers(cluster[0]) == ["embedded clients: 1"]


async def test_a_draining_taskmanager_waits_for_embedded_tasks_and_takes_no_new_ones(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        async with client.open_result_partition(
            1, 7, 1, partition_type=ResultPartitionType.BLOCKING
        ) as partition:
            cluster[0].drain()
            idle = asyncio.create_task(cluster[0].wait_idle())
            with pytest.raises(SluiceError) as caught:
                async with client.open_result_partition(1, 8, 1):
                    pytest.fail("opened")
            assert caught.value.code is ErrorCode.SHUTTING_DOWN
            await partition.emit_buffer(FULL, 0)
            assert not idle.done()
        await idle


async def test_an_application_is_released_when_its_last_client_has_gone(tmp_path):
    async with mini_cluster(tmp_path, 1, application_expiry_seconds=0.01) as cluster:
        async with embedded_clients(cluster, 0) as (client,):
            async with client.open_result_partition(
                1, 7, 1, partition_type=ResultPartitionType.BLOCKING
            ) as partition:
                await partition.emit_buffer(FULL, 0)
            assert list(cluster[0].store.applications()) == ["app"]
        await eventually(lambda: not cluster[0].store.applications())


@pytest.mark.parametrize("kind", list(ResultPartitionType))
async def test_the_release_of_a_shuffle_ends_its_partitions(tmp_path, kind):
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        async with client.open_result_partition(1, 7, 1, partition_type=kind) as partition:
            await partition.emit_buffer(FULL, 0)
        async with client.open_gate([partition.location], 0) as gate:
            (channel,) = gate.gate.channels
            await eventually(lambda: channel.is_available(1))
            cluster[0].partitions.release_application("app")
            if kind is not ResultPartitionType.BLOCKING:
                with pytest.raises(SluiceError) as caught:
                    await gate.next_buffer_or_event()
                assert caught.value.code is ErrorCode.PARTITION_RELEASED
