"""Accounts count what is held, and refuse what is beyond a quota."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.taskmanager.bounds.accounts import (
    NO_LIMITS,
    Accounts,
    Limits,
    QuotaExceeded,
    Resource,
)

LIMIT = 10
FIRST, SECOND = (f"{name}@bbbbbbbb{'c' * 16}" for name in ("first", "second"))
"""Two applications of a tenant."""
OTHER = f"first@dddddddd{'c' * 16}"
"""An application of another tenant."""


def limited(resource: Resource, limit: int) -> Limits:
    return tuple(limit if each is resource else None for each in Resource)


def test_an_application_gets_what_its_quota_allows_and_no_more():
    accounts = Accounts()
    accounts.set_limits(lambda *_: limited(Resource.CHANNELS, LIMIT))
    account = accounts.of("app")
    account.take(Resource.CHANNELS, LIMIT - 1)
    with pytest.raises(QuotaExceeded) as caught:
        account.take(Resource.CHANNELS, 2)
    error = caught.value
    assert (error.code, error.value, error.limit) == (ErrorCode.QUOTA_EXCEEDED, LIMIT + 1, LIMIT)
    assert "quota_channels" in str(error)
    assert error.retryable
    account.take(Resource.CHANNELS)
    assert account.held[Resource.CHANNELS] == LIMIT
    assert accounts.refused == {"channels": 1}


def test_a_request_above_the_whole_quota_is_not_worth_another_try():
    accounts = Accounts()
    accounts.set_limits(lambda *_: limited(Resource.DISK_TIER_BYTES, LIMIT))
    with pytest.raises(QuotaExceeded) as caught:
        accounts.of("app").take(Resource.DISK_TIER_BYTES, LIMIT + 1)
    assert not caught.value.retryable


def test_new_quotas_hold_for_accounts_that_exist():
    accounts = Accounts()
    account = accounts.of("app")
    account.take(Resource.CONNECTIONS, LIMIT)
    accounts.set_limits(lambda *_: limited(Resource.CONNECTIONS, LIMIT // 2))
    assert account.held[Resource.CONNECTIONS] == LIMIT  # what it has stays
    assert not account.has_room(Resource.CONNECTIONS)
    account.give_back(Resource.CONNECTIONS, LIMIT)
    account.take(Resource.CONNECTIONS, LIMIT // 2)
    accounts.set_limits(lambda *_: NO_LIMITS)
    account.take(Resource.CONNECTIONS, LIMIT)


def test_the_quotas_are_those_of_the_subject_as_soon_as_it_is_known():
    """Others may ask for an application's data before it connects."""
    limits = {"": limited(Resource.CHANNELS, 1), "alice": limited(Resource.CHANNELS, LIMIT)}
    accounts = Accounts()
    accounts.set_limits(lambda _, subject: limits[subject])
    account = accounts.of(FIRST)
    account.take(Resource.CHANNELS)
    assert not account.has_room(Resource.CHANNELS)
    assert accounts.of(FIRST, "alice") is account
    account.take(Resource.CHANNELS, LIMIT - 1)
    assert tuple(each.quota for each in accounts.of(FIRST).status()) == limits["alice"]
    limits["alice"] = NO_LIMITS
    accounts.set_limits(lambda _, subject: limits[subject])
    assert account.has_room(Resource.CHANNELS)


def test_applications_of_a_tenant_have_one_quota_together():
    accounts = Accounts()
    accounts.set_limits(lambda name, _: limited(Resource.CHANNELS, 6 if name == FIRST else LIMIT))
    first, second, other = (accounts.of(name) for name in (FIRST, SECOND, OTHER))
    with pytest.raises(QuotaExceeded, match="Application is at its quota of channels"):
        first.take(Resource.CHANNELS, 7)
    first.take(Resource.CHANNELS, 6)
    second.take(Resource.CHANNELS, 4)
    assert accounts.of(SECOND, "alice") is second
    with pytest.raises(QuotaExceeded, match="Subject alice is at its quota of channels"):
        second.take(Resource.CHANNELS)
    other.take(Resource.CHANNELS, LIMIT)
    (found,) = [each for each in first.status() if each.resource == "channels"]
    assert (found.held, found.subject_held, found.quota) == (6, LIMIT, 6)
    assert found.used_ratio == 1.0
    (found,) = [each for each in second.status() if each.resource == "channels"]
    assert (found.held, found.quota, found.used_ratio) == (4, LIMIT, 1.0), "the subject's quota"
    assert {each.application_id for each in accounts.in_use()} == {FIRST, SECOND, OTHER}
    first.give_back(Resource.CHANNELS, 6)
    second.take(Resource.CHANNELS, 6)


def test_tenants_share_and_within_them_applications():
    accounts = Accounts()
    first, second, other = (accounts.of(name) for name in (FIRST, SECOND, OTHER))
    for each in (first, other):
        each.take(Resource.CHANNELS)
    assert [each.sharers(Resource.CHANNELS) for each in (first, second, other)] == [1, 2, 1]
    assert first.parent is not None
    assert first.parent is second.parent
    assert first.parent.sharers(Resource.CHANNELS) == 2
    assert accounts.of("alone").sharers(Resource.CHANNELS) == 3
    second.promise(2)
    assert first.rank_with() == (2, 0)
    assert second.rank_with() == (2, 2)


def test_what_was_not_held_cannot_be_given_back():
    account = Accounts().of("app")
    account.take(Resource.CHANNELS)
    with pytest.raises(ValueError, match="app gives back 2 channels and holds 1"):
        account.give_back(Resource.CHANNELS, 2)
    assert account.held[Resource.CHANNELS] == 1


def test_an_account_is_gone_with_the_last_thing_it_holds():
    accounts = Accounts()
    account = accounts.of("app")
    account.take(Resource.MAP_OUTPUTS, 2)
    seen = weakref.ref(account)
    del account
    gc.disable()
    try:
        assert [each.application_id for each in accounts.in_use()] == ["app"]
        accounts.of("app").give_back(Resource.MAP_OUTPUTS, 2)
        assert seen() is None
        assert accounts.in_use() == []
    finally:
        gc.enable()


def test_promised_segments_are_held():
    accounts = Accounts()
    account = accounts.of("app")
    account.promise(3)
    assert (account.promised_segments, account.held[Resource.NETWORK_SEGMENTS]) == (3, 3)
    account.promise(-3)
    assert accounts.in_use() == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.sampled_from(Resource),
            st.integers(0, LIMIT + 2),
            st.booleans(),
        )
    )
)
def test_no_sequence_takes_more_than_the_quota_or_loses_count(steps):
    accounts = Accounts()
    accounts.set_limits(lambda *_: (LIMIT,) * len(Resource))
    kept = {name: accounts.of(name) for name in ("a", "b")}
    model = {(name, resource): 0 for name in kept for resource in Resource}
    for name, resource, amount, takes in steps:
        before = model[name, resource]
        if takes and before + amount <= LIMIT:
            kept[name].take(resource, amount)
            model[name, resource] += amount
        elif takes:
            with pytest.raises(QuotaExceeded):
                kept[name].take(resource, amount)
        elif amount <= before:
            kept[name].give_back(resource, amount)
            model[name, resource] -= amount
        for (holder, each), amount_held in model.items():
            assert kept[holder].held[each] == amount_held
        holders = {holder for (holder, _), amount_held in model.items() if amount_held}
        assert {each.application_id for each in accounts.in_use()} == holders


def test_the_sharers_of_a_resource_are_those_who_hold_it_and_the_one_who_asks():
    accounts = Accounts()
    mine, other = accounts.of("mine"), accounts.of("other")
    assert mine.sharers(Resource.CHANNELS) == 1
    other.hold(Resource.CHANNELS, 2)
    other.hold(Resource.CHANNELS, 3)
    other.hold(Resource.CONNECTIONS)
    assert other.amount(Resource.CHANNELS) == 5
    assert mine.sharers(Resource.CHANNELS) == 2
    assert other.sharers(Resource.CHANNELS) == 1
    mine.hold(Resource.CHANNELS)
    assert mine.sharers(Resource.CHANNELS) == other.sharers(Resource.CHANNELS) == 2
    other.give_back(Resource.CHANNELS, 4)
    assert mine.sharers(Resource.CHANNELS) == 2
    other.give_back(Resource.CHANNELS, 1)
    assert mine.sharers(Resource.CHANNELS) == 1
    mine.give_back(Resource.CHANNELS)
    assert accounts.holders == [each is Resource.CONNECTIONS for each in Resource]
