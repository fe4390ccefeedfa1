"""Incremental decoder of frames that receives payloads straight into memory of the caller's choice.

The driver asks :meth:`FrameDecoder.get_buffer` where the next bytes shall go, reads into it, and
reports how many came. Three phases:

``HEAD``
    Prefixes and control parts collect in a small buffer; many small messages come in one read.
``CONTROL``
    One control part larger than that buffer has memory of its own.
``PAYLOAD``
    Bytes go to the memory that the sink supplied. That memory may be longer than the payload by
    up to RECEIVE_TAIL_BYTES: then one read brings the payload and the head of the next frame,
    which is copied out of the tail before the sink hears of the payload.

When the sink has no memory for a payload the decoder is *blocked*: the driver must stop reading and
call :meth:`FrameDecoder.unblock` when there is some. A violation is raised to the driver, which
closes the connection; the decoder must not be used after it.
"""

from struct import Struct
from typing import NoReturn, Protocol

from protocol.codec import CARRIES_PAYLOAD, decode_control
from protocol.errors import FrameTooLarge, MalformedMessage
from protocol.limits import (
    HEAD_BYTES,
    MAX_CONTROL_BYTES,
    MAX_EVENT_BYTES,
    MAX_HANDSHAKE_CONTROL_BYTES,
    PREFIX_BYTES,
    RECEIVE_TAIL_BYTES,
)
from protocol.messages import EVENT, BufferResponse, Message, TaskEvent

_unpack_prefix = Struct(">II").unpack_from


def _is_event(message: Message) -> bool:
    if isinstance(message, BufferResponse):
        return message.data_type == EVENT
    return isinstance(message, TaskEvent)


class FrameSink(Protocol):
    """What a decoder reports to."""

    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        """Supply memory of at least ``length`` bytes, or None while there is none.

        It is asked again for the same message after :meth:`FrameDecoder.unblock`.
        """

    def message_received(self, message: Message, payload_length: int) -> None:
        """Take a message; its payload lies in the memory supplied for it."""


class FrameDecoder:
    """Cuts a byte stream into messages.

    Args:
        sink: Supplies payload memory and takes messages.
        max_payload_bytes: Largest payload to accept.
    """

    __slots__ = (
        "_control",
        "_control_filled",
        "_filled",
        "_head",
        "_head_filled",
        "_head_view",
        "_length",
        "_message",
        "_sink",
        "_target",
        "blocked",
        "max_control_bytes",
        "max_payload_bytes",
    )

    def __init__(self, sink: FrameSink, max_payload_bytes: int) -> None:
        self._sink = sink
        self.max_payload_bytes = max_payload_bytes
        self.max_control_bytes = MAX_HANDSHAKE_CONTROL_BYTES
        """Raised by :meth:`handshake_done`."""
        self.blocked = False
        """True while the sink has no memory for the payload that comes next."""
        self._head = bytearray(HEAD_BYTES)
        self._head_view = memoryview(self._head)
        self._head_filled = 0
        self._control: bytearray | None = None
        self._control_filled = 0
        self._message: Message | None = None
        self._length = 0
        self._target: memoryview | None = None
        self._filled = 0

    @property
    def in_frame(self) -> bool:
        """True when a frame has begun and is not complete."""
        return self._head_filled > 0 or self._control is not None or self._message is not None

    def handshake_done(self) -> None:
        """Allow control parts of full size from now on."""
        self.max_control_bytes = MAX_CONTROL_BYTES

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go; never empty. Not to be called while blocked."""
        target = self._target
        if target is not None:
            return target[self._filled :]
        if self._control is not None:
            return memoryview(self._control)[self._control_filled :]
        return self._head_view[self._head_filled :]

    def buffer_updated(self, count: int) -> None:
        """Take note that ``count`` bytes were received into the last buffer.

        Raises:
            ProtocolViolation: The bytes break the protocol. Also whatever the sink raises.
        """
        target = self._target
        if target is not None:
            filled = self._filled + count
            length = self._length
            if filled < length:
                self._filled = filled
                return
            extra = filled - length
            if extra:
                # Out of the tail before the sink may hand this memory to someone else.
                self._head_view[:extra] = target[length:filled]
            self._head_filled = extra
            self._target = None
            message = self._message
            self._message = None
            self._sink.message_received(message, length)  # type: ignore[arg-type]
            if extra:
                self._parse_head()
        elif self._control is not None:
            self._control_filled += count
            if self._control_filled == len(self._control):
                control, self._control = self._control, None
                self._begin_message(decode_control(control))
        else:
            self._head_filled += count
            self._parse_head()

    def unblock(self) -> bool:
        """Ask the sink again for the payload memory it had not; go on if there is some now.

        Without effect when the decoder is not blocked.

        Returns:
            True if the driver may read again.

        Raises:
            ProtocolViolation: The frames behind the payload break the protocol. Also whatever the
                sink raises.
        """
        if not self.blocked:
            return True
        self.blocked = False
        message, self._message = self._message, None
        if message is not None:
            target = self._begin_message(message)
            if target is not None:
                self._parse_head(self._fill_target(target, message, 0))
        return not self.blocked

    def _parse_head(self, position: int = 0) -> None:
        """Cut complete frames off the head buffer and keep the rest at its start.

        Args:
            position: Bytes at the start of the head buffer that are used already.
        """
        view = self._head_view
        while self._target is None and not self.blocked:
            available = self._head_filled - position
            if available < PREFIX_BYTES:
                break
            control_length, payload_length = _unpack_prefix(self._head, position)
            if (
                control_length > self.max_control_bytes
                or payload_length > self.max_payload_bytes
                or control_length == 0
            ):
                self._refuse_lengths(control_length, payload_length)
            start = position + PREFIX_BYTES
            available -= PREFIX_BYTES
            if available < control_length:
                if PREFIX_BYTES + control_length > HEAD_BYTES:
                    self._control = bytearray(control_length)
                    self._control[:available] = view[start : start + available]
                    self._control_filled = available
                    self._length = payload_length
                    position = start + available
                break
            message = decode_control(view[start : start + control_length])
            position = start + control_length
            self._length = payload_length
            target = self._begin_message(message)
            if target is not None:
                position = self._fill_target(target, message, position)
        rest = self._head_filled - position
        if rest and position:
            view[:rest] = bytes(view[position : position + rest])
        self._head_filled = rest

    def _refuse_lengths(self, control_length: int, payload_length: int) -> NoReturn:
        if control_length > self.max_control_bytes:
            raise FrameTooLarge(
                "Control part of a frame is too large",
                value=control_length,
                limit=self.max_control_bytes,
                remedy="Check that the client speaks the Sluice protocol to this port",
            )
        if control_length == 0:
            raise MalformedMessage("Frame has no control part", value=0, limit=1)
        raise FrameTooLarge(
            "Payload of a frame is too large",
            value=payload_length,
            limit=self.max_payload_bytes,
            remedy="Use the segment size that the handshake agreed on",
        )

    def _begin_message(self, message: Message) -> memoryview | None:
        """Deliver a message without payload, or ask for memory for its payload.

        Returns:
            The memory for the payload; None if there is no payload or no memory.
        """
        length = self._length
        if type(message) not in CARRIES_PAYLOAD:
            if length:
                raise MalformedMessage(
                    f"{type(message).__name__} must not have a payload",
                    value=length,
                    limit=0,
                )
            self._sink.message_received(message, 0)
            return None
        if length == 0:
            self._sink.message_received(message, 0)
            return None
        if length > MAX_EVENT_BYTES and _is_event(message):
            raise FrameTooLarge(
                f"Payload of an event ({type(message).__name__}) is too large",
                value=length,
                limit=MAX_EVENT_BYTES,
            )
        target = self._sink.payload_buffer(message, length)
        self._message = message
        if target is None:
            self.blocked = True
            return None
        target = target[: length + RECEIVE_TAIL_BYTES]
        self._target = target
        self._filled = 0
        return target

    def _fill_target(self, target: memoryview, message: Message, position: int) -> int:
        """Move payload bytes that came with the head; return the new position in the head."""
        count = min(self._length, self._head_filled - position)
        target[:count] = self._head_view[position : position + count]
        self._filled = count
        if count == self._length:
            self._target = None
            self._message = None
            self._sink.message_received(message, count)
        return position + count
