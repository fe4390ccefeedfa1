"""Fuzzing of the answers to a client that writes and reads, over both of its connections."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

import sluice.shuffle.client.client_legs
from sluice.protocol import schema as m
from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.states import ALLOWED_WHEN_OPEN, Side
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.client.partition_location import PartitionLocation
from sluice.shuffle.partition.partition_type import ResultPartitionType
from tests.fuzz.rounds import FUZZ_SECONDS, OF_ALL, PATIENCE_SECONDS, run_once, run_rounds
from tests.support.fuzz_streams import REMOTE_ID, SHUFFLE, Step, answers, answers_of
from tests.support.fuzz_target import CONFIG, Complaints, MadeConnections, check_sent, play

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.memory_budget import MemoryBudget

ROLES = {"producer": m.ROLE_PRODUCER, "consumer": m.ROLE_CONSUMER}
KINDS = (ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.BLOCKING)
CLIENT = ClientConfig(
    network_segments=64, buffer_timeout_seconds=0, answer_timeout_seconds=5, transport=CONFIG
)
Answers = dict[int, list[Step]]
ANSWERS = st.fixed_dictionaries({role: answers(role) for role in ROLES.values()})

pytestmark = pytest.mark.timeout(120 + 2 * FUZZ_SECONDS)


async def write(client: ShuffleClient, kind: ResultPartitionType) -> None:
    """Write a partition of two subpartitions."""
    async with client.open_result_partition(
        SHUFFLE, int(kind), 2, partition_type=kind
    ) as partition:
        for subpartition in range(2):
            await partition.emit_buffer(bytes(6000), subpartition)


async def read(client: ShuffleClient, kind: ResultPartitionType) -> None:
    """Read a gate of two channels to its end."""
    locations = [
        PartitionLocation(SHUFFLE, attempt, int(kind), REMOTE_ID, "127.0.0.1", 1)
        for attempt in range(2)
    ]
    async with client.open_gate(locations, 0) as gate:
        while (taken := await gate.next_buffer_or_event()) is not None:
            if taken.buffer.release is not None:
                taken.buffer.release()


class ClientRig:
    """Clients on an event loop of their own, with made-up TaskManagers.

    Args:
        budget: Of memory.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._budget = budget
        self.made = MadeConnections()

    def run(self, answered: Answers) -> None:
        """Let a client write and read, with these answers."""

        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._example(answered)

        self._runner.run(bounded())

    def close(self) -> None:
        self._runner.close()

    async def _example(self, answered: Answers) -> None:
        made = self.made
        complaints = Complaints()
        asyncio.get_running_loop().set_exception_handler(complaints.from_loop)
        logging.getLogger().addHandler(complaints)
        try:
            client = await ShuffleClient.connect("127.0.0.1:1", "app", CLIENT)
            tasks = [
                asyncio.ensure_future(work(client, kind))
                for work in (write, read)
                for kind in KINDS
            ]
            await asyncio.sleep(0)
            for transport in list(made.transports):
                await play(transport, answered[transport.connection.state.role], self._fed)
            while not all(task.done() for task in tasks):
                for transport in made.transports:  # an idle one is replaced by the client
                    await transport.end()
                await asyncio.sleep(0)
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(client.close(), *(each.end() for each in made.transports))
        finally:
            logging.getLogger().removeHandler(complaints)
        for end in ends:
            if end is None:
                continue
            assert isinstance(end, SluiceError), end
            assert isinstance(end, RemoteError) or end.code is not ErrorCode.INTERNAL, end
        assert client.network_pool.lent_segments == 0
        for transport in made.transports:
            check_sent(transport)
        made.transports.clear()
        while not made.peers.empty():
            made.peers.get_nowait()
        assert not complaints.found, complaints.found

    def _fed(self, _: Step) -> None:
        self._budget.check()


@pytest.fixture
def rig(budget: MemoryBudget) -> Iterator[ClientRig]:
    made = ClientRig(budget)
    with mock.patch.object(sluice.shuffle.client.client_legs, "connect", made.made.connect):
        yield made
    made.close()


def check_heard(rig: ClientRig, role: int) -> None:
    """Check that every answer has got to the client."""
    heard = {kind for side, number, kind in rig.made.heard if number == role}
    assert not ALLOWED_WHEN_OPEN[Side.CONNECTED, role] - OF_ALL - heard


def test_damaged_answers_to_a_client_stay_within_bounds(rig: ClientRig) -> None:
    @given(ANSWERS)
    def test(answered: Answers) -> None:
        rig.run(answered)

    run_rounds(test)
    if FUZZ_SECONDS:
        for role in ROLES.values():
            check_heard(rig, role)


@pytest.mark.parametrize("role", ROLES)
def test_every_answer_to_a_client_is_in_the_streams_and_is_handled(
    rig: ClientRig, role: str
) -> None:
    number = ROLES[role]
    drawn = answers_of(number)
    assert drawn.keys() == ALLOWED_WHEN_OPEN[Side.CONNECTED, number] - OF_ALL
    silent: Answers = {each: [] for each in ROLES.values()}
    for each in drawn.values():

        @given(each)
        def test(said: bytes) -> None:
            rig.run(silent | {number: [Step(said, 1, hold=False)]})

        run_once(test, 3)
    check_heard(rig, number)
