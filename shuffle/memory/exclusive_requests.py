"""The requests for exclusive segments that a network pool has not served yet.

A request is first *unpromised*: there is no reservation for it. A promised one has a reservation,
so the limits of local pools have been lowered, and it waits for segments to come home. It is
*parked* while its owner still holds so much that it would be beyond its limit: what comes home of
the owner's own segments brings it back.
"""

from collections import OrderedDict
from typing import Generic

from .distribution import SharerT
from .segment_owner import OwnerShare, SegmentOwner
from .segment_queue import ExclusiveRequest


class ExclusiveRequests(Generic[SharerT]):
    """Requests in order of arrival, each with the part of its owner in the network pool."""

    def __init__(self) -> None:
        self._unpromised: OrderedDict[ExclusiveRequest, OwnerShare[SharerT]] = OrderedDict()
        self._promised: OrderedDict[ExclusiveRequest, OwnerShare[SharerT]] = OrderedDict()
        self._parked: OrderedDict[ExclusiveRequest, OwnerShare[SharerT]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unpromised) + len(self._promised) + len(self._parked)

    @property
    def unpromised_segments(self) -> int:
        """Segments that requests without a reservation ask for."""
        return sum(request.count for request in self._unpromised)

    @property
    def are_collecting(self) -> bool:
        """Whether a request with a reservation takes the free segments."""
        return bool(self._promised)

    def waiting_owners(self) -> set[SegmentOwner]:
        """Return the owners whose requests wait for others, and not for their own limit."""
        unpromised = {
            share.owner
            for request, share in self._unpromised.items()
            if not request.is_settled and share.owner.may_promise(request.count)
        }
        collecting = {
            share.owner
            for request, share in self._promised.items()
            if not request.is_settled and share.may_hold(request.count)
        }
        return unpromised | collecting

    def add(self, request: ExclusiveRequest, share: OwnerShare[SharerT]) -> None:
        """Queue a request without a reservation."""
        self._unpromised[request] = share

    def next_to_promise(self) -> tuple[ExclusiveRequest, OwnerShare[SharerT]] | None:
        """Return the first request of the owner with the least promises whose limit allows it."""
        if not self._unpromised:
            return None
        for settled in [request for request in self._unpromised if request.is_settled]:
            del self._unpromised[settled]
        first: dict[object, tuple[ExclusiveRequest, OwnerShare[SharerT]]] = {}
        for request, share in self._unpromised.items():
            first.setdefault(share.owner, (request, share))
        allowed = [each for each in first.values() if each[1].owner.may_promise(each[0].count)]
        return min(allowed, key=_promised_segments) if allowed else None

    def promise(self, request: ExclusiveRequest) -> None:
        """Note that there is a reservation for a request."""
        self._promised[request] = self._unpromised.pop(request)

    def next_to_serve(self) -> tuple[ExclusiveRequest, OwnerShare[SharerT]] | None:
        """Return the first request that may collect segments; park those before it."""
        while self._promised:
            request, share = next(iter(self._promised.items()))
            if request.is_settled or share.may_hold(request.count):
                return request, share
            self._parked[request] = self._promised.pop(request)
        return None

    def unpark(self, share: OwnerShare[SharerT]) -> None:
        """Let the requests of an owner collect again: it holds less now."""
        for request in [each for each, other in self._parked.items() if other is share]:
            self._promised[request] = self._parked.pop(request)

    def served(self, request: ExclusiveRequest) -> None:
        """Forget a request that gets its segments."""
        del self._promised[request]

    def withdraw(self, request: ExclusiveRequest) -> OwnerShare[SharerT] | None:
        """Forget a request; return the owner's part if there was a reservation for it."""
        self._unpromised.pop(request, None)
        return self._promised.pop(request, None) or self._parked.pop(request, None)

    def clear(self) -> list[tuple[ExclusiveRequest, OwnerShare[SharerT] | None]]:
        """Forget all requests; return them, with the owner's part if there is a reservation."""
        cleared: list[tuple[ExclusiveRequest, OwnerShare[SharerT] | None]] = [
            *self._promised.items(),
            *self._parked.items(),
            *((request, None) for request in self._unpromised),
        ]
        for requests in (self._promised, self._parked, self._unpromised):
            requests.clear()
        return cleared


def _promised_segments(
    waiting: tuple[ExclusiveRequest, OwnerShare[SharerT]],
) -> int:
    return waiting[1].owner.promised_segments
