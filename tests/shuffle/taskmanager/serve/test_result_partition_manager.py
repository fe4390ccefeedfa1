"""Finding map outputs, waiting for them, and committing."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import DATA
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import MapAttemptKey, ShuffleKey, SubpartitionRange
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.shuffle.taskmanager.store.errors import (
    DuplicateMapOutput,
    JournalWriteFailed,
    OtherMapOutput,
    ReleasedDuringCommit,
    StorageError,
)
from sluice.shuffle.taskmanager.store.remote.remote_outputs import LOOKUPS_AT_A_TIME
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.mini_cluster import eventually, taskmanager_config
from tests.support.raises_code import raises_code
from tests.support.store import Gate

if TYPE_CHECKING:
    from sluice.shuffle.partition.view import SubpartitionView

KEY = ShuffleKey("app", 1)


@pytest.fixture
async def store(tmp_path):
    store = ShuffleStore.open(taskmanager_config(tmp_path).storage)
    yield store
    await store.close()


@pytest.fixture
def manager(store):
    return ResultPartitionManager(store, 1024, 5)


def an_output(store: ShuffleStore, attempt: int, data: bytes = b"x", parts: int = 2) -> MapOutput:
    writer = store.begin_region(KEY, 0, [len(data)] + [0] * (parts - 1))
    writer.view[:] = data
    return MapOutput(KEY, attempt, parts, (writer.finish(crc32c(data)),))


async def request_view(
    manager: ResultPartitionManager, attempts: list[int], start: int, end: int, segments: int = 1
) -> SubpartitionView:
    pool = NetworkBufferPool(segments, 1024)
    return await manager.request_view(
        SubpartitionRange(KEY, start, end),
        attempts,
        1024,
        partial(pool.create_local_pool, "reads", 1),
        lambda: None,
    )


async def read_all(manager: ResultPartitionManager, attempts: list[int]) -> bytes:
    """Read the first subpartition of map outputs, which lie in memory."""
    view = await request_view(manager, attempts, 0, 1)
    content = b""
    while (buffer := view.next_buffer(1)) is not None and buffer.data_type == DATA:
        content += buffer.payload
        if buffer.release is not None:
            buffer.release()
    view.release()
    return content


def a_copy(store: ShuffleStore) -> MapOutput:
    return replace(an_output(store, 1), origin="another", replicas=2)


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
async def test_a_copy_is_there_already_only_when_its_other_commit_has_succeeded(
    store, manager, monkeypatch, fails
):
    error = OSError(errno.EIO, "no") if fails else None
    gate = Gate(monkeypatch, os, "pwrite", error)
    first = asyncio.ensure_future(manager.commit(a_copy(store)))
    await gate.wait_entered()
    second = asyncio.ensure_future(manager.commit(a_copy(store)))
    given_up = asyncio.ensure_future(manager.commit(a_copy(store)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not second.done()
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    gate.proceed.set()
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    if fails:
        assert all(isinstance(outcome, StorageError) for outcome in outcomes)
        assert not isinstance(outcomes[1], DuplicateMapOutput)
        assert used(store) == 0
    else:
        assert outcomes[0] is None
        assert isinstance(outcomes[1], DuplicateMapOutput)
        assert sum(tier.extents for tier in store.tiers()) == 1


@pytest.fixture
async def remote(tmp_path, object_store):
    """Give two stores with one remote tier."""
    stores = [
        ShuffleStore.open(
            taskmanager_config(tmp_path / name, remote=str(tmp_path / "remote")).storage
        )
        for name in ("first", "second")
    ]
    yield stores
    for store in stores:
        await store.close()


async def test_what_lies_here_is_not_looked_for_elsewhere(remote):
    manager = ResultPartitionManager(remote[0], 1024, 5)
    await manager.commit(an_output(remote[0], 1))
    assert await read_all(manager, [1]) == b"x"
    assert remote[0].remote.lookups == 0


@pytest.mark.parametrize("is_same", [True, False])
async def test_a_copy_replaces_an_output_found_in_the_remote_tier(remote, is_same):
    manager = ResultPartitionManager(remote[1], 1024, 5)
    first = an_output(remote[0], 1)
    await remote[0].commit(first)
    await remote[0].move_to_remote(first)
    found = await remote[1].remote.find(MapAttemptKey(KEY, 1))
    assert found.is_moved
    data = b"x" if is_same else b"y"
    copy = replace(an_output(remote[1], 1, data), origin="another", replicas=2)
    if not is_same:
        with pytest.raises(OtherMapOutput):
            await manager.commit(copy)
        return
    await manager.commit(copy)
    assert remote[1].lookup(KEY, 1) is copy
    with pytest.raises(DuplicateMapOutput):
        await manager.commit(replace(an_output(remote[1], 1), origin="another", replicas=2))
    assert {tier.tier: tier.extents for tier in remote[1].tiers()} == {
        "memory": 1,
        "disk": 0,
        "remote": 1,
    }
    assert remote[1].statistics().map_outputs == 1
    assert remote[1].remote.known_of(KEY.application_id) == {KEY: [1]}
    written = remote[1].remote.tier.objects.written_bytes
    await remote[1].move_to_remote(copy)
    assert remote[1].remote.tier.objects.written_bytes == written
    assert remote[1].release_shuffle(KEY) == 1
    remote[1].release_application(KEY.application_id)
    await eventually(lambda: used(remote[1]) == 0)
    assert not any(remote[1].accounts.of(KEY.application_id).held)


async def test_the_driver_learns_of_the_remote_copy_if_the_one_that_replaced_it_is_lost(remote):
    manager = ResultPartitionManager(remote[1], 1024, 5)
    first = an_output(remote[0], 1)
    await remote[0].commit(first)
    await remote[0].move_to_remote(first)
    await remote[1].remote.find(MapAttemptKey(KEY, 1))
    copy = replace(an_output(remote[1], 1), origin="another", replicas=2)
    await manager.commit(copy)
    remote[1].drop(copy, "was damaged")
    assert remote[1].remote.has(MapAttemptKey(KEY, 1))
    found = await remote[1].remote.find(MapAttemptKey(KEY, 1))
    assert found.is_moved
    remote[1].release_shuffle(KEY)
    await eventually(lambda: used(remote[1]) == 0)
    await eventually(lambda: not remote[1].remote.tier.waiting_deletes)
    assert await remote[0].remote.uploads.find(first) is None


async def test_a_reader_under_way_keeps_what_a_copy_replaces(remote):
    manager = ResultPartitionManager(remote[1], 1024, 5)
    data = os.urandom(5000)
    first = an_output(remote[0], 1, data)
    await remote[0].commit(first)
    await remote[0].move_to_remote(first)
    await remote[1].remote.find(MapAttemptKey(KEY, 1))
    view = await request_view(manager, [1], 0, 1, 8)
    await manager.commit(replace(an_output(remote[1], 1, data), origin="another", replicas=2))
    content = b""
    async with asyncio.timeout(10):
        while len(content) < len(data):
            buffer = view.next_buffer(1)
            if buffer is None:
                await asyncio.sleep(0.001)
                continue
            content += buffer.payload
            if buffer.release is not None:
                buffer.release()
    view.release()
    assert content == data
    remote[1].release_shuffle(KEY)
    remote[1].release_application(KEY.application_id)
    await eventually(lambda: used(remote[1]) == 0)
    assert not any(remote[1].accounts.of(KEY.application_id).held)


@pytest.mark.parametrize("of_application", [False, True])
async def test_a_copy_that_waits_for_another_is_refused_after_the_release(
    store, manager, of_application
):
    copies = [replace(an_output(store, 1), origin="another", replicas=2) for _ in range(2)]
    first = asyncio.create_task(manager.commit(copies[0]))
    await asyncio.sleep(0)
    assert store.pending(MapAttemptKey(KEY, 1)) is not None
    second = asyncio.create_task(manager.commit(copies[1]))
    await asyncio.sleep(0)
    if of_application:
        store.release_application(KEY.application_id)
    else:
        store.release_shuffle(KEY)
    for each in (first, second):
        with pytest.raises(ReleasedDuringCommit):
            await each
    assert store.lookup(KEY, 1) is None
    await eventually(lambda: used(store) == 0)


async def test_a_producer_cannot_commit_an_output_found_in_the_remote_tier(remote):
    manager = ResultPartitionManager(remote[1], 1024, 5)
    first = an_output(remote[0], 1)
    await remote[0].commit(first)
    await remote[0].move_to_remote(first)
    found = await remote[1].remote.find(MapAttemptKey(KEY, 1))
    with pytest.raises(DuplicateMapOutput):
        await manager.commit(an_output(remote[1], 1))
    assert remote[1].lookup(KEY, 1) is found


async def test_a_request_is_looked_after_no_further_than_to_what_is_not_there(remote):
    manager = ResultPartitionManager(remote[1], 1024, 0.05)
    with raises_code(ErrorCode.PARTITION_NOT_FOUND):
        await request_view(manager, list(range(1000)), 0, 1)
    assert remote[1].remote.lookups == LOOKUPS_AT_A_TIME


async def test_what_moved_is_found_behind_what_is_committed_here_later(remote):
    attempts = list(range(2 * LOOKUPS_AT_A_TIME))
    for attempt in attempts[1:]:
        output = an_output(remote[0], attempt)
        await remote[0].commit(output)
        await remote[0].move_to_remote(output)
    manager = ResultPartitionManager(remote[1], 1024, 20)
    request = asyncio.ensure_future(request_view(manager, attempts, 1, 2))
    await eventually(lambda: remote[1].remote.found == LOOKUPS_AT_A_TIME - 1)
    await manager.commit(an_output(remote[1], 0))
    view = await request
    view.release()
    assert remote[1].remote.found == len(attempts) - 1


def used(store: ShuffleStore) -> int:
    return sum(tier.used_bytes for tier in store.tiers())


async def test_a_request_is_served_by_the_last_commit_it_waits_for(store, manager):
    request = asyncio.ensure_future(read_all(manager, [1, 2, 3]))
    for attempt in (3, 1, 2):
        await asyncio.sleep(0)
        assert manager.waiting_requests == 1
        await manager.commit(an_output(store, attempt, b"%d" % attempt))
    assert sorted(await request) == sorted(b"123")
    assert manager.waiting_requests == 0


async def test_not_found_after_the_deadline_names_the_first_missing(store):
    manager = ResultPartitionManager(store, 1024, 0.02)
    await manager.commit(an_output(store, 1))
    with raises_code(
        ErrorCode.PARTITION_NOT_FOUND, "Map attempt 8 of shuffle 1 is not here"
    ) as caught:
        await read_all(manager, [1, 8, 9])
    assert caught.value.map_attempt_id == 8
    assert caught.value.limit == "0.02 s"
    assert manager.waiting_requests == 0


async def test_a_cancelled_request_leaves_nothing(manager):
    request = asyncio.ensure_future(read_all(manager, [1]))
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert manager.waiting_requests == 0


async def test_a_second_commit_is_refused_and_its_extent_free(store, manager):
    await manager.commit(an_output(store, 1))
    before = used(store)
    with pytest.raises(DuplicateMapOutput):
        await manager.commit(an_output(store, 1))
    assert used(store) == before


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_commit_that_fails_gives_its_extents_back(store, manager, monkeypatch, cancelled):
    """Nothing else releases them, even if it is cancelled in the same turn."""
    output = an_output(store, 1)
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(store, "commit", lambda _: failed)
    commit = asyncio.ensure_future(manager.commit(output))
    await asyncio.sleep(0)
    failed.set_exception(JournalWriteFailed(None, "full"))
    if cancelled:
        commit.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else JournalWriteFailed):
        await commit
    assert used(store) == 0


async def test_a_cancelled_commit_goes_on(store, manager):
    commit = asyncio.ensure_future(manager.commit(an_output(store, 1)))
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    await manager.commit(an_output(store, 2))  # rows reach the journal in order
    assert store.lookup(KEY, 1) is not None


@pytest.mark.parametrize(("start", "end"), [(0, 0), (1, 0), (0, 3), (2, 3)])
async def test_a_view_of_an_impossible_range(store, manager, start, end):
    await manager.commit(an_output(store, 1))
    with pytest.raises(InvalidRequest) as caught:
        await request_view(manager, [1], start, end)
    assert caught.value.limit == 2
