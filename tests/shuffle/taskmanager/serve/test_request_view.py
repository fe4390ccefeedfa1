"""Requests for partitions, stored and pipelined alike: early, late and after the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.errors import InvalidRequest, PartitionReleased, ProducerFailed
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.taskmanager.serve.pipelined_registry import MAX_FAILURES_KEPT
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.shuffle.taskmanager.store.errors import DuplicateMapOutput
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.fakes import FakeView
from tests.support.mini_cluster import taskmanager_config
from tests.support.raises_code import raises_code

if TYPE_CHECKING:
    from sluice.shuffle.memory import LocalBufferPool
    from sluice.shuffle.partition.view import DataListener

KEY = ShuffleKey("app", 1)
OTHER = ShuffleKey("app", 2)
STRANGER = ShuffleKey("other", 1)


class FakePipelinedView(FakeView):
    """A view that records the messages of its reader to the producer."""

    has_priority_event = False

    def resume_consumption(self) -> None:
        raise AssertionError("nobody reads here")


class FakePartition:
    """A pipelined partition of four subpartitions, each with one reader."""

    num_subpartitions = 4
    is_consumed = False
    may_spill = False

    def __init__(self, *, consumable: bool = True) -> None:
        self.is_consumable = consumable
        self.views: dict[int, FakePipelinedView] = {}
        self.released: list[SluiceError] = []

    def needs_segments(self, subpartition: int) -> bool:
        raise AssertionError("it does not spill")

    def create_view(self, subpartition: int, listener: DataListener) -> FakePipelinedView:
        if subpartition in self.views:
            raise SluiceError(
                "read already", code=ErrorCode.SUBPARTITION_IN_USE, value=subpartition
            )
        view = self.views[subpartition] = FakePipelinedView()
        view.listener = listener
        return view

    def release(self, error: SluiceError) -> None:
        self.released.append(error)


@pytest.fixture
async def store(tmp_path):
    store = ShuffleStore.open(taskmanager_config(tmp_path).storage)
    yield store
    await store.close()


@pytest.fixture
def manager(store):
    return ResultPartitionManager(store, 1024, 5)


def register(
    manager: ResultPartitionManager, attempt: int = 7, key: ShuffleKey = KEY, **options: bool
) -> FakePartition:
    partition = FakePartition(**options)
    manager.register_pipelined(key, attempt, partition, partition.release)
    return partition


def no_pool() -> LocalBufferPool:
    raise AssertionError("nothing is read from a disk here")


def request(
    manager: ResultPartitionManager,
    attempts: list[int],
    start: int = 0,
    end: int = 1,
    key: ShuffleKey = KEY,
) -> asyncio.Task:
    return asyncio.ensure_future(
        manager.request_view(
            SubpartitionRange(key, start, end), attempts, 1024, no_pool, lambda: None
        )
    )


async def waiting(manager: ResultPartitionManager, requests: int = 1) -> None:
    await asyncio.sleep(0)
    assert manager.waiting_requests == requests


async def commit(manager: ResultPartitionManager, store: ShuffleStore, attempt: int) -> None:
    writer = store.begin_region(KEY, 0, [1, 1])
    writer.view[:] = b"xy"
    await manager.commit(MapOutput(KEY, attempt, 2, (writer.finish(0),)))


async def test_stored_and_pipelined_partitions_are_requested_alike(store, manager):
    partition = register(manager)
    assert await request(manager, [7], 2, 3) is partition.views[2]
    await commit(manager, store, 8)
    view = await request(manager, [8], 0, 2)
    assert bytes(view.next_buffer(1).payload) == b"xy"
    view.release()


async def test_a_request_before_the_registration(manager):
    asked = request(manager, [7])
    await waiting(manager)
    register(manager, attempt=6)  # of another request: this one goes on waiting
    await waiting(manager)
    partition = register(manager)
    assert await asked is partition.views[0]
    assert manager.waiting_requests == 0


async def test_the_consumption_constraint_holds_readers_back(manager):
    """The constraint lets readers in at the first output."""
    partition = register(manager, consumable=False)
    asked = request(manager, [7])
    await waiting(manager)
    partition.is_consumable = True
    manager.wake(KEY)
    assert await asked is partition.views[0]


async def test_a_first_output_that_never_comes(store):
    manager = ResultPartitionManager(store, 1024, 0.02)
    register(manager, consumable=False)
    with raises_code(ErrorCode.PARTITION_NOT_FOUND, "has no output yet"):
        await request(manager, [7])
    assert sum(manager.request_waits.counts) == 1


async def test_each_request_counts_once_however_it_ends(manager):
    register(manager)
    await request(manager, [7])
    asked = request(manager, [8])
    await waiting(manager)
    assert sum(manager.request_waits.counts) == 1
    manager.wake(KEY)
    await waiting(manager)
    asked.cancel()
    await asyncio.wait([asked])
    assert sum(manager.request_waits.counts) == 2


async def test_a_second_reader_is_refused(manager):
    register(manager)
    await request(manager, [7], 1, 2)
    with raises_code(ErrorCode.SUBPARTITION_IN_USE):
        await request(manager, [7], 1, 2)
    await request(manager, [7], 0, 1)  # the neighbour is free


@pytest.mark.parametrize(
    ("attempts", "start", "end", "limit"),
    [
        ([7], 0, 2, "1 map attempt, 1 subpartition"),
        ([7, 8], 0, 1, "1 map attempt, 1 subpartition"),
        ([8, 7], 0, 1, "1 map attempt, 1 subpartition"),
        ([7], 4, 5, 4),
        ([7], 1, 1, 4),
        ([7], 3, 2, 4),
    ],
)
async def test_requests_that_no_pipelined_partition_can_serve(manager, attempts, start, end, limit):
    partition = register(manager)
    with pytest.raises(InvalidRequest) as caught:
        await request(manager, attempts, start, end)
    assert caught.value.limit == limit
    assert caught.value.value is not None
    assert not partition.views


async def test_a_name_is_taken_once(store, manager):
    partition = register(manager)
    with pytest.raises(DuplicateMapOutput):
        register(manager)
    await commit(manager, store, 8)
    with pytest.raises(DuplicateMapOutput):
        register(manager, attempt=8)
    manager.unregister_pipelined(KEY, 7, partition)
    manager.unregister_pipelined(KEY, 7, partition)
    another = register(manager)
    manager.unregister_pipelined(KEY, 7, partition)  # late: another partition has taken its place
    assert len(manager.pipelined) == 1
    assert await request(manager, [7]) is another.views[0]


async def test_a_failed_producer_fails_waiting_and_later_requests(manager):
    partition = register(manager, consumable=False)
    asked = request(manager, [7])
    await waiting(manager)
    manager.unregister_pipelined(KEY, 7, partition, ProducerFailed("gone", value=7))
    with pytest.raises(ProducerFailed):
        await asked
    with pytest.raises(ProducerFailed):
        await request(manager, [5, 7])
    assert len(manager.pipelined) == 0
    register(manager)  # a new attempt of the same name
    await request(manager, [7])


async def test_remembered_failures_are_bounded(manager):
    for attempt in range(MAX_FAILURES_KEPT + 1):
        partition = register(manager, attempt)
        manager.unregister_pipelined(KEY, attempt, partition, ProducerFailed("gone"))
    with pytest.raises(ProducerFailed):
        await request(manager, [1])
    forgotten = request(manager, [0])
    await waiting(manager)
    forgotten.cancel()


async def test_release_of_a_shuffle(manager):
    mine, other = register(manager), register(manager, key=OTHER)
    failed = register(manager, attempt=9)
    manager.unregister_pipelined(KEY, 9, failed, ProducerFailed("gone"))
    asked = request(manager, [8])
    elsewhere = request(manager, [8], key=OTHER)
    await waiting(manager, 2)
    manager.release_shuffle(KEY)
    with pytest.raises(PartitionReleased):
        await asked
    assert [error.code for error in mine.released] == [ErrorCode.PARTITION_RELEASED]
    assert other.released == failed.released == []
    assert (len(manager.pipelined), manager.waiting_requests) == (1, 1)
    again = request(manager, [9])  # its failure is forgotten with the shuffle
    await waiting(manager, 2)
    for task in (again, elsewhere):
        task.cancel()


async def test_release_of_an_application(store, manager):
    partitions = [register(manager), register(manager, key=OTHER)]
    stranger = register(manager, key=STRANGER)
    await commit(manager, store, 1)
    asked = request(manager, [8], key=ShuffleKey("app", 3))
    await waiting(manager)
    assert manager.release_application("app") == 2
    with pytest.raises(PartitionReleased):
        await asked
    assert all(partition.released for partition in partitions)
    assert not stranger.released
    assert len(manager.pipelined) == 1
