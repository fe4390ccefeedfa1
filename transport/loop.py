"""Runs a process on the configured event loop."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], event_loop: Literal["uvloop", "asyncio"]) -> T:
    """Run a coroutine to its end on a new loop of the given kind."""
    if event_loop == "uvloop":
        import uvloop  # only on demand: asyncio needs no native code

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    with asyncio.Runner() as runner:
        return runner.run(main)
