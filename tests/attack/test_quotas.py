"""Applications that take all they can, and one beside each that wants its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    BeginRegion,
    BufferResponse,
    ErrorResponse,
    GateChannel,
    GateOpened,
    HelloAck,
    Message,
    OpenGate,
    OpenPartition,
    PartitionOpened,
)
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from tests.attack.rig import (
    ALICE,
    BOB,
    SHUFFLE,
    Application,
    AttackedDaemon,
    application,
    check_refusal,
    commit,
    consumer,
    holdings,
    new_name,
    open_pipelined,
    producer,
    read,
    release_application,
    status,
    the_error,
)
from tests.support.daemon import TIMEOUT_SECONDS, look_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

MIB = 1024 * 1024
SEGMENTS = 64
RECORDS = b"the records of the innocent " * 10_000
MOST = {
    Resource.CONNECTIONS: 6,
    Resource.OPEN_PARTITIONS: 20,
    Resource.CHANNELS: 30,
    Resource.MAP_OUTPUTS: 12,
}
MAX_OF_BOBS = 3
"""Map outputs of Bob's applications under any other name."""

GREEDY = "greedy"
UNREAD = 99
"""A map attempt whose readers never grant credit."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, secret_file: Path) -> Iterator[AttackedDaemon]:
    """A TaskManager of which the greedy application has less than the others."""
    rules = ", ".join(f"{each.name.lower()} = {most}" for each, most in MOST.items())
    with AttackedDaemon(
        tmp_path_factory.mktemp("tm"),
        cluster_secret_files=secret_file,
        memory_tier_bytes="4 MiB",
        disk_quota_bytes="16 MiB",
        min_free_bytes=0,
        network_segments=SEGMENTS,
        quota_memory_tier_bytes="50 %",
        quota_disk_tier_bytes="50 %",
        quota_overrides=f"bob/{GREEDY}-*: {rules}; bob/*: map_outputs = {MAX_OF_BOBS}",
    ) as running:
        yield running


@pytest.fixture
async def greedy(daemon: AttackedDaemon, clients: None) -> AsyncIterator[Application]:
    """An application that is over at the end of the test, and has held nobody else's up."""
    owner = application(BOB, f"{GREEDY}-{new_name()}")
    yield owner
    await release_application(daemon.address, owner)
    daemon.check_log(owner)


@pytest.fixture
def innocent() -> Application:
    return application(ALICE, new_name())


async def the_innocent_gets_its_own(daemon: AttackedDaemon, innocent: Application) -> None:
    """Write and read a map output, on the memory tier and on the disk."""
    for attempt in range(1, 13):
        await commit(daemon.address, innocent, attempt, RECORDS)
    assert await read(daemon.address, innocent, range(1, 13)) == RECORDS * 12
    await release_application(daemon.address, innocent)


@one_loop
async def test_regions_that_are_announced_and_never_sent_take_no_neighbours_space(
    daemon, greedy, innocent, secret_file
):
    """Small messages reserve space until the quota is reached, and none beyond it."""
    writer = await producer(daemon.address, greedy)
    attempts, room = 18, 2 + 8  # MiB, half of each tier
    for number in range(attempts):
        writer.send(OpenPartition(number, SHUFFLE, number, 1))
        writer.send(BeginRegion(number, 0, 0, [MIB], 0))
    writer.send(OpenPartition(attempts, SHUFFLE, attempts, 1))
    answers: list[Message] = []
    while PartitionOpened(attempts) not in answers:
        answers.append((await writer.receive())[0])
    refusals = [each for each in answers if isinstance(each, ErrorResponse)]
    assert [each.channel for each in refusals] == list(range(room, attempts))
    for each in refusals:
        check_refusal(RemoteError(each), Resource.DISK_TIER_BYTES)
    held = holdings(daemon, greedy, secret_file)
    assert held["memory_tier_bytes"] + held["disk_tier_bytes"] == room * MIB
    await the_innocent_gets_its_own(daemon, innocent)
    await writer.close()


@one_loop
async def test_an_application_that_fills_all_it_may_leaves_room_to_others(daemon, greedy, innocent):
    for attempt in range(1, 11):
        await commit(daemon.address, greedy, attempt, bytes(MIB))
    with pytest.raises(RemoteError) as caught:
        await commit(daemon.address, greedy, 11, bytes(MIB))
    check_refusal(caught.value, Resource.DISK_TIER_BYTES)
    await the_innocent_gets_its_own(daemon, innocent)
    assert await read(daemon.address, greedy, [1, 10]) == bytes(2 * MIB)  # it has its own


@one_loop
async def test_pipelined_partitions_without_a_reader_leave_segments_to_others(
    daemon, greedy, innocent
):
    writer = await producer(daemon.address, greedy)
    answers = [await open_pipelined(writer, number) for number in range(5)]
    check_refusal(the_error(answers[-1]), Resource.NETWORK_SEGMENTS)
    assert isinstance(answers[0], PartitionOpened)
    other = await producer(daemon.address, innocent)
    assert isinstance(await open_pipelined(other, 0), PartitionOpened)
    await other.close()
    await the_innocent_gets_its_own(daemon, innocent)
    await writer.close()


@one_loop
async def test_gates_that_are_never_read_leave_channels_to_others(daemon, greedy, innocent):
    for owner in (greedy, innocent):
        await commit(daemon.address, owner, UNREAD, RECORDS)
    reader = await consumer(daemon.address, greedy)
    opened = await open_gates(reader, 400)
    assert opened == MOST[Resource.CHANNELS]
    other = await consumer(daemon.address, innocent)
    assert await open_gates(other, 100) == 100
    await other.close()
    await the_innocent_gets_its_own(daemon, innocent)
    await reader.close()


async def open_gates(client: Client, gates: int) -> int:
    """Open gates of one channel each, without credit to read them; return how many there are."""
    here: HelloAck = client.ack
    opened = 0
    for number in range(gates):
        channel = GateChannel(
            2 * number + 1, here.taskmanager_id, here.advertised_host, here.data_port, [UNREAD]
        )
        client.send(OpenGate(2 * number, SHUFFLE, 0, 1, 1, [channel]))
        message, _ = await client.receive()
        while isinstance(message, BufferResponse):  # the first of a gate before
            message, _ = await client.receive()
        if isinstance(message, GateOpened):
            opened += 1
        else:
            check_refusal(the_error(message), Resource.CHANNELS)
            return opened
    return opened


@one_loop
async def test_partitions_that_are_opened_and_never_written_are_bounded(daemon, greedy, innocent):
    writer = await producer(daemon.address, greedy)
    most = MOST[Resource.OPEN_PARTITIONS]
    for number in range(most + 1):
        writer.send(OpenPartition(number, SHUFFLE, number, 100_000))
    for _ in range(most):
        assert isinstance((await writer.receive())[0], PartitionOpened)
    check_refusal(the_error((await writer.receive())[0]), Resource.OPEN_PARTITIONS)
    await the_innocent_gets_its_own(daemon, innocent)
    await writer.close()


@one_loop
async def test_map_outputs_are_bounded(daemon, greedy, innocent):
    for attempt in range(MOST[Resource.MAP_OUTPUTS]):
        await commit(daemon.address, greedy, attempt, b"tiny")
    with pytest.raises(RemoteError) as caught:
        await commit(daemon.address, greedy, MOST[Resource.MAP_OUTPUTS], b"tiny")
    check_refusal(caught.value, Resource.MAP_OUTPUTS)
    await the_innocent_gets_its_own(daemon, innocent)


@one_loop
async def test_a_name_does_not_bring_the_quotas_of_another_subject(daemon, innocent, clients):
    """Whoever has a token names the application as it likes, but cannot change the token."""
    for name in (innocent.name, f"alice/{new_name()}"):
        bobs = application(BOB, name)
        for attempt in range(MAX_OF_BOBS):
            await commit(daemon.address, bobs, attempt, b"tiny")
        with pytest.raises(RemoteError) as caught:
            await commit(daemon.address, bobs, MAX_OF_BOBS, b"tiny")
        check_refusal(caught.value, Resource.MAP_OUTPUTS)
        await release_application(daemon.address, bobs)
    await the_innocent_gets_its_own(daemon, innocent)


@one_loop
async def test_connections_are_bounded(daemon, greedy, innocent, secret_file):
    most = MOST[Resource.CONNECTIONS] - 1  # one is kept for the driver
    opened = [await producer(daemon.address, greedy) for _ in range(most)]
    with pytest.raises(RemoteError) as caught:
        await producer(daemon.address, greedy)
    check_refusal(caught.value, Resource.CONNECTIONS)
    await the_innocent_gets_its_own(daemon, innocent)
    shown = status(daemon, secret_file, "--application", greedy.name)
    assert re.search(r"^connections +5 +5 +6$", shown, re.MULTILINE), shown
    assert re.search(r"^disk_tier +0 B +0 B +8 MiB$", shown, re.MULTILINE), shown
    for each in opened:
        await each.close()


@one_loop
async def test_nothing_of_an_application_is_held_when_it_is_over(
    daemon, greedy, innocent, secret_file
):
    """The control: what was taken comes back, so the application can begin anew."""
    await commit(daemon.address, greedy, 1, RECORDS)
    assert holdings(daemon, greedy, secret_file)["map_outputs"] == 1
    await release_application(daemon.address, greedy)
    look_until(  # space comes back with the rows of the journal
        lambda: holdings(daemon, greedy, secret_file),
        lambda held: not any(held.values()),
        TIMEOUT_SECONDS,
    )
    await the_innocent_gets_its_own(daemon, innocent)
