"""Attacks that go on, and an innocent application beside them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

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
from tests.attack.rig import (
    SHUFFLE,
    Application,
    AttackedDaemon,
    commit,
    consumer,
    hello_of,
    producer,
    read,
    release_application,
    release_shuffle,
)
from tests.support import cpu_time
from tests.support.daemon import arguments, run
from tests.support.wire_clients import Client, open_gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

ROUNDS = int(os.environ.get("SLUICE_ATTACK_ROUNDS", "0"))
"""Pairs of slices of which rates are taken; 0: no rates, as in `make test`."""

MIN_RATE = 0.9
"""Of an innocent application beside an attack, over its rate without."""

SLICE_EXCHANGES = 6
MIB = 1 << 20
REGIONS = 40
"""More regions of a MiB than one application may have."""

RECORDS = b"the records of the innocent " * 1000
RATES: dict[str, Rates] = {}
"""Rates beside each attack of this run, for its summary."""

Attack = contextlib.AbstractAsyncContextManager[None]


# ---- the innocent ----------------------------------------------------------------------------


async def exchange(daemon: AttackedDaemon, innocent: Application, attempt: int) -> None:
    """Write a map output and read it, over connections of its own; check every byte."""
    await commit(daemon.address, innocent, attempt, RECORDS)
    assert await read(daemon.address, innocent, [attempt]) == RECORDS


class Slice(NamedTuple):
    """A few exchanges: their time, and the CPU time of their TaskManager meanwhile."""

    seconds: float
    cpu_seconds: float


class Rates(NamedTuple):
    """The rate beside an attack over that without: median of all pairs, least and largest one.

    ``per_cpu`` is the median of the exchanges for a second of the TaskManager's CPU, over the same
    without. Programs that share the machine do not change it, but it does not tell of time in which
    the innocent application had to wait.
    """

    median: float
    least: float
    largest: float
    per_cpu: float


@contextlib.contextmanager
def timed(daemon: AttackedDaemon, into: list[Slice]) -> Iterator[None]:
    """Append the times of a block."""
    began, cpu = time.perf_counter(), cpu_time.of_process(daemon.pid)
    yield
    cpu_seconds = cpu_time.of_process(daemon.pid) - cpu
    into.append(Slice(time.perf_counter() - began, cpu_seconds))


async def a_slice(daemon: AttackedDaemon, innocent: Application, into: list[Slice]) -> None:
    """Do a few exchanges."""
    with timed(daemon, into):
        for attempt in range(SLICE_EXCHANGES):
            await exchange(daemon, innocent, attempt)
    await release_shuffle(daemon.address, innocent)


async def is_served_beside(
    name: str, attack: Attack, attacked: AttackedDaemon, quiet: AttackedDaemon, who: Application
) -> None:
    """Check that an innocent application is served beside an attack, and that it keeps its rate.

    Its rate is compared with that at another TaskManager like it, which nobody attacks, in slices
    that take turns while the attack goes on: what it costs the machine it costs both.
    """
    async with attack:
        if ROUNDS:
            await keeps_its_rate(
                name,
                lambda into: a_slice(attacked, who, into),
                lambda into: a_slice(quiet, who, into),
            )
        else:
            await a_slice(attacked, who, [])


async def keeps_its_rate(
    name: str,
    attacked: Callable[[list[Slice]], Coroutine[None, None, None]],
    quiet: Callable[[list[Slice]], Coroutine[None, None, None]],
) -> None:
    """Take slices in pairs whose order changes; check the median of the ratios of their rates."""
    beside: list[Slice] = []
    alone: list[Slice] = []
    for number in range(ROUNDS + 1):
        if number % 2:
            await attacked(beside)
            await quiet(alone)
        else:
            await quiet(alone)
            await attacked(beside)
    pairs = list(zip(alone, beside, strict=True))[1:]  # the first one warms up
    ratios = [quietly.seconds / other.seconds for quietly, other in pairs]
    RATES[name] = Rates(
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        statistics.median(quietly.cpu_seconds / other.cpu_seconds for quietly, other in pairs),
    )
    assert RATES[name].median >= MIN_RATE, RATES[name]


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
async def again_and_again(step: Callable[[], Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Repeat a step of an attack for the time of a block, once at least."""
    done = asyncio.Event()

    async def repeat() -> None:
        while True:
            await step()
            done.set()

    async with asyncio.TaskGroup() as group:
        repeating = group.create_task(repeat())
        await asyncio.wait(
            {repeating, asyncio.create_task(done.wait())}, return_when="FIRST_COMPLETED"
        )
        yield
        repeating.cancel()


@contextlib.asynccontextmanager
async def unread_pongs(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[None]:
    """Leave Pongs unread: until that is cut off, and on two connections nearly as many.

    Both together go on with 5,000 Pings a second. `make bench-fairness` measures how much
    time of the data loop many more would take. A Unix socket keeps few Pongs, so filling it takes
    little time.
    """
    async with held(greedy, daemon) as clients:
        for _ in range(3):
            clients.append(client := await producer(daemon.socket, greedy))
            client.stop_reading()
        deaf, *almost = clients
        while deaf.lost is None:
            if deaf._transport.get_write_buffer_size() < MIB:
                write_raw(deaf, encode(Ping(0)) * 1000)
            await asyncio.sleep(0)
        for client in almost:
            write_raw(client, encode(Ping(0)) * 10_000)

        async def step() -> None:
            for client in almost:
                if client.lost is None:
                    write_raw(client, encode(Ping(0)) * 50)
            await asyncio.sleep(0.02)

        async with again_and_again(step):
            yield


@contextlib.asynccontextmanager
async def flood(daemon: AttackedDaemon, _: Application) -> AsyncIterator[None]:
    """Ask for the metrics over four connections, again as soon as there is an answer."""
    async with contextlib.AsyncExitStack() as stack:
        for _number in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", daemon.http_port)
            stack.callback(writer.close)

            async def step(
                reader: asyncio.StreamReader = reader, writer: asyncio.StreamWriter = writer
            ) -> None:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: victim\r\n\r\n")
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))

            await stack.enter_async_context(again_and_again(step))
        yield


@contextlib.asynccontextmanager
async def failed_handshakes(daemon: AttackedDaemon, greedy: Application) -> AsyncIterator[None]:
    """Fail in each way that a handshake can, a hundred times a second or so."""
    wrong = hello_of(ROLE_PRODUCER, greedy.name, version_min=8, version_max=9)
    said = (b"GET / HTTP/1.1\r\n\r\n", encode(Pong(1)), encode(wrong), b"\0\0")
    numbers = itertools.count()

    async def step() -> None:
        client = await Hostile.reach(daemon.address)
        client.send_bytes(said[next(numbers) % len(said)])
        client._writer.write_eof()
        await client.until_refused()
        await client.close()
        forger = await Hostile.reach(daemon.address)
        answer = await forger.prove(
            hello_of(ROLE_CONSUMER, greedy.name), greedy.task, proof=lambda proof: proof[::-1]
        )
        assert isinstance(answer, ErrorResponse)
        await forger.close()
        await asyncio.sleep(0.01)

    async with again_and_again(step):
        yield


@contextlib.asynccontextmanager
async def hellos_of_producers(daemon: AttackedDaemon, owner: Application) -> AsyncIterator[None]:
    """Come as a producer to a TaskManager that drains, a hundred times a second or so."""

    async def step() -> None:
        client = await Hostile.reach(daemon.address)
        answer = await client.prove(hello_of(ROLE_PRODUCER, owner.name), owner.task)
        assert isinstance(answer, ErrorResponse)
        assert answer.code == ErrorCode.SHUTTING_DOWN
        await client.close()
        await asyncio.sleep(0.01)

    async with again_and_again(step):
        yield


@contextlib.asynccontextmanager
async def starts_that_cannot_work(directory: Path) -> AsyncIterator[None]:
    """Start TaskManagers with settings that cannot work on this host."""
    command = arguments(directory, network_segments=1 << 24, min_free_bytes="4095 TiB")

    async def step() -> None:
        done = await asyncio.to_thread(run, command)
        assert done.returncode == 2

    async with again_and_again(step):
        yield
