"""Turns of connections whose reads bring very many messages.

uvloop reads a socket up to 32 times in a turn of the loop: 10,000 small messages, for which all
other connections would wait.
"""

import asyncio
from typing import Final

from ..protocol.framing import FrameDecoder

MANY_MESSAGES: Final = 128
"""A read that brings so many is the last one of its connection in this turn."""


class ReadTurn:
    """Lets other connections read between two reads of many messages.

    Args:
        decoder: Decoder of the connection.
    """

    __slots__ = ("_decoder", "_frames", "_loop", "_transport")

    def __init__(self, decoder: FrameDecoder) -> None:
        self._decoder = decoder
        self._frames = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    def after_read(self, transport: asyncio.Transport | None) -> None:
        """End the turn if the read has brought many messages."""
        brought = self._decoder.frames - self._frames
        self._frames += brought
        if brought >= MANY_MESSAGES and transport is not None and not transport.is_closing():
            self._transport = transport
            transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        transport, self._transport = self._transport, None
        # Whoever waits for memory reads on when there is some.
        if transport is not None and not transport.is_closing() and not self._decoder.blocked:
            transport.resume_reading()
