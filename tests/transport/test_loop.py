"""Which event loop a process gets."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from sluice.transport.loop import run


async def name_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


@pytest.mark.parametrize(
    ("event_loop", "module"), [("uvloop", "uvloop"), ("asyncio", "asyncio.unix_events")]
)
def test_run_uses_the_given_loop(event_loop: Literal["uvloop", "asyncio"], module: str) -> None:
    assert run(name_of_loop(), event_loop) == module
