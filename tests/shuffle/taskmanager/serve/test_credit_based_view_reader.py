"""A channel on the serving side: credit, sequence numbers, failures, release."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import CreditOverflow, SluiceError
from sluice.protocol.events import EndOfData, encode_end_of_partition, encode_event
from sluice.protocol.limits import MAX_CREDIT
from sluice.protocol.schema import EVENT, PRIORITY_EVENT
from sluice.shuffle.counters import ServingSeconds
from sluice.shuffle.histogram import Histogram
from sluice.shuffle.taskmanager.serve.channel_times import (
    SENDING,
    WAITING_FOR_CREDIT,
    WAITING_FOR_DATA,
    ChannelTimes,
)
from sluice.shuffle.taskmanager.serve.credit_based_view_reader import (
    MAX_PIECES,
    CreditBasedViewReader,
    UncreditedViewReader,
)
from tests.support.fakes import FakeView

CREDIT_BYTES = 10
MARKER = encode_event(EndOfData())


class Rig:
    """A reader, its view, and the notifications to its queue."""

    def __init__(
        self,
        credit: int,
        kind: type[CreditBasedViewReader] = CreditBasedViewReader,
        message_bytes: int = 0,
    ) -> None:
        self.notified = 0
        self.times = ChannelTimes(ServingSeconds(), Histogram())
        self.reader = kind(1, credit, self._notify, CREDIT_BYTES, self.times)
        self.message_bytes = message_bytes
        self.view = FakeView(CREDIT_BYTES)
        self.view.listener = self.reader.data_available

    def _notify(self, reader: CreditBasedViewReader) -> None:
        assert reader is self.reader
        self.notified += 1

    def attach(self, *payloads: bytes, end: bool = False) -> None:
        self.reader.attach(self.view, self.message_bytes)
        self.view.put(*payloads, end=end)

    def take(self) -> bytes | None:
        pieces = self.reader.next_message()
        return b"".join(piece.payload for piece in pieces) if pieces else None


def test_buffers_that_wait_are_one_message_as_far_as_credit_and_size_allow():
    rig = Rig(credit=7, message_bytes=3 * CREDIT_BYTES)
    parts = [bytes([n]) * (CREDIT_BYTES // 2 + 1) for n in range(9)]
    rig.attach(*parts[:6])
    rig.view.event(MARKER, EVENT)
    rig.view.put(*parts[6:], end=True)
    taken = []
    while (message := rig.take()) is not None:
        taken.append((message, rig.reader.credit.available))
    assert (
        taken
        == [
            (b"".join(parts[:5]), 4),
            (parts[5], 3),  # an event is not overtaken
            (MARKER, 2),
            (b"".join(parts[6:]), 0),
            (encode_end_of_partition(54, 3 + 1 + 2), 0),
        ]
    )


def test_an_error_between_two_buffers_of_a_message_returns_the_first(monkeypatch):
    rig = Rig(credit=7, message_bytes=3 * CREDIT_BYTES)
    rig.attach(b"one", b"two")

    def broken(most_bytes: int) -> None:
        raise SluiceError(f"no {most_bytes} bytes")

    monkeypatch.setattr(rig.view, "take_more", broken)
    with pytest.raises(SluiceError, match="no 27 bytes"):
        rig.take()
    assert rig.view.recycled == 1
    assert rig.reader.credit.available == 7


def test_a_message_has_a_bound_of_pieces():
    rig = Rig(credit=MAX_PIECES, message_bytes=MAX_PIECES * CREDIT_BYTES)
    rig.attach(*[b"x"] * (MAX_PIECES + 1))
    assert rig.take() == b"x" * MAX_PIECES
    assert rig.take() == b"x"


def test_each_started_buffer_of_a_group_costs_one_credit():
    rig = Rig(credit=6)
    rig.attach(b"x" * CREDIT_BYTES, b"y" * (CREDIT_BYTES + 1), b"z" * 3 * CREDIT_BYTES)
    credit = []
    while rig.take() is not None:
        credit.append(rig.reader.credit.available)
    assert credit == [5, 3, 0]
    assert rig.reader.bytes_out == 51


def test_the_end_costs_no_credit():
    rig = Rig(credit=1)
    rig.attach(b"data", end=True)
    assert rig.take() == b"data"
    assert not rig.reader.credit.available
    assert rig.reader.is_available()
    assert rig.take() is not None
    assert not rig.reader.credit.available


@pytest.mark.parametrize("data_type", [EVENT, PRIORITY_EVENT])
def test_an_event_costs_a_credit(data_type):
    rig = Rig(credit=1)
    rig.attach()
    rig.view.event(encode_event(EndOfData()), data_type)
    assert rig.take() is not None
    assert rig.reader.credit.available == 0


def test_without_credit_flow_control_the_credit_stays():
    rig = Rig(2, UncreditedViewReader)
    rig.attach(*[b"x" * 2 * CREDIT_BYTES] * 3)
    for _ in range(3):
        assert rig.take() is not None
        assert rig.reader.credit.available == 2
    rig.view.failure = SluiceError("gone")
    with pytest.raises(SluiceError, match="gone"):
        rig.take()
    assert rig.reader.credit.available == 2


def test_a_reader_without_a_view_has_nothing_until_it_fails():
    rig = Rig(credit=1)
    assert not rig.reader.is_available()
    assert rig.take() is None
    rig.reader.fail(SluiceError("not found"))
    assert rig.notified == 1
    assert rig.reader.is_available()
    with pytest.raises(SluiceError, match="not found"):
        rig.take()


def test_credit_view_and_data_notify_the_queue():
    rig = Rig(credit=0)
    rig.reader.add_credit(1)
    rig.attach(b"data")
    assert rig.notified == 3
    with pytest.raises(CreditOverflow):
        rig.reader.add_credit(MAX_CREDIT)


def test_sequence_numbers_follow_one_another():
    rig = Rig(credit=0)
    assert [rig.reader.next_sequence_number() for _ in range(3)] == [0, 1, 2]


def test_a_reader_that_leaves_the_queue_waits_for_data_or_for_credit():
    rig = Rig(credit=1)
    rig.reader.begins()
    assert rig.reader.activity == SENDING
    rig.reader.rests()
    assert rig.reader.activity == WAITING_FOR_DATA
    rig.attach(b"first", b"second")
    rig.reader.begins()
    rig.take()
    rig.reader.rests()
    assert rig.reader.activity == WAITING_FOR_CREDIT
    assert rig.times.counts == [0, 1, 0]


def test_a_release_gives_the_view_back_once():
    rig = Rig(credit=1)
    rig.attach()
    rig.reader.release()
    rig.reader.release()
    assert rig.view.releases == 1
    assert rig.reader.view is None
    assert rig.times.counts == [0, 0, 0]
    rig.reader.begins()
    assert rig.times.counts == [0, 0, 0]
