"""A transport between a protocol and its real transport, to hold, let through or drop writes.

While it holds, it behaves like a socket whose peer reads exactly as many bytes as the test says:
it keeps what was written *without copying it* (as uvloop does), counts it in
``get_write_buffer_size``, and pauses and resumes the protocol at the limits that were set.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from sluice.transport.connection import Connection
from sluice.transport.loop_protocol import LoopProtocol
from tests.support.peers import SEGMENT, RecordingHandler, a_config, a_producer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluice.transport.config import TransportConfig
    from tests.support.peers import Service


class InterceptingTransport(asyncio.Transport):
    """Sits on top of a real transport.

    Args:
        inner: The real one.
        protocol: Whose writing is paused and resumed.
    """

    def __init__(self, inner: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.inner = inner
        self.holding = False
        self.dropping = False
        self.written_bytes = 0
        self.limits: list[tuple[int, int]] = []
        """Every (low, high) that was set, in order."""
        self._protocol = protocol
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._low, self._high = 0, 0
        self._paused = False
        self._closing = False

    # ---- what tests do ---------------------------------------------------------------------

    def hold(self) -> None:
        """Keep what is written from now on."""
        if self.inner.get_write_buffer_size():
            raise RuntimeError("hold before anything is in flight")
        self.holding = True

    def let_through(self, count: int | None = None) -> None:
        """Pass on so many of the held bytes (None: all), as a peer that reads them would."""
        left = self._queued_bytes if count is None else count
        while left and self._queue:
            chunk = self._queue.popleft()
            part, rest = chunk[:left], chunk[left:]
            if rest:
                self._queue.appendleft(rest)
            left -= len(part)
            self._queued_bytes -= len(part)
            self.inner.write(bytes(part))  # now, and only now, the memory is free
        if self._paused and self._queued_bytes <= self._low:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and not self._queue:
            self.inner.close()

    def flow(self) -> None:
        """Pass on all and hold nothing any more."""
        self.let_through()
        self.holding = False

    # ---- asyncio.Transport -----------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written_bytes += len(data)
        if self.dropping:
            return
        if not self.holding:
            self.inner.write(data)
            return
        if len(data):
            self._queue.append(memoryview(data))
            self._queued_bytes += len(data)
        self._maybe_pause()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self._queued_bytes + self.inner.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None or low is None or not 0 <= low <= high:
            raise ValueError(f"low {low} and high {high} are not in order")
        self.limits.append((low, high))
        self._low, self._high = low, high
        if self.holding:
            self._maybe_pause()
        else:
            self.inner.set_write_buffer_limits(high=high, low=low)

    def close(self) -> None:
        self._closing = True
        if not self._queue:
            self.inner.close()

    def abort(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self.inner.abort()

    def is_closing(self) -> bool:
        return self._closing or self.inner.is_closing()

    def pause_reading(self) -> None:
        self.inner.pause_reading()

    def resume_reading(self) -> None:
        self.inner.resume_reading()

    def is_reading(self) -> bool:
        return self.inner.is_reading()

    def write_eof(self) -> None:
        self.inner.write_eof()

    def can_write_eof(self) -> bool:
        return self.inner.can_write_eof()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.inner.get_extra_info(name, default)

    def _maybe_pause(self) -> None:
        if not self._paused and self._queued_bytes > self._high:
            self._paused = True
            self._protocol.pause_writing()


def intercept(protocol: asyncio.BufferedProtocol) -> list[InterceptingTransport]:
    """Let a protocol that is not connected yet get an intercepting transport.

    Returns:
        A list that holds the transport once the connection is made.
    """
    made: list[InterceptingTransport] = []
    connection_made = protocol.connection_made

    def interposed(transport: asyncio.BaseTransport) -> None:
        made.append(InterceptingTransport(cast("asyncio.Transport", transport), protocol))
        connection_made(made[0])

    protocol.connection_made = interposed  # type: ignore[method-assign]
    return made


async def held(
    service: Service, config: TransportConfig | None = None
) -> tuple[RecordingHandler, InterceptingTransport]:
    """Connect; hold the bytes that are written from now on."""
    connection = Connection(config or a_config(), SEGMENT, RecordingHandler, hello=a_producer())
    protocol = LoopProtocol(connection)
    made = intercept(protocol)
    await asyncio.get_running_loop().create_connection(lambda: protocol, *service.address)
    assert connection.opened is not None
    await connection.opened
    handler = connection._handler
    assert isinstance(handler, RecordingHandler)
    made[0].hold()
    return handler, made[0]
