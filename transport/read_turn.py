"""Limits how much a connection reads in a turn of the event loop.

uvloop reads a socket up to 32 times in a turn of the loop: 10,000 small messages, or megabytes,
while all other connections wait.
"""

import asyncio
from typing import Final

from ..protocol.framing import FrameDecoder
from .loop_share import LoopShare, LoopShares, LoopTurns

MESSAGE_COST_BYTES: Final = 8 * 1024
"""Bytes added for each message: 32 messages cost as much time as 256 KiB of payload."""

MIN_EXPECTED_BYTES: Final = 64 * 1024
"""Expected cost of a connection that resumes, if its last read cost less."""


class ReadTurn:
    """Pauses a connection when its application has used its share of a turn.

    Args:
        decoder: Decoder of the connection.
        shares: Shares of the applications; None: the connection has its own share.
    """

    __slots__ = ("_decoder", "_frames", "_key", "_shares", "_transport", "share")

    def __init__(self, decoder: FrameDecoder, shares: LoopShares | None = None) -> None:
        self._decoder = decoder
        self._frames = 0
        self._key = ""
        self._shares = shares
        self._transport: asyncio.Transport | None = None
        self.share = LoopShare(LoopTurns()) if shares is None else shares.unproven
        """The application's share, after the connection joined it."""

    def join(self, application_id: str, connection: int) -> LoopShare:
        """Join an application's share; a connection of several applications has its own."""
        if self._shares is not None:
            self._key = application_id or f"connection {connection}"
            self.share = self._shares.join(self._key, connection)
        return self.share

    def leave(self, connection: int) -> None:
        """Leave the share: the connection is closed. Idempotent."""
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
        # A connection that waits for memory resumes when there is some.
        if transport is not None and not transport.is_closing() and not self._decoder.blocked:
            transport.resume_reading()
