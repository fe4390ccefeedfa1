"""The order in which map outputs go to TaskManagers, and who may be used by whom."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.errors import LimitExceeded
from sluice.shuffle.names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from sluice.shuffle.taskmanager.cluster import known_taskmanagers
from sluice.shuffle.taskmanager.cluster.known_taskmanagers import (
    KnownTaskManagers,
    rendezvous_order,
)

ATTEMPT = MapAttemptKey(ShuffleKey("app", 1), 7)
ids = st.lists(st.text(min_size=1, max_size=20), unique=True, max_size=12)
attempts = st.builds(
    MapAttemptKey,
    st.builds(ShuffleKey, st.text(max_size=20), st.integers(0, 2**32 - 1)),
    st.integers(-(2**63), 2**63 - 1),
)


def place(name: str, host: str = "") -> TaskManagerPlace:
    return TaskManagerPlace(name, host or f"host-{name}", 7337)


@given(attempts, ids, st.randoms())
def test_every_taskmanager_finds_the_same_order(attempt, names, shuffled):
    order = rendezvous_order(attempt, names)
    assert sorted(order) == sorted(names)
    shuffled.shuffle(names)
    assert rendezvous_order(attempt, names) == order


@given(attempts, ids, st.data())
def test_one_that_goes_changes_nothing_among_the_others(attempt, names, data):
    order = rendezvous_order(attempt, names)
    if names:
        gone = data.draw(st.sampled_from(names))
        rest = [name for name in names if name != gone]
        assert rendezvous_order(attempt, rest) == [name for name in order if name != gone]


def test_map_outputs_are_spread_evenly():
    names = [f"tm{number}" for number in range(10)]
    first = Counter(
        rendezvous_order(MapAttemptKey(ShuffleKey("app", 1), attempt), names)[0]
        for attempt in range(5000)
    )
    assert set(first) == set(names)
    assert max(first.values()) < 1.5 * min(first.values())


def test_an_application_uses_those_of_its_drivers_and_those_of_the_settings():
    known = KnownTaskManagers("own")
    assert known.tell("app", place("a"))
    assert not known.tell("app", place("a"))
    assert known.tell("app", place("a", "elsewhere"))  # it has another address now
    assert known.tell("other", place("b"))
    known.configure(place("c"))
    assert not known.tell("app", place("own"))
    known.configure(place("own"))
    assert known.place_for("nobody", "a") is None
    assert {each.host for each in known.order(ATTEMPT)} == {"elsewhere", "host-c"}
    assert len(known) == 3


def test_what_drivers_named_is_forgotten_with_their_application():
    known = KnownTaskManagers("own")
    for application, name in [("app", "a"), ("app", "b"), ("other", "b"), ("app", "c")]:
        known.tell(application, place(name))
    known.configure(place("c"))
    known.forget("app")
    assert known.order(ATTEMPT) == [place("c")]
    assert known.places("a") == []
    assert known.places("b") == [place("b")]
    known.forget("nobody")


def test_a_driver_names_places_for_its_own_application_only():
    known = KnownTaskManagers("own")
    known.configure(place("c"))
    known.tell("app", place("a"))
    for name in "ac":
        assert known.tell("other", place(name, "wrong"))
    assert {each.host for each in known.order(ATTEMPT)} == {"host-a", "host-c"}
    assert known.place_for("app", "a") == place("a")
    assert known.place_for("other", "a") == place("a", "wrong")
    assert known.place_for("other", "c") == place("c")  # its own word
    assert known.place_for("nobody", "a") is None
    assert known.places("a") == [place("a", "wrong"), place("a")]
    assert known.places("c") == [place("c"), place("c", "wrong")]


def test_one_of_the_settings_gives_way_to_another_one_at_its_address():
    known = KnownTaskManagers("own")
    known.configure(place("old", "host"))
    known.configure(place("elsewhere"))
    known.configure(place("new", "host"))
    assert set(known.order(ATTEMPT)) == {place("elsewhere"), place("new", "host")}


def test_a_driver_names_no_more_than_a_limit(monkeypatch):
    monkeypatch.setattr(known_taskmanagers, "MAX_TOLD", 2)
    known = KnownTaskManagers("own")
    for name in "ab":
        known.tell("app", place(name))
    known.tell("app", place("a", "elsewhere"))
    with pytest.raises(LimitExceeded) as refused:
        known.tell("app", place("c"))
    assert (refused.value.value, refused.value.limit) == (3, 2)
