"""The capture of an unaligned checkpoint: the data of a gate that a barrier overtook.

A producer sends a barrier twice: as a priority event, which overtakes all data on the way, and
behind that data, as a marker that overtakes nothing. A task takes its snapshot when the first
barrier comes, and begins a capture with it. The capture copies each buffer that the gate gives from
then on, channel by channel up to the channel's marker, and then it is complete. ::

    emitted before the barrier                                   | emitted after it
    read before the snapshot |  overtaken: read and captured     M  read, not captured
                             ^ the capture begins                ^ the marker of the channel

So of all bytes emitted before the barrier each is once in the snapshot or once in the capture,
wherever it was when the barrier passed it: in the producing client, in a TaskManager, on a
connection or in the gate. Buffers may be cut and joined on the way, for the marker keeps its place
among the bytes. A barrier that carried the number of overtaken buffers would need another number
for each channel, so it could not be broadcast, and cutting and joining would make it wrong.

The capture copies: it must not hold the gate's buffers, because they are the channel's credit.

The marker is a :class:`~sluice.protocol.events.CustomEvent` with a reserved name, which
TaskManagers pass on like any other. Gates keep it from their readers.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from ...protocol.errors import SluiceError
from ...protocol.events import CustomEvent, encode_event

MARKER_NAME: Final = "sluice.overtaken"
"""Name of the marker. Names that begin with ``sluice.`` are reserved."""

_CHECKPOINT: Final = struct.Struct(">Q")
_MARKER_HEAD: Final = encode_event(CustomEvent(MARKER_NAME, bytes(_CHECKPOINT.size)))[
    : -_CHECKPOINT.size
]


def marker_of(checkpoint_id: int) -> CustomEvent:
    """Make the event that ends what a checkpoint's barrier has overtaken."""
    return CustomEvent(MARKER_NAME, _CHECKPOINT.pack(checkpoint_id))


def marked_checkpoint(payload: bytes | bytearray | memoryview) -> int | None:
    """Return the checkpoint of a marker; None if the event is another one."""
    head = len(_MARKER_HEAD)
    if len(payload) != head + _CHECKPOINT.size or payload[:head] != _MARKER_HEAD:
        return None
    checkpoint_id: int = _CHECKPOINT.unpack_from(payload, head)[0]
    return checkpoint_id


class CapturedBuffer(NamedTuple):
    """A copy of bytes that a barrier overtook.

    Attributes:
        channel_index: The channel that they came from.
        payload: The bytes. Those of one channel, in their order, are whole records.
    """

    channel_index: int
    payload: bytes


class OvertakenCapture:
    """The data that the barrier of one checkpoint overtook, each buffer exactly once.

    It fills as the gate is read. Take what is there (:meth:`take`), or iterate in another task than
    the one that reads::

        async for buffer in capture:
            ...

    What it holds is bounded by the buffers between the producers and the gate.

    Args:
        checkpoint_id: The checkpoint.
        channels: The channels that have not ended.

    Attributes:
        checkpoint_id: The checkpoint.
    """

    def __init__(self, checkpoint_id: int, channels: Iterable[int]) -> None:
        self.checkpoint_id: Final = checkpoint_id
        self._open = set(channels)
        self._buffers: deque[CapturedBuffer] = deque()
        self._failure: SluiceError | None = None
        self._news = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether every channel has given all that was overtaken; :meth:`take` may give the rest.

        A channel that ends instead has given it, too. False if the capture failed.
        """
        return not self._open and self._failure is None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be captured: it is complete, closed or failed."""
        return not self._open

    def take(self) -> list[CapturedBuffer]:
        """Take the buffers captured since the last call, in the order in which the gate gave them.

        Raises:
            SluiceError: The gate was released before the capture was complete.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        buffers = list(self._buffers)
        self._buffers.clear()
        return buffers

    async def next(self) -> CapturedBuffer | None:
        """Wait for the next buffer; None when the capture is complete, or closed.

        Raises:
            SluiceError: As :meth:`take`.

        Cancellation: safe, nothing is taken.
        """
        while True:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            if self._buffers:
                return self._buffers.popleft()
            if self.is_over:
                return None
            self._news.clear()
            await self._news.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CapturedBuffer:
        buffer = await self.next()
        if buffer is None:
            raise StopAsyncIteration
        return buffer

    def close(self) -> None:
        """Give the capture up, as when the checkpoint is cancelled. Idempotent."""
        self._open.clear()
        self._buffers.clear()
        self._news.set()

    # ---- called by the gate and the reader -------------------------------------------------------

    def add(self, channel_index: int, payload: bytes | memoryview) -> None:
        """Copy the bytes of a channel, unless its marker has passed."""
        if channel_index in self._open:
            self._buffers.append(CapturedBuffer(channel_index, bytes(payload)))
            self._news.set()

    def channel_done(self, channel_index: int) -> None:
        """Record that a channel's marker has passed, or that the channel has ended."""
        self._open.discard(channel_index)
        self._news.set()

    def fail(self, error: SluiceError) -> None:
        """End with an error, unless it is over; what was captured is of no use then."""
        if self._open:
            self._failure = error
            self.close()


class GateCaptures:
    """The captures under way in one gate, and the markers that have passed.

    Attributes:
        is_capturing: Whether any is under way; read for each buffer.
    """

    def __init__(self) -> None:
        self.is_capturing = False
        self._under_way: list[tuple[OvertakenCapture, int]] = []
        self._passed: dict[int, int] = {}

    def passed(self, checkpoint_id: int) -> list[int]:
        """Return the channels whose latest marker is that of this checkpoint or of a later one."""
        return [index for index, latest in self._passed.items() if latest >= checkpoint_id]

    def join(self, capture: OvertakenCapture, offset: int) -> None:
        """Fill a capture, in which the gate's first channel has the number ``offset``."""
        self._under_way.append((capture, offset))
        self._prune()

    def data(self, channel_index: int, payload: bytes | memoryview) -> None:
        """Copy what a channel gives into the captures that want it."""
        for capture, offset in self._under_way:
            capture.add(offset + channel_index, payload)

    def marker(self, channel_index: int, checkpoint_id: int) -> None:
        """End the channel's part of a checkpoint's captures."""
        self._passed[channel_index] = checkpoint_id
        for capture, offset in self._under_way:
            if capture.checkpoint_id == checkpoint_id:
                capture.channel_done(offset + channel_index)
        self._prune()

    def channel_ended(self, channel_index: int) -> None:
        """End the channel's part of all captures."""
        for capture, offset in self._under_way:
            capture.channel_done(offset + channel_index)
        self._prune()

    def fail(self, error: SluiceError) -> None:
        """End the captures under way, for the gate is released."""
        for capture, _ in self._under_way:
            capture.fail(error)
        self._prune()

    def _prune(self) -> None:
        self._under_way = [each for each in self._under_way if not each[0].is_over]
        self.is_capturing = bool(self._under_way)
