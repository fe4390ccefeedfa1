"""The watches of one TaskManager on the members of its cluster, and on holders of copies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.cluster import taskmanager_watch, watches
from sluice.shuffle.taskmanager.cluster.known_taskmanagers import KnownTaskManagers
from sluice.shuffle.taskmanager.cluster.members import Members
from sluice.shuffle.taskmanager.cluster.members_status import WatchedMemberStatus
from sluice.shuffle.taskmanager.cluster.taskmanager_watch import Presence
from sluice.shuffle.taskmanager.cluster.watches import Watches
from sluice.transport.address import Address
from sluice.transport.member_address import DnsName
from tests.support.members import member_report, reports_of
from tests.support.mini_cluster import eventually

A, B, C = (Address(f"127.0.0.{number}", 7337) for number in (1, 2, 3))
NAMED = TaskManagerPlace("tm-2", *B)
SILENT = TaskManagerPlace("tm-3", *C)


class FakeLeg:
    """A connection to a TaskManager, until it is stopped."""

    def __init__(self, place: TaskManagerPlace) -> None:
        self.place = place
        self.stopped = asyncio.Event()

    async def until_ended(self, ping_seconds: float) -> None:
        await self.stopped.wait()

    def close(self) -> None:
        """Do nothing: the test looks at the watches."""


class Rig:
    """The watches of a TaskManager in a network of fakes."""

    def __init__(self, *sources: Address, lost_after_seconds: float = 600) -> None:
        self.running: dict[Address, TaskManagerPlace] = {}
        self.legs: dict[Address, FakeLeg] = {}
        self.dials: list[Address] = []
        self.changes: list[tuple[str, Presence]] = []
        self.before = Presence.UNKNOWN
        self.known = KnownTaskManagers("own", Accounts())
        self.reports = reports_of()
        self.watches = Watches(
            self.known, self.reports, self.connect, lost_after_seconds, self.changed
        )
        self.sources: set[Address] = set(sources)
        self.members = Members(tuple(sources), 600, self.watches.members_changed)

    def start(
        self, taskmanager_id: str, address: Address, advertised: Address | None = None
    ) -> None:
        self.running[address] = TaskManagerPlace(taskmanager_id, *(advertised or address))

    def stop(self, address: Address) -> None:
        del self.running[address]
        leg = self.legs.pop(address, None)
        if leg is not None:
            leg.stopped.set()

    async def connect(self, address: Address, member_name: str | None) -> Any:
        self.dials.append(address)
        if address == SILENT.address and address not in self.running:
            await asyncio.Event().wait()
        if address not in self.running:
            raise SluiceError("Nothing listens there", code=ErrorCode.CONNECT_FAILED)
        leg = self.legs[address] = FakeLeg(self.running[address])
        return leg

    def changed(self, place: TaskManagerPlace, now: Presence, before: Presence) -> None:
        self.changes.append((place.taskmanager_id, now))
        self.before = before

    def lists(self, *addresses: Address) -> None:
        """Let the name have these addresses from now on."""
        self.members._resolved = {DnsName("sluice.test", 7337): frozenset(addresses)}
        self.members._update()

    def presences(self) -> dict[Address, str]:
        return {each: watch.presence.value for each, watch in self.watches.members.items()}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskmanager_watch, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(taskmanager_watch, "LONGEST_PAUSE_SECONDS", 0.01)


async def test_taskmanagers_that_do_not_answer_are_counted_until_they_are_forgotten():
    rig = Rig(A)
    rig.watches.watch_members(rig.members)
    rig.watches.watch(SILENT)
    assert rig.watches.unreachable == 0, "none has been tried"
    await rig.watches.find_members()
    assert rig.watches.unreachable == 1
    rig.watches.watch(NAMED)
    await eventually(lambda: rig.watches.unreachable == 2)
    rig.watches.keep(())
    assert rig.watches.unreachable == 1
    await rig.watches.close()
    assert rig.watches.unreachable == 0


async def test_members_join_and_those_that_left_are_no_longer_dialed():
    rig = Rig(lost_after_seconds=0.01)
    rig.watches.watch_members(rig.members)
    rig.start("tm-1", A)
    rig.start("tm-2", B)
    rig.lists(A, B)
    await rig.watches.find_members()
    assert set(rig.known.places_of("app")) == {"tm-1", "tm-2"}
    rig.lists(A)
    assert rig.presences() == {A: "present", B: "present"}, "it is still there"
    rig.stop(B)
    await eventually(lambda: rig.presences() == {A: "present"})
    assert ("tm-2", Presence.LOST) in rig.changes
    assert set(rig.known.places_of("app")) == {"tm-1"}
    dials = len(rig.dials)
    await asyncio.sleep(0.05)
    assert len(rig.dials) == dials
    await rig.watches.close()


async def test_a_member_that_returns_at_another_address_is_the_same():
    rig = Rig()
    rig.watches.watch_members(rig.members)
    rig.start("tm-1", A)
    rig.lists(A)
    await rig.watches.find_members()
    rig.stop(A)
    await eventually(lambda: rig.presences() == {A: "away"})
    rig.start("tm-1", B)
    rig.lists(B)
    await eventually(lambda: rig.presences() == {B: "present"})
    assert rig.known.place_for("app", "tm-1") == TaskManagerPlace("tm-1", *B)
    assert ("tm-1", Presence.LOST) not in rig.changes
    assert rig.before is Presence.AWAY, "it may have lost map outputs, so it is asked for them"
    # Another TaskManager may be at its old address at once, before the first one is lost.
    rig.start("tm-2", A)
    rig.lists(A, B)
    await eventually(lambda: rig.presences() == {A: "present", B: "present"})
    assert set(rig.known.places_of("app")) == {"tm-1", "tm-2"}
    await rig.watches.close()


async def test_a_foreign_taskmanager_at_an_address_replaces_only_a_lost_member():
    rig = Rig(A)
    rig.watches.watch_members(rig.members)
    rig.start("tm-1", A)
    await rig.watches.find_members()
    rig.stop(A)
    rig.start("foreign", A)
    dials = len(rig.dials)
    await eventually(lambda: len(rig.dials) > dials + 3)
    assert rig.presences() == {A: "away"}
    assert rig.known.place_for("app", "foreign") is None
    await rig.watches.close()


async def test_two_addresses_of_a_member_are_one_watch():
    """As with a name that has the IPv4 and the IPv6 address of each TaskManager."""
    rig = Rig()
    rig.watches.watch_members(rig.members)
    rig.start("tm-1", A)
    rig.start("tm-1", B, advertised=A)
    rig.lists(A, B)
    await eventually(lambda: list(rig.presences().values()) == ["present"])
    [watched] = rig.presences()
    other = B if watched == A else A
    rig.stop(watched)
    await eventually(lambda: rig.presences().get(other) == "present")
    assert ("tm-1", Presence.LOST) not in rig.changes
    assert rig.watches.unreachable == 0, "it is reached, if not at every address"
    await rig.watches.close()


async def test_this_taskmanager_does_not_watch_itself():
    rig = Rig(A)
    rig.start("own", A)
    rig.watches.watch_members(rig.members)
    await eventually(lambda: not rig.presences())
    rig.lists(A)
    assert rig.presences() == {}
    assert rig.known.places_of("app") == {}
    await rig.watches.close()


async def test_reported_members_are_used_after_they_have_proved_themselves():
    rig = Rig(lost_after_seconds=0.05)
    rig.watches.watch_members(rig.members)
    rig.start("foreign", A)
    rig.start("tm-2", B)
    rig.watches.reported(TaskManagerPlace("tm-1", *A))
    rig.watches.reported(TaskManagerPlace("tm-2", *B))
    rig.watches.reported(TaskManagerPlace("own", *C))
    await eventually(lambda: rig.presences().get(B) == "present")
    assert C not in rig.presences()
    await eventually(lambda: rig.presences() == {B: "present"})
    assert set(rig.known.places_of("app")) == {"tm-2"}
    # A TaskManager that is still present has not moved, even if others report that.
    rig.watches.reported(TaskManagerPlace("tm-2", *C))
    assert rig.presences() == {B: "present"}
    await rig.watches.close()


async def test_reports_of_a_member_that_left_are_forgotten():
    rig = Rig(lost_after_seconds=0.01)
    rig.watches.watch_members(rig.members)
    rig.start("tm-2", B)
    rig.watches.reported(NAMED)
    await eventually(lambda: rig.presences() == {B: "present"})
    rig.reports.received(member_report(NAMED, "node-2", "zone-2"), NAMED)
    assert rig.reports.location_of(NAMED) == ("node-2", "zone-2")
    rig.stop(B)
    await eventually(lambda: not rig.presences())
    assert rig.reports.location_of(NAMED) == (NAMED.host, "")
    assert rig.members.addresses == {}
    await rig.watches.close()


async def test_a_member_that_was_reported_and_listed_is_forgotten_when_it_left():
    rig = Rig(lost_after_seconds=0.05)
    rig.watches.watch_members(rig.members)
    rig.start("tm-2", B)
    rig.watches.reported(NAMED)
    rig.lists(B)
    rig.watches.reported(NAMED)
    await eventually(lambda: rig.presences() == {B: "present"})
    rig.stop(B)
    await eventually(lambda: rig.presences() == {B: "lost"} or not rig.presences())
    rig.lists()
    await eventually(lambda: not rig.presences())
    assert rig.members.addresses == {}
    await rig.watches.close()


async def test_a_listed_member_that_was_reported_too_is_forgotten_when_it_left():
    rig = Rig(lost_after_seconds=0.05)
    rig.watches.watch_members(rig.members)
    rig.start("tm-2", B)
    rig.lists(B)
    await eventually(lambda: rig.presences() == {B: "present"})
    rig.members._listed = frozenset()  # the report came first, and then the name had the address
    rig.members.report(NAMED)
    rig.lists(B)
    rig.stop(B)
    await eventually(lambda: rig.presences() == {B: "lost"})
    rig.lists()
    await eventually(lambda: not rig.presences())
    await rig.watches.close()


async def test_a_claim_is_not_shown_as_a_member():
    rig = Rig()
    rig.watches.watch_members(rig.members)
    rig.start("foreign", B)
    rig.watches.reported(NAMED)
    await eventually(lambda: rig.presences() == {B: "away"})
    (member,) = rig.watches.status("node", "zone").members
    assert (member.taskmanager_id, member.address, member.http_port) == ("", "", 0)
    rig.stop(B)
    rig.start("tm-2", B)
    await eventually(lambda: rig.presences() == {B: "present"})
    rig.reports.received(member_report(NAMED, "node-2", "zone-2"), NAMED)
    status = rig.watches.status("node", "zone")
    (member,) = status.members
    assert member == WatchedMemberStatus(
        "tm-2", str(B), str(B), 7338, "node-2", "zone-2", "present", False, 1 << 30
    )
    assert status.dials == len(rig.dials)
    await rig.watches.close()


async def test_copies_do_not_wait_for_a_member_that_hangs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watches, "FIND_SECONDS", 0.01)
    rig = Rig(SILENT.address)
    rig.watches.watch_members(rig.members)
    await rig.watches.find_members()
    assert rig.presences() == {SILENT.address: "unknown"}
    await rig.watches.close()


async def test_listed_members_are_watched_until_the_end(monkeypatch: pytest.MonkeyPatch):
    rig = Rig(A, B)
    rig.watches.watch_members(rig.members)
    await rig.watches.close()
    rig.members.report(SILENT)
    rig.watches.reported(SILENT)
    assert rig.presences() == {}


async def test_a_taskmanager_that_replaced_a_lost_member_is_used_there():
    rig = Rig(lost_after_seconds=0.05)
    rig.watches.watch_members(rig.members)
    rig.start("tm-1", A)
    rig.watches.reported(TaskManagerPlace("tm-1", *A))
    await eventually(lambda: rig.presences() == {A: "present"})
    rig.stop(A)
    rig.start("tm-9", A)
    await eventually(lambda: rig.presences() == {A: "away"})
    rig.watches.reported(TaskManagerPlace("tm-9", *A))  # it introduces itself once
    await eventually(lambda: set(rig.known.places_of("app")) == {"tm-9"})
    assert ("tm-1", Presence.LOST) in rig.changes
    await rig.watches.close()


async def test_reports_in_a_loop_do_not_make_it_dial_in_a_loop():
    rig = Rig()
    rig.watches.watch_members(rig.members)
    for _ in range(200):
        rig.watches.reported(TaskManagerPlace("tm-1", *A))
        await asyncio.sleep(0.001)
    assert len(rig.dials) < 60, len(rig.dials)
    await rig.watches.close()


async def test_a_lost_member_is_forgotten_when_another_one_has_its_address():
    rig = Rig(A, lost_after_seconds=0.02)
    rig.watches.watch_members(rig.members)
    rig.start("tm-1", A, advertised=B)
    await rig.watches.find_members()
    rig.reports.received(member_report(TaskManagerPlace("tm-1", *B)), TaskManagerPlace("tm-1", *B))
    rig.stop(A)
    await eventually(lambda: rig.presences() == {A: "lost"})
    assert rig.reports.members == {}, "others are not told of it"
    rig.start("tm-9", A, advertised=C)
    await eventually(lambda: "tm-9" in rig.known.places_of("app"))
    assert set(rig.known.places_of("app")) == {"tm-9"}
    await rig.watches.close()
