"""The order in which blocking calls get a thread: max-min fair by cost, without any I/O.

Applications come first, and within an application its connections. On both levels this is
start-time fair queueing (Goyal, Vin and Cheng 1996) with equal weights:

1. Each member has a *start*: the time at which its next call may begin in a system that serves all
   members at the same speed. Time is counted in cost, not in seconds.
2. The member with the least start has the next turn; among equals the one that has waited longest.
3. The time becomes that start, and the member's start moves on by the cost of its call.
4. A member that comes anew starts at the present time: it is owed nothing for its absence.

So two members that always have calls waiting are served costs that differ by at most the largest
call of each, whatever their calls are and however many others there are. Adding a connection to an
application leaves the turns of all other applications as they are.

A member whose last call has gone keeps its start until the time has reached it: a connection that
has one call at a time would otherwise begin anew with each, and large calls would count as much as
small ones. A turn takes time in the logarithm of the members that have calls.
"""

from collections import OrderedDict
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

IDLE_MEMBERS: Final = 64
"""Members without calls that a level keeps beside as many as have calls."""


class Flow(NamedTuple):
    """The calls of one connection for one application.

    Attributes:
        application_id: The application; empty: the TaskManager itself.
        connection: A number that no other connection has while this one lives. One that is used
            again inherits at most the debt of a single call.
    """

    application_id: str
    connection: int


OWN_FLOW: Final = Flow("", 0)
"""The TaskManager's own calls, which take turns as those of an application do."""


class FairQueue(Generic[T]):
    """Calls that wait, in the order described above. Items are told apart by identity.

    A queue has no limit of its own, because everything in it is bounded elsewhere: a region has one
    write under way, a channel one read, and both hold segments meanwhile; a copy out of a region
    area holds an extent, and a read of the remote tier is one request at most for each slice that
    it fills. Regions, channels, segments and bytes stored have limits and quotas.
    """

    __slots__ = ("_applications", "_waiting")

    def __init__(self) -> None:
        self._applications: _Level[str, _Application[T]] = _Level()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, flow: Flow, cost: int, item: T) -> None:
        """Let an item wait for its turn, behind those of its flow.

        Args:
            flow: Whose item it is.
            cost: Of its turn, at least 1; such as the bytes that it moves.
            item: Anything hashable, which is not in the queue yet.

        Raises:
            ValueError: The cost is below 1: such items would have any number of turns.
        """
        if cost < 1:
            raise ValueError(f"a call costs at least 1, got {cost}")
        application = self._applications.find(flow.application_id)
        if application is None:
            application = self._applications.join(flow.application_id, _Application())
        connection = application.connections.find(flow.connection)
        if connection is None:
            connection = application.connections.join(flow.connection, _Connection())
        if connection.waiting == 0:
            application.connections.active += 1
            if application.waiting == 0:
                self._applications.active += 1
        connection.calls[item] = cost
        connection.waiting += 1
        application.waiting += 1
        self._waiting += 1

    def take(self) -> T | None:
        """Return the item whose turn it is, or None if no item waits."""
        if not self._waiting:
            return None
        application = self._applications.first()
        connection = application.connections.first()
        item, cost = connection.calls.popitem(last=False)
        application.connections.charge(cost)
        self._applications.charge(cost)
        self._less(application, connection)
        return item

    def withdraw(self, flow: Flow, item: T) -> bool:
        """Remove an item; it costs its flow nothing. Return whether it was still waiting."""
        application = self._applications.find(flow.application_id)
        if application is None:
            return False
        connection = application.connections.find(flow.connection)
        if connection is None or connection.calls.pop(item, None) is None:
            return False
        self._less(application, connection)
        return True

    def forget_idle(self) -> None:
        """Forget everything if no item waits. Call it when no call is under way either."""
        if not self._waiting and self._applications.members:
            self._applications = _Level()

    def _less(self, application: "_Application[T]", connection: "_Connection[T]") -> None:
        """Count an item that has left."""
        self._waiting -= 1
        application.waiting -= 1
        connection.waiting -= 1
        if connection.waiting == 0:
            application.connections.active -= 1
            if application.waiting == 0:
                self._applications.active -= 1


class _Member:
    """One that has turns.

    Attributes:
        waiting: Its calls.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0


class _Connection(_Member, Generic[T]):
    """A flow; its calls are served in their order."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        super().__init__()
        self.calls: Final[OrderedDict[T, int]] = OrderedDict()
        """Their costs."""


class _Application(_Member, Generic[T]):
    """An application and its connections."""

    __slots__ = ("connections",)

    def __init__(self) -> None:
        super().__init__()
        self.connections: Final[_Level[int, _Connection[T]]] = _Level()


K = TypeVar("K")
M = TypeVar("M", bound=_Member)


class _Level(Generic[K, M]):
    """Members that take turns.

    Attributes:
        active: Number of those that have calls; the owner counts it.
        members: All that have a start, by name.
    """

    __slots__ = ("_arrivals", "_heap", "_now", "active", "members")

    def __init__(self) -> None:
        self.active = 0
        self.members: dict[K, M] = {}
        self._arrivals = count()
        self._heap: list[tuple[int, int, K, M]] = []
        """Start, number of arrival, name and member. The least start is never before the time."""
        self._now = 0

    def find(self, name: K) -> M | None:
        """Return a member that still has a start, or None."""
        return self.members.get(name)

    def join(self, name: K, member: M) -> M:
        """Let a member start now."""
        if len(self._heap) > 2 * self.active + IDLE_MEMBERS:
            # Calls that are withdrawn leave their members here. The debts of members without calls
            # are forgotten for the sake of memory: each is that of one call.
            self._heap = [entry for entry in self._heap if entry[3].waiting]
            heapify(self._heap)
            self.members = {name: member for _, _, name, member in self._heap}
        self.members[name] = member
        heappush(self._heap, (self._now, next(self._arrivals), name, member))
        return member

    def first(self) -> M:
        """Return the member whose turn it is; there must be one that has calls."""
        heap = self._heap
        while not heap[0][3].waiting:
            # The time is about to reach its start, so that it would not start later if it came
            # anew. Each turn puts one entry back, and so pays for the removal of one.
            del self.members[heappop(heap)[2]]
        return heap[0][3]

    def charge(self, cost: int) -> None:
        """Let the member returned by :meth:`first` pay for its turn."""
        start, _, name, member = self._heap[0]
        self._now = start
        heapreplace(self._heap, (start + cost, next(self._arrivals), name, member))
