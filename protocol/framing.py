"""Decodes frames incrementally; payloads go straight into memory that the caller supplies.

The driver takes the memory for the next bytes from :meth:`FrameDecoder.get_buffer`, reads into it,
and reports the number of bytes. There are three phases:

``HEAD``
    Prefixes and control parts collect in a small buffer; many small messages come in one read.
``CONTROL``
    A control part larger than that buffer has its own memory. It begins at FIRST_CONTROL_BYTES and
    doubles when it is full. So it grows with the bytes received, not with the length in the prefix.
    The connection's account of :mod:`sluice.protocol.control_memory` counts it.
``PAYLOAD``
    Bytes go to the memory that the sink supplied. That memory may be longer than the payload by
    up to RECEIVE_TAIL_BYTES: then one read brings the payload and the head of the next frame. The
    decoder copies that head out of the tail before the sink gets the payload. The memory may also
    be several pieces, which are filled one after the other.

When the sink has no memory for a payload the decoder is *blocked*: the driver must stop reading and
call :meth:`FrameDecoder.unblock` when there is some. After a violation the driver must close the
connection and not use the decoder again.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NoReturn, Protocol, TypeAlias

from .control_memory import ControlAccount  # noqa: TC001 - a type of compiled attributes
from .errors import FrameTooLarge, MalformedMessage
from .limits import (
    FIRST_CONTROL_BYTES,
    HEAD_BYTES,
    HEAD_READ_BYTES,
    MAX_CONTROL_BYTES,
    MAX_EVENT_BYTES,
    MAX_HANDSHAKE_CONTROL_BYTES,
    PREFIX_BYTES,
    RECEIVE_TAIL_BYTES,
)
from .schema import (
    CARRIES_PAYLOAD,
    DATA,
    BufferResponse,
    ChecksummedBuffer,
    Message,
    PipelinedData,
    TaskEvent,
    decode_control,
)

_unpack_prefix = Struct(">II").unpack_from

_HTTP_REQUESTS = frozenset(
    int.from_bytes(method, "big")
    for method in (b"GET ", b"HEAD", b"POST", b"PUT ", b"PATC", b"DELE", b"OPTI", b"CONN", b"PRI ")
)
_HTTP_ANSWER = int.from_bytes(b"HTTP", "big")
"""The first bytes of HTTP messages, read as a length."""

_NO_PIECES: Iterator[memoryview] = iter(())
"""Replaces the pieces between payloads, so that the memory of the last payload is freed."""


def _is_event(message: Message) -> bool:
    if isinstance(message, BufferResponse | ChecksummedBuffer | PipelinedData):
        return message.data_type != DATA
    return isinstance(message, TaskEvent)


PayloadMemory: TypeAlias = memoryview | list[memoryview] | None
"""Memory for a payload: one piece, or a list of pieces that together are long enough."""


class FrameSink(Protocol):
    """Supplies memory to a decoder and takes its messages."""

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Return memory of at least ``length`` bytes, or None if there is none now.

        :meth:`FrameDecoder.unblock` calls this again for the same message.
        """

    def message_received(self, message: Message, payload_length: int) -> None:
        """Handle a message; its payload is in the memory supplied for it."""


class _NoSink:
    """Replaces the sink of a closed decoder, which must not keep its connection alive."""

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Return None."""
        return None

    def message_received(self, message: Message, payload_length: int) -> None:
        """Drop the message."""


_NO_SINK: Final = _NoSink()


class FrameDecoder:
    """Cuts a byte stream into messages.

    Args:
        sink: Supplies payload memory and takes messages.
        max_payload_bytes: Largest payload to accept.
    """

    __slots__ = (
        "_control",
        "_control_filled",
        "_control_length",
        "_filled",
        "_head",
        "_head_filled",
        "_head_view",
        "_left",
        "_length",
        "_message",
        "_needed",
        "_pieces",
        "_sink",
        "_target",
        "account",
        "blocked",
        "frames",
        "long_control_bytes",
        "max_control_bytes",
        "max_payload_bytes",
        "payloads",
    )

    def __init__(self, sink: FrameSink, max_payload_bytes: int) -> None:
        self._sink: FrameSink = sink
        self.account: ControlAccount | None = None
        """The connection's account, which a driver sets; counts the memory of control parts."""
        self.payloads: FrameSink = sink
        """Supplies memory for payloads and takes the messages that have one. Initially the sink; a
        driver sets the final receiver, which saves the data path a call."""
        self.frames = 0
        """Number of complete frames so far."""
        self.long_control_bytes = 0
        """Bytes of the control parts so far that had memory of their own."""
        self.max_payload_bytes = max_payload_bytes
        self.max_control_bytes = MAX_HANDSHAKE_CONTROL_BYTES
        """Raised by :meth:`handshake_done`."""
        self.blocked = False
        """True while the sink has no memory for the next payload."""
        self._head = bytearray(HEAD_BYTES)
        self._head_view = memoryview(self._head)
        self._head_filled = 0
        self._control: bytearray | None = None
        self._control_filled = 0
        self._control_length = 0
        """Length of the whole control part; its memory is shorter until it has grown."""
        self._message: Message | None = None
        self._length = 0
        self._target: memoryview | None = None
        self._filled = 0
        self._needed = 0
        """Bytes of the payload that go to the target; the rest of the target is its tail."""
        self._left = 0
        """Bytes of the payload after the target, for the next pieces."""
        self._pieces: Iterator[memoryview] = _NO_PIECES

    @property
    def in_frame(self) -> bool:
        """True when a frame has begun but is not complete."""
        return self._head_filled > 0 or self._control is not None or self._message is not None

    @property
    def missing_bytes(self) -> int:
        """Missing bytes of the current payload; 0 between payloads and when blocked."""
        if self._target is None:
            return 0
        return self._needed - self._filled + self._left

    def handshake_done(self, max_control_bytes: int = MAX_CONTROL_BYTES) -> None:
        """Raise the largest control part to ``max_control_bytes``."""
        self.max_control_bytes = max_control_bytes

    def close(self) -> None:
        """Drop all memory and the sink. Do not call other methods afterwards."""
        self._drop_control()
        self._sink = self.payloads = _NO_SINK
        self.blocked = False
        self._message = None
        self._target = None
        self._pieces = _NO_PIECES

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Return memory for the next bytes, never empty. Do not call while blocked.

        Args:
            sizehint: Ignored; asyncio.BufferedProtocol passes it.
        """
        target = self._target
        if target is not None:
            return target[self._filled :]
        if self._control is not None:
            return memoryview(self._control)[self._control_filled :]
        filled = self._head_filled
        return self._head_view[filled : filled + HEAD_READ_BYTES]

    def buffer_updated(self, count: int) -> None:
        """Decode ``count`` bytes that were received into the last buffer.

        Raises:
            ProtocolViolation: The bytes break the protocol. Errors of the sink pass through.
        """
        target = self._target
        if target is not None:
            filled = self._filled + count
            needed = self._needed
            if filled < needed:
                self._filled = filled
                return
            if self._left:
                self._set_target(next(self._pieces), self._left)
                return
            length = self._length
            extra = filled - needed
            if extra:
                # Copied out of the tail before the sink reuses this memory.
                self._head_view[:extra] = target[needed:filled]
            self._head_filled = extra
            self._target = None
            self._pieces = _NO_PIECES
            message = self._message
            self._message = None
            self.frames += 1
            self.payloads.message_received(message, length)  # type: ignore[arg-type]
            if extra:
                self._parse_head()
        elif self._control is not None:
            self._control_filled += count
            if self._control_filled == self._control_length:
                self.long_control_bytes += self._control_length
                message = decode_control(self._control)
                self._drop_control()
                self._begin_large(message)
            elif self._control_filled == len(self._control):
                self._grow_control(self._control)
        else:
            self._head_filled += count
            self._parse_head()

    def unblock(self) -> bool:
        """Ask the sink again for payload memory, and continue if there is some.

        Has no effect when the decoder is not blocked.

        Returns:
            True if the driver may read again.

        Raises:
            ProtocolViolation: The frames after the payload break the protocol. Errors of the sink
                pass through.
        """
        if not self.blocked:
            return True
        self.blocked = False
        message, self._message = self._message, None
        if message is not None:
            position = self._begin_payload(message, 0)
            if self._target is None and not self.blocked:
                self._parse_head(position)
            else:
                self._keep_head(position)
        return not self.blocked

    def _parse_head(self, position: int = 0) -> None:
        """Cut complete frames off the head buffer and keep the rest at its start.

        Args:
            position: Bytes at the start of the head buffer that are decoded already.
        """
        head = self._head
        filled = self._head_filled
        while True:
            available = filled - position
            if available < PREFIX_BYTES:
                break
            control_length, payload_length = _unpack_prefix(head, position)
            if (
                control_length > self.max_control_bytes
                or payload_length > self.max_payload_bytes
                or control_length == 0
            ):
                self._refuse_lengths(control_length, payload_length)
            start = position + PREFIX_BYTES
            end = start + control_length
            if filled < end:
                if PREFIX_BYTES + control_length > HEAD_BYTES:
                    self._begin_control(control_length, start, filled)
                    self._length = payload_length
                    position = filled
                break
            message = decode_control(self._head_view[start:end])
            self._length = payload_length
            if payload_length:
                position = self._begin_payload(message, end)
                if self._target is not None or self.blocked:
                    break
            else:
                position = end
                self.frames += 1
                self._sink.message_received(message, 0)
        self._keep_head(position)

    def _begin_control(self, length: int, start: int, end: int) -> None:
        """Begin a control part that does not fit into the head buffer."""
        size = min(length, FIRST_CONTROL_BYTES)
        if self.account is not None:
            self.account.reserve(size)
        self._control = control = bytearray(size)
        control[: end - start] = self._head_view[start:end]
        self._control_filled = end - start
        self._control_length = length

    def _grow_control(self, full: bytearray) -> None:
        """Double the control part's memory; the event loop may hold the old one."""
        size = min(2 * len(full), self._control_length)
        if self.account is not None:
            self.account.reserve(size - len(full))
        self._control = control = bytearray(size)
        control[: len(full)] = full

    def _drop_control(self) -> None:
        control, self._control = self._control, None
        if control is not None and self.account is not None:
            self.account.release(len(control))

    def _begin_large(self, message: Message) -> None:
        """Deliver a message whose control part had its own memory; the head is empty."""
        if self._length:
            self._begin_payload(message, 0)
        else:
            self.frames += 1
            self._sink.message_received(message, 0)

    def _keep_head(self, position: int) -> None:
        """Move the unused bytes to the start of the head buffer."""
        rest = self._head_filled - position
        if rest and position:
            self._head_view[:rest] = bytes(self._head_view[position : position + rest])
        self._head_filled = rest

    def _begin_payload(self, message: Message, position: int) -> int:
        """Get memory for a payload and move its bytes there from the head buffer.

        Returns:
            The new position in the head. Sets the target if bytes are missing, ``blocked`` if
            there is no memory.
        """
        length = self._length
        kind = type(message)
        if kind not in CARRIES_PAYLOAD:
            raise MalformedMessage(
                f"{kind.__name__} must not have a payload", value=length, limit=0
            )
        if length > MAX_EVENT_BYTES and _is_event(message):
            raise FrameTooLarge(
                f"Payload of an event ({kind.__name__}) is too large",
                value=length,
                limit=MAX_EVENT_BYTES,
            )
        target = self.payloads.payload_buffer(message, length)
        if target is None:
            self._message = message
            self.blocked = True
            return position
        self._pieces = pieces = iter(target if isinstance(target, list) else (target,))
        self._left = length
        # The head buffer often has all of a small payload.
        while self._left:
            self._set_target(next(pieces), self._left)
            count = min(self._head_filled - position, self._needed)
            if count:
                piece = self._target
                piece[:count] = self._head_view[position : position + count]  # type: ignore[index]
                position += count
            if count < self._needed:
                self._message = message
                self._filled = count
                return position
        self._target = None
        self._pieces = _NO_PIECES
        self.frames += 1
        self.payloads.message_received(message, length)
        return position

    def _set_target(self, piece: memoryview, left: int) -> None:
        """Receive into ``piece`` next; ``left`` bytes of the payload are missing."""
        self._filled = 0
        size = len(piece)
        if size < left:
            self._needed = size
            self._left = left - size
            self._target = piece
        else:
            self._needed = left
            self._left = 0
            self._target = piece[: left + RECEIVE_TAIL_BYTES]

    def _refuse_lengths(self, control_length: int, payload_length: int) -> NoReturn:
        if control_length in _HTTP_REQUESTS:
            raise FrameTooLarge(
                "HTTP request on the data port, which speaks the Sluice protocol",
                remedy="Use the HTTP port instead: http_port, 7338 by default",
            )
        if control_length == _HTTP_ANSWER:
            raise FrameTooLarge(
                "The answer is HTTP, not the Sluice protocol: this is an HTTP port",
                remedy="Connect to the data port instead: data_port, 7337 by default",
            )
        if control_length > self.max_control_bytes:
            raise FrameTooLarge(
                "Control part of a frame is too large",
                value=control_length,
                limit=self.max_control_bytes,
                remedy="Check that the client speaks the Sluice protocol to this port",
            )
        if control_length == 0:
            # Spark's frames begin with their length in 8 bytes; its upper half is 0.
            raise MalformedMessage(
                "Frame has no control part: Spark's own block client begins like this",
                value=0,
                limit=1,
                remedy="An operator of Spark reads this shuffle without the shuffle manager, as"
                " Delta Lake's optimized write does: update the plugin's jar, which leaves such a"
                " shuffle to Spark, or set spark.sluice.enabled=false for the query",
            )
        raise FrameTooLarge(
            "Payload of a frame is too large",
            value=payload_length,
            limit=self.max_payload_bytes,
            remedy="Use the segment size that the handshake agreed on",
        )
