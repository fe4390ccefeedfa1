"""Map outputs that are read elsewhere: requests, waiting requests and views are sent there."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import DATA
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange, TaskManagerPlace
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.raises_code import raises_code
from tests.support.store import KEY, config, put

PLACE = TaskManagerPlace("tm2", "10.0.0.2", 7337)
WANTED = SubpartitionRange(KEY, 0, 4)


class Rig:
    """A store with map outputs, and readers of them."""

    def __init__(self, store: ShuffleStore) -> None:
        self.store = store
        self.partitions = ResultPartitionManager(store, 1024, 5)
        self.pool = NetworkBufferPool(16, 1024).create_local_pool("reads", 1, 16)
        self.told = 0

    def _told(self) -> None:
        self.told += 1

    async def view(self, *attempts: int):
        return await self.partitions.request_view(
            WANTED, attempts, 1024, lambda: self.pool, self._told
        )


@pytest.fixture
async def rig(tmp_path):
    store = ShuffleStore.open(config(tmp_path))
    rig = Rig(store)
    for attempt in range(3):
        await put(store, attempt, 4000)
    yield rig
    rig.pool.destroy()
    await store.close()


async def test_a_request_is_told_the_new_place(rig):
    rig.partitions.moved.move(KEY, {1: PLACE})
    assert len(rig.partitions.moved) == 1
    with raises_code(ErrorCode.PARTITION_MOVED) as moved:
        await rig.view(0, 1)
    assert moved.value.retryable
    assert moved.value.value == "tm2 10.0.0.2:7337"
    assert TaskManagerPlace.parse(moved.value.value) == PLACE
    assert moved.value.map_attempt_id == 1
    (await rig.view(0, 2)).release()


async def test_a_view_under_way_fails_with_the_new_place(rig):
    view, other = await rig.view(0, 1), await rig.view(2)
    taken = view.next_buffer(1)
    assert taken is not None
    assert taken.data_type == DATA
    taken.release()
    del taken  # its payload is a piece of the mapping
    rig.partitions.moved.move(KEY, {1: PLACE})
    assert rig.told == 1
    assert view.is_available(0)  # also for a reader that has given no credit
    with raises_code(ErrorCode.PARTITION_MOVED):
        view.next_buffer(1)
    assert other.failure is None
    view.release()
    other.release()


class CountedList(list[int]):
    """Counts how often it is looked through."""

    looks = 0

    def __iter__(self):
        self.looks += 1
        return super().__iter__()


async def test_a_view_that_has_failed_is_not_looked_at_again(rig):
    view, other = await rig.view(0, 1), await rig.view(2)
    moved = rig.partitions.moved
    failing, waiting = CountedList([0, 1]), CountedList([2])
    moved.watch(view, KEY, failing)
    moved.watch(other, KEY, waiting)
    for attempt in (0, 1):
        moved.move(KEY, {attempt: PLACE})
    assert view.failure is not None
    assert other.failure is None
    assert (failing.looks, waiting.looks) == (1, 2)
    view.release()
    other.release()


async def test_a_view_that_is_released_is_forgotten(rig):
    views = [await rig.view(0), await rig.view(0)]
    for view in views:
        view.release()
    assert not rig.partitions.moved._views
    rig.partitions.moved.move(KEY, {0: PLACE})
    assert rig.told == 0


async def test_a_request_that_waits_is_sent_to_the_new_place(rig):
    waiting = asyncio.ensure_future(rig.view(9))
    while not rig.partitions.waiting_requests:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0)
    rig.partitions.moved.move(KEY, {9: PLACE})
    with raises_code(ErrorCode.PARTITION_MOVED):
        await waiting


async def test_places_are_known_by_application_until_the_release(rig):
    moved = rig.partitions.moved
    moved.move(KEY, {0: PLACE, 1: PLACE, 2: PLACE})
    moved.move(ShuffleKey("other", 1), {5: PLACE})
    assert moved.of(KEY.application_id) == {KEY: {0: PLACE, 1: PLACE, 2: PLACE}}
    assert moved.place(KEY, 0) == PLACE
    rig.partitions.release_shuffle(KEY, 1)
    assert moved.of(KEY.application_id) == {KEY: {1: PLACE, 2: PLACE}}
    rig.partitions.release_shuffle(KEY)
    assert moved.of(KEY.application_id) == {}
    rig.partitions.release_application("other")
    assert len(moved) == 0


async def test_outputs_that_are_taken_back_are_read_here_again(rig):
    rig.partitions.moved.move(KEY, {0: PLACE})
    assert rig.partitions.moved.take_back_all() == {KEY: [0]}
    (await rig.view(0)).release()


@pytest.mark.parametrize("text", ["", "tm2", "tm2 host", "tm2 :80", "tm2 host:x", " host:80"])
def test_a_text_without_a_place_is_none(text):
    assert TaskManagerPlace.parse(text) is None


def test_a_place_has_a_text():
    place = TaskManagerPlace("tm", "2001:db8::1", 7337)
    assert TaskManagerPlace.parse(str(place)) == place
