import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle.memory.distribution import fair_shares


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
