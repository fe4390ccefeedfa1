"""The queue of readers of one connection, with views and a connection driven by hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode, Fault, SluiceError
from sluice.protocol.events import CancelCheckpointMarker, encode_event
from sluice.protocol.limits import MAX_LARGE_PAYLOAD_BYTES
from sluice.protocol.schema import (
    DATA,
    EVENT,
    PRIORITY_EVENT,
    BacklogAnnouncement,
    BufferResponse,
    ChecksummedBuffer,
    ErrorResponse,
)
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.taskmanager.serve.credit_based_view_reader import (
    AnnouncingViewReader,
    CreditBasedViewReader,
)
from sluice.shuffle.taskmanager.serve.partition_request_queue import (
    MIN_MEAN_PIECE_BYTES,
    PIECE_COST_BYTES,
    PartitionRequestQueue,
)
from sluice.transport.fair_queue import Flow
from sluice.transport.loop_share import LoopShares
from tests.support.fakes import Ended, FakeConnection, FakeView


class Rig:
    """A queue and its readers."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.log = Ended()
        self.queue = PartitionRequestQueue(self.connection, self.log.on_sent, self.log.on_ended)

    def reader(self, channel: int, credit: int) -> tuple[CreditBasedViewReader, FakeView]:
        reader = CreditBasedViewReader(channel, credit, self.queue.notify, MAX_LARGE_PAYLOAD_BYTES)
        view = FakeView()
        view.listener = reader.data_available
        reader.attach(view)
        return reader, view

    def channels(self) -> list[int]:
        """Channels of the buffers sent so far."""
        return [m.channel for m in self.connection.sent if isinstance(m, BufferResponse)]


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
def rig():
    return Rig()


async def test_as_many_buffers_are_sent_as_there_is_credit(rig):
    reader, view = rig.reader(1, 0)
    view.put(*(b"%d" % n for n in range(10)))
    await turn()
    assert rig.connection.sent == []
    reader.add_credit(3)
    await turn()
    assert rig.connection.sent == [BufferResponse(1, n, 9 - n, 0) for n in range(3)]
    assert rig.connection.payloads == [b"0", b"1", b"2"]
    assert reader.credit.available == 0
    assert len(rig.queue) == 0
    assert reader.bytes_out == 3


async def test_the_end_needs_no_credit(rig):
    """The end also ends the reader, once."""
    reader, view = rig.reader(1, 1)
    view.put(b"last", end=True)
    await turn()
    assert [m.data_type for m in rig.connection.sent] == [0, 1]
    assert reader.credit.available == 0
    assert rig.log.ended == [(1, None)]
    assert view.releases == 1


async def test_only_the_end_of_the_partition_ends_a_reader(rig):
    """Buffers and events are numbered as they are sent, in their order."""
    readers = [rig.reader(channel, 4) for channel in (1, 2)]
    marker = encode_event(CancelCheckpointMarker(5))
    for _, view in readers:
        view.put(b"shared")
        view.event(marker, EVENT)
        view.event(marker, PRIORITY_EVENT)
        view.put(b"more", end=True)
    await turn()
    for reader, view in readers:
        sent = [
            (message, payload)
            for message, payload in zip(rig.connection.sent, rig.connection.payloads, strict=True)
            if message.channel == reader.channel
        ]
        assert [message.sequence_number for message, _ in sent] == [0, 1, 2, 3, 4]
        assert [message.data_type for message, _ in sent] == [
            DATA, EVENT, PRIORITY_EVENT, DATA, EVENT,
        ]  # fmt: skip
        assert [payload for _, payload in sent][:4] == [b"shared", marker, marker, b"more"]
        assert view.releases == 1
    assert rig.log.ended == [(1, None), (2, None)]


async def test_an_empty_reader_at_the_head_does_not_hold_up_the_next(rig):
    """A view that has nothing when its turn comes."""
    (empty, empty_view), (_, full_view) = rig.reader(1, 5), rig.reader(2, 5)
    empty_view.put(b"gone")
    full_view.put(b"here")
    empty_view._buffers.clear()
    await turn()
    assert rig.channels() == [2]
    assert not empty.queued
    empty_view.put(b"again")
    await turn()
    assert rig.channels() == [2, 1]


async def test_round_robin_one_buffer_a_step(rig):
    views = [rig.reader(channel, 100)[1] for channel in range(3)]
    for view in views:
        view.put(*[b"x"] * 5)
    await turn()
    assert rig.channels() == [0, 1, 2] * 5


async def test_the_queue_stops_while_the_connection_is_not_writable_and_goes_on(rig):
    _, view = rig.reader(1, 100)
    rig.connection.writable = False
    view.put(b"a", b"b")
    await turn()
    assert rig.channels() == []
    assert len(rig.queue) == 1
    rig.connection.writable = True
    rig.queue.run()
    assert rig.channels() == [1, 1]


async def test_a_long_run_yields_to_other_tasks(rig):
    _, view = rig.reader(1, 1000)
    payload = bytes(32 * 1024)
    view.put(*[payload] * 100)
    seen = []
    for _ in range(100):
        await asyncio.sleep(0)
        seen.append(len(rig.channels()))
    assert 8 <= seen[0] <= 50
    assert seen[1] <= 2 * seen[0]
    assert seen[-1] == 100


async def test_the_connections_of_an_application_share_a_turn():
    shares = LoopShares()
    rigs = [Rig() for _ in range(5)]
    for number, rig in enumerate(rigs):
        rig.connection.loop_share = shares.join(Flow("other" if number == 4 else "app", number))
        rig.reader(1, 1000)[1].put(*[bytes(32 * 1024)] * 100)
    await asyncio.sleep(0)
    before = [len(rig.channels()) for rig in rigs]
    assert before[4] < 100  # the others were alone until it came
    for _ in range(8):
        await asyncio.sleep(0)
    sent = [len(rig.channels()) - already for rig, already in zip(rigs, before, strict=True)]
    assert 0 < sum(sent[:4]) <= sent[4] + 4  # one that is under way when the share ends goes
    for _ in range(200):
        await asyncio.sleep(0)
    assert [len(rig.channels()) for rig in rigs] == [100] * 5


async def test_a_connection_that_ends_while_it_waits_for_its_turn_sends_nothing(rig):
    _, view = rig.reader(1, 1000)
    view.put(*[bytes(32 * 1024)] * 100)
    await asyncio.sleep(0)
    sent = len(rig.channels())
    assert sent < 100
    rig.connection.close()
    await turn()
    assert len(rig.channels()) == sent


async def test_an_event_is_sent_while_data_of_another_reader_waits_for_credit(rig):
    (_, poor), (_, rich) = rig.reader(1, 0), rig.reader(2, 0)
    poor.put(b"data")
    rich.put(end=True)
    await turn()
    assert rig.channels() == [2]


async def test_a_failing_view_reports_and_releases_only_itself(rig):
    """The other reader goes on."""
    (_, broken), (_, good) = rig.reader(1, 5), rig.reader(2, 5)
    broken.put(b"never")
    good.put(b"fine")
    broken.failure = SluiceError("broken", value=3)
    broken.listener()
    await turn()
    (error,) = (m for m in rig.connection.sent if isinstance(m, ErrorResponse))
    assert (error.channel, error.code, error.value) == (1, ErrorCode.INTERNAL, "3")
    assert rig.channels() == [2]
    assert rig.log.ended == [(1, broken.failure)]
    assert (broken.releases, good.releases) == (1, 0)


@pytest.mark.parametrize(
    "code", [ErrorCode.SEQUENCE_GAP, ErrorCode.CHECKSUM_MISMATCH, ErrorCode.INTERNAL]
)
async def test_an_error_behind_this_side_does_not_blame_the_receiver(rig, code):
    """It was found on another connection, whose other end the receiver does not know."""
    _, view = rig.reader(1, 1)
    view.failure = SluiceError("left out a buffer", code=code)
    view.listener()
    await turn()
    (told,) = rig.connection.sent
    assert (told.code, told.fault) == (code, Fault.LOCAL)
    assert told.retryable == view.failure.retryable


async def test_an_error_of_the_request_itself_blames_the_receiver(rig):
    reader = CreditBasedViewReader(1, 0, rig.queue.notify, MAX_LARGE_PAYLOAD_BYTES)
    reader.fail(InvalidRequest("an impossible range"))
    await turn()
    (told,) = rig.connection.sent
    assert (told.code, told.fault) == (ErrorCode.MALFORMED_MESSAGE, Fault.REMOTE)


async def test_a_reader_that_fails_before_it_has_a_view_reports_it(rig):
    reader = CreditBasedViewReader(4, 0, rig.queue.notify, MAX_LARGE_PAYLOAD_BYTES)
    assert not reader.is_available()
    assert not reader.next_message()
    reader.fail(SluiceError("not found"))
    await turn()
    (error,) = rig.connection.sent
    assert (error.channel, error.message) == (4, "not found")


async def test_cancel_of_an_available_and_of_an_idle_reader(rig):
    """The reader is taken out, its view released once, also if it is cancelled twice."""
    (available, view), (idle, idle_view) = rig.reader(1, 5), rig.reader(2, 5)
    rig.connection.writable = False
    view.put(b"x")
    assert len(rig.queue) == 1
    for _ in range(2):
        rig.queue.remove(available)
        rig.queue.remove(idle)
    assert len(rig.queue) == 0
    assert (view.releases, idle_view.releases) == (1, 1)
    rig.connection.writable = True
    rig.queue.run()
    await turn()
    assert rig.connection.sent == []
    view.put(b"late")  # a listener that is called late queues nothing
    await turn()
    assert rig.connection.sent == []


async def test_payloads_are_recycled_when_the_transport_has_sent_them(rig):
    _, view = rig.reader(1, 5)
    view.put(b"a", b"b")
    await turn()
    assert view.recycled == 0
    rig.connection.drain()
    assert view.recycled == 2


@pytest.mark.parametrize("length", [MIN_MEAN_PIECE_BYTES, MIN_MEAN_PIECE_BYTES - 1])
async def test_a_message_of_several_buffers_is_released_once_it_is_sent(rig, length):
    """All of them then; small ones are copied, and released at once."""
    reader = CreditBasedViewReader(1, 9, rig.queue.notify, length)
    reader.checksums = True
    view = FakeView(length)
    reader.attach(view, 3 * length)
    parts = [bytes([n]) * length for n in range(3)]
    view.put(*parts)
    rig.queue.notify(reader)
    await turn()
    (message,) = rig.connection.sent
    assert rig.connection.payloads == [b"".join(parts)]
    assert message == ChecksummedBuffer(1, 0, 0, DATA, crc32c(b"".join(parts), 1))
    assert view.recycled == (0 if length == MIN_MEAN_PIECE_BYTES else 3)
    rig.connection.drain()
    assert view.recycled == 3


@pytest.mark.interpreted
async def test_each_piece_of_a_message_has_its_cost_in_the_turn(rig):
    spent: list[int] = []

    def spend(cost: int) -> bool:
        spent.append(cost)
        return True

    rig.connection.loop_share = SimpleNamespace(sends=SimpleNamespace(spend=spend))
    reader = CreditBasedViewReader(1, 9, rig.queue.notify, 10)
    view = FakeView(10)
    reader.attach(view, 30)
    view.put(b"a" * 10, b"b" * 10, b"c" * 10)
    rig.queue.notify(reader)
    await turn()
    assert spent == [0, 30 + 3 * PIECE_COST_BYTES]


async def test_a_bug_closes_the_connection_and_is_logged(rig, caplog):
    """An unexpected exception must not leave the channels waiting for ever."""
    reader, view = rig.reader(1, 5)
    view.put(b"x")
    view.failure = cast("SluiceError", ZeroDivisionError("bug"))
    await turn()
    assert rig.connection.closing
    assert "ZeroDivisionError" in str(rig.connection.error)
    assert "internal error while sending" in caplog.text
    rig.queue.remove(reader)
    assert view.releases == 1


async def test_sequence_numbers_wrap(rig):
    reader, view = rig.reader(1, 5)
    reader.sequence_number = 2**32 - 1
    view.put(b"a", b"b")
    await turn()
    assert [m.sequence_number for m in rig.connection.sent] == [2**32 - 1, 0]


def an_announcing_reader(rig: Rig) -> tuple[AnnouncingViewReader, FakeView]:
    reader = AnnouncingViewReader(1, 0, rig.queue.notify, MAX_LARGE_PAYLOAD_BYTES)
    view = FakeView()
    view.listener = reader.data_available
    reader.attach(view)
    return reader, view


async def test_data_without_credit_is_announced_once(rig):
    _, view = an_announcing_reader(rig)
    await turn()
    assert rig.connection.sent == []
    view.put(b"a", b"b")
    await turn()
    view.put(b"c")
    await turn()
    assert rig.connection.sent == [BacklogAnnouncement(1, 2)]


async def test_a_backlog_that_a_buffer_carried_is_not_announced(rig):
    """Each of two grants leaves data behind, the third one does not: data after it is announced."""
    reader, view = an_announcing_reader(rig)
    view.put(b"a", b"b", b"c")
    await turn()
    for backlog in (2, 1, 0):
        rig.connection.sent.clear()
        reader.add_credit(1)
        await turn()
        assert [message.backlog for message in rig.connection.sent] == [backlog]
    rig.connection.sent.clear()
    view.put(b"d")
    await turn()
    assert rig.connection.sent == [BacklogAnnouncement(1, 1)]


async def test_data_with_credit_is_not_announced(rig):
    reader, view = an_announcing_reader(rig)
    reader.add_credit(3)
    for payload in (b"a", b"b", b"c"):
        view.put(payload)
        await turn()
    assert [type(message) for message in rig.connection.sent] == [BufferResponse] * 3


async def test_a_priority_event_needs_no_announcement_and_carries_no_backlog(rig):
    """The event behind it is announced, when the priority event is out."""
    _, view = an_announcing_reader(rig)
    marker = encode_event(CancelCheckpointMarker(5))
    view.event(marker, PRIORITY_EVENT)
    view.event(marker, EVENT)
    await turn()
    assert [type(message) for message in rig.connection.sent] == [
        BufferResponse,
        BacklogAnnouncement,
    ]


async def test_the_backlog_of_an_event_announces_what_is_behind_it(rig):
    reader, view = an_announcing_reader(rig)
    view.event(encode_event(CancelCheckpointMarker(5)), EVENT)
    view.put(b"a")
    await turn()
    assert rig.connection.sent == [BacklogAnnouncement(1, 1)]
    reader.add_credit(1)
    await turn()
    assert rig.connection.sent[1:] == [BufferResponse(1, 0, 1, EVENT)]


async def test_a_checksum_begins_with_the_number_of_the_channel(rig):
    """So a buffer that arrives for another channel does not match."""
    for channel in (0, 1, 2**32 - 1):
        reader, view = rig.reader(channel, 1)
        reader.checksums = True
        view.put(b"same", end=True)
    await turn()
    sent = list(zip(rig.connection.sent, rig.connection.payloads, strict=True))
    assert [type(message) for message, _ in sent] == [ChecksummedBuffer] * 6
    assert all(message.crc32c == crc32c(payload, message.channel) for message, payload in sent)
    assert len({message.crc32c for message, payload in sent if payload == b"same"}) == 3
