"""One token, many applications: together they get what one application of it would get.

Each test has its control: a single application of the token gets the same amount.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    KnownTaskManager,
    PartitionOpened,
    ReleaseShuffle,
    ShuffleReleased,
)
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from tests.attack.innocents import write_raw
from tests.attack.rig import (
    ALICE,
    BOB,
    SHUFFLE,
    Application,
    AttackedDaemon,
    application,
    check_refusal,
    commit,
    driver,
    new_name,
    open_pipelined,
    producer,
    read,
    release_application,
    status,
    the_error,
)
from tests.support.mini_cluster import eventually
from tests.support.wire_clients import write_map_output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluice.transport.address import Address
    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

MIB = 1024 * 1024
MAX_CONNECTIONS = 24
SEGMENTS = 64
CONTROL_BYTES = 8 * MIB
RECORDS = b"the records of the innocent " * 10_000

numbers_of_applications = pytest.mark.parametrize("applications", [1, 2, 8])


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, secret_file: Path) -> Iterator[AttackedDaemon]:
    """A TaskManager of which a tenant gets a half."""
    with AttackedDaemon(
        tmp_path_factory.mktemp("tm"),
        cluster_secret_files=secret_file,
        memory_tier_bytes=0,
        disk_quota_bytes="16 MiB",
        min_free_bytes=0,
        network_segments=SEGMENTS,
        max_control_memory_bytes=CONTROL_BYTES,
        quota_disk_tier_bytes="50 %",
        quota_connections=MAX_CONNECTIONS,
    ) as running:
        yield running


@pytest.fixture
def innocent() -> Application:
    return application(ALICE, new_name())


def bobs(number: int) -> list[Application]:
    """Return applications of one token."""
    return [application(BOB, new_name()) for _ in range(number)]


async def check_innocent(daemon: AttackedDaemon, innocent: Application) -> None:
    """Write and read eight map outputs over a connection each."""
    for attempt in range(8):
        await commit(daemon.address, innocent, attempt, RECORDS)
    assert await read(daemon.address, innocent, range(8)) == RECORDS * 8
    await release_application(daemon.address, innocent)


async def end(daemon: AttackedDaemon, clients: list[Client], owners: list[Application]) -> None:
    for client in clients:
        await client.close()
    for owner in owners:
        await release_application(daemon.address, owner)


@one_loop
@numbers_of_applications
async def test_applications_of_a_token_fill_half_of_a_disk(daemon, innocent, applications, clients):
    owners = bobs(applications)
    opened = [await producer(daemon.address, owner) for owner in owners]
    writing, committed = list(opened), 0
    for attempt in range(32):
        for client in list(writing):
            try:
                await write_map_output(client, SHUFFLE, attempt, [[bytes(MIB)]])
            except RemoteError as error:
                check_refusal(error, Resource.DISK_TIER_BYTES)
                writing.remove(client)
            else:
                committed += 1
    assert committed == 8
    assert not writing
    await check_innocent(daemon, innocent)
    await end(daemon, opened, owners)


@one_loop
@numbers_of_applications
@pytest.mark.parametrize("through", ["address", "socket"])
async def test_applications_of_a_token_have_the_connections_of_one(
    daemon, innocent, applications, through, clients
):
    owners = bobs(applications)
    address: Address = getattr(daemon, through)
    opened: list[Client] = []
    for number in range(2 * MAX_CONNECTIONS):
        try:
            opened.append(await producer(address, owners[number % applications]))
        except RemoteError as error:
            check_refusal(error, Resource.CONNECTIONS)
    assert len(opened) == MAX_CONNECTIONS - 1  # one is kept for a driver
    await check_innocent(daemon, innocent)
    await end(daemon, opened, owners)


@one_loop
@numbers_of_applications
async def test_applications_of_a_token_are_promised_half_of_the_segments(
    daemon, innocent, applications, clients
):
    owners = bobs(applications)
    opened = [await producer(daemon.address, owner) for owner in owners]
    partitions = 0
    for number in range(2 * SEGMENTS):
        answer = await open_pipelined(opened[number % applications], number)
        if not isinstance(answer, PartitionOpened):
            check_refusal(the_error(answer), Resource.NETWORK_SEGMENTS)
            break
        partitions += 1
    assert partitions == 3
    other = await producer(daemon.address, innocent)
    for number in range(3):
        assert isinstance(await open_pipelined(other, number), PartitionOpened)
    await other.close()
    await check_innocent(daemon, innocent)
    await end(daemon, opened, owners)


@one_loop
@pytest.mark.parametrize("applications", [1, 15])
async def test_half_messages_of_many_applications_cost_nobody_else_a_connection(
    daemon, innocent, secret_file, applications, clients
):
    """The innocent has more unread than each of them, and less than all of them together."""
    owners = bobs(applications)
    pieces, piece = 15, CONTROL_BYTES // 16
    head = (2 * MIB).to_bytes(4) + bytes(4) + b"\x96\x16\x01\x02"  # of a message of 2 MiB

    def all_are_there() -> bool:
        found = json.loads(status(daemon, secret_file, "--json"))
        return found["control_memory"]["used_bytes"] >= pieces * piece

    opened = [await producer(daemon.address, owners[n % applications]) for n in range(pieces)]
    for client in opened:
        write_raw(client, head + bytes(piece - 1000))
    await eventually(all_are_there)
    other = await producer(daemon.address, innocent)
    write_raw(other, head + bytes(MIB))
    ends = {asyncio.create_task(client.until_lost()): client for client in (*opened, other)}
    done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        error = task.result()
        assert isinstance(error, RemoteError)
        assert error.code is ErrorCode.LIMIT_EXCEEDED
        assert ends[task] is not other
    assert other.lost is None
    for client in ends.values():
        if client.lost is None:
            client.vanish()
    await asyncio.gather(*ends)
    await check_innocent(daemon, innocent)
    await end(daemon, [], owners)


@one_loop
async def test_taskmanagers_that_applications_name_are_in_the_quota_of_their_token(
    start, tmp_path, secret_file, innocent
):
    """Each of any number of applications kept thousands of names, in no account."""
    daemon = start(tmp_path, cluster_secret_files=secret_file, quota_metadata_bytes="64 KiB")
    owners, refused = bobs(3), 0
    for owner in owners:
        client = await driver(daemon.address, owner)
        for number in range(40):
            client.send(KnownTaskManager(f"tm-{number}", "127.0.0.1", 1))
        client.send(ReleaseShuffle(SHUFFLE))
        try:
            await client.expect(ShuffleReleased)
        except SluiceError as error:
            assert error.code is ErrorCode.QUOTA_EXCEEDED  # noqa: PT017
            refused += 1
        else:
            await client.close()
    assert refused == 2
    await commit(daemon.address, innocent, 1, RECORDS)
    for owner in owners:
        await release_application(daemon.address, owner)
    assert await read(daemon.address, innocent, [1]) == RECORDS
    client = await driver(daemon.address, owners[-1])
    client.send(KnownTaskManager("tm-0", "127.0.0.1", 1))
    client.send(ReleaseShuffle(SHUFFLE))
    await client.expect(ShuffleReleased)
    await client.close()
