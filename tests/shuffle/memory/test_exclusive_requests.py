"""The order in which requests for exclusive segments are promised and served."""

from __future__ import annotations

import pytest

from sluice.shuffle.memory.local_buffer_pool import LocalBufferPool
from sluice.shuffle.memory.segment_owner import OwnerShare, SegmentOwner
from sluice.shuffle.memory.segment_queue import ExclusiveRequest, ExclusiveRequests

TIMEOUT_SECONDS = 30.0

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # requests belong to a loop

Share = OwnerShare[LocalBufferPool]


class Limited(SegmentOwner):
    def __init__(self, name: str, limit: int) -> None:
        super().__init__(name)
        self.limit = limit

    @property
    def limit_segments(self) -> int | None:
        return self.limit


def request(count: int) -> ExclusiveRequest:
    return ExclusiveRequest(count, "pool", TIMEOUT_SECONDS, lambda segments: None, lambda: 0)


def share(limit: int = 100, promised: int = 0, held: int = 0) -> Share:
    owner = Limited("app", limit)
    owner.promise(promised)
    result: Share = OwnerShare(owner, None)
    result.held_segments = held
    return result


async def test_an_owner_whose_limit_is_in_the_way_is_passed_over():
    requests: ExclusiveRequests[LocalBufferPool] = ExclusiveRequests()
    large, small = request(3), request(2)
    full, other = share(limit=10, promised=8), share(promised=50)
    requests.add(large, full)
    requests.add(small, other)
    assert requests.next_to_promise() == (small, other)
    requests.promise(small)
    assert requests.next_to_promise() is None


async def test_a_request_of_an_owner_that_holds_too_much_is_parked_until_it_holds_less():
    requests: ExclusiveRequests[LocalBufferPool] = ExclusiveRequests()
    parked, next_one = request(3), request(1)
    full, other = share(limit=10, held=8), share()
    for each, of in ((parked, full), (next_one, other)):
        requests.add(each, of)
        requests.promise(each)
    assert requests.next_to_serve() == (next_one, other)
    requests.served(next_one)
    assert requests.next_to_serve() is None
    assert not requests.are_collecting  # others may draw segments meanwhile
    full.held_segments = 7
    requests.unpark(other)
    assert requests.next_to_serve() is None
    requests.unpark(full)
    assert requests.are_collecting
    assert requests.next_to_serve() == (parked, full)
