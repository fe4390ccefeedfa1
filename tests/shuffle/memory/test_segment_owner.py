"""How network segments are shared among applications."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.memory import (
    LocalBufferPool,
    NetworkBufferPool,
    NetworkBufferTimeout,
    SegmentOwner,
)
from sluice.shuffle.memory.segment_owner import OwnerShare, owners_shares

SEGMENTS = 100
SOON_SECONDS = 0.01
LONG_SECONDS = 30.0


class Refused(Exception):
    """The owner's limit is in the way."""


class LimitedOwner(SegmentOwner):
    def __init__(self, name: str, limit: int) -> None:
        super().__init__(name)
        self.limit = limit

    @property
    def limit_segments(self) -> int | None:
        return self.limit

    def check(self, segments: int) -> None:
        if self.promised_segments + segments > self.limit:
            raise Refused(self.promised_segments + segments, self.limit)


class _Room:
    def __init__(self, room: int) -> None:
        self.room = room


def share(promised: int, room: int) -> OwnerShare[_Room]:
    owner = SegmentOwner("app")
    owner.promise(promised)
    result: OwnerShare[_Room] = OwnerShare(owner, None)
    result.sharing.add(_Room(room))
    return result


owners = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


@given(st.integers(0, 300), owners)
def test_the_shares_are_all_there_is_and_nobody_has_more_than_its_room(spare, numbers):
    shares = owners_shares(spare, [share(*each) for each in numbers])
    rooms = [room for _, room in numbers]
    assert sum(shares) == min(spare, sum(rooms))
    assert all(0 <= each <= room for each, room in zip(shares, rooms, strict=True))


@given(st.integers(0, 300), owners)
def test_nobody_gets_a_segment_while_one_with_less_and_with_room_does_not(spare, numbers):
    shares = owners_shares(spare, [share(*each) for each in numbers])
    totals = [promised + each for (promised, _), each in zip(numbers, shares, strict=True)]
    for mine, total in zip(shares, totals, strict=True):
        for (_, room), theirs, their_total in zip(numbers, shares, totals, strict=True):
            if mine and theirs < room:
                assert total <= their_total + 1


@given(st.integers(0, 299), owners)
def test_more_segments_make_nobody_poorer(spare, numbers):
    before = owners_shares(spare, [share(*each) for each in numbers])
    after = owners_shares(spare + 1, [share(*each) for each in numbers])
    assert all(one <= other for one, other in zip(before, after, strict=True))


@pytest.fixture
def network() -> NetworkBufferPool:
    return NetworkBufferPool(SEGMENTS, 16)


def drawn(pool: LocalBufferPool) -> int:
    """Take all segments that a pool gives now, and keep them."""
    count = 0
    while pool.request_segment_nowait() is not None:
        count += 1
    return count


async def test_one_that_takes_all_it_can_leaves_another_its_share_at_once(network):
    greedy, innocent = LimitedOwner("greedy", SEGMENTS // 2), LimitedOwner("innocent", SEGMENTS)
    pools = [network.create_local_pool(f"gate {n}", 1, owner=greedy) for n in range(40)]
    assert sum(drawn(pool) for pool in pools) == SEGMENTS // 2
    other = network.create_local_pool("gate", SEGMENTS // 2, owner=innocent)
    assert drawn(other) == SEGMENTS // 2


async def test_a_pool_that_keeps_more_than_its_share_is_at_the_cost_of_its_owner(network):
    """Limits fall when pools are opened, but segments that are out stay out."""
    greedy = LimitedOwner("greedy", SEGMENTS // 2)
    first = network.create_local_pool("first", 1, owner=greedy)
    segments = [first.request_segment_nowait() for _ in range(SEGMENTS // 2)]
    later = [network.create_local_pool(f"gate {n}", 1, owner=greedy) for n in range(10)]
    assert [drawn(pool) for pool in later] == [0] * 10
    got: list[object] = []

    def take(segment: object) -> bool:
        got.append(segment)
        return True

    later[3].add_listener(take)
    innocent = network.create_local_pool("gate", SEGMENTS // 2)
    assert drawn(innocent) == SEGMENTS // 2  # nobody of the owner's pools has it
    assert not got
    assert segments[0] is not None
    first.recycle(segments[0])
    assert len(got) == 1


async def test_a_request_of_an_owner_that_holds_too_much_waits_for_its_own_segments(network):
    greedy = LimitedOwner("greedy", SEGMENTS // 2)
    pool = network.create_local_pool("gate", 1, owner=greedy)
    segments = [pool.request_segment_nowait() for _ in range(SEGMENTS // 2)]
    waiting = asyncio.ensure_future(network.request_segments_within(2, LONG_SECONDS, greedy))
    await asyncio.sleep(0)
    other = network.create_local_pool("gate", 0)
    assert drawn(other) == SEGMENTS // 2  # what it waits for is not kept back from others
    for segment in segments[:2]:
        assert not waiting.done()
        assert segment is not None
        pool.recycle(segment)
        await asyncio.sleep(0)
    network.recycle_segments(await waiting)


async def test_owners_share_alike_however_many_pools_they_have(network):
    many, few = SegmentOwner("many"), SegmentOwner("few")
    pools = [network.create_local_pool(f"gate {n}", 0, owner=many) for n in range(9)]
    lonely = network.create_local_pool("gate", 0, owner=few)
    assert lonely.size_segments == SEGMENTS // 2
    assert sum(pool.size_segments for pool in pools) == SEGMENTS // 2
    for pool in pools:
        pool.destroy()
    assert lonely.size_segments == SEGMENTS


async def test_what_an_owner_leaves_goes_to_the_others(network):
    modest, greedy = SegmentOwner("modest"), SegmentOwner("greedy")
    small = network.create_local_pool("gate", 1, 10, owner=modest)
    large = network.create_local_pool("gate", 1, owner=greedy)
    assert (small.size_segments, large.size_segments) == (10, SEGMENTS - 10)


async def test_a_pool_beyond_the_limit_of_its_owner_is_refused_to_it_alone(network):
    owner = LimitedOwner("greedy", 10)
    network.create_local_pool("first", 10, owner=owner)
    with pytest.raises(Refused):
        network.create_local_pool("second", 1, owner=owner)
    assert owner.promised_segments == 10
    assert network.required_segments == 10
    network.create_local_pool("another's", SEGMENTS - 10)


async def test_an_owner_at_its_limit_waits_for_itself_and_holds_nobody_up(network):
    owner = LimitedOwner("greedy", 10)
    held = await network.request_segments_within(10, LONG_SECONDS, owner)
    waiting = asyncio.ensure_future(network.request_segments_within(5, LONG_SECONDS, owner))
    await asyncio.sleep(0)
    others = await network.request_segments_within(SEGMENTS - 10, LONG_SECONDS)
    assert not waiting.done()
    network.recycle_segments(held)
    assert len(await waiting) == 5
    network.recycle_segments(others)
    network.recycle_segments(waiting.result())
    assert owner.promised_segments == 0
    assert network.available_segments == SEGMENTS


async def test_the_owner_with_the_least_promises_is_served_first(network):
    rich, poor = SegmentOwner("rich"), SegmentOwner("poor")
    first = await network.request_segments_within(60, LONG_SECONDS, rich)
    second = await network.request_segments_within(40, LONG_SECONDS, poor)
    order: list[str] = []

    async def request(owner: SegmentOwner, count: int) -> None:
        segments = await network.request_segments_within(count, LONG_SECONDS, owner)
        order.append(owner.name)
        network.recycle_segments(segments)

    tasks = [asyncio.ensure_future(request(rich, 40)), asyncio.ensure_future(request(poor, 40))]
    await asyncio.sleep(0)
    network.recycle_segments(second)
    await asyncio.gather(*tasks)
    assert order == ["poor", "rich"]
    network.recycle_segments(first)


async def test_a_request_above_the_limit_of_its_owner_does_not_wait(network):
    owner = LimitedOwner("greedy", 10)
    with pytest.raises(Refused):
        await network.request_segments_within(11, LONG_SECONDS, owner)


async def test_a_request_that_expires_or_is_cancelled_is_not_counted(network):
    owner = LimitedOwner("app", SEGMENTS)
    held = await network.request_segments_within(SEGMENTS, LONG_SECONDS)
    with pytest.raises(NetworkBufferTimeout):
        await network.request_segments_within(1, SOON_SECONDS, owner)
    task = asyncio.ensure_future(network.request_segments_within(1, LONG_SECONDS, owner))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    network.recycle_segments(held)
    assert owner.promised_segments == 0
    assert network.available_segments == SEGMENTS


async def test_destroying_the_network_pool_ends_all_promises(network):
    owner = SegmentOwner("app")
    pool = network.create_local_pool("gate", 3, owner=owner)
    held = await network.request_segments_within(2, LONG_SECONDS, owner)
    assert owner.promised_segments == 5
    network.destroy()
    assert pool.is_destroyed
    network.recycle_segments(held)
    assert owner.promised_segments == 0


class Tenant(NamedTuple):
    whole: SegmentOwner
    first: SegmentOwner
    second: SegmentOwner


def tenant(limit: int = SEGMENTS) -> Tenant:
    whole = LimitedOwner("tenant", limit)
    return Tenant(whole, SegmentOwner("first", whole), SegmentOwner("second", whole))


async def test_tenants_share_alike_and_then_their_applications(network):
    two, alone = tenant(), SegmentOwner("alone")
    pools = [network.create_local_pool(f"gate {n}", 0, owner=two.first) for n in range(3)]
    sibling = network.create_local_pool("gate", 0, owner=two.second)
    other = network.create_local_pool("gate", 0, owner=alone)
    assert other.size_segments == SEGMENTS // 2
    assert sibling.size_segments == SEGMENTS // 4
    assert sum(pool.size_segments for pool in pools) == SEGMENTS // 4
    for pool in (*pools, sibling):
        pool.destroy()
    assert other.size_segments == SEGMENTS
    assert len(network.shares.all()) == 1


async def test_applications_of_a_tenant_stay_within_its_limit_together(network):
    two = tenant(10)
    pools = [network.create_local_pool("gate", 0, owner=each) for each in two[1:]]
    assert sum(drawn(pool) for pool in pools) == 10
    held = await network.request_segments_within(SEGMENTS - 10, LONG_SECONDS)
    assert not two.first.may_promise(11)
    network.recycle_segments(held)


async def test_what_one_application_returns_goes_to_a_sibling_at_the_limit_of_its_tenant(network):
    two = tenant(10)
    held = await network.request_segments_within(10, LONG_SECONDS, two.first)
    waiting = asyncio.ensure_future(network.request_segments_within(4, LONG_SECONDS, two.second))
    pool = network.create_local_pool("gate", 0, owner=two.second)
    await asyncio.sleep(0)
    assert not waiting.done()
    network.recycle_segments(held)
    assert len(await waiting) == 4
    assert drawn(pool) == 6
    network.recycle_segments(waiting.result())
    assert two.whole.promised_segments == 0


async def test_an_application_of_a_tenant_with_many_promises_waits_for_other_tenants(network):
    two, poor = tenant(), SegmentOwner("poor")
    first = await network.request_segments_within(60, LONG_SECONDS, two.first)
    second = await network.request_segments_within(SEGMENTS - 60, LONG_SECONDS, poor)
    order: list[str] = []

    async def request(owner: SegmentOwner) -> None:
        segments = await network.request_segments_within(40, LONG_SECONDS, owner)
        order.append(owner.name)
        network.recycle_segments(segments)

    tasks = [asyncio.ensure_future(request(each)) for each in (two.second, poor)]
    await asyncio.sleep(0)
    network.recycle_segments(second)
    await asyncio.gather(*tasks)
    assert order == ["poor", "second"]
    network.recycle_segments(first)
