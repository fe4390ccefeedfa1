"""The consuming end of a channel from another TaskManager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.errors import ErrorCode, Fault, SluiceError
from sluice.protocol.events import (
    CheckpointBarrier,
    EndOfPartition,
    decode_event,
    encode_end_of_partition,
    encode_event,
)
from sluice.protocol.schema import BLOCKING_EVENT, DATA, EVENT, BufferResponse
from sluice.shuffle.gate.buffer_manager import BufferManager
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.memory import NetworkBufferPool
from tests.support.fakes import FakeCreditSender
from tests.support.network_memory import take_exclusive

if TYPE_CHECKING:
    from sluice.shuffle.memory.buffer import BufferGroup

PLENTY = 1000


class Rig:
    """A channel with exclusive and up to eight floating buffers."""

    def __init__(self, exclusive: int = 2) -> None:
        self.pool = NetworkBufferPool(32, 16)
        self.floating = self.pool.create_local_pool("gate", 1, 8)
        self.sender = FakeCreditSender()
        self.notified = 0
        self.channel = RemoteInputChannel(self._notify)
        segments = take_exclusive(self.pool, exclusive)
        self.buffers = BufferManager(self.pool, self.floating, segments, self.channel)
        self.channel.attach(self.buffers, self.sender)
        self.sequence_number = 0

    def _notify(self) -> None:
        self.notified += 1

    def data(self, payload: bytes, backlog: int = 0, sequence_number: int | None = None) -> None:
        content: list[BufferGroup] | None = None
        if payload:
            content = self.channel.take_buffers(len(payload))
            assert content is not None
            left = payload
            for group in content:
                group.payload[:] = left[: group.length]
                left = left[group.length :]
            assert not left
        if sequence_number is None:
            sequence_number, self.sequence_number = self.sequence_number, self.sequence_number + 1
        self.channel.buffer_received(BufferResponse(1, sequence_number, backlog, DATA), content)

    def event(self, payload: bytes, data_type: int = EVENT) -> None:
        number, self.sequence_number = self.sequence_number, self.sequence_number + 1
        self.channel.buffer_received(BufferResponse(1, number, 0, data_type), payload)

    def check_all_back(self) -> None:
        self.channel.release()
        self.floating.destroy()
        assert self.pool.available_segments == 32


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.check_all_back()


def test_empty_data_keeps_its_credit_and_its_place(rig):
    """Sequence and backlog are handled; the credit is free again when the buffer is read."""
    rig.data(b"", backlog=1)
    assert rig.channel.credit.granted == 1
    rig.data(b"x")
    first = rig.channel.next_buffer(PLENTY)
    assert first == (b"", None, DATA)
    assert rig.channel.credit.granted + rig.channel.credit.unannounced == rig.buffers.available
    second = rig.channel.next_buffer(PLENTY)
    assert bytes(second.payload) == b"x"
    second.release()
    rig.event(encode_end_of_partition(1, 2))
    assert rig.channel.ended
    assert rig.channel.credit.granted + rig.channel.credit.unannounced >= 2


def test_empty_data_without_credit_fails_the_channel_only(rig):
    rig.data(b"")
    rig.data(b"")
    rig.data(b"")
    assert rig.channel.failure.code is ErrorCode.CREDIT_EXCEEDED


def test_a_gap_in_sequence_numbers_fails_the_channel(rig):
    """0, then 29: buffers that waited are dropped, the next read raises."""
    rig.data(b"a", sequence_number=0)
    rig.data(b"b", sequence_number=29)
    with pytest.raises(SluiceError, match="left out a buffer") as caught:
        rig.channel.next_buffer(PLENTY)
    assert caught.value.code is ErrorCode.SEQUENCE_GAP
    assert (caught.value.fault, caught.value.retryable) == (Fault.REMOTE, True)
    assert (caught.value.value, caught.value.limit) == (29, 1)
    assert rig.channel.queued_buffers == 0
    assert rig.buffers.available == 0


def test_sequence_numbers_wrap(rig):
    rig.channel._next_sequence_number = 2**32 - 1
    rig.data(b"a", sequence_number=2**32 - 1)
    rig.data(b"b", sequence_number=0)
    assert rig.channel.failure is None


@pytest.mark.parametrize("totals", [(3, 1), (2, 2), (0, 0)])
def test_other_totals_at_the_end_fail_the_channel(rig, totals):
    rig.data(b"ab")
    rig.event(encode_end_of_partition(*totals))
    assert rig.channel.failure.code is ErrorCode.END_OF_PARTITION_MISMATCH
    assert rig.channel.failure.retryable
    assert rig.channel.failure.value == "2 bytes in 1 buffers"


def test_the_end_is_read_without_credit_and_nothing_fails_after_it(rig):
    rig.data(b"ab")
    rig.event(encode_end_of_partition(2, 1))
    assert not rig.channel.is_available(0)
    assert rig.channel.backlog == 1
    rig.channel.next_buffer(1).release()
    assert rig.channel.is_available(0)
    rig.channel.fail(SluiceError("the connection is gone"))
    assert rig.channel.next_buffer(0).data_type == EVENT
    assert rig.channel.next_buffer(PLENTY) is None
    assert (rig.channel.backlog, rig.channel.bytes_in, rig.channel.buffers_in) == (0, 2, 1)


def test_credit_that_waits_is_announced_when_little_is_left():
    rig: Any = Rig(exclusive=4)
    rig.data(b"a" * 16)
    rig.channel.next_buffer(PLENTY).release()
    assert not rig.sender.announcing
    rig.data(b"b" * 16)
    assert rig.sender.announcing
    rig.check_all_back()


def test_a_small_buffer_is_appended_to_the_one_that_waits(rig):
    rig.data(b"a")
    rig.data(b"bc")
    assert rig.notified == 1
    assert rig.channel.queued_buffers == 1
    assert rig.floating.lent_segments == 1
    assert (
        rig.buffers.available == rig.channel.credit.announce() == 2
    )  # its segment is free: the bytes are copied
    rig.data(b"d" * 14)  # one byte too many to be appended
    assert rig.channel.queued_buffers == 2
    taken = [rig.channel.next_buffer(PLENTY) for _ in range(2)]
    assert [bytes(buffer.payload) for buffer in taken] == [b"abc", b"d" * 14]
    for buffer in taken:
        buffer.release()
    rig.event(encode_end_of_partition(17, 3))
    end = rig.channel.next_buffer(PLENTY)
    assert decode_event(end.payload) == EndOfPartition(17, 3)


def test_data_that_waits_can_be_taken_for_one_message(rig):
    """As far as it fits, in parts of a buffer too, and never past an event."""
    marker = encode_event(CheckpointBarrier(1, 2, unaligned=False))
    for payload in (b"a" * 16, b"b" * 16, b"c" * 16):
        rig.data(payload, backlog=4)
        rig.channel.credit.announce()
    rig.event(marker)
    rig.data(b"d")
    taken = [rig.channel.next_buffer(PLENTY), rig.channel.take_more(20), rig.channel.take_more(4)]
    assert [bytes(each.payload) for each in taken] == [b"a" * 16, b"b" * 16, b"c" * 4]
    taken.append(rig.channel.take_more(100))
    assert bytes(taken[-1].payload) == b"c" * 12
    assert rig.channel.take_more(100) is None
    assert rig.channel.next_buffer(PLENTY) == (marker, None, EVENT)
    taken.append(rig.channel.take_more(100))
    assert rig.channel.take_more(100) is None
    for buffer in taken:
        buffer.release()


def test_a_buffer_being_read_is_not_extended(rig):
    rig.data(b"abc")
    taken = rig.channel.next_buffer(PLENTY)
    rig.data(b"d")
    assert bytes(taken.payload) == b"abc"
    rest = rig.channel.next_buffer(PLENTY)
    assert bytes(rest.payload) == b"d"
    for buffer in (taken, rest):
        buffer.release()


def test_data_that_arrives_after_the_release_is_recycled_without_credit(rig):
    """Also a buffer that was being received when the channel was released."""
    arriving = rig.channel.take_buffers(1)
    rig.channel.release()
    rig.channel.release()
    assert rig.sender.cancelled == [rig.channel]
    announced = len(rig.sender.announcing)
    rig.channel.buffer_received(BufferResponse(1, 0, 9, DATA), arriving)
    rig.channel.on_backlog(7)
    rig.channel.fail(SluiceError("late"))
    assert rig.channel.take_buffers(1) is None
    assert (rig.channel.failure, len(rig.sender.announcing)) == (None, announced)
    assert rig.notified == 0


def test_buffers_that_the_consumer_holds_survive_the_release(rig):
    rig.data(b"held")
    held = rig.channel.next_buffer(PLENTY)
    rig.channel.release()
    assert bytes(held.payload) == b"held"
    assert rig.pool.lent_segments == 1
    held.release()


def test_a_failure_drops_the_buffers_that_wait_and_is_final(rig):
    rig.data(b"a")
    rig.channel.fail(SluiceError("first"))
    rig.channel.fail(SluiceError("second"))
    with pytest.raises(SluiceError, match="first"):
        rig.channel.next_buffer(PLENTY)
    assert rig.notified == 2
    assert rig.channel.credit.granted == 1


def test_a_group_is_given_whole_or_in_parts_of_the_size_asked_for(rig):
    content = bytes(range(40))
    rig.channel.on_backlog(2)
    rig.channel.credit.announce()
    rig.data(content, backlog=2)
    assert (rig.channel.buffers_in, rig.channel.credit.granted) == (3, 1)
    whole = b""
    while (buffer := rig.channel.next_buffer(PLENTY)) is not None:
        whole += bytes(buffer.payload)
        buffer.release()
    assert whole == content

    rig.channel._buffer_bytes = 7
    rig.channel.credit.announce()
    rig.data(content, backlog=2)
    parts = []
    while (buffer := rig.channel.next_buffer(PLENTY)) is not None:
        parts.append((bytes(buffer.payload), buffer.release))
    assert b"".join(part for part, _ in parts) == content
    assert all(0 < len(part) <= 7 for part, _ in parts)
    for _, release in parts:
        release()
    assert rig.buffers.available == 4


def test_a_group_beyond_the_credit_is_refused(rig):
    rig.channel.on_backlog(5)  # its free buffers are not announced as credit
    assert rig.buffers.available == 7
    assert rig.channel.take_buffers(2 * 16 + 1) is None


def test_a_reader_gets_as_much_of_a_group_as_its_credit_pays_for(rig):
    rig.channel._buffer_bytes, rig.channel._credit_bytes = 48, 16
    rig.channel.on_backlog(2)
    rig.channel.credit.announce()
    rig.data(bytes(range(40)))
    rig.event(encode_end_of_partition(40, 3))
    given = []
    for granted in (1, 0, 5):
        credit = granted
        while (buffer := rig.channel.next_buffer(credit)) is not None and buffer.data_type == DATA:
            given.append(bytes(buffer.payload))
            buffer.release()
            credit -= -(-len(buffer.payload) // 16)
    assert given == [bytes(range(16)), bytes(range(16, 40))]
    assert decode_event(buffer.payload) == EndOfPartition(40, 3)
    assert (
        rig.buffers.available == 2
    )  # its exclusive buffers; the floating ones are back in the pool


@pytest.mark.parametrize("exclusive", [0, 2])
def test_a_blocking_event_voids_the_credit_of_a_channel_without_exclusive_buffers(exclusive):
    """Its floating buffers are free for the channels that have not brought theirs."""
    rig = Rig(exclusive)
    rig.channel.on_backlog(3)
    rig.channel.credit.announce()
    rig.event(encode_event(CheckpointBarrier(1, 2, False)), BLOCKING_EVENT)
    assert rig.channel.credit.granted == (exclusive + 2 if exclusive else 0)
    assert rig.floating.lent_segments == (3 if exclusive else 1)  # the event keeps one
    rig.channel.next_buffer(1)
    assert rig.channel.credit.unannounced == 0
    assert rig.floating.lent_segments == (2 if exclusive else 0)
    rig.channel.on_backlog(1)
    assert rig.buffers.available > 0
    rig.check_all_back()
