"""The TaskManagers that each application may use."""

from __future__ import annotations

import pytest

from sluice.shuffle.errors import LimitExceeded
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.bounds.accounts import Accounts, QuotaExceeded, Resource
from sluice.shuffle.taskmanager.cluster import known_taskmanagers
from sluice.shuffle.taskmanager.cluster.known_taskmanagers import KnownTaskManagers


def place(name: str, host: str = "") -> TaskManagerPlace:
    return TaskManagerPlace(name, host or f"host-{name}", 7337)


def test_an_application_uses_named_and_configured_taskmanagers():
    known = KnownTaskManagers("own", Accounts())
    assert known.tell("app", place("a"))
    assert not known.tell("app", place("a"))
    assert known.tell("app", place("a", "elsewhere"))  # it has another address now
    assert known.tell("other", place("b"))
    known.joined(place("c"))
    assert not known.tell("app", place("own"))
    known.joined(place("own"))
    assert known.places_of("nobody") == {"c": place("c")}
    assert known.place_for("nobody", "a") is None
    assert {each.host for each in known.places_of("app").values()} == {"elsewhere", "host-c"}


def test_named_taskmanagers_are_forgotten_with_their_application():
    known = KnownTaskManagers("own", Accounts())
    for application, name in [("app", "a"), ("app", "b"), ("other", "b"), ("app", "c")]:
        known.tell(application, place(name))
    known.joined(place("c"))
    known.forget("app")
    assert known.places_of("app") == {"c": place("c")}
    assert known.place_for("app", "a") is None
    assert known.place_for("other", "b") == place("b")
    known.forget("nobody")


def test_a_driver_names_places_for_its_own_application_only():
    known = KnownTaskManagers("own", Accounts())
    known.joined(place("c"))
    known.tell("app", place("a"))
    for name in "ac":
        assert known.tell("other", place(name, "wrong"))
    assert {each.host for each in known.places_of("app").values()} == {"host-a", "host-c"}
    assert known.place_for("app", "a") == place("a")
    assert known.place_for("other", "a") == place("a", "wrong")
    assert known.place_for("other", "c") == place("c")  # its own word
    assert known.places_of("nobody") == {"c": place("c")}
    assert known.place_for("nobody", "a") is None


def test_a_configured_taskmanager_is_replaced_at_its_address():
    known = KnownTaskManagers("own", Accounts())
    known.joined(place("old", "host"))
    known.joined(place("elsewhere"))
    known.joined(place("new", "host"))
    assert set(known.places_of("app").values()) == {place("elsewhere"), place("new", "host")}


def test_a_driver_can_name_a_limited_number(monkeypatch):
    monkeypatch.setattr(known_taskmanagers, "MAX_TOLD", 2)
    known = KnownTaskManagers("own", Accounts())
    for name in "ab":
        known.tell("app", place(name))
    known.tell("app", place("a", "elsewhere"))
    with pytest.raises(LimitExceeded) as refused:
        known.tell("app", place("c"))
    assert (refused.value.value, refused.value.limit) == (3, 2)


def test_named_taskmanagers_are_charged_until_they_are_forgotten():
    accounts = Accounts()
    known = KnownTaskManagers("own", accounts)
    account = accounts.of("app")
    account.set_limits(
        tuple(2048 if each is Resource.METADATA_BYTES else None for each in Resource)
    )
    for name in "aab":
        known.tell("app", place(name))
    known.tell("app", place("a", "elsewhere"))
    assert account.amount(Resource.METADATA_BYTES) == 2048
    with pytest.raises(QuotaExceeded):
        known.tell("app", place("c"))
    assert set(known.places_of("app")) == {"a", "b"}
    for _ in range(2):
        known.forget("app")
        assert account.amount(Resource.METADATA_BYTES) == 0
    assert not accounts.in_use()
