"""A hybrid partition outlives a fault that does not concern what it has spilled."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import PARTITION_HYBRID_SELECTIVE, ErrorResponse
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.taskmanager.hybrid import hybrid_spiller
from sluice.shuffle.taskmanager.serve.channel_times import WAITING_FOR_CREDIT
from sluice.shuffle.taskmanager.serve.consumer_handler import ConsumerHandler
from sluice.shuffle.taskmanager.serve.peer_handler import PeerHandler
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier
from tests.support.api_clients import api_clients, embedded_clients, next_of
from tests.support.mini_cluster import (
    DISK_ONLY,
    MEMORY_TIER,
    SEGMENT_SIZE_BYTES,
    MiniCluster,
    eventually,
    mini_cluster,
    storage_leftovers,
    until_clean,
)
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter
from tests.support.segment_pressure import ask, look

if TYPE_CHECKING:
    from sluice.shuffle.memory import LocalBufferPool
    from sluice.shuffle.taskmanager.serve.credit_based_view_reader import CreditBasedViewReader

READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
TIERS = pytest.mark.parametrize("tier", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"])
SEGMENTS = 64
ATTEMPT = 7
MANY = 100
"""Buffers that no pool of these TaskManagers holds."""


def buffers(count: int = MANY) -> list[bytes]:
    return [number.to_bytes(4, "big") * (SEGMENT_SIZE_BYTES // 4) for number in range(count)]


async def a_writer(cluster: MiniCluster) -> PipelinedWriter:
    client = await cluster.producer(0)
    return await PipelinedWriter.open(client, ATTEMPT, 1, partition_type=PARTITION_HYBRID_SELECTIVE)


async def a_finished_writer(cluster: MiniCluster) -> PipelinedWriter:
    """Return the writer of a partition that is finished, and spilled whole."""
    writer = await a_writer(cluster)
    for data in buffers():
        await writer.send(0, data)
    await writer.finish()
    pool = cluster[0].network_pool
    await eventually(lambda: pool.available_segments == pool.total_segments, "all is spilled")
    return writer


async def a_reader(
    cluster: MiniCluster, writer: PipelinedWriter, reader_at: int = 0, credit: int = 4
) -> PipelinedReader:
    client = await cluster.consumer(reader_at)
    return PipelinedReader(client, [(writer.client.ack, ATTEMPT)], credit=credit)


def all_that_is_left(cluster: MiniCluster, *, of_a_quota: bool) -> LocalBufferPool:
    pool = cluster[0].network_pool
    if of_a_quota:
        return pool.create_local_pool("of the same", 32, owner=cluster[0].accounts.of("app"))
    return pool.create_local_pool("of others", pool.unpromised_segments)


@pytest.mark.parametrize(
    ("reader_at", "quota", "code"),
    [
        (0, "none", ErrorCode.INSUFFICIENT_BUFFERS),
        (1, "none", ErrorCode.INSUFFICIENT_BUFFERS),
        (0, 32, ErrorCode.QUOTA_EXCEEDED),  # the reads of another TaskManager are of no quota
    ],
    ids=["local", "remote", "quota"],
)
async def test_a_request_without_memory_keeps_the_spilled_data(tmp_path, reader_at, quota, code):
    """Its request is refused, and the next one gets every byte."""
    async with mini_cluster(
        tmp_path,
        memory_tier_bytes=DISK_ONLY,
        network_segments=SEGMENTS,
        quota_network_segments=quota,
    ) as cluster:
        writer = await a_finished_writer(cluster)
        held = all_that_is_left(cluster, of_a_quota=quota != "none")
        refused = await a_reader(cluster, writer, reader_at)
        await refused.read_all()
        assert refused.errors[0].code is code
        await refused.close()
        held.destroy()
        reader = await a_reader(cluster, writer, reader_at)
        await reader.read_all()
        assert reader.data() == b"".join(buffers())
        await until_clean(cluster[0], storage_leftovers)


async def test_data_in_the_memory_tier_is_read_without_segments(tmp_path):
    async with mini_cluster(tmp_path, network_segments=SEGMENTS) as cluster:
        writer = await a_finished_writer(cluster)
        held = all_that_is_left(cluster, of_a_quota=False)
        reader = await a_reader(cluster, writer, reader_at=1)
        await reader.read_all()
        assert reader.data() == b"".join(buffers())
        held.destroy()


@TIERS
@READ_AT
async def test_a_slow_reader_of_what_is_spilled_holds_no_segments(tmp_path, tier, reader_at):
    """It may stand still while others wait for segments: it has none to give back."""
    async with mini_cluster(tmp_path, memory_tier_bytes=tier, network_segments=SEGMENTS) as cluster:
        writer = await a_finished_writer(cluster)
        reader = await a_reader(cluster, writer, reader_at, credit=1)
        reader.give_credit = 0
        await reader.read_until(1)
        serving = ConsumerHandler if reader_at == 0 else PeerHandler
        (handler,) = [each for each in cluster[0].handlers.values() if isinstance(each, serving)]
        await eventually(lambda: all(_waits_for_credit(each) for each in handler.readers.values()))
        pool = cluster[0].network_pool
        held = pool.create_local_pool("of others", pool.unpromised_segments)
        assert isinstance(await ask(await cluster.producer(0, "other"), 1), ErrorResponse)
        await look(cluster, 3)
        assert not cluster[0].counters.progress_deadlines
        held.destroy()
        reader.give_credit = 1
        reader.add_credit(4)
        await reader.read_all()
        assert reader.data() == b"".join(buffers())


def _waits_for_credit(reader: CreditBasedViewReader) -> bool:
    return reader.activity == WAITING_FOR_CREDIT


async def test_spilling_continues_on_another_disk_if_one_fails(tmp_path, monkeypatch):
    write = DiskTier.write

    def fail_on_a(self, offset, pieces):
        if self.directory == tmp_path / "a":
            raise OSError(errno.EIO, "Input/output error")
        write(self, offset, pieces)

    monkeypatch.setattr(DiskTier, "write", fail_on_a)
    async with mini_cluster(
        tmp_path,
        1,
        memory_tier_bytes=DISK_ONLY,
        data_directories=(tmp_path / "a", tmp_path / "b"),
    ) as cluster:
        writer = await a_finished_writer(cluster)
        failed = [tier.directory for tier in cluster[0].store.tiers() if not tier.healthy]
        assert failed == [str(tmp_path / "a")]
        reader = await a_reader(cluster, writer)
        await reader.read_all()
        assert reader.data() == b"".join(buffers())


@pytest.mark.parametrize("clients_at", [api_clients, embedded_clients], ids=["beside", "embedded"])
async def test_a_finished_partition_is_spilled_when_there_is_room_again(
    tmp_path, monkeypatch, clients_at
):
    """Until then it keeps its segments: nobody reads it."""
    monkeypatch.setattr(hybrid_spiller, "PAUSE_SECONDS", 0)
    async with (
        mini_cluster(
            tmp_path, 1, memory_tier_bytes=2 * SEGMENT_SIZE_BYTES, disk_quota_bytes=0
        ) as cluster,
        clients_at(cluster, 0) as (client,),
    ):
        await cluster.write(0, 1, [[bytes(SEGMENT_SIZE_BYTES)]], shuffle_id=2)
        async with client.open_result_partition(
            1, ATTEMPT, 1, partition_type=ResultPartitionType.HYBRID_SELECTIVE
        ) as partition:
            for _ in range(2):
                await partition.emit_buffer(bytes(SEGMENT_SIZE_BYTES), 0)
        pool = cluster[0].network_pool
        assert pool.lent_segments == 2
        cluster[0].partitions.release_shuffle(ShuffleKey("app", 2))
        await eventually(lambda: not pool.lent_segments, "it is spilled")
        async with client.open_gate([partition.location], 0) as gate:
            for _ in range(2):
                await next_of(gate)


@pytest.mark.parametrize("clients_at", [api_clients, embedded_clients], ids=["beside", "embedded"])
async def test_readers_get_producer_failed_if_spilling_fails(tmp_path, clients_at):
    """The task gets the error itself; a reader that comes late learns the same as the others."""
    async with (
        mini_cluster(tmp_path, 1, memory_tier_bytes=SEGMENT_SIZE_BYTES, disk_quota_bytes=0) as (
            cluster
        ),
        clients_at(cluster, 0) as (client,),
    ):
        with pytest.raises(SluiceError):  # the end of the context tells it again
            await write_and_read(client)


async def write_and_read(client: Any) -> None:
    async with (
        client.open_result_partition(
            1, ATTEMPT, 2, partition_type=ResultPartitionType.HYBRID_SELECTIVE
        ) as partition,
        client.open_gate([partition.location], 0) as gate,
    ):
        with pytest.raises(SluiceError) as caught:
            await write_all(partition)
        assert caught.value.code is ErrorCode.STORAGE_FULL
        await check_producer_failed(gate)
        async with client.open_gate([partition.location], 1) as late:
            await check_producer_failed(late)


async def write_all(partition: Any) -> None:
    for data in buffers():
        await partition.emit_buffer(data, 1)


async def check_producer_failed(gate: Any) -> None:
    with pytest.raises(SluiceError) as caught:
        await next_of(gate)
    assert caught.value.code is ErrorCode.PRODUCER_FAILED
