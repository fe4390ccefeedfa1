"""Events that nobody reads: they take no more of a TaskManager than data does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import CustomEvent, encode_event
from sluice.protocol.schema import (
    BLOCKING_EVENT,
    CONSUME_WHEN_REGISTERED,
    EVENT,
    PARTITION_PIPELINED_BOUNDED,
    PRIORITY_EVENT,
    ErrorResponse,
    FinishPartition,
    GateOpened,
    OpenPipelinedPartition,
    PartitionFinished,
    PipelinedData,
)
from tests.attack.rig import (
    BOB,
    SHUFFLE,
    application,
    consumer,
    new_name,
    producer,
    release_application,
)
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter

if TYPE_CHECKING:
    from tests.attack.rig import Application, AttackedDaemon
    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

EVENTS = 1000
PARTITIONS = 20
LONG = encode_event(CustomEvent("e", bytes(1000)))
CONTENT = [encode_event(CustomEvent("e", b"%d" % number)) for number in range(EVENTS)]


def an_opening(number: int) -> OpenPipelinedPartition:
    return OpenPipelinedPartition(
        number, SHUFFLE, number, 1, PARTITION_PIPELINED_BOUNDED, CONSUME_WHEN_REGISTERED
    )


async def outcome(client: Client, number: int, last: int | None = None) -> ErrorCode | None:
    """Wait until a partition is finished or refused, or until another one is finished behind it."""
    while True:
        message, _ = await client.receive()
        if isinstance(message, PartitionFinished) and message.partition in (number, last):
            return None
        if isinstance(message, ErrorResponse) and message.channel == number:
            return ErrorCode(message.code)


async def check_all_arrive(
    daemon: AttackedDaemon, source: AttackedDaemon, owner: Application, attempt: int, kind: int
) -> None:
    """Write events at one TaskManager with credit, and read them through another one."""
    writer = await PipelinedWriter.open(await producer(source.address, owner), attempt, 1)
    client = await consumer(daemon.address, owner)
    reader = PipelinedReader(client, [(writer.client.ack, attempt)])
    seen = 0
    for event in CONTENT:
        await writer.send(0, event, kind)
        if writer.credit <= 0:
            seen += 1
            await reader.read_until(seen)
    await writer.finish()
    await reader.read_all()
    assert reader.received[0] == [(kind, event) for event in CONTENT]
    await writer.client.close()
    await client.close()


@one_loop
@pytest.mark.parametrize("kind", [EVENT, PRIORITY_EVENT, BLOCKING_EVENT])
async def test_partitions_cannot_be_filled_with_events_and_finished(cluster, victim, kind):
    """1,500 partitions of 1,000 events took 1.7 GiB, in nobody's account."""
    attacker = application(BOB, new_name())
    client = await producer(cluster.first.address, attacker)
    for number in range(PARTITIONS):
        client.send(an_opening(number))
        for _ in range(EVENTS):
            client.send(PipelinedData(number, 0, kind), LONG)
        client.send(FinishPartition(number, 0, 0))
        assert await outcome(client, number) is ErrorCode.CREDIT_EXCEEDED
    await client.close()
    if kind != BLOCKING_EVENT:
        await check_all_arrive(cluster.first, cluster.first, victim, 1, kind)


@one_loop
@pytest.mark.parametrize("kind", [EVENT, PRIORITY_EVENT])
async def test_a_reader_that_is_paused_holds_back_the_events_of_its_producer(cluster, victim, kind):
    """600,064 events took 677 MiB at the TaskManager of the reader."""
    attacker = application(BOB, new_name())
    client = await producer(cluster.second.address, attacker)
    paused = await consumer(cluster.first.address, attacker)
    client.send(an_opening(0))
    PipelinedReader(paused, [(client.ack, 0)])
    await paused.expect(GateOpened)
    paused.stop_reading()
    refused = None
    for step in range(1, 11):
        for _ in range(EVENTS // 10):
            client.send(PipelinedData(0, 0, kind), LONG)
        client.send(an_opening(step))  # in between the partition's reader has its turns
        client.send(FinishPartition(step, 0, 0))
        refused = refused or await outcome(client, 0, step)
    assert refused is ErrorCode.CREDIT_EXCEEDED
    paused.vanish()
    await client.close()
    await check_all_arrive(cluster.first, cluster.second, victim, 1, kind)


@one_loop
async def test_finished_partitions_that_nobody_reads_are_in_a_quota(start, tmp_path, secret_file):
    daemon = start(
        tmp_path,
        cluster_secret_files=secret_file,
        quota_open_partitions=PARTITIONS,
    )
    attacker = application(BOB, new_name())
    client = await producer(daemon.address, attacker)
    for number in range(PARTITIONS + 1):
        client.send(an_opening(number))
        client.send(FinishPartition(number, 0, 0))
        expected = ErrorCode.QUOTA_EXCEEDED if number == PARTITIONS else None
        assert await outcome(client, number) is expected
    reader = PipelinedReader(await consumer(daemon.address, attacker), [(client.ack, 0)])
    await reader.read_all()
    await (await PipelinedWriter.open(client, 99, 1, number=99)).finish()
    await reader.client.close()
    await client.close()
    await release_application(daemon.address, attacker)
