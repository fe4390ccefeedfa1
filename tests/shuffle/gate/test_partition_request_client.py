"""The requesting side of a peer leg, with a connection driven by hand."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import (
    CreditExceeded,
    ErrorCode,
    InvalidEvent,
    MalformedMessage,
    UnexpectedMessage,
)
from sluice.protocol.events import (
    CheckpointBarrier,
    EndOfData,
    encode_end_of_partition,
    encode_event,
)
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    BLOCKING_EVENT,
    DATA,
    EVENT,
    PRIORITY_EVENT,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    ErrorResponse,
    HelloAck,
    PartitionRequest,
    RegionData,
    ResumeConsumption,
    TaskEvent,
)
from sluice.shuffle.counters import Counters
from sluice.shuffle.errors import InvalidRequest, TooManyTaskEvents, UnknownProducer
from sluice.shuffle.gate.buffer_manager import BufferManager
from sluice.shuffle.gate.partition_request_client import (
    MAX_WAITING_TASK_EVENTS,
    PartitionRequestClient,
)
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.transport.errors import ConnectionLost
from tests.support.fakes import FakeConnection
from tests.support.network_memory import take_exclusive

KEY = ShuffleKey("app", 7)
SEGMENT = 16
MUCH = 1000


class Rig:
    """A client on a fake connection, and its channels."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.connection.max_payload_bytes = SEGMENT
        self.counters = Counters()
        ack = HelloAck(1, "tm", SEGMENT, 0, 0, "host", 1, "i", 0, 1)
        self.client = PartitionRequestClient(self.connection, ack, self.counters)
        self.pool = NetworkBufferPool(32, SEGMENT)
        self.floating = self.pool.create_local_pool("gate", 1, 8)
        self.channels: list[RemoteInputChannel] = []

    def channel(self) -> RemoteInputChannel:
        channel = RemoteInputChannel(lambda: None)
        exclusive = take_exclusive(self.pool, 2)
        channel.attach(BufferManager(self.pool, self.floating, exclusive, channel), self.client)
        self.client.request(channel, SubpartitionRange(KEY, 1, 3), [4, 5])
        self.channels.append(channel)
        return channel

    def receive(self, channel: int, sequence_number: int, payload: bytes, backlog: int = 0) -> None:
        message = BufferResponse(channel, sequence_number, backlog, DATA)
        if payload:
            memory = self.client.payload_buffer(message, len(payload))
            assert isinstance(memory, memoryview)
            memory[: len(payload)] = payload
        self.client.message_received(message, len(payload))

    def end(self, channel: int, sequence_number: int, total_bytes: int, buffers: int) -> None:
        self.event(channel, sequence_number, encode_end_of_partition(total_bytes, buffers))

    def event(
        self, channel: int, sequence_number: int, payload: bytes, data_type: int = EVENT
    ) -> None:
        message = BufferResponse(channel, sequence_number, 0, data_type)
        memory = self.client.payload_buffer(message, len(payload))
        assert isinstance(memory, memoryview)
        memory[: len(payload)] = payload
        self.client.message_received(message, len(payload))


def read(channel: RemoteInputChannel) -> bytes:
    content = b""
    while (buffer := channel.next_buffer(MUCH)) is not None:
        if buffer.data_type == DATA:
            content += bytes(buffer.payload)
        if buffer.release is not None:
            buffer.release()
    return content


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.fixture
async def rig():
    rig = Rig()
    yield rig
    for channel in rig.channels:
        channel.release()
    rig.floating.destroy()
    assert rig.pool.available_segments == 32


async def test_a_request_names_the_subpartitions_and_the_initial_credit(rig):
    rig.channel()
    rig.channel()
    assert rig.connection.sent == [
        PartitionRequest(0, "app", 7, [4, 5], 1, 3, 2),
        PartitionRequest(1, "app", 7, [4, 5], 1, 3, 2),
    ]


async def test_credit_is_one_sum_a_channel_and_a_turn(rig):
    """Two channels with two credits each; credit accumulates while nothing can be written."""
    first, second = rig.channel(), rig.channel()
    rig.connection.take(PartitionRequest)
    for channel in (0, 1):
        rig.receive(channel, 0, b"a")
        rig.receive(channel, 1, b"b")
    for channel in (first, second):
        assert read(channel) == b"ab"
    await turn()
    sent = rig.connection.take(AddCredit)
    assert sorted(sent, key=str) == [AddCredit(0, 2), AddCredit(1, 2)]

    rig.connection.writable = False
    for number in (2, 3):
        rig.receive(0, number, b"c")
        read(first)
        await turn()
    assert rig.connection.take(AddCredit) == []
    rig.connection.writable = True
    rig.client.writable()
    assert rig.connection.take(AddCredit) == [AddCredit(0, 2)]


async def test_no_credit_after_release_end_or_failure(rig):
    released, ended, failed = rig.channel(), rig.channel(), rig.channel()
    for channel in range(3):
        rig.receive(channel, 0, b"a")
    rig.connection.take(PartitionRequest)
    for channel in (released, ended, failed):
        read(channel)
    released.release()
    rig.end(1, 1, 1, 1)
    rig.client.message_received(ErrorResponse(2, 20, 1, False, "gone", "", "", 4), 0)
    await turn()
    assert rig.connection.sent == [CancelPartitionRequest(0)]
    rig.connection.sent.clear()
    ended.release()
    failed.release()
    assert rig.connection.sent == []  # the producer knows that the channel has ended
    assert rig.client.channels == 0
    assert failed.failure is not None
    assert failed.failure.code is ErrorCode.PARTITION_NOT_FOUND
    assert failed.failure.map_attempt_id == 4


async def test_closing_says_goodbye_once(rig):
    rig.client.close()
    rig.client.close()
    assert rig.connection.sent == [CloseRequest()]
    assert rig.client.closing
    with pytest.raises(ConnectionLost):
        rig.client.request(RemoteInputChannel(lambda: None), SubpartitionRange(KEY, 0, 1), [1])


async def test_data_for_a_removed_channel_is_discarded(rig):
    """Also data that was arriving; the cancel went out with the removal; memory is back."""
    channel = rig.channel()
    message = BufferResponse(0, 0, 0, DATA)
    assert rig.client.payload_buffer(message, 3) is not None
    channel.release()
    assert rig.connection.take(CancelPartitionRequest) == [CancelPartitionRequest(0)]
    rig.client.message_received(message, 3)
    rig.receive(0, 1, b"late")
    rig.receive(0, 2, b"")
    assert rig.counters.late_messages == {"BufferResponse": 3}
    assert rig.pool.available_segments + rig.floating.idle_segments == 32


async def test_data_without_a_free_buffer_fails_that_channel(rig):
    """The other channels and the connection live on."""
    greedy, good = rig.channel(), rig.channel()
    for number in range(3):
        rig.receive(0, number, b"x")
    assert greedy.failure is not None
    assert greedy.failure.code is ErrorCode.CREDIT_EXCEEDED
    assert CancelPartitionRequest(0) in rig.connection.sent
    assert rig.connection.error is None
    rig.receive(1, 0, b"fine")
    assert read(good) == b"fine"


async def test_a_gap_cancels_that_channel(rig):
    broken, good = rig.channel(), rig.channel()
    rig.receive(0, 0, b"x")
    rig.receive(0, 29, b"y")
    assert broken.failure is not None
    assert broken.failure.code is ErrorCode.SEQUENCE_GAP
    assert CancelPartitionRequest(0) in rig.connection.sent
    rig.receive(1, 0, b"fine")
    assert read(good) == b"fine"


async def test_the_loss_of_the_connection_fails_every_channel(rig):
    """Also a channel whose buffer was arriving."""
    channels = [rig.channel(), rig.channel()]
    rig.receive(0, 0, b"waiting")
    rig.client.payload_buffer(BufferResponse(1, 0, 0, DATA), 3)
    lost = ConnectionLost("gone")
    rig.client.connection_lost(lost)
    assert [channel.failure for channel in channels] == [lost, lost]
    for channel in channels:
        with pytest.raises(ConnectionLost):
            channel.next_buffer(1)
    assert rig.client.channels == 0


@pytest.mark.parametrize(
    ("reason", "counted"),
    [
        (None, {}),
        (CreditExceeded("More than was granted"), {"CREDIT_EXCEEDED": 1}),
        (RemoteError(ErrorResponse(None, 4, 2, False, "Odd", "", "", None)), {}),
    ],
    ids=["an end", "an error of the other side", "an error that the other side found"],
)
async def test_an_error_that_closes_a_connection_is_counted_where_it_was_found(
    rig, reason, counted
):
    rig.connection.close_reason = reason
    rig.client.connection_lost(reason or ConnectionLost("gone"))
    assert rig.counters.errors_by_code == counted


async def test_a_channel_that_has_ended_survives_the_loss(rig):
    channel = rig.channel()
    rig.receive(0, 0, b"all")
    rig.end(0, 1, 3, 1)
    rig.client.connection_lost(ConnectionLost("gone"))
    assert read(channel) == b"all"
    assert channel.failure is None


async def test_backlog_alone_brings_floating_buffers(rig):
    rig.channel()
    rig.client.message_received(BacklogAnnouncement(0, 4), 0)
    rig.client.message_received(BacklogAnnouncement(9, 4), 0)
    await turn()
    assert rig.connection.take(AddCredit) == [AddCredit(0, 4)]


async def test_messages_that_a_peer_must_not_send(rig):
    rig.channel()
    with pytest.raises(UnexpectedMessage):
        rig.client.payload_buffer(RegionData(0, 0), 1)
    with pytest.raises(MalformedMessage):
        rig.client.payload_buffer(BufferResponse(0, 0, 0, EVENT), 1025)
    with pytest.raises(MalformedMessage, match="without content"):
        rig.client.message_received(BufferResponse(0, 0, 0, EVENT), 0)


async def test_a_bad_event_fails_its_channel_and_no_other(rig):
    bad, good = rig.channel(), rig.channel()
    rig.connection.sent.clear()
    for number, payload in ((0, b"\xc1"), (0, b"\x91\x63")):
        rig.event(number, 0, payload)
    assert isinstance(bad.failure, InvalidEvent)
    assert rig.connection.sent == [CancelPartitionRequest(0)]
    assert rig.counters.late_messages == {"BufferResponse": 1}  # the second one
    rig.event(1, 0, encode_event(EndOfData()))
    assert good.failure is None
    assert good.next_buffer(0) is None
    assert good.next_buffer(1) == (encode_event(EndOfData()), None, EVENT)


async def test_a_priority_event_among_normal_ones(rig):
    """Its sequence number follows its place on the wire; it is read first."""
    channel = rig.channel()
    told: list[int] = []
    channel._listener = lambda: told.append(1)
    barrier = encode_event(CheckpointBarrier(1, 2, True))
    rig.receive(0, 0, b"first", backlog=2)
    await turn()
    rig.event(0, 1, encode_event(EndOfData()))
    rig.receive(0, 2, b"second")
    assert told == [1]
    rig.event(0, 3, barrier, PRIORITY_EVENT)
    assert told == [1, 1]  # although data waits: the reader may have no credit
    assert channel.has_priority_event
    assert channel.backlog == 3
    assert channel.next_buffer(0) == (barrier, None, PRIORITY_EVENT)
    assert not channel.has_priority_event
    assert channel.next_buffer(0) is None
    kinds = []
    while (buffer := channel.next_buffer(1)) is not None:
        kinds.append((bytes(buffer.payload), buffer.data_type))
        if buffer.release is not None:
            buffer.release()
    assert kinds == [(b"first", DATA), (encode_event(EndOfData()), EVENT), (b"second", DATA)]
    rig.end(0, 4, 11, 2)
    assert channel.ended
    assert channel.failure is None


async def test_a_blocking_event_and_its_resumption(rig):
    """Data behind the event waits, on the consuming side."""
    channel = rig.channel()
    rig.connection.sent.clear()
    with pytest.raises(InvalidRequest, match="not blocked"):
        channel.resume_consumption()
    rig.event(0, 0, encode_event(CheckpointBarrier(1, 2, False)), BLOCKING_EVENT)
    with pytest.raises(InvalidRequest):
        channel.resume_consumption()  # the blocking event was not read yet
    assert channel.next_buffer(1).data_type == BLOCKING_EVENT
    channel.resume_consumption()
    assert rig.connection.sent == [ResumeConsumption(0)]
    with pytest.raises(InvalidRequest):
        channel.resume_consumption()


async def test_messages_to_the_producer_before_the_request_follow_it(rig):
    channel = RemoteInputChannel(lambda: None)
    rig.channels.append(channel)
    channel.send_task_event(7, b"early")
    exclusive = take_exclusive(rig.pool, 2)
    channel.attach(BufferManager(rig.pool, rig.floating, exclusive, channel), rig.client)
    channel.send_task_event(8, b"")
    rig.client.request(channel, SubpartitionRange(KEY, 0, 1), [4])
    assert [type(each) for each in rig.connection.sent] == [PartitionRequest, TaskEvent, TaskEvent]
    assert rig.connection.sent[1:] == [TaskEvent(0, 7), TaskEvent(0, 8)]
    assert rig.connection.payloads[1:] == [b"early", b""]


async def test_messages_to_the_producer_wait_for_a_writable_connection(rig):
    """Bounded and in order; nothing is sent for a channel that has ended meanwhile."""
    first, second = rig.channel(), rig.channel()
    rig.connection.sent.clear()
    rig.connection.writable = False
    for number in range(MAX_WAITING_TASK_EVENTS):
        (first if number % 2 else second).send_task_event(number, b"x")
    with pytest.raises(TooManyTaskEvents) as caught:
        first.send_task_event(1, b"")
    assert caught.value.limit == MAX_WAITING_TASK_EVENTS
    second.release()
    assert rig.connection.take(TaskEvent) == []
    rig.connection.writable = True
    rig.client.writable()
    events = rig.connection.take(TaskEvent)
    assert events == [TaskEvent(0, number) for number in range(1, MAX_WAITING_TASK_EVENTS, 2)]
    first.send_task_event(5, b"")
    assert rig.connection.take(TaskEvent) == [TaskEvent(0, 5)]


async def test_task_events_of_a_channel_that_has_ended_or_failed(rig):
    ended, failed = rig.channel(), rig.channel()
    rig.end(0, 0, 0, 0)
    with pytest.raises(UnknownProducer):
        ended.send_task_event(1, b"")
    failed.fail(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        failed.send_task_event(1, b"")
    with pytest.raises(InvalidEvent):
        failed.send_task_event(1, bytes(1025))
    rig.connection.sent.clear()
    for channel in (ended, failed):
        channel.release()
        channel.send_task_event(1, b"")
    assert not rig.connection.take(TaskEvent)


async def test_messages_for_unknown_channels_are_late_and_a_close_request_closes(rig):
    rig.client.message_received(ErrorResponse(5, 20, 1, False, "gone", "", "", None), 0)
    assert rig.counters.late_messages == {"ErrorResponse": 1}
    rig.end(5, 0, 0, 0)
    rig.client.message_received(CloseRequest(), 0)
    assert rig.connection.closing


async def test_numbers_are_unique_while_in_use(rig):
    rig.client._last_number = 2**32 - 2
    first, second, third = rig.channel(), rig.channel(), rig.channel()
    assert [first.number, second.number, third.number] == [2**32 - 1, 0, 1]
    rig.client._last_number = 2**32 - 2
    first.release()
    assert rig.channel().number == 2**32 - 1
    assert rig.channel().number == 2
