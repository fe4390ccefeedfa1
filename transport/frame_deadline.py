"""The deadline of a frame that has begun to arrive.

One timer serves all frames of a connection: it starts with an incomplete frame. If that frame is
still incomplete when the timer fires, it is late. Time during which this side does not read does
not count.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ..protocol.errors import SluiceError
from ..protocol.framing import FrameDecoder
from .errors import DeadlineExceeded

_ANY_FRAME: Final = -1


class FrameDeadline:
    """Watches the frames of one connection.

    Args:
        decoder: Decoder of that connection.
        timeout_seconds: Longest time from the first byte of a frame to its last.
        on_late: Called once with the error when a frame takes longer, at most twice that time after
            its start.
    """

    __slots__ = ("_decoder", "_frame", "_loop", "_on_late", "_timeout_seconds", "_timer")

    def __init__(
        self, decoder: FrameDecoder, timeout_seconds: float, on_late: Callable[[SluiceError], None]
    ) -> None:
        self._decoder = decoder
        self._timeout_seconds = timeout_seconds
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._frame = _ANY_FRAME

    def watch(self) -> None:
        """Start the timer if a frame is incomplete; call this after each read."""
        if self._timer is None and self._decoder.in_frame:
            self._set()

    def begin_anew(self) -> None:
        """Restart the time of the current frame, because this side reads again."""
        if self._timer is not None:
            self._frame = _ANY_FRAME
        else:
            self.watch()

    def close(self) -> None:
        """Stop watching, and drop the connection. Idempotent."""
        self._on_late = _nobody
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._frame = self._decoder.frames
        self._timer = self._loop.call_later(self._timeout_seconds, self._over)

    def _over(self) -> None:
        self._timer = None
        decoder = self._decoder
        if not decoder.in_frame:
            return
        if decoder.blocked or decoder.frames != self._frame:
            self._set()  # a later frame is incomplete, or this side does not read
        else:
            self._on_late(
                DeadlineExceeded(
                    "A frame was begun and not finished in time",
                    limit=f"{self._timeout_seconds} s",
                    remedy="Check the client and the network; transport.frame_timeout_seconds",
                )
            )


def _nobody(error: SluiceError) -> None:
    """Ignore: the connection is closed."""
