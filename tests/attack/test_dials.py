"""Applications that name TaskManagers that do not answer, in gates and as places for copies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import pytest
from msgspec.structs import replace

from sluice.protocol.identity import SubmitToken
from sluice.protocol.schema import KnownTaskManager, OutputsHeld, ReplicatePartition
from sluice.shuffle.taskmanager.serve.taskmanager_channel_opener import (
    MAX_DIALS,
    MAX_DIALS_OF_TENANT,
)
from tests.attack.rig import (
    ALICE,
    BOB,
    SECRET,
    SHUFFLE,
    Application,
    AttackedDaemon,
    application,
    commit,
    consumer,
    driver,
    new_name,
    producer,
    read,
)
from tests.support.daemon import TIMEOUT_SECONDS
from tests.support.wire_clients import open_gate, write_map_output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluice.protocol.schema import HelloAck
    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = b"the records of the innocent " * 1000
APPLICATIONS = 6
MAX_TOGETHER = MAX_DIALS + APPLICATIONS
ADDRESSES = 200
OUTPUTS = 16
PLACES = 8
LOST_AFTER_SECONDS = 0.1
DIALS = 4
"""Between the first and the last one more than ``LOST_AFTER_SECONDS`` pass."""


class Tarpit:
    """Accepts connections at every address of the loopback, and never answers.

    Args:
        hangs_up: Close each connection at once instead.
    """

    def __init__(self, *, hangs_up: bool = False) -> None:
        self._hangs_up = hangs_up
        self._changed = asyncio.Event()
        self.accepted = self.open = self.most = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "0.0.0.0", 0, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.until(lambda: not self.open)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition about the connections holds."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        self.most = max(self.most, self.open)
        self._changed.set()
        try:
            if not self._hangs_up:
                await reader.read()  # until the other side gives up
        except ConnectionError:
            pass
        finally:
            writer.close()
            self.open -= 1
            self._changed.set()


async def greedy_gate(
    daemon: AttackedDaemon,
    ack: HelloAck,
    tarpit: Tarpit,
    number: int = 0,
    token: SubmitToken = BOB,
) -> Client:
    """Open a gate that names many addresses of its own, for an application of its own."""
    reader = await consumer(daemon.address, application(token, new_name()))
    sources = [
        (replace(ack, advertised_host=f"127.{number + 1}.1.{n}", data_port=tarpit.port), [n])
        for n in range(1, ADDRESSES + 1)
    ]
    open_gate(reader, SHUFFLE, sources, 0, 1)
    return reader


@one_loop
async def test_a_gate_dials_few_addresses_at_a_time_and_none_after_it(
    cluster, victim, start, secret_file, tmp_path
):
    daemon = cluster.first
    other = start(tmp_path, cluster_secret_files=secret_file)
    ack = await commit(other.address, victim, 1, RECORDS)
    async with Tarpit() as tarpit:
        greedy = await greedy_gate(daemon, ack, tarpit)
        await tarpit.until(lambda: tarpit.open >= MAX_DIALS_OF_TENANT)
        # The TaskManager connects to the other one for the victim meanwhile.
        assert await read(daemon.address, victim, [1], ack) == RECORDS
        assert tarpit.most == MAX_DIALS_OF_TENANT
        greedy.vanish()
        await tarpit.until(lambda: not tarpit.open)
        dialed = tarpit.accepted
        assert await read(daemon.address, victim, [1], ack) == RECORDS
        assert tarpit.accepted == dialed


@one_loop
@pytest.mark.parametrize(
    ("tokens", "least", "most"),
    [(1, MAX_DIALS_OF_TENANT, MAX_DIALS_OF_TENANT), (APPLICATIONS, MAX_DIALS, MAX_TOGETHER)],
)
async def test_many_gates_together_dial_a_limited_number_of_addresses(
    cluster, victim, start, secret_file, tmp_path, tokens, least, most
):
    """Many applications of one token dial as many as one of them."""
    subjects = [
        SubmitToken.make(SECRET, f"subject {n}", 0, bytes([n + 1] * 16)) for n in range(tokens)
    ]
    daemon = cluster.first
    other = start(tmp_path, cluster_secret_files=secret_file)
    ack = await commit(other.address, victim, 1, RECORDS)
    async with Tarpit() as tarpit:
        greedy = [
            await greedy_gate(daemon, ack, tarpit, n, subjects[n % tokens])
            for n in range(APPLICATIONS)
        ]
        await tarpit.until(lambda: tarpit.open >= least)
        assert await read(daemon.address, victim, [1], ack) == RECORDS
        assert tarpit.most <= most
        for client in greedy:
            client.vanish()
        await tarpit.until(lambda: not tarpit.open)


# ---- copies ----------------------------------------------------------------------------------


@pytest.fixture
def hosts(start, secret_file: Path, tmp_path: Path) -> tuple[AttackedDaemon, AttackedDaemon]:
    """Two TaskManagers on two hosts."""
    first, second = (
        start(
            tmp_path / host,
            host=host,
            cluster_secret_files=secret_file,
            synchronous_timeout_seconds=5,
            lost_after_seconds=LOST_AFTER_SECONDS,
        )
        for host in ("127.0.0.1", "127.0.0.2")
    )
    return first, second


async def write_copied(
    daemon: AttackedDaemon, owner: Application, attempt: int, data: bytes, *, wait: bool
) -> None:
    """Commit a map output with a copy; wait for the copy or not."""
    client = await producer(daemon.address, owner)
    replicate = ReplicatePartition(0, 2, wait)
    await write_map_output(client, SHUFFLE, attempt, [[data]], replicate=replicate)
    await client.close()


async def name(daemon: AttackedDaemon, owner: Application, *places: KnownTaskManager) -> Client:
    """Name TaskManagers as the driver of an application; return the driver."""
    client = await driver(daemon.address, owner)
    for place in places:
        client.send(place)
    return client


@one_loop
async def test_copies_to_addresses_that_do_not_answer_delay_no_other_application(hosts):
    first, second = hosts
    greedy, innocent = application(BOB, new_name()), application(ALICE, new_name())
    async with Tarpit() as tarpit:
        dead = [
            KnownTaskManager(f"dead-{n}", f"127.1.0.{n + 1}", tarpit.port) for n in range(PLACES)
        ]
        drivers = [await name(first, greedy, *dead)]
        for attempt in range(OUTPUTS):
            await write_copied(first, greedy, attempt, b"", wait=False)
        await tarpit.until(lambda: tarpit.open > 0)
        known = KnownTaskManager(second.identity, *second.address)
        drivers += [await name(first, innocent, known), await driver(second.address, innocent)]
        await write_copied(first, innocent, 1, RECORDS, wait=True)
        # The commit was answered because the copy exists, and not because its time was over.
        assert await drivers[-1].expect(OutputsHeld) == OutputsHeld(SHUFFLE, [1])
        assert await read(second.address, innocent, [1]) == RECORDS
        assert "is committed without all of its copies" not in first.log
        for each in drivers:
            await each.close()


@one_loop
async def test_a_wrong_place_of_a_taskmanager_ends_no_reader_of_another_application(hosts):
    first, second = hosts
    liar, innocent = application(BOB, new_name()), application(ALICE, new_name())
    data = RECORDS * 100  # more than the reader's TaskManager has segments for
    ack = await commit(second.address, innocent, 1, data)
    reader = await consumer(first.address, innocent)
    gate = open_gate(reader, SHUFFLE, [(ack, [1])], 0, 1, credit=1)
    while not await gate.read_one(give_credit=0):
        pass
    async with Tarpit(hangs_up=True) as dead:
        wrong = KnownTaskManager(second.identity, "127.1.0.1", dead.port)
        lying = await name(first, liar, wrong)
        await write_copied(first, liar, 1, b"a", wait=False)
        await dead.until(lambda: dead.accepted >= DIALS)
        gate.add_credit(0, 1)
        await gate.read_all()
        assert gate.content == [data]
        assert "counts as lost" not in first.log
        await lying.close()
    await gate.close()
    await reader.close()


@one_loop
async def test_no_taskmanager_has_the_path_of_a_unix_socket(hosts, tmp_path):
    """Of another program, which would take the first bytes for a request of this host's."""
    first, second = hosts
    liar, innocent = application(BOB, new_name()), application(ALICE, new_name())
    connected = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        writer.close()

    path = str(tmp_path / "other")
    server = await asyncio.start_unix_server(serve, path)
    right = KnownTaskManager(second.identity, *second.address)
    drivers = [
        await name(first, liar, KnownTaskManager("other", path, 0)),
        await name(first, innocent, right),
    ]
    await write_copied(first, liar, 1, RECORDS, wait=True)  # not copied, and answered
    await write_copied(first, innocent, 1, RECORDS, wait=True)
    server.close()
    for each in drivers:
        await each.close()
    assert await read(second.address, innocent, [1]) == RECORDS
    assert not connected
