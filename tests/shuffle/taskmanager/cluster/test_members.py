"""The addresses of members: configured, resolved and reported."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.cluster import members as members_module
from sluice.shuffle.taskmanager.cluster.members import Members
from sluice.transport.address import Address
from sluice.transport.member_address import DnsName
from tests.support.mini_cluster import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = DnsName("sluice.test", 7337)
FIXED = Address("fixed", 7337)


class Resolver:
    """Answers every question with the current hosts, or fails."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.error: OSError | None = None
        self.hangs = False
        self.questions = 0

    async def __call__(self, name: str, port: int) -> Sequence[tuple[str, int]]:
        self.questions += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return [(host, port) for host in self.hosts]


class Rig:
    """Members that are resolved at once when one is gone."""

    def __init__(
        self, *hosts: str, sources: Sequence[Address | DnsName] = (NAME,), interval: float = 600
    ) -> None:
        self.resolver = Resolver(*hosts)
        self.changes = 0
        self.members = Members(sources, interval, self.changed, self.resolver)

    def changed(self) -> None:
        self.changes += 1

    def hosts(self) -> set[str]:
        return {address.host for address in self.members.addresses}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "LEAST_PAUSE_SECONDS", 0)


async def test_members_follow_a_name_and_stay_where_they_are_configured():
    rig = Rig("a", "b", "c", sources=(FIXED, NAME, NAME))
    assert rig.hosts() == {"fixed"}
    rig.members.start()
    await rig.members.first_answer()
    assert rig.hosts() == {"fixed", "a", "b", "c"}
    assert rig.changes == 1
    rig.resolver.hosts = ("b", "c", "d", "e", "f")
    rig.members.member_gone()
    await eventually(lambda: rig.hosts() == {"fixed", "b", "c", "d", "e", "f"})
    rig.resolver.hosts = ("f",)
    rig.members.member_gone()
    await eventually(lambda: rig.hosts() == {"fixed", "f"})
    assert rig.changes == 3
    await rig.members.close()


async def test_a_name_is_resolved_at_the_interval():
    rig = Rig("a", interval=0.001)
    rig.members.start()
    await eventually(lambda: rig.resolver.questions >= 3)
    assert rig.changes == 1, "the answer is the same"
    await rig.members.close()


async def test_members_that_are_gone_together_cost_one_lookup(monkeypatch):
    monkeypatch.setattr(members_module, "LEAST_PAUSE_SECONDS", 600)
    rig = Rig("a")
    rig.members.start()
    await rig.members.first_answer()
    for _ in range(100):
        rig.members.member_gone()
        await asyncio.sleep(0)
    assert rig.resolver.questions == 1
    await rig.members.close()


async def test_a_name_that_fails_keeps_its_addresses(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    rig = Rig("a", "b")
    rig.members.start()
    await rig.members.first_answer()
    rig.resolver.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    rig.members.member_gone()
    await eventually(lambda: rig.resolver.questions == 2)
    rig.members.member_gone()
    await eventually(lambda: rig.resolver.questions == 3)
    await eventually(lambda: rig.members.failing == 1)
    assert rig.hosts() == {"a", "b"}
    rig.resolver.error, rig.resolver.hosts = None, ("b",)
    rig.members.member_gone()
    await eventually(lambda: rig.hosts() == {"b"})
    assert rig.members.failing == 0
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "dns:sluice.test:7337 cannot be resolved, so its last addresses (2) stay members: "
        "[Errno -3] Temporary failure in name resolution",
        "dns:sluice.test:7337 can be resolved again",
    ]
    await rig.members.close()


async def test_a_hanging_name_service_delays_until_the_deadline(monkeypatch):
    monkeypatch.setattr(members_module, "LOOKUP_SECONDS", 0.01)
    rig = Rig("a")
    rig.resolver.hangs = True
    rig.members.start()
    await rig.members.first_answer()
    assert rig.members.failing == 1
    assert rig.hosts() == set()
    await rig.members.close()


async def test_closing_ends_the_wait_for_the_first_answer():
    rig = Rig("a")
    rig.resolver.hangs = True
    rig.members.start()
    waiting = asyncio.ensure_future(rig.members.first_answer())
    await asyncio.sleep(0)
    await rig.members.close()
    await waiting


async def test_reported_members_are_any_taskmanager_only_if_they_are_listed_too():
    rig = Rig(sources=(FIXED,))
    rig.members.start()
    await rig.members.first_answer()
    place = TaskManagerPlace("tm-2", "reported", 7337)
    rig.members.report(place)
    rig.members.report(place)
    rig.members.report(TaskManagerPlace("tm-1", *FIXED))
    rig.members.report(TaskManagerPlace("tm-3", "/run/sluice.sock", 0))
    assert rig.members.addresses == {FIXED: None, place.address: place}
    assert rig.changes == 1
    rig.members.drop_report(place.address, "tm-2")
    rig.members.drop_report(place.address, "tm-2")
    assert rig.members.addresses == {FIXED: None}
    assert rig.changes == 2


async def test_reports_and_answers_are_bounded(monkeypatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(members_module, "MAX_ADDRESSES", 3)
    monkeypatch.setattr(members_module, "MAX_REPORTED", 3)
    rig = Rig(*"abcde")
    rig.members.start()
    await rig.members.first_answer()
    assert len(rig.hosts()) == 3
    for number in range(5):
        rig.members.report(TaskManagerPlace(f"tm-{number}", f"host-{number}", 7337))
    assert len(rig.hosts()) == 6
    assert "has 5 addresses, but only 3 are used" in caplog.text
    assert "members have already reported 3 others" in caplog.text
    await rig.members.close()


async def test_the_name_of_a_resolved_address_is_known():
    rig = Rig("a", "b", sources=(Address("a", 7337), DnsName("sluice.test.", 7337)))
    rig.members.start()
    await rig.members.first_answer()
    hosts = {address.host: rig.members.host_of(address) for address in rig.members.addresses}
    assert hosts == {"a": "a", "b": "sluice.test"}, "a is configured by its own address"
    assert rig.members.host_of(Address("c", 7337)) == "c"
    await rig.members.close()
