"""Data that waits behind whole buffers travels in their message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import SluiceError
from protocol.events import CancelCheckpointMarker, encode_event
from protocol.messages import DATA, EVENT, BufferResponse, ErrorResponse
from shuffle.network.request_queue import PartitionRequestQueue
from shuffle.network.view_reader import CreditBasedViewReader, UncreditedViewReader
from tests.support.fakes import Ended, FakeConnection, FakeView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shuffle.partition.view import OutgoingBuffer

BUFFER = 16
MOST = 4 * BUFFER
MARKER = encode_event(CancelCheckpointMarker(5))


class Rig:
    """One reader whose messages hold up to four buffers."""

    def __init__(
        self, credit: int, kind: type[CreditBasedViewReader] = CreditBasedViewReader
    ) -> None:
        self.connection = FakeConnection()
        self.connection.max_payload_bytes = BUFFER
        self.connection.large_payload_bytes = MOST
        self.log = Ended()
        self.queue = PartitionRequestQueue(self.connection, self.log.on_sent, self.log.on_ended)
        self.reader = kind(1, credit, self.queue.notify, BUFFER)
        self.view = FakeView(BUFFER)
        self.view.listener = self.reader.data_available
        self.reader.attach(self.view)

    def put(self, lengths: Iterable[int]) -> bytes:
        """Let buffers of these lengths wait; 0 stands for an event. Return all bytes of data."""
        data = [bytes([number % 251]) * length for number, length in enumerate(lengths)]
        for payload in data:
            self.view._buffers.append((payload, DATA) if payload else (MARKER, EVENT))
        self.view.listener()
        return b"".join(data)

    @property
    def lengths(self) -> list[int]:
        """Bytes of the messages so far; 0 for an event."""
        return [len(payload) if data_type == DATA else 0 for data_type, payload in self._sent()]

    @property
    def data(self) -> bytes:
        return b"".join(payload for data_type, payload in self._sent() if data_type == DATA)

    def _sent(self) -> Iterator[tuple[int, bytes]]:
        for message, payload in zip(self.connection.sent, self.connection.payloads, strict=True):
            assert isinstance(message, BufferResponse)
            yield message.data_type, payload


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_whole_buffers_travel_together_as_far_as_a_message_goes() -> None:
    rig = Rig(credit=6)
    data = rig.put([BUFFER] * 6)
    await turn()
    assert rig.connection.sent == [BufferResponse(1, 0, 2, DATA), BufferResponse(1, 1, 0, DATA)]
    assert rig.lengths == [4 * BUFFER, 2 * BUFFER]
    assert rig.data == data
    assert rig.reader.credit.available == 0
    assert (rig.reader.buffers_out, rig.reader.bytes_out) == (6, 6 * BUFFER)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([BUFFER, 5, BUFFER], [BUFFER + 5, BUFFER]),
        ([5, 5, 5], [5, 5, 5]),
        ([BUFFER, 0, BUFFER], [BUFFER, 0, BUFFER]),
        ([BUFFER, BUFFER, 0], [2 * BUFFER, 0]),
        ([0, BUFFER, BUFFER], [0, 2 * BUFFER]),
    ],
)
async def test_a_short_buffer_and_an_event_end_a_message(
    waiting: list[int], expected: list[int]
) -> None:
    rig = Rig(credit=10)
    data = rig.put(waiting)
    await turn()
    assert rig.lengths == expected
    assert rig.data == data


async def test_never_more_than_there_is_credit() -> None:
    rig = Rig(credit=3)
    rig.put([BUFFER] * 5)
    await turn()
    assert rig.lengths == [3 * BUFFER]
    rig.reader.add_credit(1)
    await turn()
    assert rig.lengths == [3 * BUFFER, BUFFER]


async def test_every_buffer_is_let_go_once_when_all_of_the_message_has_left() -> None:
    rig = Rig(credit=4)
    rig.put([BUFFER] * 4)
    await turn()
    assert len(rig.connection.leases) == 1
    assert rig.view.recycled == 0
    rig.connection.drain()
    assert rig.view.recycled == 4


async def test_without_credit_each_message_is_one_buffer() -> None:
    """What the credit of the request bounds there is a message."""
    rig = Rig(credit=2, kind=UncreditedViewReader)
    rig.put([BUFFER] * 5)
    await turn()
    assert rig.lengths == [BUFFER] * 5


async def test_a_failure_has_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken before it goes out, and the error behind it."""
    rig = Rig(credit=4)
    rig.put([BUFFER] * 3)
    take = rig.view.next_buffer

    def fails_behind_the_first(credit: int) -> OutgoingBuffer | None:
        taken = take(credit)
        rig.view.failure = SluiceError("gone")
        return taken

    monkeypatch.setattr(rig.view, "next_buffer", fails_behind_the_first)
    rig.queue.run()
    monkeypatch.undo()
    await turn()
    first, error = rig.connection.sent
    assert isinstance(first, BufferResponse)
    assert isinstance(error, ErrorResponse)
    assert len(rig.connection.payloads[0]) == BUFFER
    assert [channel for channel, _ in rig.log.ended] == [1]


@given(
    waiting=st.lists(st.integers(0, BUFFER) | st.just(BUFFER), max_size=40),
    credits=st.lists(st.integers(1, 6), min_size=1, max_size=30),
)
async def test_a_message_costs_both_ends_the_same(waiting: list[int], credits: list[int]) -> None:
    """The consumer fills buffers from a message's start; the reader paid for each of its own."""
    rig = Rig(credit=0)
    data = rig.put(waiting)
    for credit in credits:
        rig.reader.add_credit(credit)
        await turn()
    cost = sum(-(-length // BUFFER) for length in rig.lengths)
    assert rig.reader.credit.available == sum(credits) - cost
    assert all(length <= MOST for length in rig.lengths)
    assert data.startswith(rig.data)
    # In their order: what came before each event is what lay before it.
    seen, gone = 0, rig.lengths
    for length in waiting:
        if length:
            seen += length
        elif 0 in gone:
            before = gone.index(0)
            assert sum(gone[:before]) == seen
            gone, seen = gone[before + 1 :], 0
    if rig.reader.credit.available:
        assert rig.data == data
