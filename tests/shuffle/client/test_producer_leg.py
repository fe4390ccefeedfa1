"""The producer leg of a client: openings, answers, turns and the end."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import MalformedMessage, SluiceError, UnexpectedMessage
from sluice.protocol.limits import MAX_U32
from sluice.protocol.remote_error import RemoteError, error_response
from sluice.protocol.schema import (
    AbortPartition,
    AddCredit,
    BufferResponse,
    CloseRequest,
    PartitionAborted,
    PartitionFinished,
    PartitionOpened,
    RegionOpened,
    TaskEvent,
)
from sluice.shuffle.legs.producer_leg import MAX_MESSAGES_A_TURN
from sluice.transport.errors import ConnectionLost, DeadlineExceeded
from tests.shuffle.client.rig import ProducerRig, open_message, turns

BROKEN = SluiceError("broken on purpose")


class Partition:
    """A partition that records the messages of its leg."""

    def __init__(self, messages: int = 0) -> None:
        self.messages = messages
        self.credit = 0
        self.failure: SluiceError | None = None
        self.log: list[str] = []

    def credit_granted(self, credit):
        self.credit += credit

    def send(self):
        self.log.append("send")
        self.messages -= 1
        return self.messages > 0

    def finished(self):
        self.log.append("finished")

    def consumed(self):
        self.log.append("consumed")

    def failed(self, error):
        assert self.failure is None
        self.failure = error

    def region_opened(self, payload_bytes):
        self.log.append(f"region {payload_bytes}")

    def task_event_received(self, event_type, payload):
        self.log.append(f"event {event_type} {payload!r}")


async def opened(rig, partition):
    number = rig.leg.new_number()
    opening = asyncio.create_task(rig.leg.open(number, open_message(number), partition))
    await turns(1)
    rig.leg.message_received(PartitionOpened(number), 0)
    await opening
    return number


async def test_messages_reach_the_partition_they_name():
    rig = ProducerRig()
    one, two = Partition(), Partition()
    first, second = await opened(rig, one), await opened(rig, two)
    rig.leg.message_received(AddCredit(first, 3), 0)
    rig.leg.message_received(RegionOpened(second, 0, 99), 0)
    rig.leg.message_received(PartitionFinished(second), 0)
    rig.leg.message_received(error_response(first, BROKEN), 0)
    rig.leg.message_received(PartitionAborted(first), 0)
    assert (one.credit, one.log, type(one.failure)) == (3, [], RemoteError)
    assert (two.credit, two.log, two.failure) == (0, ["region 99", "finished"], None)
    # A message about a forgotten number is late, and ignored.
    for message in (AddCredit(first, 1), PartitionFinished(first), RegionOpened(first, 0, 1)):
        rig.leg.message_received(message, 0)
    rig.leg.message_received(error_response(first, BROKEN), 0)
    assert one.credit == 3


async def test_a_refused_partition_needs_no_abort():
    rig = ProducerRig()
    partition = Partition()
    opening = asyncio.create_task(rig.leg.open(0, open_message(0), partition))
    await turns(1)
    rig.leg.message_received(error_response(0, BROKEN), 0)
    with pytest.raises(RemoteError, match="broken on purpose"):
        await opening
    assert rig.leg.partitions == 0
    assert rig.connection.take(AbortPartition) == []


async def test_an_opening_that_is_not_answered_is_given_up():
    rig = ProducerRig(answer_timeout_seconds=0.02)
    with pytest.raises(DeadlineExceeded, match=r"0\.02 s"):
        await rig.leg.open(0, open_message(0), Partition())
    assert rig.connection.take(AbortPartition) == [AbortPartition(0)]
    rig.leg.message_received(PartitionOpened(0), 0)  # late, and of no effect
    assert rig.leg.partitions == 0


async def test_a_cancelled_opening_is_given_up():
    rig = ProducerRig()
    opening = asyncio.create_task(rig.leg.open(0, open_message(0), Partition()))
    await turns(1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert rig.connection.take(AbortPartition) == [AbortPartition(0)]


async def test_a_lost_connection_fails_all_and_refuses_more():
    rig = ProducerRig()
    partition = Partition(messages=5)
    await opened(rig, partition)
    opening = asyncio.create_task(rig.leg.open(7, open_message(7), Partition()))
    await turns(1)
    rig.leg.queue(partition)
    error = ConnectionLost("gone")
    rig.leg.connection_lost(error)
    assert partition.failure is error
    with pytest.raises(ConnectionLost):
        await opening
    with pytest.raises(ConnectionLost):
        rig.leg.new_number()
    with pytest.raises(ConnectionLost):
        await rig.leg.answer(asyncio.get_running_loop().create_future(), "nothing")
    await turns()
    assert partition.log == []
    assert rig.leg.closed.is_set()


async def test_a_closed_leg_opens_nothing():
    rig = ProducerRig()
    rig.leg.close()
    rig.leg.close()
    assert rig.connection.take(CloseRequest) == [CloseRequest()]
    with pytest.raises(ConnectionLost, match="closed"):
        rig.leg.new_number()


async def test_numbers_wrap_around_and_skip_those_in_use():
    rig = ProducerRig()
    number = await opened(rig, Partition())
    assert number == 0
    rig.leg._last_number = MAX_U32 - 1
    assert [rig.leg.new_number() for _ in range(3)] == [MAX_U32, 1, 2]


async def test_partitions_take_turns_with_each_other_and_with_the_event_loop():
    rig = ProducerRig()
    one, two = Partition(2 * MAX_MESSAGES_A_TURN), Partition(2)
    for partition in (one, two):
        rig.leg.queue(partition)
        rig.leg.queue(partition)
    await turns(1)
    assert len(one.log) == MAX_MESSAGES_A_TURN - 2
    assert len(two.log) == 2
    rig.connection.writable = False
    await turns()
    assert len(one.log) == MAX_MESSAGES_A_TURN - 2
    rig.connection.writable = True
    rig.leg.writable()
    await turns()
    assert len(one.log) == 2 * MAX_MESSAGES_A_TURN


async def test_a_bug_ends_the_connection_and_is_logged(caplog):
    rig = ProducerRig()

    class Broken(Partition):
        def send(self):
            raise RuntimeError("a bug")

    rig.leg.queue(Broken())
    await turns()
    assert "a bug" in str(rig.connection.aborted)
    assert "internal error" in caplog.text


async def test_messages_of_another_leg_are_refused():
    rig = ProducerRig()
    with pytest.raises(UnexpectedMessage):
        rig.leg.payload_buffer(BufferResponse(0, 0, 0, 0), 10)
    with pytest.raises(MalformedMessage, match="1025"):
        rig.leg.payload_buffer(TaskEvent(0, 1), 1025)
    with pytest.raises(UnexpectedMessage):
        rig.leg.message_received(BufferResponse(0, 0, 0, 0), 0)
    rig.leg.message_received(CloseRequest(), 0)
    assert rig.connection.closing
