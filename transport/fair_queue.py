"""The order of turns: max-min fair by cost, without any I/O.

The queue is fair between tenants, within a tenant between its applications, and within an
application between its connections. All levels use start-time fair queueing (Goyal, Vin and Cheng
1996) with equal weights:

1. Each member has a *start*: the time at which its next call may begin in a system that serves all
   members at the same speed. Time is counted in cost, not in seconds.
2. The member with the lowest start has the next turn; among equals the one that waited longest.
3. The time becomes that start, and the member's start increases by the cost of its call.
4. A new member starts at the current time: it gets no credit for its absence.

So for two members that always have calls waiting, the served costs differ by at most the largest
call of each, regardless of their calls and of the number of other members. Adding an application to
a tenant, or a connection to an application, does not change the turns of others.

A member without calls keeps its start until the time has reached it. Otherwise a connection with
one call at a time would start again with each call, and large calls would cost as little as small
ones. The time for a turn is logarithmic in the number of members with calls.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, pairwise
from typing import Final, Generic, NamedTuple, TypeVar

from ..protocol.identity import tenant_of

T = TypeVar("T")

IDLE_MEMBERS: Final = 64
"""A level keeps this many members without calls, plus the number of members with calls."""


class Flow(NamedTuple):
    """The calls of one connection for one application.

    Attributes:
        application_id: The application; empty: the TaskManager itself.
        connection: A number that is unique among open connections. A reused number inherits at
            most the debt of a single call.
    """

    application_id: str
    connection: int


OWN_FLOW: Final = Flow("", 0)
"""The TaskManager's own calls, which take turns like the calls of a tenant."""


class FairQueue(Generic[T]):
    """Waiting calls, in the order described above. Items are compared by identity.

    A queue needs no limit, because its items are bounded elsewhere: a region has one write and a
    channel one read at a time, and both hold segments; a copy from a region area holds an extent;
    a read of the remote tier makes at most one request per slice; a connection waits for one turn
    of the event loop in each direction. Regions, channels, segments, stored bytes and connections
    have limits and quotas.
    """

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all: _Member[T] = _Member()

    def __len__(self) -> int:
        return self._all.waiting

    def add(self, flow: Flow, cost: int, item: T) -> None:
        """Add an item, which waits for its turn after earlier items of its flow.

        Args:
            flow: The flow of the item.
            cost: Cost of its turn, at least 1, such as the bytes that it moves.
            item: Any hashable object that is not in the queue.

        Raises:
            ValueError: The cost is below 1: such items would have unlimited turns.
        """
        if cost < 1:
            raise ValueError(f"a call costs at least 1, got {cost}")
        members = [self._all]
        for name in _path(flow):
            level = members[-1].level
            members.append(level.find(name) or level.join(name))
        members[-1].calls[item] = cost
        for outer, inner in pairwise(members):
            outer.level.active += inner.waiting == 0
        for member in members:
            member.waiting += 1

    def take(self) -> T | None:
        """Remove and return the next item, or None if no item waits."""
        if not self._all.waiting:
            return None
        members = [self._all]
        while not members[-1].calls:
            members.append(members[-1].level.first())
        item, cost = members[-1].calls.popitem(last=False)
        for outer in members[:-1]:
            outer.level.charge(cost)
        _less(members)
        return item

    def withdraw(self, flow: Flow, item: T) -> bool:
        """Remove an item at no cost for its flow; return whether it was still waiting."""
        members = [self._all]
        for name in _path(flow):
            member = members[-1].level.find(name)
            if member is None:
                return False
            members.append(member)
        if members[-1].calls.pop(item, None) is None:
            return False
        _less(members)
        return True

    def items(self) -> Iterator[T]:
        """Yield all waiting items, by tenant, application and connection, for status."""
        members = [self._all]
        while members:
            member = members.pop()
            if member.waiting:
                yield from member.calls
                members += member.level.members.values() if member.has_level else ()

    def forget_idle(self) -> None:
        """Forget all members if no item waits. Call this only when no call is running."""
        if not self._all.waiting and self._all.level.members:
            self._all = _Member()


def _path(flow: Flow) -> tuple[Hashable, ...]:
    """Return the member of each level that a flow belongs to."""
    return tenant_of(flow.application_id), flow.application_id, flow.connection


def _less(members: "list[_Member[T]]") -> None:
    """Count a removed item."""
    for member in members:
        member.waiting -= 1
    for outer, inner in pairwise(members):
        outer.level.active -= inner.waiting == 0


class _Member(Generic[T]):
    """A member of a level: a tenant, an application, or a connection, which has calls itself.

    Attributes:
        waiting: Number of its calls.
        calls: The waiting calls of a connection with their costs, served in order.
        level: The members inside.
    """

    __slots__ = ("_level", "calls", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.calls: Final[OrderedDict[T, int]] = OrderedDict()
        self._level: _Level[T] | None = None

    @property
    def has_level(self) -> bool:
        return self._level is not None

    @property
    def level(self) -> "_Level[T]":
        if self._level is None:
            self._level = _Level()
        return self._level


class _Level(Generic[T]):
    """Members that take turns.

    Attributes:
        active: Number of members with calls, updated by the owner.
        members: All members with a start, by name.
    """

    __slots__ = ("_arrivals", "_heap", "_now", "active", "members")

    def __init__(self) -> None:
        self.active = 0
        self.members: dict[Hashable, _Member[T]] = {}
        self._arrivals = count()
        self._heap: list[tuple[int, int, Hashable, _Member[T]]] = []
        """Start, number of arrival, name and member. No start is before the current time."""
        self._now = 0

    def find(self, name: Hashable) -> _Member[T] | None:
        """Return a member that still has a start, or None."""
        return self.members.get(name)

    def join(self, name: Hashable) -> _Member[T]:
        """Add a member, which starts now."""
        member: _Member[T] = _Member()
        if len(self._heap) > 2 * self.active + IDLE_MEMBERS:
            # Withdrawn calls leave their members here. Forget the debts of members without calls,
            # to save memory: each is the debt of one call.
            self._heap = [entry for entry in self._heap if entry[3].waiting]
            heapify(self._heap)
            self.members = {each: member for _, _, each, member in self._heap}
        self.members[name] = member
        heappush(self._heap, (self._now, next(self._arrivals), name, member))
        return member

    def first(self) -> _Member[T]:
        """Return the member with the next turn; at least one member must have calls."""
        heap = self._heap
        while not heap[0][3].waiting:
            # The time is about to reach its start, so a new member would start no earlier. Each
            # turn adds one entry, so the removals take amortized constant time per turn.
            del self.members[heappop(heap)[2]]
        return heap[0][3]

    def charge(self, cost: int) -> None:
        """Charge the member returned by :meth:`first` for its turn."""
        start, _, name, member = self._heap[0]
        self._now = start
        heapreplace(self._heap, (start + cost, next(self._arrivals), name, member))
