"""Which tier takes a region, when several applications want the memory tier."""

import pytest

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import NO_LIMITS, Accounts, QuotaExceeded, Resource
from sluice.shuffle.taskmanager.store.errors import StorageFull
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.tiers.tier_shares import fair_share_bytes
from tests.support.store import config, extent_of, put

MIB = 1024 * 1024
REGION = 64 * 1024
REGIONS = 16
"""Regions that the memory tier holds."""

RESERVE_PERCENT = 25
GREEDY, INNOCENT = ShuffleKey("greedy", 0), ShuffleKey("innocent", 0)


def open_store(opened, **changes):
    return opened(**({"memory_tier_reserve_percent": RESERVE_PERCENT} | changes))


def announce(store, key, regions):
    """Announce regions; return their writers and how many are in memory."""
    writers = [store.begin_region(key, 0, [REGION]) for _ in range(regions)]
    return writers, sum(writer.in_memory for writer in writers)


def abort(writers):
    for writer in writers:
        writer.abort()


async def test_a_lone_application_leaves_the_reserve_to_others(opened):
    store = open_store(opened)
    outputs = [await put(store, attempt, REGION, key=GREEDY) for attempt in range(REGIONS)]
    assert [extent_of(each).in_memory for each in outputs] == [True] * 12 + [False] * 4
    assert store.memory_refusals == 4
    store.release_application(GREEDY.application_id)


async def test_regions_that_are_announced_and_never_sent_count(opened):
    store = open_store(opened)
    greedy, in_memory = announce(store, GREEDY, 2 * REGIONS)
    assert in_memory == 12
    innocent, in_memory = announce(store, INNOCENT, REGIONS)
    assert in_memory == 4  # all that is free, at once
    assert store.memory_refusals == 2 * REGIONS - 12  # the tier was full for the others
    abort(greedy)
    abort(innocent)


async def test_what_is_released_goes_to_the_one_below_its_share(opened):
    store = open_store(opened)
    greedy, _ = announce(store, GREEDY, 12)
    innocent, in_memory = announce(store, INNOCENT, 4)
    assert in_memory == 4
    share = fair_share_bytes(MIB, 2, RESERVE_PERCENT) // REGION
    assert share == 6
    for _ in range(share - in_memory):
        greedy.pop(0).abort()
        again, regained = announce(store, GREEDY, 1)
        assert regained == 0
        writers, gained = announce(store, INNOCENT, 1)
        assert gained == 1
        greedy += again
        innocent += writers
    abort(greedy)
    abort(innocent)


async def test_without_a_reserve_the_first_application_takes_all(opened):
    store = open_store(opened, memory_tier_reserve_percent=0)
    writers, in_memory = announce(store, GREEDY, REGIONS + 1)
    assert in_memory == REGIONS
    assert store.memory_refusals == 0
    abort(writers)


async def test_a_region_that_would_fail_gets_the_reserve(opened):
    store = open_store(opened, disk_quota_bytes=2 * REGION)
    writers, in_memory = announce(store, GREEDY, REGIONS + 2)
    assert in_memory == REGIONS
    with pytest.raises(StorageFull, match=r"memory .* has 0 in one piece; disk .* has 0"):
        store.begin_region(GREEDY, 0, [REGION])
    assert store.memory_refusals == 2
    abort(writers)


async def test_a_region_that_would_fail_does_not_get_what_is_left_for_a_neighbour(opened):
    store = open_store(opened, disk_quota_bytes=2 * REGION)
    innocent, _ = announce(store, INNOCENT, 1)
    greedy, in_memory = announce(store, GREEDY, 13)
    assert in_memory == 11
    with pytest.raises(StorageFull, match="kept for other applications") as caught:
        store.begin_region(GREEDY, 0, [REGION])
    assert caught.value.limit == 0
    more, in_memory = announce(store, INNOCENT, 4)
    assert in_memory == 4
    abort([*innocent, *greedy, *more])


async def test_one_at_its_quota_of_the_disks_gets_the_reserve(tmp_path):
    accounts = Accounts()
    limits = list(NO_LIMITS)
    limits[Resource.DISK_TIER_BYTES] = REGION
    accounts.set_limits(lambda *_: tuple(limits))
    store = ShuffleStore.open(
        config(tmp_path, memory_tier_reserve_percent=RESERVE_PERCENT), accounts
    )
    writers, in_memory = announce(store, GREEDY, REGIONS + 1)
    assert in_memory == REGIONS
    assert not accounts.refused
    with pytest.raises(QuotaExceeded):
        store.begin_region(GREEDY, 0, [REGION])
    abort(writers)
    await store.close()


async def test_a_quota_of_the_memory_tier_is_no_unfairness(tmp_path):
    accounts = Accounts()
    limits = list(NO_LIMITS)
    limits[Resource.MEMORY_TIER_BYTES] = 2 * REGION
    accounts.set_limits(lambda *_: tuple(limits))
    store = ShuffleStore.open(config(tmp_path), accounts)
    writers, in_memory = announce(store, GREEDY, 4)
    assert (in_memory, store.memory_refusals) == (2, 0)
    abort(writers)
    await store.close()


async def test_a_memory_tier_out_of_use_is_no_unfairness(opened):
    store = open_store(opened)
    greedy, _ = announce(store, GREEDY, 12)
    store._storage.memory.fail("broken")
    more, in_memory = announce(store, GREEDY, 2)
    assert (in_memory, store.memory_refusals) == (0, 0)
    abort([*greedy, *more])


async def test_what_was_adopted_counts(opened):
    store = open_store(opened)
    for attempt in range(12):
        await put(store, attempt, REGION, key=GREEDY)
    await store.close()
    again = open_store(opened)
    writers, in_memory = announce(again, GREEDY, 1)
    assert in_memory == 0
    others, in_memory = announce(again, INNOCENT, 4)
    assert in_memory == 4
    abort([*writers, *others])
    again.release_application(GREEDY.application_id)


async def test_applications_of_a_tenant_share_its_part_and_leave_the_reserve_to_others(opened):
    """The reserve of the tier is for other tenants, and that of its part for its applications."""
    store = open_store(opened)
    first, second = (ShuffleKey(f"{name}@{'b' * 24}", 0) for name in ("first", "second"))
    writers, in_memory = announce(store, first, REGIONS)
    assert in_memory == 9  # three quarters of twelve, which are three quarters of the tier
    more, in_memory = announce(store, second, REGIONS)
    assert in_memory == 3
    innocent, in_memory = announce(store, INNOCENT, REGIONS)
    assert in_memory == 4
    abort([*writers, *more, *innocent])
