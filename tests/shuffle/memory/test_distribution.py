from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.memory.distribution import Sharing, fair_shares


@pytest.mark.network_case(22)
@given(spare=st.integers(0, 5000), rooms=st.lists(st.integers(1, 400), max_size=60))
def test_shares_are_even_capped_and_use_all_that_can_be_used(spare, rooms):
    rooms.sort()
    shares = list(fair_shares(spare, rooms))
    assert len(shares) == len(rooms)
    assert sum(shares) == min(spare, sum(rooms))
    assert all(0 <= share <= room for share, room in zip(shares, rooms, strict=True))
    below_their_room = [s for s, room in zip(shares, rooms, strict=True) if s < room]
    if below_their_room:
        assert max(shares) - min(below_their_room) <= 1


def test_nobody_to_share_with():
    assert list(fair_shares(7, [])) == []


@dataclass(eq=False)
class Pool:
    room: int
    share: int = 0


STEPS = st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 200))


@pytest.mark.network_case(22)
@given(steps=st.lists(STEPS, max_size=40))
def test_what_is_left_out_has_not_changed(steps):
    """Whoever comes and goes, and however much there is: all know their share all the time."""
    sharing: Sharing[Pool] = Sharing()
    pools: list[Pool] = []
    for what, room, spare in steps:
        if what < 5:
            pools.append(Pool(room))
            sharing.add(pools[-1])
        elif what < 9 and pools:
            sharing.remove(pools.pop(room % len(pools)))
        for pool, share in sharing.shares(spare):
            pool.share = share
        sharers = sorted((pool for pool in pools if pool.room), key=lambda pool: pool.room)
        rooms = [pool.room for pool in sharers]
        assert [pool.share for pool in sharers] == list(fair_shares(spare, rooms))


def test_who_comes_while_there_is_enough_concerns_nobody_else():
    sharing: Sharing[Pool] = Sharing()
    for _ in range(3):
        sharing.add(Pool(4))
    assert len(list(sharing.shares(100))) == 3
    assert list(sharing.shares(100)) == []
    late = Pool(8)
    sharing.add(late)
    assert list(sharing.shares(20)) == [(late, 8)]
    assert sorted(share for _, share in sharing.shares(19)) == [4, 4, 4, 7]
    assert sorted(share for _, share in sharing.shares(20)) == [4, 4, 4, 8]
