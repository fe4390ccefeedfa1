"""Small writes into a transport that is not empty are joined: they cost what their bytes are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.transport.write_side import JOINED_BYTES, MAX_SMALL_WRITES, SMALL_BYTES, WriteSide

if TYPE_CHECKING:
    from collections.abc import Iterable

LOW_BYTES, HIGH_BYTES = 3000, 6000
MESSAGE = b"a small one"


class SlowTransport:
    """A transport as event loops have them: it calls back at the limits that are in force."""

    def __init__(self) -> None:
        self.side = WriteSide(LOW_BYTES, HIGH_BYTES)
        self.writes: list[int] = []
        """Lengths of what was given to the loop, one by one."""
        self.received = b""
        self.closing = False
        self._waiting = b""
        self._low = self._high = 0
        self._paused = False
        self.resumptions = 0
        self.side.open(cast("asyncio.Transport", self))

    def drain(self, count: int | None = None) -> None:
        """Let the kernel take so many bytes (None: all)."""
        count = len(self._waiting) if count is None else count
        self.received += self._waiting[:count]
        self._waiting = self._waiting[count:]
        if self._paused and len(self._waiting) <= self._low:
            self._paused = False
            self.resumptions += self.side.resumed()

    def write(self, data: bytes | bytearray) -> None:
        self.writelines([data])

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        for piece in pieces:
            self.writes.append(len(piece))
            self._waiting += piece
        self._maybe_pause()

    def get_write_buffer_size(self) -> int:
        return len(self._waiting)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._low, self._high = low, high
        self._maybe_pause()

    def is_closing(self) -> bool:
        return self.closing

    def _maybe_pause(self) -> None:
        if not self._paused and len(self._waiting) > self._high:
            self._paused = True
            self.side.paused()


@pytest.fixture
async def slow() -> SlowTransport:
    return SlowTransport()


def write_small(slow: SlowTransport, count: int) -> bytes:
    for _ in range(count):
        slow.side.write(MESSAGE, b"", None)
    return MESSAGE * count


async def test_a_crowd_of_small_messages_becomes_few_writes(slow: SlowTransport) -> None:
    sent = write_small(slow, 100_000)
    assert slow.side.unsent_bytes == len(sent)
    assert len(slow.writes) <= MAX_SMALL_WRITES + len(sent) // JOINED_BYTES + 1
    for _ in range(1000):
        slow.drain(5000)
    assert slow.received == sent
    assert slow.side.unsent_bytes == 0
    assert slow.side.writable


async def test_what_is_joined_follows_when_the_transport_is_empty(slow: SlowTransport) -> None:
    sent = write_small(slow, MAX_SMALL_WRITES + 2)
    assert slow.side.writable
    slow.drain()
    slow.drain()
    assert slow.received == sent


async def test_a_large_message_goes_behind_what_is_joined(slow: SlowTransport) -> None:
    sent = write_small(slow, MAX_SMALL_WRITES + 2)
    slow.side.write(b"head", bytes(SMALL_BYTES), None)
    slow.drain()
    assert slow.received == sent + b"head" + bytes(SMALL_BYTES)


async def test_the_end_sends_what_is_joined(slow: SlowTransport) -> None:
    sent = write_small(slow, MAX_SMALL_WRITES + 2)
    slow.side.close()
    slow.drain()
    assert slow.received == sent


async def test_bytes_written_while_not_writable_are_counted_until_it_is(
    slow: SlowTransport,
) -> None:
    slow.side.write(b"", bytes(HIGH_BYTES + 1), None)
    assert not slow.side.writable
    assert slow.side.backlog_bytes == 0
    write_small(slow, 50)
    assert slow.side.backlog_bytes == 50 * len(MESSAGE)
    slow.drain()
    assert slow.side.writable
    assert slow.side.backlog_bytes == 0
    assert slow.resumptions == 1


_sizes = st.sampled_from([1, 12, 200, SMALL_BYTES, 5000])
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _sizes),
        st.tuples(st.just("lease"), _sizes),
        st.tuples(st.just("many"), st.integers(1, 400)),
        st.tuples(st.just("gather"), st.integers(1, 50)),
        st.tuples(st.just("drain"), st.integers(1, 8000)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=40,
)


class Run:
    """Steps on one write side, and what is known of them."""

    def __init__(self) -> None:
        self.slow = SlowTransport()
        self.sent = bytearray()
        self.leased: list[int] = []
        """Marks of the leases that are out."""
        self._number = 0

    def write(self, size: int, *, lease: bool = False) -> None:
        self._number += 1
        data = (self._number % 251).to_bytes(1) * size
        self.sent += data
        mark = len(self.sent)
        if not lease:
            self.slow.side.write(data, b"", None)
            return

        def ended() -> None:
            assert len(self.slow.received) >= mark, "the memory is still in use"
            self.leased.remove(mark)

        self.leased.append(mark)
        self.slow.side.write(data[:1], memoryview(data)[1:], ended)

    async def step(self, kind: str, number: int) -> None:
        if kind == "turn":
            await asyncio.sleep(0)
        elif kind == "drain":
            self.slow.drain(number)
        elif kind == "gather":
            self.slow.side.cork()
            for _ in range(number):
                self.write(20)
            self.slow.side.uncork()
        else:
            for _ in range(number if kind == "many" else 1):
                self.write(12 if kind == "many" else number, lease=kind == "lease")
        side = self.slow.side
        assert side.bytes_out == len(self.sent)
        assert side.unsent_bytes == len(self.sent) - len(self.slow.received)


@settings(max_examples=150)
@given(steps=_steps)
def test_all_bytes_arrive_in_order_and_no_lease_ends_too_early(
    steps: list[tuple[str, int]],
) -> None:
    async def go() -> None:
        run = Run()
        for step in steps:
            await run.step(*step)
        for _ in range(20):  # nothing is left behind without an event that sends it
            await asyncio.sleep(0)
            run.slow.drain()
        assert run.slow.received == run.sent
        assert run.slow.side.writable
        assert run.leased == []

    asyncio.run(go())
