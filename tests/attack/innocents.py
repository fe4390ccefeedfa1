"""Attacks that go on beside an innocent application; each gives the step that it repeats."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

from sluice.protocol.errors import ErrorCode
from sluice.protocol.limits import MAX_CONTROL_BYTES
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_PRODUCER,
    AddCredit,
    BeginRegion,
    ErrorResponse,
    Message,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionOpened,
    Ping,
    Pong,
    encode,
)
from tests.attack.hostile import Hostile
from tests.attack.rates import ROUNDS, Step
from tests.attack.rig import (
    SHUFFLE,
    Application,
    AttackedDaemon,
    commit,
    consumer,
    hello_of,
    producer,
    release_application,
)
from tests.support.daemon import arguments, run
from tests.support.wire_clients import Client, open_gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MIB = 1 << 20
REGIONS = 40
"""More regions of a MiB than one application may have."""


# ---- attacks that hold on to what they have --------------------------------------------------


@contextlib.asynccontextmanager
async def held(owner: Application, daemon: AttackedDaemon) -> AsyncIterator[list[Client]]:
    """Keep the connections of an attacker for the time of a block; then all of it goes."""
    clients: list[Client] = []
    try:
        yield clients
    finally:
        for client in clients:
            if client.lost is None:
                client.vanish()
                await client.until_lost()
        await release_application(daemon.address, owner)


def write_raw(client: Client, data: bytes) -> None:
    client._transport.write(data)


@contextlib.asynccontextmanager
async def claims(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[None]:
    """Announce control parts of 4 MiB, with and without a proof."""
    claim = MAX_CONTROL_BYTES.to_bytes(4) + bytes(4) + b"\x96\x16\x01\x02"
    strangers = []
    async with held(greedy, daemon) as clients:
        for _ in range(50):
            clients.append(client := await producer(daemon.address, greedy))
            write_raw(client, claim)
            strangers.append(stranger := await Hostile.reach(daemon.address))
            stranger.send_bytes((4000).to_bytes(4) + claim[4:])
        yield
        for stranger in strangers:
            stranger.abort()


@contextlib.asynccontextmanager
async def announced_regions(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[None]:
    """Announce regions that never come, until the quota is reached."""
    async with held(greedy, daemon) as clients:
        clients.append(client := await producer(daemon.address, greedy))
        for number in range(REGIONS):
            client.send(OpenPartition(number, SHUFFLE, number, 1))
            client.send(BeginRegion(number, 0, 0, [MIB], 0))
        client.send(OpenPartition(REGIONS, SHUFFLE, REGIONS, 1))
        answers: list[Message] = []
        while PartitionOpened(REGIONS) not in answers:
            answers.append((await client.receive())[0])
        refusals = [answer for answer in answers if isinstance(answer, ErrorResponse)]
        assert refusals
        for each in refusals:
            check_quota(each)
        yield


@contextlib.asynccontextmanager
async def full_store(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[None]:
    """Fill the memory tier and as much of the disk as one may."""
    async with held(greedy, daemon):
        refusal: RemoteError | None = None
        for attempt in range(REGIONS):
            try:
                await commit(daemon.address, greedy, attempt, bytes(MIB))
            except RemoteError as error:
                refusal = error
                break
        assert refusal is not None
        assert refusal.code is ErrorCode.QUOTA_EXCEEDED
        yield


@contextlib.asynccontextmanager
async def unread_gates(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[None]:
    """Open gates of data on the disk that are never read."""
    async with held(greedy, daemon) as clients:
        for attempt in range(8):
            await commit(daemon.address, greedy, attempt, bytes(MIB))
        for _ in range(4):
            clients.append(client := await consumer(daemon.address, greedy))
            client.stop_reading()
            for number in range(100):
                open_gate(client, SHUFFLE, [(client.ack, range(8))], 0, 1, first_number=2 * number)
        yield


@contextlib.asynccontextmanager
async def idle_disk_writers(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[None]:
    """Get credit for regions on the disk, which takes segments, and send nothing."""
    async with held(greedy, daemon) as clients:
        for attempt in range(5):  # the memory tier is full then
            await commit(daemon.address, greedy, attempt, bytes(MIB))
        clients.append(client := await producer(daemon.address, greedy))
        for number in range(16):
            client.send(OpenPartition(number, SHUFFLE, 100 + number, 1))
            client.send(BeginRegion(number, 0, 0, [MIB], 0))
        await client.expect(AddCredit)
        yield


@contextlib.asynccontextmanager
async def pipelined_without_reader(
    daemon: AttackedDaemon, greedy: Application
) -> AsyncIterator[None]:
    """Open pipelined partitions without a reader, until the quota is reached."""
    async with held(greedy, daemon) as clients:
        clients.append(client := await producer(daemon.address, greedy))
        for number in itertools.count():
            client.send(OpenPipelinedPartition(number, SHUFFLE, number, 8, 1, 1))
            answer: Message = Ping(0)
            while not isinstance(answer, PartitionOpened | ErrorResponse):
                answer, _ = await client.receive()
            if isinstance(answer, ErrorResponse):
                check_quota(answer)
                break
        yield


@contextlib.asynccontextmanager
async def open_partitions(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[None]:
    """Open map outputs of a million subpartitions; nothing is written."""
    each = 1024
    async with held(greedy, daemon) as clients:
        for crowd in range(16 if ROUNDS else 2):
            clients.append(client := await producer(daemon.address, greedy))
            opening = (
                OpenPartition(number, SHUFFLE, crowd * each + number, 1_000_000)
                for number in range(each)
            )
            write_raw(client, b"".join(map(encode, opening)))
            for _ in range(each):
                await client.expect(PartitionOpened)
        yield


@contextlib.asynccontextmanager
async def half_requests(daemon: AttackedDaemon, _: Application) -> AsyncIterator[None]:
    """Begin requests at the HTTP port, twice as many as it has places."""
    writers = []
    try:
        for _number in range(128):
            _reader, writer = await asyncio.open_connection("127.0.0.1", daemon.http_port)
            writers.append(writer)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: victim\r\nX-Slow: ")
        yield
    finally:
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


def check_quota(message: ErrorResponse) -> None:
    assert message.code == ErrorCode.QUOTA_EXCEEDED, message


# ---- attacks that go on ----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def unread_pongs(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[Step]:
    """Leave Pongs unread: up to the limit on one connection, nearly as many on two others.

    All of them continue to send Pings, and a new connection replaces one that is closed. `make
    bench-fairness` measures the time that many connections of this kind take from the data loop.
    A Unix socket holds few Pongs, so it is full soon.
    """
    async with held(greedy, daemon) as clients:

        async def deaf() -> Client:
            clients.append(client := await producer(daemon.socket, greedy))
            client.stop_reading()
            return client

        first = await deaf()
        while first.lost is None:
            if first._transport.get_write_buffer_size() < MIB:
                write_raw(first, encode(Ping(0)) * 1000)
            await asyncio.sleep(0)
        almost = [await deaf(), await deaf()]
        for client in almost:
            write_raw(client, encode(Ping(0)) * 10_000)

        async def step() -> None:
            for at, client in enumerate(almost):
                if client.lost is not None:
                    almost[at] = await deaf()
                write_raw(almost[at], encode(Ping(0)) * 100)

        yield step


@contextlib.asynccontextmanager
async def flood(daemon: AttackedDaemon, _: Application) -> AsyncIterator[Step]:
    """Ask for the metrics over four connections in turn.

    A page at a time: how many snapshots a real flood takes is bounded by time, not by requests.
    """
    async with contextlib.AsyncExitStack() as stack:
        scrapers = []
        for _number in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", daemon.http_port)
            stack.callback(writer.close)
            scrapers.append((reader, writer))
        turns = itertools.cycle(scrapers)

        async def step() -> None:
            reader, writer = next(turns)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: victim\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))

        yield step


@contextlib.asynccontextmanager
async def failed_handshakes(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[Step]:
    """Fail in each way that a handshake can, in turn, and by a wrong proof."""
    wrong = hello_of(ROLE_PRODUCER, greedy.name, version_min=8, version_max=9)
    said = (b"GET / HTTP/1.1\r\n\r\n", encode(Pong(1)), encode(wrong), b"\0\0")
    ways = itertools.cycle(said)

    async def step() -> None:
        client = await Hostile.reach(daemon.address)
        client.send_bytes(next(ways))
        client._writer.write_eof()
        await client.until_refused()
        await client.close()
        forger = await Hostile.reach(daemon.address)
        answer = await forger.prove(
            hello_of(ROLE_CONSUMER, greedy.name), greedy.task, proof=lambda proof: proof[::-1]
        )
        assert isinstance(answer, ErrorResponse)
        await forger.close()

    yield step


@contextlib.asynccontextmanager
async def hellos_of_producers(daemon: AttackedDaemon, owner: Application) -> AsyncIterator[Step]:
    """Come as a producer to a TaskManager that drains."""

    async def step() -> None:
        client = await Hostile.reach(daemon.address)
        answer = await client.prove(hello_of(ROLE_PRODUCER, owner.name), owner.task)
        assert isinstance(answer, ErrorResponse)
        assert answer.code == ErrorCode.SHUTTING_DOWN
        await client.close()

    yield step


@contextlib.asynccontextmanager
async def starts_that_cannot_work(directory: Path) -> AsyncIterator[None]:
    """Start TaskManagers with settings that cannot work on this host, one after the other."""
    command = arguments(directory, network_segments=1 << 24, min_free_bytes="4095 TiB")
    refused = asyncio.Event()

    async def start() -> None:
        while True:
            done = await asyncio.to_thread(run, command)
            assert done.returncode == 2
            refused.set()

    async with asyncio.TaskGroup() as group:
        starting = group.create_task(start())
        yield
        await refused.wait()
        starting.cancel()
