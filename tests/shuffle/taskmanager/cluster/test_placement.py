"""The order in which TaskManagers are chosen for copies of a map output."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.schema import MEMBER_DRAINING
from sluice.shuffle.names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.cluster import placement as placement_module
from sluice.shuffle.taskmanager.cluster.known_taskmanagers import KnownTaskManagers
from sluice.shuffle.taskmanager.cluster.placement import (
    REFUSAL_SECONDS,
    Placement,
    rendezvous_order,
)
from tests.support.members import member_report, reports_of

if TYPE_CHECKING:
    import pytest

    from sluice.shuffle.taskmanager.cluster.member_reports import MemberReports

ATTEMPT = MapAttemptKey(ShuffleKey("app", 1), 7)
ids = st.lists(st.text(min_size=1, max_size=20), unique=True, max_size=12)
attempts = st.builds(
    MapAttemptKey,
    st.builds(ShuffleKey, st.text(max_size=20), st.integers(0, 2**32 - 1)),
    st.integers(-(2**63), 2**63 - 1),
)


@given(attempts, ids, st.randoms(), st.data())
def test_every_taskmanager_computes_the_same_order(attempt, names, shuffled, data):
    order = rendezvous_order(attempt, names)
    assert sorted(order) == sorted(names)
    shuffled.shuffle(names)
    assert rendezvous_order(attempt, names) == order
    if names:
        gone = data.draw(st.sampled_from(names))
        names.remove(gone)
        assert rendezvous_order(attempt, names) == [name for name in order if name != gone]


def test_map_outputs_are_spread_evenly():
    names = [f"tm{number}" for number in range(10)]
    first = Counter(
        rendezvous_order(MapAttemptKey(ShuffleKey("app", 1), attempt), names)[0]
        for attempt in range(5000)
    )
    assert set(first) == set(names)
    assert max(first.values()) < 1.5 * min(first.values())


class Rig:
    """The placement of a TaskManager on the host "own"."""

    def __init__(
        self,
        reports: MemberReports | None = None,
        own_location: tuple[str, str] = ("own", ""),
        **hosts: str,
    ) -> None:
        known = KnownTaskManagers("me", Accounts())
        for name, host in hosts.items():
            known.tell("app", TaskManagerPlace(name, host, 7337))
        self.absent = ""
        self.placement = Placement(known, reports or reports_of(), lambda: own_location)

    def order(self, *holders: str, safe: bool = False) -> str:
        candidates = self.placement.candidates(
            ATTEMPT, holders, lambda place: place.taskmanager_id in self.absent
        )
        return "".join(each.place.taskmanager_id for each in candidates if each.adds_safety >= safe)


async def test_candidates_are_ranked():
    rig = Rig(a="own", b="host-b", c="host-c", d="host-d", e="host-c")
    natural = rig.order(safe=True)
    assert sorted(natural) == ["b", "c", "d", "e"]
    assert rig.order() == natural + "a"
    # TaskManagers with a copy come first, and their hosts last.
    b_and_d = natural.replace("e", "").replace("c", "")
    assert rig.order("e") == f"e{b_and_d}ca"
    rig.placement.refuse(natural[0], "app")
    assert rig.order(safe=True) == natural[1:]
    assert rig.order() == natural[1:] + "a" + natural[0]
    rig.placement.refuse(natural[1], "another application")
    assert rig.order() == natural[1:] + "a" + natural[0]
    rig.placement.forget_refusal(natural[0], "another application")
    assert rig.order() == natural[1:] + "a" + natural[0]
    rig.placement.forget_refusal(natural[0], "app")
    assert rig.order() == natural + "a"


async def test_copies_go_to_another_node_and_then_to_another_zone():
    places = {name: TaskManagerPlace(name, f"pod-{name}", 7337) for name in "abcde"}
    reports = reports_of(
        member_report(places["a"], "node-1", "zone-1"),
        member_report(places["b"], "node-2", "zone-1"),
        member_report(places["c"], "node-3", "zone-2"),
        member_report(places["d"], "node-3", "zone-2"),
        member_report(places["e"], "node-4", "zone-3", state=MEMBER_DRAINING),
    )
    hosts = {name: place.host for name, place in places.items()}
    rig = Rig(reports, ("node-1", "zone-1"), **hosts)
    order = rig.order(safe=True)
    assert set(order[:2]) == {"c", "d"}, "in another zone"
    assert order[2:] == "b", "on another node; a is on this one, and e drains"
    # With a copy on node 3 in zone 2, only a draining TaskManager is in a new zone.
    assert rig.order("c", safe=True) == "b" + "d"


async def test_absent_taskmanagers_are_not_candidates():
    rig = Rig(a="host-a", b="host-b")
    assert sorted(rig.order()) == ["a", "b"]
    rig.absent = "a"
    assert rig.order() == "b"


async def test_a_refusal_is_forgotten_after_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(placement_module, "REFUSAL_SECONDS", -1e-9)
    rig = Rig(a="host-a")
    rig.placement.refuse("a", "app")
    assert rig.order(safe=True) == "a"
    assert REFUSAL_SECONDS == 5.0


async def test_the_oldest_refusal_is_forgotten_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(placement_module, "MAX_REFUSALS", 2)
    rig = Rig(a="host-a", b="host-b", c="host-c")
    for name in "abb":  # a repeated refusal takes no other place
        rig.placement.refuse(name, "app")
    assert rig.order(safe=True) == "c"
    rig.placement.refuse("c", "app")
    assert rig.order(safe=True) == "a"
