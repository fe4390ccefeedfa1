"""The queue of map outputs that lack copies: none is forgotten, and none blocks another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from sluice.shuffle.counters import Counters
from sluice.shuffle.names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.bounds.owner_slots import OwnerSlots
from sluice.shuffle.taskmanager.bounds.rate_limit import RateLimit
from sluice.shuffle.taskmanager.cluster.known_taskmanagers import KnownTaskManagers
from sluice.shuffle.taskmanager.cluster.members import Members
from sluice.shuffle.taskmanager.cluster.placement import Placement
from sluice.shuffle.taskmanager.cluster.taskmanager_watch import Presence
from sluice.shuffle.taskmanager.cluster.watches import Watches
from sluice.shuffle.taskmanager.config.cluster_config import ReplicationConfig
from sluice.shuffle.taskmanager.drivers.drivers import Drivers
from sluice.shuffle.taskmanager.integrity.damage_checks import DamageChecks
from sluice.shuffle.taskmanager.replicas import stalled_outputs, unreachable_places
from sluice.shuffle.taskmanager.replicas.copier_connections import CopierConnections
from sluice.shuffle.taskmanager.replicas.holdings import Holdings
from sluice.shuffle.taskmanager.replicas.replication import Replication
from sluice.shuffle.taskmanager.replicas.target import (
    CopyServices,
    Outcome,
    PeerTarget,
    RemoteTarget,
)
from sluice.shuffle.taskmanager.serve.moved_outputs import MovedOutputs
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from sluice.transport.address import Address
from tests.support.members import reports_of
from tests.support.mini_cluster import eventually

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.replicas.application_copies import ApplicationCopies
    from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore

KEY = ShuffleKey("app", 1)
OTHER = TaskManagerPlace("other", "127.0.0.2", 7337)
DEAD = TaskManagerPlace("dead", "127.0.0.3", 7337)


class FakeStore:
    """Has all map outputs that were ever committed."""

    def __init__(self) -> None:
        self.outputs: dict[MapAttemptKey, MapOutput] = {}

    def lookup(self, key: ShuffleKey, map_attempt_id: int) -> MapOutput | None:
        return self.outputs.get(MapAttemptKey(key, map_attempt_id))


class Rig:
    """The queue of a TaskManager whose copies go to one other TaskManager."""

    def __init__(self, configured: tuple[Address, ...] = (), **settings: Any) -> None:
        self.config = ReplicationConfig(**settings)
        self.store = FakeStore()
        self.asked: list[int] = []
        self.outcome: asyncio.Future[Outcome] | None = None
        self.tarpits: set[str] = set()
        """TaskManagers that never answer."""
        self.known = KnownTaskManagers("own", Accounts())
        self.attempts = 0
        self.connecting = asyncio.Event()
        reports = reports_of()
        self.watches = Watches(self.known, reports, self.connect, 600, self.changed)
        self.members = Members(configured, 30, self.watches.members_changed)
        services = CopyServices(
            store=cast("ShuffleStore", self.store),
            known=self.known,
            watches=self.watches,
            placement=Placement(self.known, reports, lambda: ("127.0.0.1", "")),
            connections=CopierConnections(self.never, lambda application_id: True),
            holdings=Holdings(),
            moved=MovedOutputs(lambda key: None),
            damage=DamageChecks(cast("ShuffleStore", self.store)),
            drivers=Drivers(list),
            release=lambda key, end: 0,
            streams=OwnerSlots(self.config.copy_streams, self.config.copy_streams),
            counters=Counters(),
            config=self.config,
        )
        self.replication = Replication(services)

    async def copy(self, target: PeerTarget, output: MapOutput, pace: Any = None) -> Outcome:
        self.asked.append(output.map_attempt_id)
        if target.name in self.tarpits:
            await asyncio.Event().wait()
        return Outcome.COPIED if self.outcome is None else await self.outcome

    async def never(self, address: Address, application_id: str) -> Any:
        """Connect to no TaskManager."""

    async def connect(self, address: Address, member_name: str | None) -> Any:
        self.connecting.set()
        await asyncio.Event().wait()

    def changed(self, place: TaskManagerPlace, now: Presence, before: Presence) -> None:
        self.replication.changed(place, now, before)

    def commit(
        self,
        map_attempt_id: int,
        origin: str = "",
        replicas: int = 2,
        key: ShuffleKey = KEY,
        *,
        to_remote: bool = False,
    ) -> MapOutput:
        output = MapOutput(key, map_attempt_id, 1, (), origin, replicas, to_remote=to_remote)
        self.store.outputs[MapAttemptKey(key, map_attempt_id)] = output
        self.replication.committed(output)
        return output

    @property
    def copies(self) -> ApplicationCopies:
        return self.replication._applications["app"]

    def release(self) -> None:
        self.store.outputs.clear()
        self.replication.shuffle_released(KEY, None)


@pytest.fixture
def make_rig(monkeypatch):
    """Make a queue whose copies have the outcome that the test sets."""

    def make(*configured: Address) -> Rig:
        rig = Rig(configured, copy_streams=1)
        monkeypatch.setattr(PeerTarget, "copy", lambda *given: rig.copy(*given))
        return rig

    return make


@pytest.fixture
async def rig(make_rig):
    rig = make_rig()
    rig.known.tell("app", OTHER)
    yield rig
    await rig.replication.close()


async def test_a_commit_while_a_worker_ends_is_copied(rig):
    rig.outcome = asyncio.get_running_loop().create_future()
    rig.commit(1)
    await eventually(lambda: rig.asked == [1])
    (worker,) = rig.copies._workers
    late = asyncio.Event()

    def commit_behind_its_last_look() -> None:
        if worker.done():
            # Its callbacks are due in this turn of the loop, and have not run.
            assert worker in rig.copies._workers
            rig.commit(2)
            late.set()
        else:
            asyncio.get_running_loop().call_soon(commit_behind_its_last_look)

    rig.outcome.set_result(Outcome.COPIED)
    asyncio.get_running_loop().call_soon(commit_behind_its_last_look)
    await late.wait()
    await eventually(lambda: rig.asked == [1, 2])


async def test_many_stalled_map_outputs_do_not_block_the_event_loop(make_rig):
    rig = make_rig()
    for attempt in range(100):
        rig.commit(attempt)
    turns = 0
    while rig.replication.waiting:
        await asyncio.sleep(0)  # a turn of the event loop, counted
        turns += 1
    assert turns >= 100
    assert len(rig.copies._stalled) == 100
    await rig.replication.close()


async def test_a_member_that_has_left_blocks_nothing(make_rig):
    rig = make_rig()
    rig.members.report(TaskManagerPlace("gone", "127.0.0.9", 1))
    rig.watches.watch_members(rig.members)
    rig.commit(1)
    await rig.connecting.wait()  # the worker waits whether it is there
    rig.known.tell("app", OTHER)
    rig.commit(2)
    rig.members.drop_report(Address("127.0.0.9", 1), "gone")
    await eventually(lambda: rig.asked == [1, 2])
    await rig.replication.close()


async def test_a_taskmanager_absent_for_a_released_output_is_ignored(rig):
    rig.outcome = asyncio.get_running_loop().create_future()
    rig.commit(1)
    await eventually(lambda: rig.asked == [1])
    rig.release()
    rig.outcome.set_result(Outcome.ABSENT)
    await eventually(lambda: not rig.replication.waiting)
    await eventually(lambda: not rig.replication._applications)
    assert len(rig.watches) == 0


async def test_an_application_waits_for_no_other_one(rig):
    """Copies of one hang, and more of it are queued than run at a time."""
    rig.known.tell("slow", DEAD)
    rig.tarpits.add(DEAD.taskmanager_id)
    slow = ShuffleKey("slow", 1)
    for attempt in range(3):
        rig.commit(attempt, key=slow)
    await eventually(lambda: rig.asked == [0])  # one at a time, as copy_streams says
    rig.commit(7)
    await eventually(lambda: rig.asked == [0, 7])
    await eventually(lambda: rig.replication.waiting == 3)
    rig.store.outputs.clear()
    rig.replication.application_released("slow")


async def test_a_taskmanager_that_does_not_answer_is_left_out_for_a_while(rig, monkeypatch):
    for module in (stalled_outputs, unreachable_places):
        monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 600)
    rig.outcome = asyncio.get_running_loop().create_future()
    rig.outcome.set_result(Outcome.ABSENT)
    for attempt in range(3):
        rig.commit(attempt)
    await eventually(lambda: len(rig.copies._stalled) == 3)
    assert rig.asked == [0]
    rig.outcome = None
    rig.replication.known("app", OTHER._replace(port=7338))  # it has another address now
    await eventually(lambda: sorted(rig.asked) == [0, 0, 1, 2])


async def test_a_present_taskmanager_is_asked_again_after_a_lost_connection(rig, monkeypatch):
    """The connection led to its process before a restart, and the restart has lost the copy."""
    monkeypatch.setattr(stalled_outputs, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(rig.watches, "presence", lambda place: Presence.PRESENT)
    rig.commit(1)
    rig.replication.holdings.has(MapAttemptKey(KEY, 1), OTHER.taskmanager_id)
    await eventually(lambda: not rig.replication.waiting)
    rig.asked.clear()
    rig.outcome = asyncio.get_running_loop().create_future()
    rig.outcome.set_result(Outcome.ABSENT)
    rig.changed(OTHER, Presence.PRESENT, Presence.AWAY)
    await eventually(lambda: len(rig.asked) == 2)
    rig.outcome = None
    await eventually(lambda: len(rig.asked) == 3)


async def test_a_failing_remote_tier_and_others_do_not_affect_each_other(rig, monkeypatch, caplog):
    for module in (stalled_outputs, unreachable_places):
        monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 600)
    kept: list[int] = []

    async def keep(self: RemoteTarget, output: MapOutput, pace: Any = None) -> str:
        kept.append(output.map_attempt_id)
        return "injected"

    monkeypatch.setattr(RemoteTarget, "keep", keep)
    rig.outcome = asyncio.get_running_loop().create_future()
    rig.outcome.set_result(Outcome.REFUSED)
    rig.commit(1, to_remote=True)
    await eventually(lambda: kept == [1] and not rig.replication.waiting)
    assert "no TaskManager on another host takes a copy" in caplog.text
    assert caplog.text.count("the remote tier takes no copy") == 1

    rig.outcome = None
    rig.replication.known("app", OTHER._replace(port=7338))  # it has another address now
    await eventually(lambda: rig.asked == [1, 1] and not rig.replication.waiting)
    assert kept == [1]  # the remote tier is not asked before its pause is over

    rig.commit(2, to_remote=True)
    await eventually(lambda: kept == [1, 2] and not rig.replication.waiting)
    assert rig.asked == [1, 1, 2]
    assert caplog.text.count("the remote tier takes no copy") == 1


async def test_a_wrong_place_of_one_application_is_no_loss_for_another(rig):
    wrong = OTHER._replace(host="127.0.0.9")
    rig.known.tell("wrong", wrong)
    outputs = MapAttemptKey(KEY, 7), MapAttemptKey(ShuffleKey("wrong", 1), 7)
    for attempt in outputs:
        rig.commit(7, key=attempt.shuffle)
        rig.replication.holdings.has(attempt, OTHER.taskmanager_id)
    assert not rig.replication.holdings.short
    rig.replication.changed(wrong, Presence.LOST, Presence.AWAY)
    assert rig.replication.holdings.short == {outputs[1]}
    rig.replication.changed(OTHER, Presence.LOST, Presence.AWAY)
    assert rig.replication.holdings.short == set(outputs)


async def test_no_taskmanager_is_watched_after_close(rig):
    await rig.replication.close()
    rig.commit(1, origin="other")
    assert len(rig.watches) == 0


async def test_a_rate_limit_delays_later_bytes():
    limit = RateLimit(1000)
    await limit.take(10)
    await limit.take(10)  # 10 ms after the first ones
    waiting = asyncio.ensure_future(limit.take(10**9))
    later = asyncio.ensure_future(limit.take(1))
    await waiting
    for _ in range(10):
        await asyncio.sleep(0)  # turns in which it could end
    assert not later.done()  # a million seconds
    later.cancel()
    await asyncio.gather(later, return_exceptions=True)
