"""Applications that hold what others need and do not move; beside each, one that moves slowly."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from prometheus_client.parser import text_string_to_metric_families

from sluice.protocol.access_token import SCOPE_STATUS, make_access_token
from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    CONSUME_WHEN_REGISTERED,
    DATA,
    PARTITION_PIPELINED,
    AddCredit,
    BeginRegion,
    ErrorResponse,
    FinishPartition,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionFinished,
    PartitionOpened,
    Ping,
    PipelinedData,
    RegionData,
)
from tests.attack.rig import (
    ALICE,
    BOB,
    CAROL,
    SECRET,
    SHUFFLE,
    Application,
    AttackedDaemon,
    application,
    commit,
    driver,
    new_name,
    producer,
    read,
    release_application,
)
from tests.support.daemon import TIMEOUT_SECONDS, look_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from sluice.protocol.schema import Message
    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

DEADLINE_SECONDS = 1.0
"""Of the daemon. Those who move do it many times in it."""
STEP_SECONDS = 0.05
STEPS = 50
SEGMENTS = 64
RECORDS = b"the records of the innocent " * 10_000
REGIONS = 8
KIB = 1024


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, secret_file: Path) -> Iterator[AttackedDaemon]:
    """A small TaskManager that waits for nobody for long."""
    with AttackedDaemon(
        tmp_path_factory.mktemp("tm"),
        cluster_secret_files=secret_file,
        memory_tier_bytes="4 MiB",
        disk_quota_bytes="16 MiB",
        min_free_bytes=0,
        network_segments=SEGMENTS,
        region_progress_timeout_seconds=DEADLINE_SECONDS,
        gate_progress_timeout_seconds=DEADLINE_SECONDS,
        idle_connection_timeout_seconds=DEADLINE_SECONDS,
    ) as running:
        yield running


@pytest.fixture
async def greedy(daemon: AttackedDaemon, clients: None) -> AsyncIterator[Application]:
    owner = application(BOB, f"greedy-{new_name()}")
    yield owner
    await release_application(daemon.address, owner)
    daemon.check_log(owner)


@pytest.fixture
async def innocent(daemon: AttackedDaemon, clients: None) -> AsyncIterator[Application]:
    owner = application(ALICE, new_name())
    yield owner
    await release_application(daemon.address, owner)


def check_told(message: Message | RemoteError, setting: str) -> None:
    """Check that an error says what stood still, for how long, and what to do about it."""
    error = RemoteError(message) if isinstance(message, ErrorResponse) else message
    assert isinstance(error, RemoteError)
    assert error.code is ErrorCode.DEADLINE_EXCEEDED
    assert error.retryable
    assert error.value
    assert str(error.limit).startswith(f"{DEADLINE_SECONDS} s")
    assert setting in error.message


def holdings(daemon: AttackedDaemon, owner: Application) -> dict[str, float]:
    """Return what an application holds, as the metrics tell it."""
    token = make_access_token(SECRET, SCOPE_STATUS, 0).to_text()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{daemon.url}/metrics/applications", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        page = answer.read().decode()
    return {
        sample.labels["resource"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "sluice_application_held" and sample.labels["application"] == owner.scoped
    }


async def next_error(client: Client) -> ErrorResponse:
    while True:
        message, _ = await client.receive()
        if isinstance(message, ErrorResponse):
            return message


@one_loop
async def test_regions_that_are_announced_and_not_sent_give_their_space_back(
    daemon, greedy, innocent
):
    writer = await producer(daemon.address, greedy)
    for number in range(REGIONS):
        writer.send(OpenPartition(number, SHUFFLE, number, 1))
        writer.send(BeginRegion(number, 0, 0, [KIB * KIB], 0))
    slow = await producer(daemon.address, innocent)
    sending = asyncio.create_task(write_slowly(slow, 2))
    await commit(daemon.address, innocent, 1, RECORDS)
    failed = [await next_error(writer) for _ in range(REGIONS)]
    assert sorted(each.channel or 0 for each in failed) == list(range(REGIONS))
    for each in failed:
        check_told(each, "region_progress_timeout_seconds")
    look_until(
        lambda: holdings(daemon, greedy), lambda held: held == {"connections": 1}, TIMEOUT_SECONDS
    )
    # Everything else of the connection goes on, and so does whoever sends slowly.
    writer.send(OpenPartition(REGIONS, SHUFFLE, REGIONS, 1))
    await writer.expect(PartitionOpened)
    content = await sending
    assert await read(daemon.address, innocent, [1, 2]) == RECORDS + content
    for client in (writer, slow):
        await client.close()


async def write_slowly(client: Client, attempt: int) -> bytes:
    """Write a map output for longer than the deadline, a segment at a time; return its bytes."""
    size = client.ack.segment_size_bytes
    content = bytes(range(256)) * (STEPS * size // 256)
    client.send(OpenPartition(0, SHUFFLE, attempt, 1))
    client.send(BeginRegion(0, 0, 0, [len(content)], crc32c(content)))
    credit = 0
    for offset in range(0, len(content), size):
        while not credit:
            message = await client.expect(AddCredit)
            assert isinstance(message, AddCredit)
            credit += message.credit
        credit -= 1
        client.send(RegionData(0, offset), content[offset : offset + size])
        await asyncio.sleep(STEP_SECONDS)
    client.send(FinishPartition(0, len(content), 1))
    await client.expect(PartitionFinished)
    return content


async def drip(client: Client, steps: int) -> None:
    """Write to a pipelined partition for longer than the deadline, a byte at a time."""
    client.send(
        OpenPipelinedPartition(99, SHUFFLE, 99, 1, PARTITION_PIPELINED, CONSUME_WHEN_REGISTERED)
    )
    await client.expect(PartitionOpened)
    for _ in range(steps):
        client.send(PipelinedData(99, 0, DATA), b"x")
        await asyncio.sleep(STEP_SECONDS)
        assert client.lost is None


@one_loop
async def test_partitions_that_stand_still_give_way_to_an_application_that_waits(
    daemon, greedy, innocent
):
    """Two tenants have used up their quotas, and nobody else finds a segment."""
    also_greedy = application(CAROL, f"greedy-{new_name()}")
    holders = [await producer(daemon.address, each) for each in (greedy, also_greedy)]
    slow_application = application(ALICE, new_name())
    slow = await producer(daemon.address, slow_application)
    sending = asyncio.create_task(drip(slow, STEPS))
    for holder in holders:
        for number in range(3):
            assert isinstance(await open_pipelined(holder, number, 8), PartitionOpened)
    waits = await producer(daemon.address, innocent)
    refused = await open_pipelined(waits, 0, 16)
    assert isinstance(refused, ErrorResponse)
    assert refused.code == ErrorCode.INSUFFICIENT_BUFFERS
    told = [asyncio.create_task(next_error(holder)) for holder in holders]
    await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
    for each in told:
        if each.done():
            check_told(each.result(), "gate_progress_timeout_seconds")
        each.cancel()
    assert isinstance(await open_pipelined(waits, 0, 16), PartitionOpened)
    await sending  # it moved all the time, and was not touched
    for client in (*holders, waits, slow):
        await client.close()
    for owner in (also_greedy, slow_application):
        await release_application(daemon.address, owner)


async def open_pipelined(client: Client, number: int, subpartitions: int) -> Message:
    """Open a partition; return the answer."""
    client.send(
        OpenPipelinedPartition(
            number,
            SHUFFLE,
            100 + number,
            subpartitions,
            PARTITION_PIPELINED,
            CONSUME_WHEN_REGISTERED,
        )
    )
    while True:
        message, _ = await client.receive()
        if isinstance(message, PartitionOpened | ErrorResponse):
            return message


@one_loop
async def test_connections_that_only_ping_are_closed(daemon, greedy, innocent):
    pinging = [await producer(daemon.address, greedy) for _ in range(5)]
    alive = await driver(daemon.address, innocent)  # only pings as well: it is the driver
    busy = await producer(daemon.address, innocent)
    busy.send(OpenPartition(0, SHUFFLE, 0, 1))
    await busy.expect(PartitionOpened)
    nonce = 0
    while any(client.lost is None for client in pinging):
        nonce += 1
        for client in (*pinging, alive, busy):
            client.send(Ping(nonce))
        await asyncio.sleep(STEP_SECONDS)
    for client in pinging:
        assert isinstance(client.lost, RemoteError)
        check_told(client.lost, "idle_connection_timeout_seconds")
    for client in (alive, busy):
        assert client.lost is None
        await client.close()
    await commit(daemon.address, greedy, 1, RECORDS)  # it may connect again at any time
    assert await read(daemon.address, greedy, [1]) == RECORDS
