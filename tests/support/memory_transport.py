"""A transport in memory: it keeps written bytes, and the test feeds received ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluice.transport.connection import Connection

MAX_TURNS = 400
"""Turns of the event loop that a connection may take before it reads on."""


class MemoryTransport(asyncio.Transport):
    """Connects one connection with a test.

    Args:
        connection: The connection; it is told of the transport at once.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self.written = bytearray()
        self.lost = False
        self.cut_short = False
        """True after an abort: the last frame may be incomplete."""
        self._loop = asyncio.get_running_loop()
        self._unsent = 0
        self._low = self._high = 0
        self._holding = False
        self._paused = False
        self._reading = True
        self._closing = False
        connection.connection_made(self)

    # ---- for tests -------------------------------------------------------------------------

    async def feed(self, data: bytes) -> bool:
        """Let the connection receive bytes, as far as it reads; False when it does not any more."""
        position = 0
        while position < len(data):
            for _ in range(MAX_TURNS):
                if self._reading or self._closing:
                    break
                await asyncio.sleep(0)
            if self._closing or self.lost or not self._reading:
                return False
            target = self.connection.get_buffer(-1)
            assert len(target), "an empty buffer reads as the end of the stream"
            count = min(len(target), len(data) - position)
            target[:count] = data[position : position + count]
            del target  # an error that is kept must not keep the memory through this frame
            position += count
            self.connection.buffer_updated(count)
        return True

    def hold(self) -> None:
        """Stop taking bytes, like a peer that does not read."""
        self._holding = True

    def flow(self) -> None:
        """Take bytes again."""
        self._holding = False
        self._unsent = 0
        if self._paused:
            self._paused = False
            self.connection.resume_writing()
        if self._closing:
            self._end()

    async def end(self) -> None:
        """End the connection from the other side, and wait until it is gone."""
        self.flow()
        if not self._closing:
            self.connection.eof_received()
        while not self.lost:  # noqa: ASYNC110 - a turn or two
            await asyncio.sleep(0)

    # ---- asyncio.Transport -----------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.lost:
            return
        self.written += data
        if self._holding:
            self._unsent += len(data)
            self._maybe_pause()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert low is not None
        self._low, self._high = low, high
        self._maybe_pause()

    def close(self) -> None:
        self._closing = True
        if not self._unsent:
            self._end()

    def abort(self) -> None:
        self.cut_short = self.cut_short or self._unsent > 0
        self._unsent = 0
        self._closing = True
        self._end()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def _maybe_pause(self) -> None:
        if not self._paused and self._unsent > self._high:
            self._paused = True
            self.connection.pause_writing()

    def _end(self) -> None:
        self._loop.call_soon(self._lose)

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.connection.connection_lost(None)
