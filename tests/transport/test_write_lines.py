"""Pieces that are written together pause their writer, on every Python."""

from __future__ import annotations

import asyncio
import socket

import pytest

from sluice.transport import write_side
from sluice.transport.write_side import ignores_watermark, lines_writer


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((3, 11, 7), False),
        ((3, 12, 0), True),
        ((3, 12, 8), True),
        ((3, 12, 9), False),
        ((3, 13, 0), True),
        ((3, 13, 1), True),
        ((3, 13, 2), False),
        ((3, 14, 0), False),
    ],
)
def test_the_versions_with_the_defect_are_known(version, expected):
    assert ignores_watermark(version) is expected


class Flow(asyncio.Protocol):
    def __init__(self) -> None:
        self.paused = False
        self.lost = asyncio.Event()

    def pause_writing(self) -> None:
        self.paused = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@pytest.mark.parametrize("has_defect", [False, pytest.param(True, marks=pytest.mark.interpreted)])
async def test_a_writer_of_pieces_is_paused_above_the_high_watermark(monkeypatch, has_defect):
    """With the detour too, which the Python of this test may not need."""
    if has_defect:
        monkeypatch.setattr(write_side, "ignores_watermark", lambda: True)
    near, far = socket.socketpair()
    with far:  # nobody reads
        loop = asyncio.get_running_loop()
        transport, flow = await loop.create_connection(Flow, sock=near)
        transport.set_write_buffer_limits(high=1, low=0)
        lines_writer(transport)((b"head", memoryview(bytes(8 << 20))))
        if not flow.paused:  # uvloop writes at the end of the turn
            await asyncio.sleep(0)
        assert flow.paused
        transport.abort()
        await flow.lost.wait()
