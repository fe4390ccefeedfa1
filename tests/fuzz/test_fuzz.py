"""Fuzzing of framing and connections of every role, with the real handlers behind them.

In ``make test`` it takes a few seconds. ``make fuzz FUZZ_SECONDS=600`` goes on for that long, with
other examples each time; what it finds is printed in its smallest form, with the line that plays it
again.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol import schema as m
from sluice.protocol.errors import ProtocolViolation
from sluice.protocol.framing import FrameDecoder
from sluice.protocol.states import ALLOWED_WHEN_OPEN, Side
from tests.fuzz.rounds import FUZZ_SECONDS, OF_ALL, PATIENCE_SECONDS, run_once, run_rounds
from tests.support.decoding import RecordingSink
from tests.support.fuzz_streams import (
    REMOTE_HOST,
    REMOTE_ID,
    SHUFFLE,
    Step,
    answers,
    answers_of,
    frame,
    frames_of,
    hello,
    map_output,
    requests,
    steps,
)
from tests.support.fuzz_target import Target, target
from tests.support.strategies import FRAMES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.memory_budget import MemoryBudget
    from tests.support.memory_transport import MemoryTransport

ROLES = {
    "peer": m.ROLE_PEER,
    "producer": m.ROLE_PRODUCER,
    "consumer": m.ROLE_CONSUMER,
    "driver": m.ROLE_DRIVER,
    "copier": m.ROLE_COPIER,
}
MADE = {"peer": m.ROLE_PEER, "copier": m.ROLE_COPIER}
"""Roles of the connections that a TaskManager makes."""

APPLICATION = "app"
_NUMBERS = itertools.count()
COPIED_ATTEMPT, COPIED_BYTES = 5, 3000
MORE = frame(m.AddCredit(1, 3)) + frame(m.Ping(1))
PLACE = m.KnownTaskManager(REMOTE_ID, REMOTE_HOST, 1)

pytestmark = pytest.mark.timeout(120 + 2 * FUZZ_SECONDS)


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


@pytest.fixture
def fuzzer(tmp_path, budget):
    made = Fuzzer(tmp_path, budget)
    yield made
    made.close()


async def play_answers(target: Target, answered: dict[int, list[Step]]) -> None:
    """Answer the connections that the TaskManager has made, by their roles."""
    while not target.peers.empty():
        peer = target.peers.get_nowait()
        await target.play(peer, answered[peer.connection.state.role])


ANSWERS = st.fixed_dictionaries({role: answers(role) for role in MADE.values()})


async def told(target: Target, application_id: str = APPLICATION) -> None:
    """Let a driver name another TaskManager, which is asked to take copies then."""
    assert await target.accept().feed(hello(m.ROLE_DRIVER, application_id) + frame(PLACE))


def check_heard(target: Target, side: Side, role: int) -> None:
    """Check that every message of a role has got to a handler."""
    heard = {kind for at, number, kind in target.heard if (at, number) == (side, role)}
    assert not ALLOWED_WHEN_OPEN[side, role] - OF_ALL - heard


@pytest.mark.parametrize("role", ROLES)
def test_damaged_messages_of_every_role_stay_within_bounds(fuzzer, role):
    number = ROLES[role]
    local_id = fuzzer.target.environment.taskmanager_id

    @given(requests(number, local_id), ANSWERS)
    def test(said: list[Step], answered: dict[int, list[Step]]) -> None:
        async def example(target: Target) -> None:
            await told(target)
            client = target.accept()
            await target.play(client, said)
            await play_answers(target, answered)

        fuzzer.run(example)

    run_rounds(test)
    if FUZZ_SECONDS:
        check_heard(fuzzer.target, Side.ACCEPTED, number)


def asking(role: int, credit: int, application_id: str) -> bytes:
    """Return what a client says so that the TaskManager makes a connection of a role."""
    if role == m.ROLE_PEER:
        channels = [m.GateChannel(n, REMOTE_ID, "127.0.0.1", 1, [n + 1]) for n in range(3)]
        opened = m.OpenGate(4, SHUFFLE, 0, 1, credit, channels)
        return hello(m.ROLE_CONSUMER, application_id) + frame(opened)
    first, *rest = map_output(0, COPIED_ATTEMPT, COPIED_BYTES)
    copies = frame(m.ReplicatePartition(0, 2, synchronous=credit % 2 == 0))
    return b"".join([hello(m.ROLE_PRODUCER, application_id), first, copies, *rest])


async def asked(target: Target, role: int, credit: int) -> tuple[MemoryTransport, MemoryTransport]:
    """Return a client, and the connection that the TaskManager makes for it.

    Each copy is of another application: one whose copies fail waits before it tries a place again.
    """
    application_id = APPLICATION
    if role == m.ROLE_COPIER:
        application_id += f"-{next(_NUMBERS)}"
        target.others.add(application_id)
    await told(target, application_id)
    client = target.accept()
    assert await client.feed(asking(role, credit, application_id))
    return client, await target.peers.get()


@pytest.mark.parametrize("role", MADE)
def test_damaged_answers_of_a_taskmanager_stay_within_bounds(fuzzer, role):
    number = MADE[role]

    @given(answers(number), ANSWERS, st.integers(1, 40))
    def test(answered: list[Step], later: dict[int, list[Step]], credit: int) -> None:
        async def example(target: Target) -> None:
            client, peer = await asked(target, number, credit)
            await target.play(peer, answered)
            if not client.is_closing():
                await client.feed(frame(m.Ping(1)) if number == m.ROLE_COPIER else MORE)
            await play_answers(target, later)

        fuzzer.run(example)

    run_rounds(test)
    if FUZZ_SECONDS:
        check_heard(fuzzer.target, Side.CONNECTED, number)


@pytest.mark.parametrize("role", ROLES)
def test_every_message_of_every_role_is_in_its_streams_and_is_handled(fuzzer, role):
    """Otherwise damage to it would never get behind the state of a connection."""
    number = ROLES[role]
    drawn = frames_of(number, fuzzer.target.environment.taskmanager_id)
    assert drawn.keys() == ALLOWED_WHEN_OPEN[Side.ACCEPTED, number] - OF_ALL
    for each in drawn.values():

        @given(each)
        def test(said: bytes) -> None:
            async def example(target: Target) -> None:
                client = target.accept()
                await target.play(client, [Step(hello(number) + said, 1, hold=False)])

            fuzzer.run(example)

        run_once(test, 3)
    check_heard(fuzzer.target, Side.ACCEPTED, number)


@pytest.mark.parametrize("role", MADE)
def test_every_answer_is_in_the_streams_and_is_handled(fuzzer, role):
    number = MADE[role]
    drawn = answers_of(number)
    assert drawn.keys() == ALLOWED_WHEN_OPEN[Side.CONNECTED, number] - OF_ALL
    for each in drawn.values():

        @given(each)
        def test(said: bytes) -> None:
            async def example(target: Target) -> None:
                _, peer = await asked(target, number, 1)
                await target.play(peer, [Step(said, 1, hold=False)])

            fuzzer.run(example)

        run_once(test, 3)
    check_heard(fuzzer.target, Side.CONNECTED, number)


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
