"""Fair shares of the memory tier: what each application may hold, however they take and release."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.store.tiers.tier_shares import PERCENT, allowance, fair_share_bytes

ROOM = 10_000
DEFAULT_RESERVE = 12

amounts = st.integers(0, ROOM)
wanted = st.integers(1, ROOM // 4)
reserves = st.integers(0, 50)
many = st.integers(1, 40)


def may_take(size: int, held: int, free: int, share: int, reserve: int) -> bool:
    return size <= allowance(held, free, share, reserve)


class Tier:
    """A tier that follows the rule, and what the applications hold there."""

    def __init__(self, reserve_percent: int, room: int = ROOM) -> None:
        self.room = room
        self.reserve_percent = reserve_percent
        self.held: dict[str, int] = {}

    @property
    def free(self) -> int:
        return self.room - sum(self.held.values())

    def share(self, name: str) -> int:
        sharers = len({name, *(each for each, held in self.held.items() if held)})
        return fair_share_bytes(self.room, sharers, self.reserve_percent)

    def ask(self, name: str, size: int) -> bool:
        held = self.held.get(name, 0)
        allowed = may_take(size, held, self.free, self.share(name), self.reserve_percent)
        if allowed:
            self.held[name] = held + size
        return allowed

    def release(self, name: str, size: int) -> None:
        self.held[name] -= min(size, self.held[name])

    def fill(self, names: list[str], size: int) -> None:
        """Let all take by turns until each is refused."""
        while any([self.ask(name, size) for name in names]):
            pass


names = st.sampled_from(["a", "b", "c", "d"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), names, wanted),
        st.tuples(st.just("release"), names, wanted),
    ),
    max_size=100,
)


@given(steps, reserves)
def test_no_more_is_given_out_than_there_is(history, reserve):
    after(history, reserve)


@given(steps, reserves, names, wanted)
def test_one_below_its_share_gets_whatever_is_free(history, reserve, name, size):
    tier = after(history, reserve)
    if tier.held.get(name, 0) + size <= tier.share(name):
        fits = size <= tier.free
        assert tier.ask(name, size) == fits


@given(steps, st.integers(1, 50), names, wanted)
def test_one_beyond_its_share_leaves_room_to_one_that_comes_anew(history, reserve, name, size):
    tier = after(history, reserve)
    if tier.ask(name, size) and tier.held[name] > tier.share(name):
        left = tier.held[name] * reserve / (PERCENT - reserve)
        assert tier.free >= left
        share = tier.share("new")
        assert tier.ask("new", min(share, int(left)))


def after(history: list[tuple[str, str, int]], reserve: int) -> Tier:
    tier = Tier(reserve)
    for kind, name, size in history:
        if kind == "ask":
            tier.ask(name, size)
        elif name in tier.held:
            tier.release(name, size)
        assert tier.free >= 0
    return tier


@given(reserves, st.integers(20, 200))
def test_a_lone_application_takes_all_but_the_reserve(reserve, size):
    tier = Tier(reserve)
    tier.fill(["a"], size)
    most = ROOM * (PERCENT - reserve) // PERCENT
    assert most - size < tier.held["a"] <= most


@given(many, st.integers(1, 50), st.integers(10, 50))
def test_those_that_take_all_they_can_hold_the_same(sharers, reserve, size):
    tier = Tier(reserve)
    everybody = [f"app-{number}" for number in range(sharers)]
    tier.fill(everybody, size)
    share = fair_share_bytes(ROOM, sharers, reserve)
    assert all(share - size < held <= share + size for held in tier.held.values())


@settings(max_examples=30)
@given(
    holders=st.integers(1, 6),
    newcomers=st.integers(1, 6),
    reserve=st.integers(1, 50),
    seed=st.integers(0, 2**32),
)
def test_what_is_released_goes_to_those_below_their_share(holders, newcomers, reserve, seed):
    """All go on asking, in any order, while any region is released in the end."""
    size, choose = 100, random.Random(seed)
    tier = Tier(reserve)
    old = [f"old-{number}" for number in range(holders)]
    everybody = old + [f"new-{number}" for number in range(newcomers)]
    tier.fill(old, size)
    released = 0
    while released < 10 * ROOM:
        (name,) = choose.choices(list(tier.held), list(tier.held.values()))
        tier.release(name, size)
        released += size
        for each in choose.sample(everybody, len(everybody)):
            tier.ask(each, size)
    tier.fill(everybody, size)
    share = fair_share_bytes(ROOM, len(everybody), reserve)
    assert all(held > share - 2 * size for held in tier.held.values())


@given(reserves, st.integers(10, 50), st.integers(0, ROOM // 4))
def test_what_one_does_not_want_is_divided_among_the_others(reserve, size, little):
    tier = Tier(reserve)
    modest = fair_share_bytes(ROOM, 3, reserve) * little // ROOM + 1
    assert tier.ask("modest", modest)
    tier.fill(["a", "b"], size)
    assert abs(tier.held["a"] - tier.held["b"]) <= size
    assert tier.held["a"] > fair_share_bytes(ROOM, 3, reserve) - size
    most_left = (ROOM - modest) * reserve / (2 * PERCENT - reserve)  # twice what is held, and it
    assert tier.free < most_left + 3 * size + modest


@given(amounts, amounts, wanted, amounts, reserves, st.integers(0, 1000))
def test_more_room_or_less_held_refuses_nobody(held, free, size, share, reserve, change):
    if may_take(size, held, free, share, reserve):
        assert may_take(size, held, free + change, share, reserve)
        assert may_take(size, max(0, held - change), free, share, reserve)
        assert may_take(size, held, free, share + change, reserve)
        assert may_take(max(1, size - change), held, free, share, reserve)
        assert may_take(size, held, free, share, max(0, reserve - change))


@given(amounts, many, reserves)
def test_the_shares_of_more_applications_are_smaller_and_fit(room, sharers, reserve):
    share = fair_share_bytes(room, sharers, reserve)
    assert fair_share_bytes(room, sharers + 1, reserve) <= share
    assert sharers * share <= room


@pytest.mark.parametrize(
    ("sharers", "percent"), [(1, 88), (2, 46), (3, 31), (4, 24), (8, 12), (16, 6)]
)
def test_the_usual_shares(sharers, percent):
    assert fair_share_bytes(100, sharers, DEFAULT_RESERVE) == percent


@given(amounts, amounts, wanted)
def test_without_a_reserve_the_room_goes_to_those_who_come_first(held, free, size):
    assert may_take(size, held, free, 0, 0) == (size <= free)
