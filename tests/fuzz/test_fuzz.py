"""Fuzzing of framing and connections of every role, with the real handlers behind them.

In ``make test`` it takes a few seconds. ``make fuzz FUZZ_SECONDS=600`` goes on for that long, with
other examples each time; what it finds is printed in its smallest form, with the line that plays it
again.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING

import hypothesis
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.protocol import schema as m
from sluice.protocol.errors import ProtocolViolation
from sluice.protocol.framing import FrameDecoder
from tests.support.decoding import RecordingSink
from tests.support.fuzz_streams import (
    REMOTE_ID,
    SHUFFLE,
    Step,
    answers,
    frame,
    hello,
    requests,
    steps,
)
from tests.support.fuzz_target import Target, target
from tests.support.memory_budget import MIB, MemoryBudget
from tests.support.strategies import FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FUZZ_SECONDS = float(os.environ.get("SLUICE_FUZZ_SECONDS", "0"))
"""How long each test goes on; 0: one short round."""

EXAMPLES_A_ROUND = 300 if FUZZ_SECONDS else 40
PATIENCE_SECONDS = 30
MAX_GROWTH_BYTES = 64 * MIB
"""Resident memory that a run may take beside that at its beginning, however long it is. Within a
minute it takes 22 MiB, of which 14 are there after the first round: modules of hypothesis, and what
the C library keeps for its next use."""

ROLES = {
    "peer": m.ROLE_PEER,
    "producer": m.ROLE_PRODUCER,
    "consumer": m.ROLE_CONSUMER,
    "driver": m.ROLE_DRIVER,
    "copier": m.ROLE_COPIER,
}
SHARE = 1 / (len(ROLES) + 2)
"""Share of each test in the time."""

pytestmark = pytest.mark.timeout(120 + 2 * FUZZ_SECONDS)


def run_rounds(test: Callable[[], None]) -> None:
    """Run a hypothesis test once, or again and again with other seeds until the time is over."""
    end = time.monotonic() + FUZZ_SECONDS * SHARE
    profile = settings(
        max_examples=EXAMPLES_A_ROUND,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    profiled = profile(test)
    while True:
        number = random.SystemRandom().getrandbits(32) if FUZZ_SECONDS else 1
        hypothesis.seed(number)(profiled)()
        if time.monotonic() >= end:
            return


class Fuzzer:
    """A TaskManager on an event loop of its own, for tests that are not coroutines."""

    def __init__(self, directory: Path, budget: MemoryBudget) -> None:
        self._directory = directory
        self._budget = budget
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._start()

    def _start(self) -> None:
        self._context = target(self._directory)
        self.target: Target = self._runner.run(self._context.__aenter__())
        self.target.memory_budget = self._budget

    def run(self, example) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.target.stock()
                await example(self.target)
                await self.target.check()

        try:
            self._runner.run(bounded())
        except BaseException:
            # What one example left behind must not be found again by the next.
            self.target.ended = True
            self._runner.run(self._context.__aexit__(None, None, None))
            self._start()
            raise

    def close(self) -> None:
        try:
            self._runner.run(self._context.__aexit__(None, None, None))
        finally:
            self._runner.close()


@pytest.fixture(scope="module")
def budget() -> MemoryBudget:
    """The budget of the whole run: what is left behind by any example counts against all."""
    return MemoryBudget(MAX_GROWTH_BYTES)


@pytest.fixture
def fuzzer(tmp_path, budget):
    made = Fuzzer(tmp_path, budget)
    yield made
    made.close()


@pytest.mark.parametrize("role", ROLES)
def test_damaged_messages_of_every_role_stay_within_bounds(fuzzer, role):
    number = ROLES[role]
    local_id = fuzzer.target.environment.taskmanager_id

    @given(requests(number, local_id), answers())
    def test(said: list[Step], answered: list[Step]) -> None:
        async def example(target: Target) -> None:
            client = target.accept()
            await target.play(client, said)
            while not target.peers.empty():  # a gate asked another TaskManager
                await target.play(target.peers.get_nowait(), answered)

        fuzzer.run(example)

    run_rounds(test)


def test_damaged_answers_of_a_taskmanager_stay_within_bounds(fuzzer):
    @given(answers(), st.integers(1, 40))
    def test(answered: list[Step], credit: int) -> None:
        gate = m.OpenGate(
            4,
            SHUFFLE,
            0,
            1,
            credit,
            [m.GateChannel(n, REMOTE_ID, "127.0.0.1", 1, [n + 1]) for n in range(3)],
        )

        async def example(target: Target) -> None:
            client = target.accept()
            assert await client.feed(hello(m.ROLE_CONSUMER) + frame(gate))
            peer = await target.peers.get()
            await target.play(peer, answered)
            if not client.is_closing():
                await client.feed(frame(m.AddCredit(1, 3)) + frame(m.Ping(1)))

        fuzzer.run(example)

    run_rounds(test)


def test_damaged_streams_in_the_decoder_stay_within_bounds(budget):
    @given(FRAMES.flatmap(lambda drawn: steps([frame(*one) for one in drawn])), st.integers(0, 80))
    def test(said: list[Step], tail_bytes: int) -> None:
        decoder = FrameDecoder(RecordingSink(tail_bytes), 64 * 1024)
        decoder.handshake_done()
        try:
            for step in said:
                data = step.data
                while data:
                    buffer = decoder.get_buffer()
                    count = min(len(buffer), len(data))
                    buffer[:count] = data[:count]
                    data = data[count:]
                    decoder.buffer_updated(count)
        except ProtocolViolation:
            pass
        budget.check()

    run_rounds(test)
