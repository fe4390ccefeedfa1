"""Attacks on the memory of a TaskManager: claims, unread answers, crowds that come and go.

Resident memory of the process is looked at, and the C library keeps what was freed for its next
use. So the first crowd may leave something behind; a second one like it must take (almost) nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.limits import MAX_CONTROL_BYTES
from sluice.protocol.schema import OpenPartition, PartitionOpened, Ping, encode
from tests.attack.hostile import Hostile
from tests.attack.rig import (
    ALICE,
    BOB,
    SHUFFLE,
    SLACK_BYTES,
    application,
    commit,
    new_name,
    producer,
    read,
    resident_bytes,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.attack.rig import Application, AttackedDaemon, Cluster
    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

CROWD = 200
MIB = 1 << 20
RECORDS = b"the records of the victim " * 1000

_attempts = itertools.count(1)


async def victim_is_served(daemon: AttackedDaemon, victim: Application) -> None:
    """Write a map output, and read it."""
    attempt = next(_attempts)
    await commit(daemon.address, victim, attempt, RECORDS)
    assert await read(daemon.address, victim, [attempt]) == RECORDS


async def most_resident_bytes(
    daemon: AttackedDaemon,
    victim: Application,
    crowd: Callable[[], contextlib.AbstractAsyncContextManager[None]],
) -> int:
    """Let a crowd come and go, with a victim in its midst; return the memory while it was there."""
    async with crowd():
        await victim_is_served(daemon, victim)
        most = resident_bytes(daemon)
    await victim_is_served(daemon, victim)
    return most


async def two_crowds(
    daemon: AttackedDaemon,
    victim: Application,
    crowd: Callable[[], contextlib.AbstractAsyncContextManager[None]],
    limit_bytes: int,
) -> None:
    """Check the memory that a crowd takes, and that a second one takes (almost) nothing."""
    await victim_is_served(daemon, victim)
    before = resident_bytes(daemon)
    first = await most_resident_bytes(daemon, victim, crowd)
    assert first - before < limit_bytes + SLACK_BYTES
    second = await most_resident_bytes(daemon, victim, crowd)
    assert second - first < SLACK_BYTES
    assert resident_bytes(daemon) - first < SLACK_BYTES


def a_claim(control_bytes: int) -> bytes:
    """Return the first bytes of a frame that announces a long control part, and no more."""
    return control_bytes.to_bytes(4) + bytes(4) + b"\x96\x16\x01\x02"


@contextlib.asynccontextmanager
async def entered(
    daemon: AttackedDaemon, attacker: Application, count: int
) -> AsyncIterator[list[Client]]:
    """Give connections of an attacker who has proven who it is; they are reset at the end."""
    clients = [await producer(daemon.address, attacker) for _ in range(count)]
    yield clients
    for client in clients:
        client.vanish()
    for client in clients:
        await client.until_lost()


def write_raw(client: Client, data: bytes) -> None:
    transport = client.connection._transport
    assert transport is not None
    transport.write(data)


# ---- claims ----------------------------------------------------------------------------------


@one_loop
async def test_a_control_part_that_is_only_announced_takes_no_memory(
    cluster: Cluster, victim: Application
) -> None:
    """A claim of 4 MiB each: before, 200 connections took 800 MiB."""
    attacker = application(BOB, new_name())

    @contextlib.asynccontextmanager
    async def crowd() -> AsyncIterator[None]:
        async with entered(cluster.first, attacker, CROWD) as clients:
            for client in clients:
                write_raw(client, a_claim(MAX_CONTROL_BYTES))
            yield

    await two_crowds(cluster.first, victim, crowd, CROWD * 64 * 1024)


@one_loop
async def test_a_stranger_takes_a_few_kib(cluster: Cluster, victim: Application) -> None:
    @contextlib.asynccontextmanager
    async def crowd() -> AsyncIterator[None]:
        strangers = [await Hostile.at(cluster.first) for _ in range(CROWD)]
        for stranger in strangers:
            stranger.send_bytes(a_claim(4000))
        yield
        for stranger in strangers:
            stranger.abort()

    await two_crowds(cluster.first, victim, crowd, CROWD * 32 * 1024)


@one_loop
async def test_an_open_map_output_takes_the_same_for_any_number_of_subpartitions(
    cluster: Cluster, victim: Application
) -> None:
    """Ten thousand of a million subpartitions."""
    attacker = application(BOB, new_name())
    each = 1000

    @contextlib.asynccontextmanager
    async def crowd() -> AsyncIterator[None]:
        async with entered(cluster.first, attacker, 10) as clients:
            for number, client in enumerate(clients):
                opening = (
                    OpenPartition(at, SHUFFLE, number * each + at, 1_000_000) for at in range(each)
                )
                write_raw(client, b"".join(map(encode, opening)))
            for client in clients:
                for _ in range(each):
                    assert isinstance(await client.expect(PartitionOpened), PartitionOpened)
            yield

    await two_crowds(cluster.first, victim, crowd, 10 * each * 2048)


# ---- unread answers --------------------------------------------------------------------------


@one_loop
async def test_pings_whose_pongs_are_never_read_are_cut_off(
    cluster: Cluster, victim: Application
) -> None:
    """Before, 40 MiB of pings took 274 MiB."""
    daemon, attacker = cluster.first, application(ALICE, new_name())
    await victim_is_served(daemon, victim)
    before = resident_bytes(daemon)
    client = await producer(daemon.address, attacker)
    transport = client.connection._transport
    assert transport is not None
    transport.pause_reading()
    name = "{}:{}".format(*transport.get_extra_info("sockname")[:2])
    since = len(daemon.lines)
    most = before
    pings = encode(Ping(0)) * 10_000
    sent = 0
    while client.lost is None and sent < 64 * MIB:
        if transport.get_write_buffer_size() < MIB:
            transport.write(pings)
            sent += len(pings)
        await asyncio.sleep(0.001)
        most = max(most, resident_bytes(daemon))
    assert client.lost is not None, "the daemon goes on answering"
    assert "does not read" in await daemon.logs(name, since)
    await victim_is_served(daemon, victim)
    assert most - before < SLACK_BYTES
