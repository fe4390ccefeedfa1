"""Which event loop a process gets, and when a task begins on it."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from sluice.transport.loop import run, start_task


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
