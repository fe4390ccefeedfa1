"""The order in which blocking calls get a thread: max-min fair by cost, without any I/O.

The queue is fair between applications, and within an application between its connections. Both
levels use start-time fair queueing (Goyal, Vin and Cheng 1996) with equal weights:

1. Each member has a *start*: the time at which its next call may begin in a system that serves all
   members at the same speed. Time is counted in cost, not in seconds.
2. The member with the lowest start has the next turn; among equals the one that waited longest.
3. The time becomes that start, and the member's start increases by the cost of its call.
4. A new member starts at the current time: it gets no credit for its absence.

So for two members that always have calls waiting, the served costs differ by at most the largest
call of each, regardless of their calls and of the number of other members. Adding a connection to
an application does not change the turns of other applications.

A member without calls keeps its start until the time has reached it. Otherwise a connection with
one call at a time would start again with each call, and large calls would cost as little as small
ones. The time for a turn is logarithmic in the number of members with calls.
"""

from collections import OrderedDict
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

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
"""The TaskManager's own calls, which take turns like the calls of an application."""


class FairQueue(Generic[T]):
    """Waiting calls, in the order described above. Items are compared by identity.

    A queue needs no limit, because its items are bounded elsewhere: a region has one write and a
    channel one read at a time, and both hold segments; a copy from a region area holds an extent;
    a read of the remote tier makes at most one request per slice. Regions, channels, segments and
    stored bytes have limits and quotas.
    """

    __slots__ = ("_applications", "_waiting")

    def __init__(self) -> None:
        self._applications: _Level[str, _Application[T]] = _Level()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

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
        """Remove and return the next item, or None if no item waits."""
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
        """Remove an item at no cost for its flow; return whether it was still waiting."""
        application = self._applications.find(flow.application_id)
        if application is None:
            return False
        connection = application.connections.find(flow.connection)
        if connection is None or connection.calls.pop(item, None) is None:
            return False
        self._less(application, connection)
        return True

    def forget_idle(self) -> None:
        """Forget all members if no item waits. Call this only when no call is running."""
        if not self._waiting and self._applications.members:
            self._applications = _Level()

    def _less(self, application: "_Application[T]", connection: "_Connection[T]") -> None:
        """Count a removed item."""
        self._waiting -= 1
        application.waiting -= 1
        connection.waiting -= 1
        if connection.waiting == 0:
            application.connections.active -= 1
            if application.waiting == 0:
                self._applications.active -= 1


class _Member:
    """A member of a level.

    Attributes:
        waiting: Number of its calls.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0


class _Connection(_Member, Generic[T]):
    """A flow; its calls are served in order."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        super().__init__()
        self.calls: Final[OrderedDict[T, int]] = OrderedDict()
        """The waiting calls with their costs."""


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
        active: Number of members with calls, updated by the owner.
        members: All members with a start, by name.
    """

    __slots__ = ("_arrivals", "_heap", "_now", "active", "members")

    def __init__(self) -> None:
        self.active = 0
        self.members: dict[K, M] = {}
        self._arrivals = count()
        self._heap: list[tuple[int, int, K, M]] = []
        """Start, number of arrival, name and member. No start is before the current time."""
        self._now = 0

    def find(self, name: K) -> M | None:
        """Return a member that still has a start, or None."""
        return self.members.get(name)

    def join(self, name: K, member: M) -> M:
        """Add a member, which starts now."""
        if len(self._heap) > 2 * self.active + IDLE_MEMBERS:
            # Withdrawn calls leave their members here. Forget the debts of members without calls,
            # to save memory: each is the debt of one call.
            self._heap = [entry for entry in self._heap if entry[3].waiting]
            heapify(self._heap)
            self.members = {name: member for _, _, name, member in self._heap}
        self.members[name] = member
        heappush(self._heap, (self._now, next(self._arrivals), name, member))
        return member

    def first(self) -> M:
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
