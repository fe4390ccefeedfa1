"""The pipelined partition of an embedded task: its pool, its name, the sizes its readers want."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.memory import InvalidPoolSize
from sluice.shuffle.partition.partition_type import ConsumptionConstraint, ResultPartitionType
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from tests.support.api_clients import api_clients, embedded_clients, next_of
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster

FULL = bytes(SEGMENT_SIZE_BYTES)


def pipelined(partition) -> PipelinedResultPartition:
    assert isinstance(partition.writer, PipelinedResultPartition)
    return partition.writer


@pytest.mark.parametrize(
    ("kind", "max_segments", "required", "most"),
    [
        (ResultPartitionType.PIPELINED_BOUNDED, None, 4, 3 * 2 + 8),
        (ResultPartitionType.PIPELINED_BOUNDED, 2, 2, 2),
        (ResultPartitionType.PIPELINED_BOUNDED, 100, 4, 3 * 2 + 8),
        (ResultPartitionType.PIPELINED, None, 4, None),
        (ResultPartitionType.PIPELINED, 100, 4, 100),
    ],
)
async def test_the_pool_follows_the_subpartitions(tmp_path, kind, max_segments, required, most):
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        async with client.open_result_partition(
            1, 7, 3, partition_type=kind, max_segments=max_segments
        ):
            (pool,) = cluster[0].network_pool.local_pools
            assert (pool.bounds.required_segments, pool.bounds.maximum_segments) == (required, most)
        cluster[0].partitions.release_application("app")


async def test_a_pool_of_nothing_is_refused_and_leaves_nothing(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        with pytest.raises(InvalidPoolSize):
            async with client.open_result_partition(1, 7, 3, max_segments=0):
                pytest.fail("opened")


@pytest.mark.parametrize("max_overdraft_buffers", [0, 3])
async def test_overdraft_is_the_setting_of_the_taskmanager(tmp_path, max_overdraft_buffers):
    """Beyond its pool a partition takes as many buffers as ``max_overdraft_buffers`` says."""
    async with (
        mini_cluster(tmp_path, 1, max_overdraft_buffers=max_overdraft_buffers) as cluster,
        embedded_clients(cluster, 0) as (client,),
    ):
        async with client.open_result_partition(1, 7, 1, max_segments=2) as partition:
            taken = 0
            while (builder := partition.writer.request_builder(0)) is not None:
                partition.writer.add_consumer(builder.create_consumer(), 0)
                builder.append_and_commit(FULL)
                builder.finish()
                taken += 1
            assert taken == 2 + max_overdraft_buffers
        cluster[0].partitions.release_application("app")


async def test_a_subpartition_takes_no_more_than_its_share(tmp_path):
    """``max_buffers_per_channel`` makes the partition unavailable, though its pool has memory."""
    async with (
        mini_cluster(tmp_path, 1, max_buffers_per_channel=3) as cluster,
        embedded_clients(cluster, 0) as (client,),
    ):
        async with client.open_result_partition(1, 7, 2) as partition:
            for number in range(3):
                assert partition.writer.is_available, number
                await partition.emit_buffer(FULL, 0)
            assert not partition.writer.is_available
            waiting = asyncio.create_task(partition.writer.wait_available())
            async with client.open_gate([partition.location], 0) as gate:
                await next_of(gate)
                await waiting
        cluster[0].partitions.release_application("app")


@pytest.mark.parametrize("first", [api_clients, embedded_clients], ids=["beside", "embedded"])
async def test_a_name_is_used_once_whoever_used_it(tmp_path, first):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        first(cluster, 0) as (one,),
        embedded_clients(cluster, 0) as (other,),
    ):
        async with one.open_result_partition(1, 7, 1):
            with pytest.raises(SluiceError) as caught:
                async with other.open_result_partition(1, 7, 1):
                    pytest.fail("opened")
            assert caught.value.code is ErrorCode.DUPLICATE_MAP_OUTPUT
        cluster[0].partitions.release_application("app")


async def test_readers_wait_for_the_first_output_if_it_says_so(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        async with (
            client.open_result_partition(
                1, 7, 1, consumption=ConsumptionConstraint.AT_FIRST_OUTPUT
            ) as partition,
            client.open_gate([partition.location], 0) as gate,
        ):
            await eventually(lambda: cluster[0].partitions.waiting_requests == 1)
            await partition.emit_buffer(FULL, 0)
            await next_of(gate)
            await partition.finish()
        assert cluster[0].counters.pipelined_partitions_finished == 1


async def test_a_reader_after_the_last_gets_partition_released(tmp_path):
    """The partition is finished, and gone with its reader."""
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        async with client.open_result_partition(1, 7, 1) as partition:
            for _ in range(2):
                await partition.emit_buffer(FULL, 0)
        async with client.open_gate([partition.location], 0) as gate:
            await next_of(gate)
        assert len(cluster[0].partitions.pipelined) == 0
        async with client.open_gate([partition.location], 0) as gate:
            with pytest.raises(SluiceError) as caught:
                await next_of(gate)
        assert caught.value.code is ErrorCode.PARTITION_RELEASED
