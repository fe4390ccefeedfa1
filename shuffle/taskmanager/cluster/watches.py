"""The watches of one TaskManager on others: the members of the cluster, and holders of copies."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from ....protocol.schema import MEMBER_DRAINING
from ....transport.address import Address
from ....transport.loop import start_task
from ...names import TaskManagerPlace, utf8_text
from .known_taskmanagers import KnownTaskManagers
from .member_reports import MemberReports
from .members import Members
from .members_status import MembersStatus, WatchedMemberStatus
from .taskmanager_watch import Presence, TaskManagerWatch
from .watch_leg import WatchLeg

MAX_NEW_DIALS: Final = 64
"""Maximum number of addresses dialed at a time at which no TaskManager has answered yet."""

FIND_SECONDS: Final = 10.0
"""Time for which copies wait until all members are dialed."""


class Watches:
    """Watches all members, and those TaskManagers that share map outputs.

    A driver can name a wrong address for a TaskManager. So each place is watched on its own, and a
    wrong one says nothing about the TaskManager at its right place.

    A member has one watch, even if a name has several addresses of it. An address that is no longer
    listed is watched until the TaskManager there is lost.

    Args:
        known: The places of other TaskManagers, to which places found by watches are added.
        reports: What members report about themselves; forgotten when they leave.
        connect: Connects to an address. For a member, in order to exchange reports, it gets the
            host that the certificate must name; otherwise None.
        lost_after_seconds: Time away after which a TaskManager counts as lost.
        changed: Called with the place of a TaskManager, its current and its previous state.
    """

    def __init__(
        self,
        known: KnownTaskManagers,
        reports: MemberReports,
        connect: Callable[[Address, str | None], Awaitable[WatchLeg]],
        lost_after_seconds: float,
        changed: Callable[[TaskManagerPlace, Presence, Presence], None],
    ) -> None:
        self._known: Final = known
        self._reports: Final = reports
        self._connect: Final = connect
        self._lost_after_seconds: Final = lost_after_seconds
        self._changed: Final = changed
        self._sources: Members | None = None
        self._asked: list[TaskManagerWatch] | None = None
        """The watches that copies wait for. A member that joins later and hangs delays no copy."""
        self._members: dict[Address, TaskManagerWatch] = {}
        self._by_id: dict[str, dict[Address, TaskManagerWatch]] = {}
        """The watches of members that have a place, by TaskManager."""
        self._ids: dict[Address, str] = {}
        self._aliases: dict[Address, str] = {}
        """Ids by address: members watched at another address, and this TaskManager."""
        self._by_place: dict[TaskManagerPlace, TaskManagerWatch] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._dials = 0
        self._new_dials: Final = asyncio.Semaphore(MAX_NEW_DIALS)

    def __len__(self) -> int:
        return len(self._members) + len(self._by_place)

    @property
    def unreachable(self) -> int:
        """Number of TaskManagers that are away or lost.

        Resolved addresses count after a TaskManager was reached there: it may be reached at another
        address of its name.
        """
        watches = (*self._members.values(), *self._by_place.values())
        return sum(
            each.presence in (Presence.AWAY, Presence.LOST)
            and (each.place is not None or self._is_configured(each.address))
            for each in watches
        )

    @property
    def members(self) -> dict[Address, TaskManagerWatch]:
        """The watches of members, by the address at which each is watched."""
        return self._members

    def watch_members(self, members: Members) -> None:
        """Watch these members from now on. Called once."""
        self._sources = members
        self.members_changed()
        members.start()

    def look_again(self) -> None:
        """Let the next :meth:`find_members` try the members that are away."""
        self._asked = None

    async def find_members(self) -> None:
        """Wait until each member is reached or has failed, for the first time or once more.

        It waits at most ``FIND_SECONDS``: a name may have hundreds of addresses without an answer.

        Cancellation: safe.
        """
        if self._sources is not None:
            await self._sources.first_answer()
        if self._asked is None:
            self._asked = list(self._members.values())
            for watch in self._asked:
                if watch.presence is not Presence.UNKNOWN:
                    watch.try_now()
        asked = self._asked
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIND_SECONDS):
                for watch in asked:
                    await watch.answer()

    def members_changed(self) -> None:
        """Watch new addresses, and end watches of addresses that are neither listed nor used."""
        wanted = {} if self._sources is None else self._sources.addresses
        for address in self._aliases.keys() - wanted.keys():
            del self._aliases[address]
        for address, watch in list(self._members.items()):
            if address not in wanted and watch.may_end:
                self._end_member(address)
        for address, place in wanted.items():
            if address not in self._members and address not in self._aliases:
                watch = self._members[address] = self._new(address, place, is_member=True)
                self._index(watch)

    def reported(self, place: TaskManagerPlace) -> None:
        """Watch a TaskManager that another one reports, unless it is present where it was."""
        if self._sources is None or place.taskmanager_id == self._known.own_id:
            return
        watch = self._watch_of(place.taskmanager_id)
        if watch is None or watch.presence is not Presence.PRESENT:
            self._sources.report(place)
            there = self._members.get(place.address)
            if there is not None:
                there.try_soon()

    def presence(self, place: TaskManagerPlace) -> Presence:
        """Return the state of a TaskManager at a place."""
        watch = self._by_place.get(place) or self._member_at(place)
        return Presence.UNKNOWN if watch is None else watch.presence

    def keep(self, places: Iterable[TaskManagerPlace]) -> None:
        """Watch the TaskManagers at exactly these places, and the members."""
        wanted = {each for each in places if self._member_at(each) is None}
        for place in wanted:
            self.watch(place)
        for place in self._by_place.keys() - wanted:
            self._end(self._by_place.pop(place))

    def watch(self, place: TaskManagerPlace) -> None:
        """Watch the TaskManager at a place. Idempotent."""
        if place not in self._by_place and self._member_at(place) is None:
            self._by_place[place] = self._new(place.address, place, is_member=False)

    def status(self, node: str, zone: str) -> MembersStatus:
        """Return the members and what they report.

        Args:
            node: The machine on which this TaskManager runs.
            zone: The zone of its node.
        """
        return MembersStatus(
            utf8_text(node),
            utf8_text(zone),
            tuple(self._status_of(each) for each in self._members.values()),
            0 if self._sources is None else self._sources.failing,
            self._dials,
        )

    async def close(self) -> None:
        """End all watches. Idempotent."""
        if self._sources is not None:
            await self._sources.close()
            self._sources = None
        self.keep(())
        for watch in self._members.values():
            self._end(watch)
        self._members.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    # ---- inside ----------------------------------------------------------------------------------

    def _status_of(self, watch: TaskManagerWatch) -> WatchedMemberStatus:
        if watch.place is None or not watch.is_proven:
            return WatchedMemberStatus(watched_at=str(watch.address), presence=watch.presence.value)
        taskmanager_id = watch.place.taskmanager_id
        place = utf8_text(taskmanager_id), str(watch.address), str(watch.place.address)
        report = self._reports.members.get(taskmanager_id)
        if report is None:
            return WatchedMemberStatus(*place, presence=watch.presence.value)
        return WatchedMemberStatus(
            *place,
            report.http_port,
            utf8_text(report.node),
            utf8_text(report.zone),
            watch.presence.value,
            report.state == MEMBER_DRAINING,
            report.free_bytes,
            report.open_outputs,
        )

    def _is_configured(self, address: Address) -> bool:
        return self._sources is not None and address in self._sources.configured

    def _member_at(self, place: TaskManagerPlace) -> TaskManagerWatch | None:
        watches = self._by_id.get(place.taskmanager_id, {}).values()
        return next((each for each in watches if each.place == place), None)

    def _watch_of(self, taskmanager_id: str) -> TaskManagerWatch | None:
        """Return the watch of a member, preferably one that is present."""
        watches = self._by_id.get(taskmanager_id, {}).values()
        return min(watches, key=lambda each: each.presence is not Presence.PRESENT, default=None)

    def _new(
        self, address: Address, place: TaskManagerPlace | None, *, is_member: bool
    ) -> TaskManagerWatch:
        # A TaskManager that only a driver has named is not a member: it gets no reports.
        return TaskManagerWatch(
            address,
            place,
            lambda watch: self._dial(watch, is_member),
            self._lost_after_seconds,
            self._told,
        )

    async def _dial(self, watch: TaskManagerWatch, is_member: bool) -> WatchLeg:
        # TaskManagers that have answered do not wait behind many that do not.
        turn = contextlib.nullcontext() if watch.is_proven else self._new_dials
        async with turn:
            self._dials += 1
            sources = self._sources if is_member else None
            name = None if sources is None else sources.host_of(watch.address)
            return await self._connect(watch.address, name)

    def _told(self, watch: TaskManagerWatch, before: Presence) -> None:
        is_member = self._members.get(watch.address) is watch
        if is_member:
            previous = self._ids.get(watch.address)
            self._index(watch)
            if previous is not None and previous not in self._by_id:
                self._known.replaced(previous)
        if is_member and watch.place is not None and watch.presence is Presence.PRESENT:
            others = self._others_of(watch, watch.place.taskmanager_id)
            if watch.place.taskmanager_id == self._known.own_id or any(
                each.presence is Presence.PRESENT for each in others
            ):
                self._aliases[watch.address] = watch.place.taskmanager_id
                self._end(self._pop_member(watch.address))
                return
            if others:
                before = Presence.AWAY  # at another address; it may have lost map outputs there
                self._replace(others)
            self._known.joined(watch.place)
        if watch.place is not None:
            self._changed(watch.place, watch.presence, before)
        if is_member and watch.presence in (Presence.AWAY, Presence.LOST):
            self._member_away(watch)

    def _others_of(self, watch: TaskManagerWatch, taskmanager_id: str) -> list[TaskManagerWatch]:
        return [each for each in self._by_id[taskmanager_id].values() if each is not watch]

    def _replace(self, others: Iterable[TaskManagerWatch]) -> None:
        """Watch the addresses that a member has left again: another one may be there."""
        for other in others:
            self._end_member(other.address)
        self.members_changed()

    def _member_away(self, watch: TaskManagerWatch) -> None:
        if self._sources is None:
            return
        self._sources.member_gone()
        if watch.presence is Presence.LOST:
            if watch.is_any:  # any TaskManager may be there, as long as the address is listed
                self._drop_report(watch)
                if watch.place is not None:
                    self._reports.forget(watch.place.taskmanager_id)
            else:
                self._end_member(watch.address)
        if watch.place is not None:
            left = [a for a, other in self._aliases.items() if other == watch.place.taskmanager_id]
            for address in left:  # it may be reached there
                del self._aliases[address]
        self.members_changed()

    def _end_member(self, address: Address) -> None:
        watch = self._pop_member(address)
        self._drop_report(watch)
        if watch.place is not None:
            self._known.left(watch.place)
            self._reports.forget(watch.place.taskmanager_id)
        self._end(watch)

    def _drop_report(self, watch: TaskManagerWatch) -> None:
        if self._sources is not None and watch.place is not None:
            self._sources.drop_report(watch.address, watch.place.taskmanager_id)

    def _index(self, watch: TaskManagerWatch) -> None:
        """Index a watch by the id of its TaskManager."""
        self._unindex(watch.address)
        if watch.place is not None:
            taskmanager_id = self._ids[watch.address] = watch.place.taskmanager_id
            self._by_id.setdefault(taskmanager_id, {})[watch.address] = watch

    def _unindex(self, address: Address) -> None:
        taskmanager_id = self._ids.pop(address, None)
        if taskmanager_id is not None:
            watches = self._by_id[taskmanager_id]
            del watches[address]
            if not watches:
                del self._by_id[taskmanager_id]

    def _pop_member(self, address: Address) -> TaskManagerWatch:
        self._unindex(address)
        return self._members.pop(address)

    def _end(self, watch: TaskManagerWatch) -> None:
        closing = start_task(watch.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
