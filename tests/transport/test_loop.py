"""Which event loop a process gets, and when a task begins on it."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from sluice.transport.loop import run, run_together, start_task
from tests.support.peers import turns


async def name_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


@pytest.mark.parametrize(
    ("event_loop", "module"), [("uvloop", "uvloop"), ("asyncio", "asyncio.unix_events")]
)
def test_run_uses_the_given_loop(event_loop: Literal["uvloop", "asyncio"], module: str) -> None:
    assert run(name_of_loop(), event_loop) == module


async def test_a_task_begins_behind_the_step_that_starts_it() -> None:
    """Also on a loop whose task factory is eager: tests/conftest.py has one."""
    steps: list[str] = []

    async def work() -> str:
        steps.append("work")
        return "result"

    task = start_task(work())
    steps.append("the step that starts it")
    assert await task == "result"
    assert steps == ["the step that starts it", "work"]


async def test_a_task_is_cancelled_before_it_begins() -> None:
    task = start_task(asyncio.sleep(0, "result"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_runs_together_returns_its_results_in_order() -> None:
    both_run = asyncio.Barrier(2)

    async def work(number: int) -> int:
        await both_run.wait()
        return number

    assert await run_together(work(number) for number in range(2)) == [0, 1]
    assert await run_together([]) == []


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_failure_cancels_what_runs_together_and_nothing_else(at_once: bool) -> None:
    ended: list[str] = []

    async def fail() -> None:
        if not at_once:
            await asyncio.sleep(0)
        raise ValueError("the first one")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("the other one")
            raise ValueError("too late")

    with pytest.raises(ValueError, match="the first one"):
        await run_together([wait(), fail()])
    assert ended == ["the other one"]
    with pytest.raises(ValueError, match="the first one"):
        await run_together([fail(), fail()])
    await asyncio.sleep(0)  # raises if a cancellation is left over


@pytest.mark.parametrize("turns_before_cancel", range(5))
async def test_what_runs_together_is_cancelled_together(turns_before_cancel: int) -> None:
    begun: set[int] = set()
    ended: set[int] = set()

    async def wait(number: int) -> None:
        begun.add(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.add(number)

    together = asyncio.ensure_future(run_together(map(wait, range(2))))
    await turns(turns_before_cancel)
    together.cancel()
    with pytest.raises(asyncio.CancelledError):
        await together
    assert ended == begun == ({0, 1} if turns_before_cancel == 4 else begun)
