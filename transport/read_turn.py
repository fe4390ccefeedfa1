"""Turns of connections that receive much at once.

uvloop reads a socket up to 32 times in a turn of the loop: 10,000 small messages, or megabytes, for
which all other connections would wait.
"""

import asyncio
from typing import Final

from ..protocol.framing import FrameDecoder
from .loop_share import LoopShare, LoopShares, LoopTurns

MESSAGE_COST_BYTES: Final = 8 * 1024
"""Bytes that a message counts beside its own: 32 messages take as long as 256 KiB of payload."""

MIN_EXPECTED_BYTES: Final = 64 * 1024
"""A connection that goes on is expected to read at least so much, and what its last read cost."""


class ReadTurn:
    """Lets others read when the application of a connection has used its share of a turn.

    Args:
        decoder: Decoder of the connection.
        shares: Shares of the applications; None: the connection has one of its own.
    """

    __slots__ = ("_decoder", "_frames", "_key", "_shares", "_transport", "share")

    def __init__(self, decoder: FrameDecoder, shares: LoopShares | None = None) -> None:
        self._decoder = decoder
        self._frames = 0
        self._key = ""
        self._shares = shares
        self._transport: asyncio.Transport | None = None
        self.share = LoopShare(LoopTurns()) if shares is None else shares.unproven
        """Of the application, once the connection has joined it."""

    def join(self, application_id: str, connection: int) -> LoopShare:
        """Share the turns of an application from now on; a connection of several has its own."""
        if self._shares is not None:
            self._key = application_id or f"connection {connection}"
            self.share = self._shares.join(self._key, connection)
        return self.share

    def leave(self, connection: int) -> None:
        """Give the share up: the connection is gone. Idempotent."""
        self._transport = None
        shares, self._shares = self._shares, None
        if shares is not None:
            shares.leave(self._key, connection)

    def after_read(self, transport: asyncio.Transport | None, nbytes: int) -> None:
        """Count a read; end the turn if the share is used up."""
        frames = self._decoder.frames
        cost = nbytes + (frames - self._frames) * MESSAGE_COST_BYTES
        self._frames = frames
        if self.share.reads.spend(cost) or transport is None or transport.is_closing():
            return
        transport.pause_reading()
        if self._transport is None:
            self._transport = transport
            self.share.reads.wait(self._read_on, max(cost, MIN_EXPECTED_BYTES))

    def _read_on(self) -> None:
        transport, self._transport = self._transport, None
        # Whoever waits for memory reads on when there is some.
        if transport is not None and not transport.is_closing() and not self._decoder.blocked:
            transport.resume_reading()
