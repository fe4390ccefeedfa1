"""Pages of a shuffle's map outputs: bounded, in order, and complete when they are joined."""

from __future__ import annotations

import asyncio

import pytest
from crc32c import crc32c

from sluice.protocol.identity import NAMESPACE_LETTERS, plain_name
from sluice.protocol.schema import EVERY_SUBPARTITION
from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.store import shuffle_page
from sluice.shuffle.taskmanager.store.shuffle_page import (
    OutputDetail,
    ShufflePage,
    ShuffleQuery,
    UnknownShuffle,
    joined,
    resolve,
    take_page,
)
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.store import KEY, config, content, put, write_region


@pytest.fixture
async def store(tmp_path):
    store = ShuffleStore.open(config(tmp_path))
    yield store
    await store.close()


def attempts(page):
    return [each.map_attempt_id for each in page.outputs]


async def test_a_page_has_each_region_with_its_place_and_checksum(store, tmp_path):
    await put(store, 7, 4000)
    page = await take_page(store, ShuffleQuery("app-1", 0))
    assert (page.application_id, page.shuffle_id) == KEY
    assert (page.map_outputs, page.stored_bytes, page.next) == (1, 4000, None)
    (output,) = page.outputs
    assert (output.map_attempt_id, output.state, output.length_bytes) == (7, "committed", 4000)
    (region,) = output.regions
    assert (region.tier, region.directory) == ("memory", str(tmp_path / "memory"))
    assert (region.length_bytes, region.subpartitions, region.is_broadcast) == (4000, 4, False)
    assert region.crc32c == crc32c(content(7, 4000))


async def test_a_broadcast_region_is_named_as_one(store):
    region = await write_region(store, b"abcd", [4], first=EVERY_SUBPARTITION)
    await store.commit(MapOutput(KEY, 1, 9, (region,)))
    (output,) = (await take_page(store, ShuffleQuery("app-1", 0))).outputs
    assert output.regions[0].is_broadcast
    assert (output.subpartitions, output.regions[0].first_subpartition) == (9, 0)


async def test_an_uncommitted_map_output_with_secured_regions_is_shown(store):
    region = await write_region(store, b"abcd", [4])
    await store.secure(MapAttemptKey(KEY, 3), 1, [region], "p")
    await put(store, 4, 100)
    page = await take_page(store, ShuffleQuery("app-1", 0))
    assert [(each.map_attempt_id, each.state) for each in page.outputs] == [
        (3, "secured"),
        (4, "committed"),
    ]
    store.drop_open(MapAttemptKey(KEY, 3))


async def test_pages_follow_each_other(store):
    for attempt in (9, 2, 5, 7, 1):
        await put(store, attempt, 100)
    first = await take_page(store, ShuffleQuery("app-1", 0, 0, 2))
    assert (attempts(first), first.next, first.map_outputs) == ([1, 2], 5, 5)
    second = await take_page(store, ShuffleQuery("app-1", 0, 5, 2))
    third = await take_page(store, ShuffleQuery("app-1", 0, 9, 2))
    assert (attempts(second), second.next) == ([5, 7], 9)
    assert (attempts(third), third.next) == ([9], None)


async def test_regions_above_the_limit_of_a_page_are_counted(store, monkeypatch):
    monkeypatch.setattr(shuffle_page, "MAX_REGIONS", 3)
    for attempt in range(2):
        regions = [await write_region(store, b"abcd", [4], first=n) for n in range(2)]
        await store.commit(MapOutput(KEY, attempt, 2, tuple(regions)))
    page = await take_page(store, ShuffleQuery("app-1", 0))
    assert [len(each.regions) for each in page.outputs] == [2, 1]
    assert [each.regions_left_out for each in page.outputs] == [0, 1]
    assert [each.length_bytes for each in page.outputs] == [8, 8]


async def test_the_loop_has_turns_while_many_map_attempts_are_put_in_order():
    count = 10 * shuffle_page.ATTEMPTS_A_TURN
    attempts = [*range(count, 0, -1), *range(count)]
    turns = 0
    done = False

    async def take_turns():
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    for first in (0, 17, count, count + 1):
        expected = sorted({each for each in attempts if each >= first})[:100]
        assert await shuffle_page._chosen(attempts, first, 100) == expected
    done = True
    await other
    assert turns >= 4 * 20


async def test_a_shuffle_without_map_outputs_is_empty(store):
    await put(store, 1, 100)
    page = await take_page(store, ShuffleQuery("app-1", 5))
    assert (page.map_outputs, page.outputs, page.next) == (0, (), None)


async def test_an_unknown_application_is_an_error(store):
    with pytest.raises(UnknownShuffle, match="No application of this name"):
        await take_page(store, ShuffleQuery("nobody", 0))


def test_a_name_without_its_namespace_is_found_if_it_is_the_only_one():
    first, second = (f"app@{letter * NAMESPACE_LETTERS}" for letter in "ab")
    assert plain_name(first) == "app"
    assert resolve("app", ["other", "app", first]) == "app"
    assert resolve("app", ["other", first]) == first
    with pytest.raises(UnknownShuffle, match="Several applications"):
        resolve("app", [first, second])


def page_of(*attempts, after=None):
    return ShufflePage("app", 1, 10, 100, tuple(map(OutputDetail, attempts)), after)


@pytest.mark.parametrize(
    ("pages", "limit", "shown", "after"),
    [
        ([page_of(1, 4), page_of(2, 3)], 10, [1, 2, 3, 4], None),
        ([page_of(1, 4), page_of(2, 3)], 3, [1, 2, 3], 4),
        # The first process has not shown what comes after 4, so 5 and 6 wait for the next page.
        ([page_of(1, 4, after=5), page_of(2, 6)], 2, [1, 2], 4),
        ([page_of(1, 4, after=5), page_of(2, 6)], 3, [1, 2, 4], 5),
        ([page_of(1, 2, after=3), page_of()], 2, [1, 2], 3),
    ],
)
def test_pages_of_data_processes_are_joined_without_gaps(pages, limit, shown, after):
    page = joined(pages, limit)
    assert (attempts(page), page.next) == (shown, after)
    assert (page.map_outputs, page.stored_bytes) == (20, 200)
