"""TaskManagers learn of each other by reports, and report all members to drivers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from sluice.protocol.errors import ErrorCode
from sluice.protocol.limits import MEMBERS
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    MEMBER_DRAINING,
    ROLE_COPIER,
    ROLE_DRIVER,
    ROLE_PRODUCER,
    CheckOutputs,
    ErrorResponse,
    MemberReport,
    OutputsChecked,
    Ping,
    Pong,
)
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.cluster import members, watches
from sluice.transport.errors import ConnectFailed
from tests.support.free_ports import free_ports
from tests.support.members import member_report
from tests.support.mini_cluster import MiniCluster, eventually
from tests.support.raw_client import RawClient
from tests.support.wire_clients import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from sluice.shuffle.taskmanager.cluster.taskmanager_watch import TaskManagerWatch
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from sluice.transport.address import Address

QUICK = {"lost_after_seconds": 0.5, "close_timeout_seconds": 0.2}


@contextlib.asynccontextmanager
async def chain(directory: Path, count: int, **settings: object) -> AsyncIterator[MiniCluster]:
    """Run TaskManagers that are configured with the first one only, each at its own host."""
    cluster = MiniCluster(directory)
    try:
        for _ in range(count):
            await add(cluster, **settings)
        yield cluster
    finally:
        for client in cluster.clients:
            if client.lost is None:
                await client.close()
        for environment in cluster.environments:
            await environment.close()


async def add(cluster: MiniCluster, **settings: object) -> NetworkEnvironment:
    seeds = (str(cluster[0].address),) if cluster.environments else ()
    own = QUICK | {"hosts_apart": True, "taskmanagers": seeds, **settings}
    environment = await cluster.start_one(len(cluster.environments), own)
    cluster.environments.append(environment)
    return environment


def seen_by(environment: NetworkEnvironment) -> set[str]:
    """The members that a TaskManager has reached."""
    watched = environment.copies.services.watches.members.values()
    return {
        each.place.taskmanager_id
        for each in watched
        if each.place is not None and each.presence.value == "present"
    }


def has(watched: Mapping[Address, TaskManagerWatch], count: int) -> bool:
    return len(watched) == count


async def until_complete(cluster: MiniCluster) -> None:
    ids = {each.taskmanager_id for each in cluster.environments}
    await eventually(
        lambda: all(seen_by(each) == ids - {each.taskmanager_id} for each in cluster.environments),
        "all see all",
    )


async def reported_to(client: Client, ids: set[str], state: int | None = None) -> set[str]:
    """Take reports until these have come."""
    found: set[str] = set()
    while not ids <= found:
        report = await client.expect(MemberReport)
        assert isinstance(report, MemberReport)
        if state in (None, report.state):
            found.add(report.taskmanager_id)
    return found


@pytest.fixture
async def connect_raw() -> AsyncIterator[Callable[..., Awaitable[RawClient]]]:
    """Connect as a TaskManager that watches another one, or in another role."""
    clients: list[RawClient] = []

    async def connect(
        to: NetworkEnvironment, role: int = ROLE_COPIER, application_id: str = ""
    ) -> RawClient:
        clients.append(await RawClient.connect(to.address))
        await clients[-1].greet(role, application_id, features=MEMBERS)
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


async def test_members_that_report_each_other_find_all(tmp_path: Path):
    async with chain(tmp_path, 3) as cluster:
        await until_complete(cluster)
        await add(cluster)
        await until_complete(cluster)
        for each in cluster.environments:
            assert len(each.copies.services.watches.members) == 3, "one watch of each"


async def test_a_driver_gets_all_members_and_changes(tmp_path: Path):
    async with chain(tmp_path, 3) as cluster:
        await until_complete(cluster)
        address = cluster[1].address
        driver = await Client.connect(address, ROLE_DRIVER, features=MEMBERS)
        old = await Client.connect(address, ROLE_DRIVER, "old")
        cluster.clients += [driver, old]
        await reported_to(driver, {each.taskmanager_id for each in cluster.environments})
        joined = await add(cluster)
        await reported_to(driver, {joined.taskmanager_id})
        for each in (joined, cluster[1], cluster[0]):
            each.drain()
            await reported_to(driver, {each.taskmanager_id}, MEMBER_DRAINING)
        old.send(CheckOutputs(7, 1, [1]))
        kinds = set()
        while OutputsChecked not in kinds:
            message, _ = await old.receive()
            kinds.add(type(message))
        assert MemberReport not in kinds


async def test_a_taskmanager_in_its_own_list_reports_itself_once(tmp_path: Path):
    own = free_ports(1, "127.0.0.1")
    async with chain(tmp_path, 1, data_port=own, taskmanagers=(f"127.0.0.1:{own}",)) as cluster:
        watches = cluster[0].copies.services.watches
        await eventually(lambda: cluster[0].copies.members_status().dials and not watches.members)
        cluster[0].drain()
        driver = await Client.connect(cluster[0].address, ROLE_DRIVER, features=MEMBERS)
        cluster.clients.append(driver)
        driver.send(CheckOutputs(7, 1, [1]))
        states = []
        while True:
            message, _ = await driver.receive()
            if isinstance(message, OutputsChecked):
                break
            if isinstance(message, MemberReport):
                states.append(message.state)
        assert states == [MEMBER_DRAINING]


async def test_a_member_that_leaves_is_forgotten_by_all(tmp_path: Path):
    async with chain(tmp_path, 4) as cluster:
        await until_complete(cluster)
        gone = cluster.environments.pop()
        await gone.close()
        await until_complete(cluster)
        for each in cluster.environments[1:]:
            watched = each.copies.services.watches.members
            await eventually(functools.partial(has, watched, 2), "it is lost")
            assert gone.taskmanager_id not in each.reports.members
        dials = [each.copies.members_status().dials for each in cluster.environments]
        await asyncio.sleep(0.5)  # no event tells that nobody dials
        assert dials == [each.copies.members_status().dials for each in cluster.environments]


async def test_a_flood_of_reports_is_bounded(tmp_path: Path, monkeypatch, caplog, connect_raw):
    monkeypatch.setattr(members, "MAX_REPORTED", 300)
    async with chain(tmp_path, 2, connect_timeout_seconds=1) as cluster:
        await until_complete(cluster)
        victim = cluster[0]
        hostile = await connect_raw(victim)
        longest, before = 0.0, time.monotonic()
        for number in range(3000):
            host = f"127.79.{number // 250}.{number % 250 + 1}"
            place = TaskManagerPlace(f"claimed-{number}", host, 9)
            hostile.send_message(member_report(place))
            if number % 50 == 0:
                await asyncio.sleep(0)
                longest, before = max(longest, time.monotonic() - before), time.monotonic()
        hostile.send_message(Ping(1))
        await hostile.expect(Pong)
        status = victim.copies.members_status()
        assert len(status.members) <= 301
        assert len(caplog.records) < 50, "a flood does not fill the log"
        assert seen_by(victim) == {cluster[1].taskmanager_id}
        assert [each.taskmanager_id for each in status.members if each.taskmanager_id] == [
            cluster[1].taskmanager_id
        ], "a claim is not shown as a member"
        await eventually(lambda: len(victim.copies.members_status().members) == 1, "forgotten")
        # There is room again for those that exist.
        await add(cluster)
        await until_complete(cluster)


async def test_claims_about_this_one_and_about_present_members_change_nothing(
    tmp_path: Path, connect_raw
):
    async with chain(tmp_path, 3) as cluster:
        await until_complete(cluster)
        victim = cluster[0]
        before = victim.copies.members_status()
        hostile = await connect_raw(victim)
        for taskmanager_id in (victim.taskmanager_id, *seen_by(victim)):
            for host in ("127.79.0.1", "", "no such host", "0.0.0.0", "127.0.0.1"):
                place = TaskManagerPlace(taskmanager_id, host, 9)
                hostile.send_message(member_report(place))
        hostile.send_message(member_report(TaskManagerPlace("new", "127.79.0.1", 0)))
        hostile.send_message(Ping(1))
        await hostile.expect(Pong)
        after = victim.copies.members_status()
        assert structs.replace(after, members=()) == structs.replace(before, members=())
        assert {each.watched_at for each in after.members} == {
            each.watched_at for each in before.members
        }


@pytest.mark.parametrize(
    ("role", "application_id"),
    [(ROLE_COPIER, "app"), (ROLE_PRODUCER, "app"), (ROLE_DRIVER, "app")],
)
async def test_only_a_taskmanager_that_watches_may_report(
    tmp_path: Path, role: int, application_id: str, connect_raw
):
    async with chain(tmp_path, 1) as cluster:
        hostile = await connect_raw(cluster[0], role, application_id)
        hostile.send_message(member_report(TaskManagerPlace("new", "127.79.0.1", 9)))
        refused = await hostile.expect(ErrorResponse)
        assert isinstance(refused, ErrorResponse)
        assert RemoteError(refused).code is ErrorCode.UNEXPECTED_MESSAGE
        assert cluster[0].copies.members_status().members == ()


async def test_reported_addresses_outside_the_peer_networks_are_not_dialed(
    tmp_path: Path, connect_raw
):
    dialed: list[tuple[str, int]] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialed.append(writer.get_extra_info("sockname"))
        writer.close()

    servers = [await asyncio.start_server(note, host, 0) for host in ("127.79.0.1", "127.0.0.1")]
    async with chain(tmp_path, 1, peer_networks="127.0.0.0/24") as cluster:
        hostile = await connect_raw(cluster[0])
        for number, server in enumerate(servers):
            host, port = server.sockets[0].getsockname()
            hostile.send_message(member_report(TaskManagerPlace(f"claim-{number}", host, port)))
        await eventually(lambda: dialed, "the address inside is dialed")
        dials = cluster[0].copies.members_status().dials
        await eventually(lambda: cluster[0].copies.members_status().dials > dials)
        assert {host for host, _ in dialed} == {"127.0.0.1"}
    for server in servers:
        server.close()
        await server.wait_closed()


async def test_addresses_without_an_answer_are_dialed_a_few_at_a_time(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(watches, "MAX_NEW_DIALS", 3)
    running, most = 0, 0

    async def silent(self: object, address: Address, member_name: str | None) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.01)
        finally:
            running -= 1
        raise ConnectFailed("nobody is there")

    seeds = tuple(f"127.79.0.{number}:9" for number in range(1, 40))
    monkeypatch.setattr(
        "sluice.shuffle.taskmanager.cluster.peer_connector.PeerConnector.watch", silent
    )
    async with chain(tmp_path, 1, taskmanagers=seeds) as cluster:
        await eventually(lambda: cluster[0].copies.members_status().dials >= len(seeds))
        assert most == 3
