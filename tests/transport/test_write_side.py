"""Bytes written while the write side is corked go to the loop together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from sluice.transport.write_side import MAX_GATHERED_BYTES, WriteSide

if TYPE_CHECKING:
    from collections.abc import Iterable

LOW_BYTES, HIGH_BYTES = 101, 200


class KeepingTransport:
    """Keeps written bytes until the test lets the kernel take them."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.unsent_bytes = 0

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.writes.append(b"".join(pieces))
        self.unsent_bytes += len(self.writes[-1])

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """Ignored: the test itself calls back."""


class Rig:
    """A write side, its transport and the payloads whose leases have ended."""

    def __init__(self) -> None:
        self.transport = KeepingTransport()
        self.side = WriteSide(LOW_BYTES, HIGH_BYTES)
        self.side.open(cast("asyncio.Transport", self.transport))
        self.released: list[bytes] = []

    def write(self, payload: bytes) -> None:
        self.side.write(b"head ", payload, lambda: self.released.append(payload))


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_gathered_messages_go_out_in_one_write_and_in_order(rig: Rig) -> None:
    rig.side.cork()
    rig.write(b"one ")
    rig.side.write(b"nothing ", b"", None)
    rig.write(b"two")
    assert rig.transport.writes == []
    assert rig.side.unsent_bytes == len(b"head one nothing head two")
    rig.side.uncork()
    assert rig.transport.writes == [b"head one nothing head two"]
    assert rig.side.unsent_bytes == rig.transport.unsent_bytes == rig.side.bytes_out
    rig.write(b"at once")
    assert rig.transport.writes[1:] == [b"head at once"]
    assert rig.side.messages_out == 4


async def test_pieces_of_a_message_go_out_in_one_write_and_have_one_lease(rig: Rig) -> None:
    pieces: list[bytes | memoryview] = [b"head ", memoryview(b"one "), b"two"]
    rig.side.write_pieces(pieces, lambda: rig.released.append(b"pieces"))
    assert rig.transport.writes == [b"head one two"]
    assert (rig.side.messages_out, rig.side.bytes_out) == (1, 12)
    rig.side.cork()
    rig.write(b"before ")
    rig.side.write_pieces(pieces, None)
    rig.side.uncork()
    assert rig.transport.writes[1:] == [b"head before head one two"]
    assert rig.released == []
    rig.side.lost()
    assert rig.released == [b"pieces", b"before "]
    rig.side.write_pieces(pieces, lambda: rig.released.append(b"late"))
    assert rig.released[2:] == [b"late"]


async def test_gathering_stops_at_the_limit(rig: Rig) -> None:
    rig.side.cork()
    payload = bytes(MAX_GATHERED_BYTES // 2)
    rig.write(payload)
    assert rig.transport.writes == []
    rig.write(payload)
    assert [len(write) for write in rig.transport.writes] == [2 * len(b"head " + payload)]
    rig.write(b"more")
    assert len(rig.transport.writes) == 1
    rig.side.uncork()
    assert rig.transport.writes[1:] == [b"head more"]


async def test_closing_sends_gathered_messages(rig: Rig) -> None:
    rig.side.cork()
    rig.write(b"last")
    rig.side.close()
    assert rig.transport.writes == [b"head last"]
    rig.write(b"too late")
    assert rig.released == [b"too late"]
    assert len(rig.transport.writes) == 1


async def test_under_the_drain_watch_the_high_watermark_counts_what_the_loop_has(rig: Rig) -> None:
    """Gathered bytes do not count, because no resume_writing would follow."""
    rig.write(b"leased")
    await asyncio.sleep(0)  # the watch begins: a turn is over and the lease is still out
    rig.side.cork()
    rig.write(bytes(HIGH_BYTES))
    assert rig.side.writable
    rig.side.uncork()
    assert not rig.side.writable
    rig.transport.unsent_bytes = 0
    assert rig.side.resumed()
    assert rig.side.writable
    assert len(rig.released) == 2
