"""The tenants of bench-fairness, each in a process of its own: ordinary ones and greedy ones.

An ordinary tenant has one application, which writes a map output, reads it and releases it, again
and again. A greedy one takes all it can get of one resource, by many applications of its token,
until it is told to rest: it holds on to what it has and asks for more after a short pause, or it
keeps many connections busy. All loops end with their task, and what they hold at a time is bounded.
"""

import asyncio
import contextlib
import itertools
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.fairness_tenant import (
    FAILURES,
    PAUSE_SECONDS,
    Application,
    Load,
    drop,
)
from benchmarks.line_process import next_command, say
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_PRODUCER,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionOpened,
    Ping,
    Pong,
    encode,
)
from sluice.shuffle.partition.partition_type import ConsumptionConstraint, ResultPartitionType
from tests.support.wire_clients import (
    DEADLINE_SECONDS,
    Client,
    open_gate,
    write_map_output,
)

FILL_DEADLINE_SECONDS: Final = 60.0
"""Of the exchanges that an application has to do before its share is looked at."""

GREEDY_CONNECTIONS: Final = 16
PARTITIONS_A_CONNECTION: Final = 1024
HOLD_DEADLINE_SECONDS: Final = 3600.0
UNREAD_GATES: Final = 400
UNREAD_PARTITIONS: Final = 64
UNREAD_SHUFFLE: Final = 1 << 20
"""Shuffles of greedy loops begin here; those of ordinary exchanges are below."""


async def hold(
    application: Application, role: int, most: int, take: Callable[[Client], Awaitable[None]]
) -> None:
    """Hold up to ``most`` connections, and replace those that are lost, until cancelled.

    Args:
        application: Whose connections.
        role: Their role.
        most: Most connections at a time.
        take: Takes what one connection can get.
    """
    held: list[Client] = []
    try:
        while True:
            held = [client for client in held if client.lost is None]
            if len(held) < most:
                with contextlib.suppress(*FAILURES):
                    held.append(await application.connect(role))
                    await take(held[-1])
                    continue
            await asyncio.sleep(PAUSE_SECONDS)
    finally:
        for client in held:
            drop(client)


async def greedy_for_segments(application: Application) -> None:
    """Open gates that are never read, and pipelined partitions that have no reader."""
    writers: list[Client] = []
    attempts = itertools.count(1)
    gates = UNREAD_GATES // GREEDY_CONNECTIONS

    async def unread(client: Client) -> None:
        client.stop_reading()
        source = [(client.ack, [0])]
        for number in range(gates):
            open_gate(client, UNREAD_SHUFFLE, source, 0, 1, credit=8, first_number=2 * number)

    async def without_reader(client: Client) -> None:
        for number in range(UNREAD_PARTITIONS):
            client.send(
                OpenPipelinedPartition(
                    number,
                    UNREAD_SHUFFLE + 1,
                    next(attempts),
                    8,
                    int(ResultPartitionType.PIPELINED),
                    int(ConsumptionConstraint.WHEN_REGISTERED),
                )
            )

    try:
        for name in application.names:
            writers.append(writer := await application.connect(ROLE_PRODUCER, name))
            await write_map_output(writer, UNREAD_SHUFFLE, 0, [[bytes(1 << 20)]])
        async with asyncio.TaskGroup() as group:
            group.create_task(hold(application, ROLE_CONSUMER, GREEDY_CONNECTIONS, unread))
            most = len(application.names)
            group.create_task(hold(application, ROLE_PRODUCER, most, without_reader))
    finally:
        for writer in writers:
            drop(writer)


async def greedy_for_connections(application: Application) -> None:
    """Open connections until they are refused."""

    async def nothing(client: Client) -> None:
        pass

    await hold(application, ROLE_PRODUCER, 1 << 13, nothing)


async def greedy_for_open_partitions(application: Application) -> None:
    """Open map outputs of very many subpartitions, which are never written, until refused."""
    attempts = itertools.count()

    async def open_many() -> None:
        client = await application.connect(ROLE_PRODUCER)
        try:
            numbers = itertools.count()
            asked, opened = 32, 0
            while opened < PARTITIONS_A_CONNECTION:
                for number in itertools.islice(numbers, asked):
                    client.send(OpenPartition(number, UNREAD_SHUFFLE, next(attempts), 1_000_000))
                answers = [(await client.receive())[0] for _ in range(asked)]
                taken = sum(isinstance(answer, PartitionOpened) for answer in answers)
                opened += taken
                if taken < asked:
                    asked = 1
                    await asyncio.sleep(10 * PAUSE_SECONDS)  # refusals announce no room
            await client.until_lost(HOLD_DEADLINE_SECONDS)
        finally:
            drop(client)

    await in_parallel(open_many, GREEDY_CONNECTIONS)


async def greedy_for_control_memory(application: Application) -> None:
    """Announce long messages and send all but their ends."""
    size = 1 << 20
    claim = struct.pack(">II", size, 0) + b"\x96\x16\x01\x02" + bytes(size // 2)

    async def send_half(client: Client) -> None:
        client._transport.write(claim)
        await asyncio.sleep(PAUSE_SECONDS)  # the pace of the attack: no answer ever comes

    await hold(application, ROLE_PRODUCER, 4 * GREEDY_CONNECTIONS, send_half)


async def greedy_for_the_data_loop(application: Application) -> None:
    """Ping without a pause over many connections, a few hundred Pings at a time."""
    pings = encode(Ping(0)) * 256
    answers = len(encode(Pong(0))) * 256

    async def keep_busy() -> None:
        transport = (await application.connect(ROLE_PRODUCER))._transport
        reader = asyncio.StreamReader()
        transport.set_protocol(asyncio.StreamReaderProtocol(reader))  # it need not decode answers
        try:
            while True:
                transport.write(pings)
                await reader.readexactly(answers)
        finally:
            transport.abort()

    await in_parallel(keep_busy, 2 * GREEDY_CONNECTIONS)


async def in_parallel(work: Callable[[], Awaitable[None]], times: int) -> None:
    """Run the same work several times at once, and again when it fails."""

    async def again() -> None:
        while True:
            with contextlib.suppress(*FAILURES):
                await work()
            await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as group:
        for _ in range(times):
            group.create_task(again())


_GREED: Final[Mapping[str, Callable[[Application], Awaitable[None]]]] = MappingProxyType(
    {
        "segments": greedy_for_segments,
        "connections": greedy_for_connections,
        "open_partitions": greedy_for_open_partitions,
        "control_memory": greedy_for_control_memory,
        "data_loop": greedy_for_the_data_loop,
    }
)


async def work(application: Application, load: Load) -> None:
    """Do the work of a load until cancelled."""
    if load.greedy in _GREED:
        await _GREED[load.greedy](application)
    else:
        await in_parallel(lambda: application.work(load), load.tasks)


# ---- the process ---------------------------------------------------------------------------------


async def serve() -> None:
    """In the child: do as told.

    Commands: ``begin`` a load, ``await`` a number of exchanges, ``count`` the work of some seconds,
    ``probe`` for some seconds, and ``rest``. Each is answered when it is done.
    """
    say("ready")
    application: Application | None = None
    working: asyncio.Task[None] | None = None
    while (command := await next_command()) is not None:
        answer: Any = None
        if "begin" in command:
            load = Load(**(command["begin"] or {}))
            application = Application(
                command["name"], command["socket"], command["token"], load.applications
            )
            if command["begin"] is not None:
                working = asyncio.create_task(work(application, load))
        elif application is None:
            raise RuntimeError(f"{command} before there is an application")
        elif "await" in command:
            await until_exchanged(application, command["await"])
        elif "count" in command:
            answer = await count(application, command["count"])
        elif "probe" in command:
            answer = await application.probe(command["probe"])
        else:
            await rest(application, working)
            working = None
            answer = dict(application.errors)
        say(answer)


async def until_exchanged(application: Application, exchanges: int) -> None:
    """Wait until an application has done some exchanges, or for long enough."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FILL_DEADLINE_SECONDS):
            while application.exchanges < exchanges:
                application.exchanged.clear()
                await application.exchanged.wait()


async def count(application: Application, seconds: float) -> float:
    """Return the bytes a second that an application moves."""
    loop = asyncio.get_running_loop()
    began, before = loop.time(), application.moved_bytes
    await asyncio.sleep(seconds)  # the time that is measured
    return (application.moved_bytes - before) / (loop.time() - began)


async def rest(application: Application, working: "asyncio.Task[None] | None") -> None:
    """End the work and release everything, however long the TaskManager has no place for it."""
    if working is not None:
        working.cancel()
        await asyncio.wait([working])
        if not working.cancelled() and (error := working.exception()) is not None:
            raise error
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            with contextlib.suppress(*FAILURES):
                await application.release()
                return
            await asyncio.sleep(PAUSE_SECONDS)


def as_command(load: Load | None, name: str, socket: Path, token: str) -> dict[str, Any]:
    """Return the command that makes a tenant begin; without a load it does nothing yet."""
    return {
        "token": token,
        "begin": None if load is None else asdict(load),
        "name": name,
        "socket": str(socket),
    }
