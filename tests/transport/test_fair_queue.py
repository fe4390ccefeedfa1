"""Turns of applications and their connections, whatever their calls cost."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.transport.fair_queue import IDLE_MEMBERS, FairQueue, Flow

MAX_COST = 50


class Item(NamedTuple):
    """A call; the number tells it from others of the same cost."""

    flow: Flow
    cost: int
    number: int


class Rig:
    """A queue, and the calls that it should hold."""

    def __init__(self) -> None:
        self.queue: FairQueue[Item] = FairQueue()
        self.numbers = count()
        self.waiting: defaultdict[Flow, deque[Item]] = defaultdict(deque)

    def add(self, flow: Flow, cost: int) -> Item:
        item = Item(flow, cost, next(self.numbers))
        self.queue.add(flow, cost, item)
        self.waiting[flow].append(item)
        return item

    def take(self) -> Item:
        item = self.queue.take()
        assert item is not None
        assert self.waiting[item.flow].popleft() is item  # a connection's calls keep their order
        return item

    def withdraw(self, item: Item) -> None:
        assert self.queue.withdraw(item.flow, item)
        self.waiting[item.flow].remove(item)

    @property
    def number_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))


flows = st.builds(Flow, st.sampled_from(["a", "b", "c"]), st.integers(0, 3))
costs = st.integers(1, MAX_COST)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), flows, costs),
        st.tuples(st.just("take")),
        st.tuples(st.just("withdraw"), st.integers(0, 1000)),
    ),
    max_size=200,
)


def run(rig: Rig, history: list[tuple]) -> list[Item]:
    """Make the steps; return the items taken."""
    taken: list[Item] = []
    for kind, *arguments in history:
        if kind == "add":
            rig.add(*arguments)
        elif rig.number_waiting:
            if kind == "take":
                taken.append(rig.take())
            else:
                everything = [item for each in rig.waiting.values() for item in each]
                rig.withdraw(everything[arguments[0] % len(everything)])
        else:
            assert rig.queue.take() is None
        assert len(rig.queue) == rig.number_waiting
    return taken


@given(steps)
def test_each_call_is_served_once_or_withdrawn(history):
    rig = Rig()
    taken = run(rig, history)
    while rig.number_waiting:
        taken.append(rig.take())
    assert rig.queue.take() is None
    assert len({item.number for item in taken}) == len(taken)
    for item in taken:
        assert not rig.queue.withdraw(item.flow, item)  # it cannot be both


def spread(differences: list[int]) -> int:
    """Return the most that the difference changed in any interval."""
    return max(differences) - min(differences)


@given(
    history=steps,
    mine=st.lists(st.lists(costs, min_size=1, max_size=5), min_size=1, max_size=6),
    theirs=st.lists(st.lists(costs, min_size=1, max_size=5), min_size=1, max_size=6),
    others=st.lists(st.none() | st.tuples(flows, costs), max_size=60),
)
def test_two_applications_that_always_want_turns_get_equal_ones(history, mine, theirs, others):
    """Each connection has its own cycle of costs; a third application comes and goes."""
    rig = Rig()
    before = run(rig, history)  # what it was served last still counts
    cycles = {
        Flow(name, number): cycle
        for name, connections in (("a", mine), ("b", theirs))
        for number, cycle in enumerate(connections, start=100)
    }
    served: defaultdict[Flow, int] = defaultdict(int)
    for flow, cycle in cycles.items():
        rig.add(flow, cycle[0])
    balance, differences = {"a": 0, "b": 0, "c": 0}, [0]
    largest = {
        name: max((each.cost for each in before if each.flow.application_id == name), default=1)
        for name in "abc"
    }
    for other in others + [None] * 60:
        if other is not None:
            rig.add(Flow("c", other[0].connection), other[1])
        item = rig.take()
        name = item.flow.application_id
        balance[name] += item.cost
        largest[name] = max(largest[name], item.cost)
        differences.append(balance["a"] - balance["b"])
        if item.flow in cycles:
            served[item.flow] += 1
            cycle = cycles[item.flow]
            rig.add(item.flow, cycle[served[item.flow] % len(cycle)])
    assert spread(differences) <= largest["a"] + largest["b"]


@given(
    mine=st.lists(costs, min_size=1, max_size=5),
    theirs=st.lists(costs, min_size=1, max_size=5),
    others=st.integers(0, 5),
    another=st.booleans(),
)
def test_two_connections_of_an_application_get_equal_turns(mine, theirs, others, another):
    rig = Rig()
    first, second = Flow("a", 0), Flow("a", 1)
    cycles = {first: mine, second: theirs}
    cycles |= {Flow("a", 2 + number): [MAX_COST] for number in range(others)}
    cycles |= {Flow("b", 0): [1]} if another else {}
    served: defaultdict[Flow, int] = defaultdict(int)
    balance: defaultdict[Flow, int] = defaultdict(int)
    differences = [0]
    for flow, cycle in cycles.items():
        rig.add(flow, cycle[0])
    for _ in range(120):
        item = rig.take()
        served[item.flow] += 1
        balance[item.flow] += item.cost
        differences.append(balance[first] - balance[second])
        rig.add(item.flow, cycles[item.flow][served[item.flow] % len(cycles[item.flow])])
    assert spread(differences) <= max(mine) + max(theirs)


@given(history=steps, cost=costs)
def test_one_that_comes_anew_waits_for_one_call_of_each_other_at_most(history, cost):
    rig = Rig()
    run(rig, history)
    newcomer = rig.add(Flow("new", 0), cost)
    before = []
    while (item := rig.take()) is not newcomer:
        before.append(item.flow.application_id)
        rig.add(item.flow, 1)  # it wants further turns
    assert len(before) == len(set(before))


@given(history=steps, cost=costs, last=costs)
def test_one_that_returns_waits_for_as_much_as_it_had(history, cost, last):
    """One call at a time is no way to more turns: the cost of the last one counts."""
    rig = Rig()
    run(rig, history)
    rig.add(Flow("again", 0), last)
    while rig.take().flow.application_id != "again":
        pass
    again = rig.add(Flow("again", 0), cost)
    before: defaultdict[str, int] = defaultdict(int)
    while (item := rig.take()) is not again:
        before[item.flow.application_id] += item.cost
        rig.add(item.flow, MAX_COST)
    assert all(each < last + 2 * MAX_COST for each in before.values())


def turns(connections: int, cost: int, theirs: list[int]) -> list[str]:
    """Return the applications in the order of their turns; one has so many connections."""
    rig = Rig()
    for number in range(connections):
        rig.add(Flow("a", number), cost)
    rig.add(Flow("b", 0), theirs[0])
    order = []
    for number in range(80):
        item = rig.take()
        order.append(item.flow.application_id)
        again = cost if item.flow.application_id == "a" else theirs[number % len(theirs)]
        rig.add(item.flow, again)
    return order


@given(st.integers(1, 8), costs, st.lists(costs, min_size=1, max_size=4))
def test_a_further_connection_of_an_application_costs_others_nothing(connections, cost, theirs):
    assert turns(connections, cost, theirs) == turns(connections + 1, cost, theirs)


@given(alone=st.integers(0, 100), mine=costs, theirs=costs)
def test_one_that_comes_anew_is_owed_nothing_for_its_absence(alone, mine, theirs):
    rig = Rig()
    here, newcomer = Flow("a", 0), Flow("b", 0)
    rig.add(here, mine)
    for _ in range(alone):
        rig.take()
        rig.add(here, mine)
    rig.add(newcomer, theirs)
    difference, differences = 0, [0]
    for _ in range(60):
        item = rig.take()
        difference += item.cost if item.flow == here else -item.cost
        differences.append(difference)
        rig.add(item.flow, item.cost)
    assert spread(differences) <= mine + theirs


def test_a_call_that_is_withdrawn_costs_nothing():
    rig = Rig()
    rig.add(Flow("b", 0), 1)
    rig.take()
    rig.withdraw(rig.add(Flow("a", 0), MAX_COST))
    mine = rig.add(Flow("a", 0), 1)
    rig.add(Flow("b", 0), 1)
    assert rig.take() is mine


def test_a_call_without_a_cost_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        Rig().add(Flow("a", 0), 0)


def test_calls_that_are_withdrawn_leave_nothing_behind():
    """Also while no turn comes: the disk may hang, and clients may come and go."""
    rig = Rig()
    stays = rig.add(Flow("a", 0), 1)
    for number in range(20 * IDLE_MEMBERS):
        rig.withdraw(rig.add(Flow("a", number + 1), 1))
        rig.withdraw(rig.add(Flow(f"app-{number}", 0), 1))
    tenants = rig.queue._all.level
    assert len(tenants.members) <= 2 + IDLE_MEMBERS + 1
    connections = tenants.members["a"].level.members["a"].level
    assert len(connections.members) <= 2 + IDLE_MEMBERS + 1
    assert rig.take() is stays
    rig.queue.forget_idle()
    assert not rig.queue._all.level.members


def test_what_waits_is_not_forgotten():
    rig = Rig()
    item = rig.add(Flow("a", 0), 1)
    rig.queue.forget_idle()
    assert rig.take() is item


def test_a_tenant_has_no_more_turns_for_its_many_applications():
    rig = Rig()
    for number in range(64):
        rig.add(Flow(f"app-{number}@{'b' * 8}{'c' * 16}", number), 10)
    for _ in range(8):
        rig.add(Flow("innocent", 0), 10)
    served = [rig.take().flow.application_id for _ in range(16)]
    assert served.count("innocent") == 8
    assert len(set(served)) == 9  # and its own take turns too
