"""The budget of uploads: first come, first served, and never more than there is."""

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.store.errors import RemoteFailed
from sluice.shuffle.taskmanager.store.objects.remote_upload import Upload, UploadBudget


@given(
    limit=st.integers(1, 20),
    steps=st.lists(st.one_of(st.integers(1, 30), st.sampled_from(["end", "cancel"])), max_size=30),
)
def test_it_never_gives_out_more_and_nobody_waits_for_nothing(limit, steps):
    async def work():
        budget = UploadBudget(limit)
        tasks: list[asyncio.Task[int]] = []
        for step in steps:
            if isinstance(step, int):
                tasks.append(asyncio.ensure_future(budget.take(step, "app")))
            elif tasks:
                task = tasks.pop(0)
                if step == "cancel" or not task.done():
                    task.cancel()
                    await asyncio.wait({task})
                if not task.cancelled():
                    budget.give_back(task.result())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            held = sum(task.result() for task in tasks if task.done())
            assert budget.used_bytes == held <= limit
            waiting = [task for task in tasks if not task.done()]
            assert budget.waiting == len(waiting)
            assert not waiting or held > 0
            done = [task.done() for task in tasks]
            assert done == sorted(done, reverse=True)  # in their order
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    asyncio.run(work())


async def test_one_that_is_cancelled_in_the_moment_it_is_served_gives_back():
    budget = UploadBudget(10)
    first = await budget.take(10, "app")
    second = asyncio.ensure_future(budget.take(4, "app"))
    await asyncio.sleep(0)
    budget.give_back(first)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert budget.used_bytes == 0


async def stored(name):
    """Find each object where it belongs."""


class StuckObjects:
    """Takes no part of an upload until a test says so."""

    def __init__(self, deadline_seconds=600.0):
        self.goes_on = asyncio.Event()
        self.deadline_seconds = deadline_seconds
        self.written_bytes = 0

    async def put_parts(self, name, parts, part_bytes, parallel):
        await self.goes_on.wait()
        async for _ in parts:
            pass


async def test_a_writer_that_is_cancelled_leaves_no_part_on_its_way():
    objects, budget = StuckObjects(), UploadBudget(100)
    failed = partial(RemoteFailed, "writing")
    upload: Any = Upload(objects, "name", 50, "app", 10, budget, failed, stored)  # type: ignore[arg-type]
    await upload.write(0, [memoryview(bytes(10))])
    before = asyncio.all_tasks()
    writing = asyncio.ensure_future(upload.write(10, [memoryview(bytes(10))]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks() - before) == 2
    writing.cancel()
    await asyncio.wait({writing})
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    ended = asyncio.Event()
    upload.abort(ended.set)
    objects.goes_on.set()
    await ended.wait()
    assert budget.used_bytes == 0


@pytest.mark.parametrize("parts", [1, 3], ids=["at its end", "in its midst"])
async def test_an_upload_that_hangs_fails_after_its_deadline(parts):
    objects, budget, failures = StuckObjects(0.01), UploadBudget(100), list[str]()

    def failed(failure, length):
        failures.append(failure.reason)
        return RemoteFailed("writing", failure.reason, 0.01)

    length = 10 * parts + 10
    upload: Any = Upload(
        objects,  # type: ignore[arg-type]
        "name",
        length,
        "app",
        10,
        budget,
        failed,
        stored,
    )

    async def write() -> None:
        for offset in range(0, length, 10):
            await upload.write(offset, [memoryview(bytes(10))])
        await upload.flush()

    with pytest.raises(RemoteFailed):
        await asyncio.wait_for(write(), 20)
    with pytest.raises(RemoteFailed):
        await upload.flush()
    assert len(failures) == 1
    assert failures[0].startswith("no part was taken within")
    ended = asyncio.Event()
    upload.abort(ended.set)
    assert budget.used_bytes == 20  # the request may still have them
    objects.goes_on.set()
    await ended.wait()
    assert budget.used_bytes == 0
