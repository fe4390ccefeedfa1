"""One connection: what an event loop calls (by way of ``loop_protocol``), around the sans-I/O core.

Bytes are received by :class:`sluice.protocol.framing.FrameDecoder` straight into memory that the
connection's *handler* supplies. How bytes are sent, and when their memory is free again, is in
``write_side``.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

from mypy_extensions import mypyc_attr

from sluice.protocol.codec import encode
from sluice.protocol.errors import ProtocolViolation, SluiceError
from sluice.protocol.framing import FrameDecoder, PayloadMemory
from sluice.protocol.limits import DEFAULT_SEGMENT_SIZE_BYTES
from sluice.protocol.messages import (
    FLOW_CREDIT,
    ROLE_CONSUMER,
    ErrorResponse,
    Hello,
    HelloAck,
    Message,
    Ping,
    Pong,
)
from sluice.protocol.remote_error import RemoteError, error_response
from sluice.protocol.states import (
    CONTROL_LIMITS,
    ConnectionState,
    Side,
    State,
    answer_hello,
    check_ack,
    large_payload_limit,
    payload_limit,
)
from sluice.transport import socket_options
from sluice.transport.config import TransportConfig
from sluice.transport.errors import ConnectionLost, DeadlineExceeded
from sluice.transport.frame_deadline import FrameDeadline
from sluice.transport.receive_low_water import ReceiveLowWater
from sluice.transport.traffic import Traffic
from sluice.transport.write_side import Release, WriteSide

_log = logging.getLogger(__name__)

EMPTY = b""

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""What a peer may leave unread above the high watermark; only small messages get there. A burst of
requests for 100,000 map attempts by 64 tasks is half of it; a peer that asks and never reads would
take all memory without it."""


class ConnectionHandler(Protocol):
    """What speaks on a connection once the handshake is over.

    Any :class:`ProtocolViolation` that a method raises is sent to the peer and closes the
    connection.
    """

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Supply memory for a payload; None stops reading until ``resume_reading``.

        The decoder asks directly, for speed: it is the handler that must refuse, with an
        UnexpectedMessage, a message whose payload has no place on its leg.
        """

    def message_received(self, message: Message, payload_length: int) -> None:
        """Take a message. Ping, Pong and connection-wide errors are dealt with already."""

    def writable(self) -> None:
        """The write buffer fell to the low watermark; send on."""

    def connection_lost(self, error: SluiceError) -> None:
        """The connection is gone, with everything that was in flight."""


HandlerFactory = Callable[["Connection", Hello | HelloAck], ConnectionHandler]


@mypyc_attr(allow_interpreted_subclasses=True)  # tests put doubles in its place
class Connection:
    """A connection of either side.

    Args:
        config: Deadlines and watermarks.
        segment_size_bytes: Largest payload this process receives; 0 for whatever the other side
            has, on a client that makes its memory when it knows.
        handler_factory: Called once, after a good handshake, with the other side's Hello or ack.
        hello: What to say first, on the side that connects.
        offer: What to answer a good Hello, on the side that accepts.
        refusal: Why the connection is not wanted: the other side is told, and it is closed.
        on_closed: Called once when the connection is gone, whatever state it was in.
    """

    def __init__(
        self,
        config: TransportConfig,
        segment_size_bytes: int,
        handler_factory: HandlerFactory,
        *,
        hello: Hello | None = None,
        offer: HelloAck | None = None,
        refusal: SluiceError | None = None,
        on_closed: Callable[["Connection"], None] | None = None,
    ) -> None:
        side = Side.ACCEPTED if hello is None else Side.CONNECTED
        self.state = ConnectionState(side, 0 if hello is None else hello.role)
        self.remote = "?"
        self.name = ""
        self.application_id = ""
        self.features = 0
        """Feature bits that both sides agreed on."""
        self.flow_control = FLOW_CREDIT
        """The flow control mode that both sides agreed on."""
        self.bytes_in = 0
        self.opened: asyncio.Future[HelloAck] | None = None
        """On the side that connects: done when the handshake is."""
        self._config = config
        self._segment_size_bytes = segment_size_bytes
        self._other_segment_size_bytes = 0
        self._out = WriteSide(
            *config.write_watermarks(segment_size_bytes or DEFAULT_SEGMENT_SIZE_BYTES)
        )
        self._handler_factory = handler_factory
        self._hello = hello
        self._offer = offer
        self._refusal = refusal
        self._on_closed = on_closed
        self._decoder = FrameDecoder(self, segment_size_bytes)
        self._handler: ConnectionHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._low_water: ReceiveLowWater | None = None
        self._error: SluiceError | None = None
        self._frame_deadline = FrameDeadline(
            self._decoder, config.frame_timeout_seconds, self._frame_late
        )
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        if hello is not None:
            self.opened = self._loop.create_future()

    # ---- what handlers use ----------------------------------------------------------------

    @property
    def role(self) -> int:
        """The role of the connection, 0 before the handshake."""
        return self.state.role

    @property
    def closing(self) -> bool:
        """True once nothing more can be sent."""
        return self.state.state is State.CLOSED

    @property
    def max_payload_bytes(self) -> int:
        """Largest payload that fits in a segment of both sides."""
        return payload_limit(self._segment_size_bytes, self._other_segment_size_bytes)

    @property
    def large_payload_bytes(self) -> int:
        """Largest payload of data messages; what decides it is with ``large_payload_limit``."""
        return large_payload_limit(
            self.role, self.features, self._segment_size_bytes, self._other_segment_size_bytes
        )

    @property
    def writable(self) -> bool:
        """False while the write buffer is above its watermark, and when there is no connection."""
        return self._out.writable

    @property
    def bytes_out(self) -> int:
        """Bytes sent so far."""
        return self._out.bytes_out

    @property
    def traffic(self) -> Traffic:
        """What has gone over this connection so far."""
        return Traffic(
            self._decoder.frames, self._out.messages_out, self.bytes_in, self._out.bytes_out
        )

    @property
    def write_buffer_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._out.unsent_bytes

    @property
    def leased_buffers(self) -> int:
        """Payloads that the transport still holds."""
        return self._out.leased_buffers

    def send(
        self,
        message: Message,
        payload: memoryview | bytes = EMPTY,
        release: Release | None = None,
    ) -> None:
        """Send a message; never blocks.

        Messages without a payload are always taken (they are small and bounded by what the peer
        asked for); payloads should be sent only while :attr:`writable`.

        Args:
            message: What to send.
            payload: Its payload; not copied.
            release: Called when the transport has let go of the payload, or at once if the
                connection is gone.
        """
        out = self._out
        out.write(encode(message, len(payload)), payload, release)
        if not out.writable and out.unsent_bytes > out.high_bytes + MAX_UNSENT_BYTES:
            self._drop_deaf_peer(out.unsent_bytes)

    def cork(self) -> None:
        """Gather what is sent until :meth:`uncork`, which is to come in the same turn."""
        self._out.cork()

    def uncork(self) -> None:
        """Send what was gathered: one system call for several messages."""
        self._out.uncork()

    def send_together(self, messages: Iterable[Message]) -> None:
        """Send messages without payload in one write: one system call, one packet."""
        heads = [encode(message) for message in messages]
        self._out.write(b"".join(heads), EMPTY, None, len(heads))

    def resume_reading(self) -> None:
        """Payload memory may be there again: ask the handler and read on."""
        decoder = self._decoder
        if not decoder.blocked or self.closing:
            return
        try:
            unblocked = decoder.unblock()
        except Exception as error:  # noqa: BLE001
            self._receive_failed(error)
            return
        if not unblocked or self._transport is None or self.closing:
            return
        if self._low_water is not None:
            self._low_water.expect(decoder.missing_bytes, decoder.frames)
        self._frame_deadline.begin_anew()
        self._transport.resume_reading()

    def close(self) -> None:
        """Flush what was sent and close; aborts after the close deadline. Idempotent."""
        if self.state.state is State.CLOSED:
            return
        self._enter_closed()
        if self._transport is None:
            return
        self._close_timer = self._loop.call_later(
            self._config.close_timeout_seconds, self._transport.abort
        )
        self._transport.close()

    def fail(self, error: SluiceError) -> None:
        """Tell the peer what it did wrong, and close."""
        if self.state.state is State.CLOSED:
            return
        self._error = error
        _log.warning("closing connection %s: %s: %s", self.remote, error.code.name, error)
        self.send(error_response(None, error))
        self.close()

    def abort(self, error: SluiceError) -> None:
        """Drop the connection at once; the handler hears ``error``."""
        self._error = self._error or error
        self._enter_closed()
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.BufferedProtocol ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport and begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self.remote = _describe(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            socket_options.apply(sock, self._config)
        self._low_water = ReceiveLowWater.of(transport)
        self._out.open(self._transport)
        if self.closing:  # closed before it was made
            self._transport.close()
            return
        if self._refusal is not None:
            self.fail(self._refusal)
            return
        self._handshake_timer = self._loop.call_later(
            self._config.handshake_timeout_seconds, self._handshake_late
        )
        if self._hello is not None:
            self.send(self._hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where received bytes go."""
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Take received bytes."""
        self.bytes_in += nbytes
        decoder = self._decoder
        try:
            decoder.buffer_updated(nbytes)
        except Exception as error:  # noqa: BLE001
            self._receive_failed(error)
            return
        if self._low_water is not None and not self.closing:
            self._low_water.expect(decoder.missing_bytes, decoder.frames)
        if decoder.blocked:
            if self._transport is not None and not self.closing:
                self._transport.pause_reading()
        else:
            self._frame_deadline.watch()

    def eof_received(self) -> bool:
        """The peer sends no more: close our side too, within the close deadline."""
        self.close()
        return False

    def pause_writing(self) -> None:
        """The loop's buffer is above the limit in force."""
        self._out.paused()

    def resume_writing(self) -> None:
        """The loop's buffer fell to the limit in force."""
        if self._out.resumed() and self._handler is not None:
            self._handler.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: end every lease and tell whoever waits."""
        self._enter_closed()
        self._frame_deadline.cancel()
        for timer in (self._handshake_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self._handshake_timer = self._close_timer = None
        self._transport = None
        self._out.lost()
        error = self._error or ConnectionLost(
            f"Connection {self.remote} was lost", value=None if exc is None else repr(exc)
        )
        if self.opened is not None and not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # retrieved: nobody need wait for it any more
        handler, self._handler = self._handler, None
        try:
            if handler is not None:
                handler.connection_lost(error)
        finally:
            if self._on_closed is not None:
                self._on_closed(self)

    # ---- sluice.protocol.framing.FrameSink ------------------------------------------------------

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Pass the decoder's wish for memory to the handler, once the message is legal."""
        self.state.check(message)
        if self._handler is None:
            return None
        return self._handler.payload_buffer(message, length)

    def message_received(self, message: Message, payload_length: int) -> None:
        """Deal with what concerns the connection; pass the rest to the handler."""
        if self.state.state is not State.OPEN:
            self._before_open(message)
            return
        if payload_length == 0:
            self.state.check(message)  # payload_buffer checked the others
            if type(message) is Ping:
                self.send(Pong(message.nonce))
                return
            if type(message) is Pong:
                return
            if type(message) is ErrorResponse and message.channel is None:
                self.abort(RemoteError(message))
                return
        if self._handler is not None:
            self._handler.message_received(message, payload_length)

    # ---- inner workings ----------------------------------------------------------------------

    def _enter_closed(self) -> None:
        self.state.close()
        self._out.close()
        self._decoder.payloads = self  # the handler hears no more; what still comes is dropped

    def _before_open(self, message: Message) -> None:
        if self.state.state is State.CLOSED:
            return  # late: what a closed connection still had in its buffer
        self.state.check(message)
        if type(message) is ErrorResponse:
            self.abort(RemoteError(message))
        elif type(message) is Hello and self._offer is not None:
            ack = answer_hello(message, self._offer)
            self.name = message.name
            self.application_id = message.application_id
            self.features = ack.features
            self.flow_control = ack.flow_control
            self._open(message.role, message)
            self.send(ack)
        elif type(message) is HelloAck and self._hello is not None:
            check_ack(self._hello, message)
            self.features = message.features
            self.flow_control = message.flow_control
            self._open(self.state.role, message)
            if self.opened is not None and not self.opened.done():
                self.opened.set_result(message)

    def _open(self, role: int, greeting: Hello | HelloAck) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None
        self._decoder.handshake_done(CONTROL_LIMITS[self.state.side, role])
        self._other_segment_size_bytes = greeting.segment_size_bytes
        self.state.open(role, self.flow_control)
        # A consumer sends nothing large.
        only_events = role == ROLE_CONSUMER and self.state.side is Side.ACCEPTED
        self._decoder.max_payload_bytes = (
            self.max_payload_bytes if only_events else self.large_payload_bytes
        )
        self._handler = self._handler_factory(self, greeting)
        if not self.closing:
            self._decoder.payloads = self._handler

    def _receive_failed(self, error: Exception) -> None:
        if not isinstance(error, ProtocolViolation):
            # A bug of ours must cost this connection only, and must be seen.
            _log.error("internal error on connection %s", self.remote, exc_info=error)
            error = SluiceError("Internal error", value=repr(error), remedy="See the log")
        self.fail(error)

    def _drop_deaf_peer(self, unsent: int) -> None:
        _log.warning("dropping connection %s: it leaves %d bytes unread", self.remote, unsent)
        self.abort(
            ConnectionLost(
                f"Connection {self.remote} was dropped: the other side asks and does not read",
                value=unsent,
                limit=self._out.high_bytes + MAX_UNSENT_BYTES,
            )
        )

    def _frame_late(self) -> None:
        self.fail(
            DeadlineExceeded(
                "A frame was begun and not finished in time",
                limit=f"{self._config.frame_timeout_seconds} s",
                remedy="Check the client and the network; transport.frame_timeout_seconds",
            )
        )

    def _handshake_late(self) -> None:
        self._handshake_timer = None
        self.fail(
            DeadlineExceeded(
                "No handshake in time",
                limit=f"{self._config.handshake_timeout_seconds} s",
                remedy="Check that the other side speaks the Sluice protocol",
            )
        )


def _describe(transport: asyncio.BaseTransport) -> str:
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        return (
            f"unix:{transport.get_extra_info('sockname') or transport.get_extra_info('peername')}"
        )
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
