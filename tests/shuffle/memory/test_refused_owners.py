"""The queue of owners that were refused segments."""

from __future__ import annotations

from sluice.shuffle.memory import SegmentOwner
from sluice.shuffle.memory.refused_owners import MAX_AGE, MAX_PLACES, RefusedOwners


def owner(promised: int = 0, parent: SegmentOwner | None = None) -> SegmentOwner:
    result = SegmentOwner("app", parent)
    result.promise(promised)
    return result


def test_segments_are_kept_from_those_who_would_have_more():
    refused, poor = RefusedOwners(), owner()
    refused.add(poor, 5)
    assert refused.kept_from(owner(4), 2) == 5
    assert refused.kept_from(owner(3), 1) == 0
    assert refused.kept_from(poor, 50) == 0


def test_among_equals_the_one_that_was_refused_first_is_first():
    refused, first, second = RefusedOwners(), owner(), owner()
    for each in (first, second, first):
        refused.add(each, 5)
    assert [refused.kept_from(each, 5) for each in (first, second, owner())] == [0, 5, 10]


def test_a_tenant_has_one_place_for_all_its_applications():
    refused, tenant = RefusedOwners(), owner()
    many = [owner(parent=tenant) for _ in range(9)]
    for each in many:
        refused.add(each, 5)
    assert list(refused) == [(many[0], 5)]
    assert refused.kept_from(many[1], 5) == 5  # within the tenant too
    refused.granted(many[1], 5)
    assert list(refused)


def test_a_place_goes_when_its_owner_gets_as_much():
    refused, waiting = RefusedOwners(), owner()
    refused.add(waiting, 5)
    refused.granted(waiting, 4)
    assert list(refused) == [(waiting, 5)]
    refused.granted(waiting, 5)
    assert not list(refused)


def test_a_place_goes_when_its_owner_does_not_ask_again():
    refused, gone, back = RefusedOwners(), owner(), owner()
    for each in (gone, back):
        refused.add(each, 1)
    for _ in range(MAX_AGE):
        refused.age()
    refused.add(back, 2)
    refused.age()
    assert list(refused) == [(back, 2)]


def test_places_are_bounded():
    refused = RefusedOwners()
    for _ in range(2 * MAX_PLACES):
        refused.add(owner(), 1)
    assert len(list(refused)) == MAX_PLACES
