"""Attacks by what a TaskManager keeps of messages: map attempts of gates, indexes of regions.

Each field of any length that may be kept (``Keeping.CHARGED`` in the schema) has an attack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    AddCredit,
    BeginRegion,
    BufferResponse,
    CloseGate,
    ErrorResponse,
    FinishPartition,
    GateChannel,
    GateClosed,
    GateOpened,
    OpenGate,
    OpenPartition,
    PartitionFinished,
    RegionData,
    RegionSecured,
    SecureRegion,
)
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from tests.attack.rig import (
    ALICE,
    BOB,
    SHUFFLE,
    SLACK_BYTES,
    application,
    commit,
    consumer,
    holdings,
    new_name,
    producer,
    read,
    release_application,
    resident_bytes,
)
from tests.support.wire_clients import write_region

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.attack.rig import Application, AttackedDaemon
    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

MANY = 250_000
"""Map attempts of a gate, a little less than it may have."""

RECORDS = b"the records of the victim " * 1000
SUBPARTITIONS = 1_000_000
KEPT_OF_AN_OUTPUT = 320 + 2 * 2 * 4
"""The charge for a map output of one subpartition."""

METADATA = Resource.METADATA_BYTES.name.lower()


def open_gate(client: Client, number: int, attempts: Sequence[int]) -> None:
    """Open a gate with one channel, whose number is the next one."""
    ack = client.ack
    place = ack.taskmanager_id, ack.advertised_host, ack.data_port
    channel = GateChannel(number + 1, *place, list(attempts))
    client.send(OpenGate(number, SHUFFLE, 0, 1, 4, [channel]))


async def refusal(client: Client, number: int) -> RemoteError:
    """Wait for the error of a gate or map output."""
    while True:
        message, _ = await client.receive()
        if isinstance(message, ErrorResponse) and message.channel == number:
            return RemoteError(message)
        assert not isinstance(message, GateOpened | PartitionFinished), message


async def until_held(
    daemon: AttackedDaemon, owner: Application, secret_file: Path, amount: int
) -> None:
    """Wait for a snapshot of the status in which an application holds so many bytes."""
    for _ in range(20):
        if holdings(daemon, owner, secret_file).get(METADATA, 0) == amount:
            return
    raise AssertionError(holdings(daemon, owner, secret_file))


# ---- gates and requests ----------------------------------------------------------------------


@one_loop
@pytest.mark.parametrize(
    ("count", "code"),
    [(2, ErrorCode.MALFORMED_MESSAGE), (800_000, ErrorCode.LIMIT_EXCEEDED)],
)
async def test_a_gate_that_names_a_map_attempt_twice_is_refused(cluster, victim, count, code):
    ack = await commit(cluster.first.address, victim, 1, RECORDS)
    greedy = await consumer(cluster.first.address, victim)
    open_gate(greedy, 0, [1] * count)
    assert (await refusal(greedy, 0)).code is code
    await greedy.close()
    assert await read(cluster.first.address, victim, [1], ack) == RECORDS
    for attempt in (2, 3):
        await commit(cluster.first.address, victim, attempt, RECORDS)
    assert await read(cluster.first.address, victim, [1, 2, 3], ack) == RECORDS * 3


@one_loop
async def test_open_gates_take_eight_bytes_for_a_map_attempt(cluster, victim, secret_file):
    """Before, 25 gates took 250 MiB, in no account."""
    daemon, attacker = cluster.first, application(BOB, new_name())
    gates = 25
    await commit(daemon.address, victim, 1, RECORDS)
    greedy = await consumer(daemon.address, attacker)
    before = resident_bytes(daemon)
    for number in range(gates):
        first = 1000 + number * MANY
        open_gate(greedy, 2 * number, range(first, first + MANY))
    answers = [(await greedy.receive())[0] for _ in range(2 * gates)]
    opened = {each.gate for each in answers if isinstance(each, GateOpened)}
    failed = {each.channel for each in answers if isinstance(each, ErrorResponse)}
    assert opened == {2 * number for number in range(gates)}
    assert failed == {2 * number + 1 for number in range(gates)}  # there are no such outputs
    assert resident_bytes(daemon) - before < gates * MANY * 16  # half for what was freed
    await until_held(daemon, attacker, secret_file, gates * MANY * 8)
    assert await read(daemon.address, victim, [1]) == RECORDS
    greedy.vanish()
    await greedy.until_lost()
    await until_held(daemon, attacker, secret_file, 0)


@one_loop
async def test_map_attempts_of_gates_have_a_quota(start, tmp_path, secret_file, victim):
    daemon = start(tmp_path, cluster_secret_files=secret_file, quota_metadata_bytes="4 MiB")
    attacker = application(BOB, new_name())
    greedy = await consumer(daemon.address, attacker)
    for number in (0, 2):
        open_gate(greedy, number, range(1000, 1000 + MANY))
        await greedy.expect(GateOpened)
        await refusal(greedy, number + 1)
    open_gate(greedy, 4, range(1000, 1000 + MANY))
    error = await refusal(greedy, 4)
    assert (error.code, error.retryable) == (ErrorCode.QUOTA_EXCEEDED, True)
    assert Resource.METADATA_BYTES.key in error.message
    await commit(daemon.address, victim, 1, RECORDS)
    assert await read(daemon.address, victim, [1]) == RECORDS
    greedy.send(CloseGate(0))
    await greedy.expect(GateClosed)
    open_gate(greedy, 4, range(1000, 1000 + MANY))
    await greedy.expect(GateOpened)
    await greedy.close()


@one_loop
async def test_a_request_of_another_taskmanager_is_charged_to_its_application(
    cluster, victim, secret_file
):
    """A gate at the first one reads from the second one, which keeps the request meanwhile."""
    ack = await commit(cluster.second.address, victim, 1, RECORDS)
    greedy = await consumer(cluster.first.address, victim)
    place = ack.taskmanager_id, ack.advertised_host, ack.data_port
    attempts = list(range(1, MANY + 1))
    greedy.send(OpenGate(0, SHUFFLE, 0, 1, 4, [GateChannel(1, *place, attempts)]))
    await greedy.expect(GateOpened)
    assert (await refusal(greedy, 1)).code is ErrorCode.PARTITION_NOT_FOUND
    await until_held(cluster.first, victim, secret_file, MANY * 8)
    await until_held(cluster.second, victim, secret_file, KEPT_OF_AN_OUTPUT)
    await greedy.close()
    assert await read(cluster.first.address, victim, [1], ack) == RECORDS


@one_loop
async def test_what_a_gate_reads_is_charged_until_it_is_closed(cluster, victim, secret_file):
    daemon = cluster.first
    outputs = 20
    for attempt in range(outputs):
        await commit(daemon.address, victim, attempt, RECORDS)
    kept = outputs * KEPT_OF_AN_OUTPUT
    await until_held(daemon, victim, secret_file, kept)
    reader = await consumer(daemon.address, victim)
    open_gate(reader, 0, range(outputs))
    await reader.expect(BufferResponse)
    await until_held(daemon, victim, secret_file, kept + outputs * (8 + 160))
    await reader.close()
    await until_held(daemon, victim, secret_file, kept)
    await release_application(daemon.address, victim)
    await until_held(daemon, victim, secret_file, 0)


# ---- regions ---------------------------------------------------------------------------------


def journal_bytes(daemon: AttackedDaemon) -> int:
    journals = [each for each in daemon.directory.rglob("journal-*") if each.is_file()]
    assert journals
    return sum(each.stat().st_size for each in journals)


async def write_empty(client: Client, attempt: int) -> None:
    """Commit a map output of a million empty subpartitions."""
    client.send(OpenPartition(attempt, SHUFFLE, attempt, SUBPARTITIONS))
    client.send(BeginRegion(attempt, 0, 0, [0] * SUBPARTITIONS, 0))
    client.send(FinishPartition(attempt, 0, 1))
    await client.expect(PartitionFinished)


@one_loop
async def test_empty_subpartitions_take_no_memory_and_no_journal(cluster, victim, secret_file):
    """Before, each map output took 4 MiB of both, in no quota."""
    daemon, attacker = cluster.first, application(BOB, new_name())
    writer = await producer(daemon.address, attacker)
    await write_empty(writer, 0)
    before, rows = resident_bytes(daemon), journal_bytes(daemon)
    outputs = 20
    for attempt in range(1, outputs + 1):
        await write_empty(writer, attempt)
    assert resident_bytes(daemon) - before < 2 * SLACK_BYTES
    assert journal_bytes(daemon) - rows < outputs * 1024
    held = holdings(daemon, attacker, secret_file)
    assert held[METADATA] < (outputs + 1) * 1024

    # The last subpartition of many is found, and the others are empty.
    writer.send(OpenPartition(100, SHUFFLE, 100, SUBPARTITIONS))
    writer.send(BeginRegion(100, 0, 0, [0] * (SUBPARTITIONS - 1) + [len(RECORDS)], 0))
    await writer.expect(AddCredit)
    await writer.close()
    await commit(daemon.address, victim, 1, RECORDS)
    assert await read(daemon.address, victim, [1]) == RECORDS
    await release_application(daemon.address, attacker)
    await until_held(daemon, attacker, secret_file, 0)


@one_loop
async def test_indexes_and_journals_have_a_quota(start, tmp_path, secret_file, victim):
    daemon = start(tmp_path, cluster_secret_files=secret_file, quota_metadata_bytes="4 MiB")
    attacker = application(BOB, new_name())
    writer = await producer(daemon.address, attacker)
    every_other = [1, 0] * 200_000  # 3.2 MB in memory and in a row
    for partition in range(2):
        writer.send(OpenPartition(partition, SHUFFLE, partition, len(every_other)))
        writer.send(BeginRegion(partition, 0, 0, every_other, 0))
    error = await refusal(writer, 1)
    assert (error.code, error.retryable) == (ErrorCode.QUOTA_EXCEEDED, True)
    assert Resource.METADATA_BYTES.key in error.message
    await commit(daemon.address, victim, 1, RECORDS)
    assert await read(daemon.address, victim, [1]) == RECORDS
    await writer.close()
    await until_held(daemon, attacker, secret_file, 0)
    small = application(ALICE, new_name())
    writer = await producer(daemon.address, small)
    writer.send(OpenPartition(0, SHUFFLE, 1, len(every_other)))
    writer.send(BeginRegion(0, 0, 0, every_other[:1000], 0))
    await writer.expect(AddCredit)
    writer.send(RegionData(0, 0), bytes(500))
    await writer.close()


@one_loop
async def test_a_region_that_is_secured_again_takes_no_row(cluster, victim):
    """Before, each SecureRegion of the same region was a row of the journal, in no quota."""
    daemon = cluster.first
    writer = await producer(daemon.address, victim)
    writer.send(OpenPartition(0, SHUFFLE, 1, 1))
    await write_region(writer, 0, 0, [RECORDS])
    writer.send(SecureRegion(0, 0))
    await writer.expect(RegionSecured)
    rows = journal_bytes(daemon)
    for _ in range(200):
        writer.send(SecureRegion(0, 0))
        await writer.expect(RegionSecured)
    assert journal_bytes(daemon) - rows < 1024
    writer.send(FinishPartition(0, len(RECORDS), 1))
    await writer.expect(PartitionFinished)
    await writer.close()
    assert await read(daemon.address, victim, [1]) == RECORDS
