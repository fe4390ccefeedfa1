"""TaskManagers whose members are the addresses of a name, with a name server that changes them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import ReplicatePartition
from sluice.shuffle.taskmanager.cluster.watches import MAX_NEW_DIALS
from tests.support.daemon import sluice
from tests.support.extended import first_of
from tests.support.name_server import Dnsmasq, NameServer, resolving_with, why_no_resolver
from tests.support.named_cluster import NamedCluster
from tests.support.wire_clients import Client, consumer, producer, read_gate, write_map_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sluice.shuffle.taskmanager.cluster.members_status import WatchedMemberStatus
    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
    from tests.support.daemon import Daemon

pytestmark = pytest.mark.skipif(bool(why_no_resolver()), reason=why_no_resolver())

NAME = "taskmanagers.example"
WAIT_SECONDS = 60
QUIET_SECONDS = 3.0
"""Longer than the pauses in which a member that is away is dialed."""
TWO = ReplicatePartition(0, 2, True)
SHUFFLE = 1
DATA = [random.Random(number).randbytes(5_000) for number in range(4)]


@contextlib.contextmanager
def cluster_of(
    directory: Path, names: NameServer | Dnsmasq, **settings: object
) -> Iterator[NamedCluster]:
    cluster = NamedCluster(
        directory,
        resolving_with(names, directory),
        f"dns:{NAME}",
        log_level="debug",
        **settings,
    )
    try:
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
def names(tmp_path: Path) -> Iterator[NameServer]:
    with NameServer() as server:
        yield server


def host(number: int) -> str:
    return f"127.77.0.{number}"


def members(status: TaskManagerStatus) -> dict[str, WatchedMemberStatus]:
    """The members of a TaskManager by the host where they are watched."""
    return {each.watched_at.rpartition(":")[0]: each for each in status.cluster.members}


def presences(status: TaskManagerStatus) -> dict[str, str]:
    return {at: each.presence for at, each in members(status).items()}


def present(*hosts: str) -> Callable[[TaskManagerStatus], bool]:
    expected = dict.fromkeys(hosts, "present")
    return lambda status: presences(status) == expected


def map_outputs(status: TaskManagerStatus) -> int:
    return sum(each.committed_map_outputs for each in status.partitions)


async def until(daemon: Daemon, what: Callable[[TaskManagerStatus], object]) -> TaskManagerStatus:
    return await asyncio.to_thread(daemon.wait_until, what, WAIT_SECONDS)


class Writer:
    """Writes map outputs with a copy of each to one TaskManager, one after the other."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.written = 0

    async def __aenter__(self) -> Writer:
        self._stopping = False
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await self._task

    async def more(self, count: int) -> None:
        """Wait until ``count`` more are committed."""
        wanted = self.written + count
        async with asyncio.timeout(WAIT_SECONDS):
            while self.written < wanted:
                if self._task.done():
                    await self._task  # raises
                await asyncio.sleep(0.02)

    async def _run(self) -> None:
        client = await producer(self._daemon.address)
        while not self._stopping:
            await write(client, self.written)
            self.written += 1
        await client.close()


async def write(client: Client, attempt: int) -> None:
    data = DATA[attempt % len(DATA)]
    await write_map_output(client, SHUFFLE, attempt, [[data, b"%d" % attempt]], replicate=TWO)


async def check(daemon: Daemon, attempts: range, through: Daemon | None = None) -> None:
    """Read map outputs of a TaskManager, perhaps through another one."""
    client = await consumer((through or daemon).address)
    ack = structs.replace(
        client.ack,
        taskmanager_id=daemon.status().taskmanager_id,
        advertised_host=daemon.host,
        data_port=daemon.data_port,
    )
    found = [await read_gate(client, SHUFFLE, [(ack, [each])], 0, 2) for each in attempts]
    await client.close()
    assert found == [[DATA[each % len(DATA)] + b"%d" % each] for each in attempts]


async def write_some(daemon: Daemon, attempts: range) -> None:
    client = await producer(daemon.address)
    for attempt in attempts:
        await write(client, attempt)
    await client.close()


async def expect_no_dials(cluster: NamedCluster, *hosts: str) -> None:
    """Check that no process dials members that have left these hosts."""
    assert await asyncio.to_thread(cluster.dialed, hosts, QUIET_SECONDS) == []


@pytest.mark.parametrize("server", first_of(["small", "dnsmasq"]))
async def test_members_join_and_leave_while_map_outputs_are_written(tmp_path: Path, server: str):
    if server == "dnsmasq" and shutil.which("dnsmasq") is None:
        pytest.skip("dnsmasq is not installed (Debian: dnsmasq-base)")
    made = NameServer() if server == "small" else Dnsmasq(tmp_path)
    with made as names, cluster_of(tmp_path, names) as cluster:
        names.set(NAME, map(host, (1, 2, 3)))
        first, second, third = (cluster.add(host(number)) for number in (1, 2, 3))
        await until(first, present(host(2), host(3)))
        async with Writer(first) as writer:
            await writer.more(20)
            names.set(NAME, map(host, (1, 2, 3, 4, 5)))
            new = [await asyncio.to_thread(cluster.add, host(number)) for number in (4, 5)]
            for each in new:
                await until(each, lambda status: map_outputs(status) > 3)
                await until(each, lambda status: len(presences(status)) == 4)
            # Two leave as they should and one is killed; one of these keeps its record.
            for each in new:
                await asyncio.to_thread(each.drain, migrate=True)
                assert each.status().copies.staying == 0
                await asyncio.to_thread(each.end)
            await asyncio.to_thread(third.kill)
            names.set(NAME, map(host, (1, 2, 4)))
            await until(
                first, lambda status: presences(status) == {host(2): "present", host(4): "lost"}
            )
            await writer.more(20)
        names.set(NAME, map(host, (1, 2)))
        await until(first, present(host(2)))
        await until(second, present(host(1)))
        await expect_no_dials(cluster, *map(host, (3, 4, 5)))
        status = first.status()
        assert status.counters.map_outputs_committed >= writer.written
        await until(first, lambda status: not status.copies.short)
        await check(first, range(writer.written))
        await until(second, lambda status: map_outputs(status) == writer.written)
        await check(second, range(writer.written), through=first)


async def test_a_member_at_another_address_is_the_same(tmp_path: Path, names: NameServer):
    with cluster_of(tmp_path, names, lost_after_seconds=600) as cluster:
        names.set(NAME, map(host, (1, 2)))
        first, second = (cluster.add(host(number)) for number in (1, 2))
        await until(first, present(host(2)))
        await write_some(first, range(8))
        identity = second.status().taskmanager_id
        second.kill()
        cluster.move(second, host(9))
        names.set(NAME, map(host, (1, 9)))
        status = await until(first, present(host(9)))
        assert members(status)[host(9)].taskmanager_id == identity
        await check(second, range(8), through=first)
        assert "is lost" not in first.log
        assert status.counters.copies_made == 8, "it still has them"
        for each in (first, second):  # until the next lookup the name has the old address
            await until(each, lambda status: host(2) not in members(status))
        await expect_no_dials(cluster, host(2))


async def test_outputs_lost_in_a_move_are_copied_again(tmp_path: Path, names: NameServer):
    with cluster_of(tmp_path, names, lost_after_seconds=600) as cluster:
        names.set(NAME, map(host, (1, 2)))
        first, second = (cluster.add(host(number)) for number in (1, 2))
        await until(first, present(host(2)))
        await write_some(first, range(8))
        second.kill()
        second.lose_data(keeps_id=True)
        cluster.move(second, host(9))
        names.set(NAME, map(host, (1, 9)))
        await until(second, lambda status: map_outputs(status) == 8)
        await check(second, range(8), through=first)


async def test_moved_map_outputs_are_read_where_their_receiver_returns(
    tmp_path: Path, names: NameServer
):
    with cluster_of(tmp_path, names, lost_after_seconds=600) as cluster:
        names.set(NAME, map(host, (1, 2)))
        first, second = (cluster.add(host(number)) for number in (1, 2))
        await until(first, present(host(2)))
        await write_some(first, range(8))
        await asyncio.to_thread(first.drain, migrate=True)
        assert first.status().copies.moved == 8
        second.kill()
        status = await until(first, lambda status: not status.copies.moved)
        assert status.copies.staying == 8
        await check(first, range(8))
        cluster.move(second, host(9))
        names.set(NAME, map(host, (1, 9)))
        status = await until(first, lambda status: status.copies.moved == 8)
        assert status.copies.staying == 0
        with pytest.raises(RemoteError, match=rf"is at another TaskManager now.*{host(9)}"):
            await check(first, range(1))
        await check(second, range(8))


async def test_a_foreign_taskmanager_is_not_a_member(tmp_path: Path, names: NameServer):
    """No TaskManager of another cluster, and no other one before the member is lost."""
    secrets = [tmp_path / "secret", tmp_path / "other"]
    for each in secrets:
        sluice("secret", "create", str(each))
    with cluster_of(tmp_path, names, cluster_secret_files=secrets[0]) as cluster:
        names.set(NAME, map(host, (1, 2)))
        first = cluster.add(host(1), lost_after_seconds=600)
        hasty = cluster.add(host(3), lost_after_seconds=1)
        second = cluster.add(host(2))
        for one in (first, hasty):
            await until(one, lambda status: presences(status)[host(2)] == "present")
        second.kill()
        stranger = cluster.add(host(2), cluster_secret_files=secrets[1])
        await until(hasty, lambda status: presences(status)[host(2)] == "lost")
        await asyncio.to_thread(first.wait_for_log, "The credential is not accepted")
        assert presences(first.status())[host(2)] == "away"
        stranger.kill()
        heir = cluster.add(host(2))
        identity = heir.status().taskmanager_id
        status = await until(hasty, lambda status: presences(status)[host(2)] == "present")
        assert members(status)[host(2)].taskmanager_id == identity
        assert members(first.status())[host(2)].taskmanager_id != identity
        assert presences(first.status())[host(2)] == "away"


@pytest.mark.parametrize("fault", first_of(["fails", "is_silent"]))
async def test_members_stay_while_their_name_cannot_be_resolved(
    tmp_path: Path, names: NameServer, fault: str
):
    with cluster_of(tmp_path, names) as cluster:
        names.set(NAME, map(host, (1, 2)))
        first, _ = (cluster.add(host(number)) for number in (1, 2))
        await until(first, present(host(2)))
        setattr(names, fault, True)
        status = await until(first, lambda status: status.cluster.names_failing)
        assert presences(status) == {host(2): "present"}
        await write_some(first, range(4))
        assert first.status().counters.commits_without_copies == 0
        # What changes meanwhile is learned afterwards.
        names.set(NAME, map(host, (1, 2, 3)))
        setattr(names, fault, False)
        status = await until(first, lambda status: not status.cluster.names_failing)
        cluster.add(host(3))
        await until(first, present(host(2), host(3)))
        assert "can be resolved again" in first.log


async def test_ipv6_addresses_are_members(tmp_path: Path, names: NameServer):
    with cluster_of(tmp_path, names) as cluster:
        names.set(NAME, ["::1"])
        first = cluster.add(host(1))
        second = cluster.add("::1", http_host="127.0.0.1")
        status = await until(first, lambda status: list(presences(status).values()) == ["present"])
        (member,) = status.cluster.members
        assert member.watched_at == f"[::1]:{cluster.port}" == member.address
        await write_some(first, range(4))
        assert second.data_port == cluster.port
        assert first.status().counters.copies_made == 4


async def test_a_member_with_both_families_is_one(tmp_path: Path, names: NameServer):
    with cluster_of(tmp_path, names) as cluster:
        names.set(NAME, [host(2), "::1"])
        first = cluster.add(host(1))
        second = cluster.add(host(2), bind_host=f"{host(2)},::1")
        await until(first, lambda status: list(presences(status).values()) == ["present"])
        assert sum(each.role == "copier" for each in second.status().connections) == 1


async def test_hundreds_of_addresses_without_an_answer_cost_little(
    tmp_path: Path, names: NameServer
):
    dead = [f"127.78.{number // 250}.{number % 250 + 1}" for number in range(498)]
    with cluster_of(tmp_path, names, lost_after_seconds=600) as cluster:
        names.set(NAME, [*dead, host(1), host(2)])
        first, second = (cluster.add(host(number)) for number in (1, 2))
        assert names.tcp_questions, "500 addresses need TCP"
        status = await until(first, lambda status: presences(status).get(host(2)) == "present")
        await write_some(first, range(4))
        assert first.status().counters.commits_without_copies == 0
        status = await until(first, lambda status: len(status.cluster.members) == 499)
        assert status.copies.unreachable == 0, "nothing has ever answered there"
        for _ in range(50):
            assert len(os.listdir(f"/proc/{first.pid}/fd")) < MAX_NEW_DIALS + 100
            await asyncio.sleep(0.02)
        names.set(NAME, map(host, (1, 2)))
        await until(first, present(host(2)))
        await until(second, present(host(1)))
        await expect_no_dials(cluster, *dead[:400])
        await check(second, range(4), through=first)
