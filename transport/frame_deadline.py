"""The deadline of a frame that has begun to arrive.

One timer serves all frames of a connection: it is set when a frame is under way, and looks when it
is over whether it is that frame still. While it is this side that does not read no time counts.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from sluice.protocol.framing import FrameDecoder

_ANY_FRAME: Final = -1


class FrameDeadline:
    """Watches the frames of one connection.

    Args:
        decoder: Of that connection.
        timeout_seconds: How long a frame may take, from its first byte on, to be sent to its last.
        late: Called once when one takes longer, at most twice as long.
    """

    __slots__ = ("_decoder", "_frame", "_late", "_loop", "_timeout_seconds", "_timer")

    def __init__(
        self, decoder: FrameDecoder, timeout_seconds: float, late: Callable[[], None]
    ) -> None:
        self._decoder = decoder
        self._timeout_seconds = timeout_seconds
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._frame = _ANY_FRAME

    def watch(self) -> None:
        """To be called after each read."""
        if self._timer is None and self._decoder.in_frame:
            self._set()

    def begin_anew(self) -> None:
        """This side reads again: the time of the frame under way begins now."""
        if self._timer is not None:
            self._frame = _ANY_FRAME
        else:
            self.watch()

    def cancel(self) -> None:
        """Watch no more. Idempotent."""
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
            self._set()  # another frame than then, or it is us who do not read
        else:
            self._late()
