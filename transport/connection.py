# Longer than 450 lines, because the loop's side and the handler's side share all state.
"""Connects the sans-I/O core to one connection of an event loop (through ``loop_protocol``).

:class:`sluice.protocol.framing.FrameDecoder` receives bytes straight into memory that the
connection's *handler* supplies. ``write_side`` sends bytes and reports when their memory is free.
"""

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

from mypy_extensions import mypyc_attr

from ..protocol.control_memory import ControlMemory
from ..protocol.errors import AuthenticationFailed, ErrorCode, SluiceError
from ..protocol.framing import FrameDecoder, PayloadMemory
from ..protocol.identity import KIND_PEER, Claim, Credential, tenant_of
from ..protocol.limits import DEFAULT_SEGMENT_SIZE_BYTES
from ..protocol.remote_error import RemoteError, error_response
from ..protocol.schema import (
    FLOW_CREDIT,
    ROLE_CONSUMER,
    ErrorResponse,
    Hello,
    HelloAck,
    Message,
    Ping,
    Pong,
    encode,
)
from ..protocol.states import (
    CONTROL_LIMITS,
    ConnectionState,
    Side,
    State,
    large_payload_limit,
    payload_limit,
)
from . import socket_options
from .backlog import Backlog
from .config import TransportConfig
from .errors import ConnectionLost, log_end
from .frame_deadline import FrameDeadline
from .greeting import Greeting
from .loop_share import ReadTurn
from .socket_options import ReceiveLowWater
from .write_side import Release, WriteSide

if TYPE_CHECKING:
    from .access import Accepting

logger = logging.getLogger(__name__)


class ConnectionHandler(Protocol):
    """Handles the messages of a connection and supplies its memory after the handshake.

    Any :class:`ProtocolViolation` that a method raises is sent to the peer and closes the
    connection.
    """

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Return memory for a payload; None stops reading until ``resume_reading``.

        The decoder calls the handler directly, for speed. So the handler must raise an
        UnexpectedMessage for a payload message that its leg does not allow.
        """

    def message_received(self, message: Message, payload_length: int) -> None:
        """Handle a message, except Ping, Pong and errors of the whole connection."""

    def writable(self) -> None:
        """Continue to send: the write buffer fell to the low watermark."""

    def connection_lost(self, error: SluiceError) -> None:
        """Drop all messages in flight: the connection is closed."""


HandlerFactory = Callable[["Connection", Hello | HelloAck], ConnectionHandler]


@dataclass(slots=True)
class Traffic:
    """Counts messages and bytes, including the heads of frames, in both directions."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    pings_in: int = 0
    """Received Pings, which are counted in the messages too."""

    def add(self, other: "Traffic") -> None:
        """Add the traffic of another connection."""
        self.messages_in += other.messages_in
        self.messages_out += other.messages_out
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.pings_in += other.pings_in


MAX_ENCRYPTED_BYTES: Final = 256 * 1024
"""Largest payload of a message that TLS encrypts."""

_discarded: Final = memoryview(bytearray(64 * 1024))
"""Takes what comes after an error; all connections share it."""

UNKNOWN: Final = "?"
"""The other end of a connection that the event loop has not made yet."""

_numbers: Final = itertools.count(1)


@mypyc_attr(allow_interpreted_subclasses=True)  # tests subclass it
class Connection:
    """A connection of either side.

    Args:
        config: Deadlines and watermarks.
        segment_size_bytes: Largest payload this process receives; 0 means the other side's.
        handler_factory: Called once, after the handshake, with the other side's Hello or ack.
        hello: First message of the side that connects.
        credential: The credential that the side that connects proves, or None.
        accepting: Answer and rules of the side that accepts.
        on_closed: Called once when the connection is closed, in any state.
    """

    def __init__(
        self,
        config: TransportConfig,
        segment_size_bytes: int,
        handler_factory: HandlerFactory,
        *,
        hello: Hello | None = None,
        credential: Credential | None = None,
        accepting: "Accepting | None" = None,
        on_closed: Callable[["Connection"], None] | None = None,
    ) -> None:
        side = Side.ACCEPTED if hello is None else Side.CONNECTED
        self.state = ConnectionState(side, hello.role if hello else 0, claims=bool(credential))
        self.remote = UNKNOWN
        self.key = f"{os.getpid()}.{next(_numbers)}"
        """Names it among all connections of this host, also after a data process was restarted."""
        self.name = self.application_id = ""
        self.claim: Claim | None = None  # what the side that connected has proven
        self.flow_control = FLOW_CREDIT  # the mode that both sides agreed on
        self.is_encrypted = False  # whether it speaks TLS
        self.bytes_in = 0
        self._loop = loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[HelloAck] | None = loop.create_future() if hello else None
        """On the side that connects: done when the handshake is done."""
        self._config = config
        self._segment_size_bytes = segment_size_bytes
        self.other_segment_size_bytes = 0  # 0: the other side has no segments
        self._out = WriteSide(
            *config.write_watermarks(segment_size_bytes or DEFAULT_SEGMENT_SIZE_BYTES)
        )
        self._handler_factory: HandlerFactory | None = handler_factory
        self._greeting = Greeting(hello, credential, accepting, self.fail)
        self._on_closed = on_closed
        self._decoder = FrameDecoder(self, segment_size_bytes)
        self._read_turn = ReadTurn(self._decoder, accepting.loop_shares if accepting else None)
        self.loop_share = self._read_turn.share
        """The share of its tenant of a turn of the event loop."""
        self._backlog = Backlog(accepted=hello is None)
        self._handler: ConnectionHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._low_water: ReceiveLowWater | None = None
        self._error: SluiceError | None = None
        self._frame_deadline = FrameDeadline(self._decoder, config.frame_timeout_seconds, self.fail)
        self._close_timer: asyncio.TimerHandle | None = None
        self._lingers = False
        """Whether an error was sent, and what the other side still sends is discarded."""
        if accepting is not None and accepting.control_memory is not None:
            self.count_in(accepting.control_memory)

    # ---- for handlers -----------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The other end, by a name of its own: all clients of a Unix socket share its path."""
        remote = self.remote
        return f"{remote} connection {self.key}" if remote.startswith("unix:") else remote

    @property
    def role(self) -> int:
        """The role of the connection, 0 before the handshake."""
        return self.state.role

    @property
    def subject(self) -> str:
        """The subject of an accepted connection's submit token, if it was proven."""
        claim = self.claim
        return "" if claim is None or claim.kind == KIND_PEER else claim.subject

    @property
    def close_reason(self) -> SluiceError | None:
        """The error that ended the connection, if any; dropped after ``on_closed``."""
        return self._error

    @property
    def closing(self) -> bool:
        """True once nothing more can be sent."""
        return self.state.state is State.CLOSED

    @property
    def max_payload_bytes(self) -> int:
        """Largest payload that fits in a segment of both sides."""
        return payload_limit(self._segment_size_bytes, self.other_segment_size_bytes)

    @property
    def large_payload_bytes(self) -> int:
        """Largest payload of data messages; ``large_payload_limit`` has the rules."""
        return large_payload_limit(
            self.state.side, self.role, self._segment_size_bytes, self.other_segment_size_bytes
        )

    @property
    def most_of_a_message_bytes(self) -> int:
        """Largest payload to send: what TLS encrypts lies here until the kernel takes it."""
        most = self.large_payload_bytes
        return min(most, MAX_ENCRYPTED_BYTES) if self.is_encrypted else most

    @property
    def reading_paused(self) -> bool:
        """Whether the handler has no memory for the next payload, so that nothing is read."""
        return self._decoder.blocked

    @property
    def writable(self) -> bool:
        """False while the write buffer is above its watermark or there is no transport."""
        return self._out.writable

    @property
    def bytes_out(self) -> int:
        """Bytes sent so far."""
        return self._out.bytes_out

    @property
    def traffic(self) -> Traffic:
        """Messages and bytes of this connection so far."""
        out, pings = self._out, self._backlog.pings
        return Traffic(self._decoder.frames, out.messages_out, self.bytes_in, out.bytes_out, pings)

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
        payload: memoryview | bytes = b"",
        release: Release | None = None,
        more: Sequence[memoryview | bytes] = (),
    ) -> None:
        """Send a message; never blocks.

        Messages without a payload are always accepted: they are small, and the peer's requests
        limit their number. Send payloads only while :attr:`writable`.

        Args:
            message: The message.
            payload: Its payload, or the first piece; not copied.
            release: Called when the transport no longer uses the payload, or at once if the
                connection is closed.
            more: The other pieces of the payload.
        """
        out = self._out
        if more:
            length = len(payload) + sum(map(len, more))
            out.write_pieces((encode(message, length), payload, *more), release)
        else:
            out.write(encode(message, len(payload)), payload, release)
        if not out.writable:
            self._limit_backlog()

    def count_in(self, memory: ControlMemory) -> None:
        """Count control parts and unread messages in a shared budget."""
        owner = tenant_of(self.application_id) or f"connection {id(self)}"
        self._decoder.account = self._backlog.count_in(memory, owner, self._evicted)

    def cork(self) -> None:
        """Gather messages until :meth:`uncork`, in the same turn of the loop."""
        self._out.cork()

    def uncork(self) -> None:
        """Send the gathered messages in one system call."""
        self._out.uncork()

    def send_together(self, messages: Iterable[Message]) -> None:
        """Send messages without payload in one system call and one packet."""
        heads = [encode(message) for message in messages]
        self._out.write(b"".join(heads), b"", None, len(heads))
        if not self._out.writable:
            self._limit_backlog()

    def resume_reading(self) -> None:
        """Ask the handler for payload memory again; continue to read if it has some."""
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
        """Flush and close; aborts after the close deadline. Idempotent."""
        if self.state.state is not State.CLOSED:
            self._enter_closed()
            self._abort_later()
        elif not self._lingers:
            return
        self._lingers = False
        if self._transport is not None:
            self._transport.close()

    def fail(self, error: SluiceError) -> None:
        """Send an error to the peer, and close.

        The side that accepts closes when the peer has closed, or after the close deadline. Until
        then it discards what the peer sends: a close with unread bytes sends a reset, which makes
        the peer's writes fail before it has read the error. During the handshake each side waits
        for the other, so the connection is closed at once. The side that connects closes at once,
        too, because those who wait for answers must learn of it.
        """
        before = self.state.state
        if before is State.CLOSED:
            return
        self._error = error
        why = f" ({error.reason})" if isinstance(error, AuthenticationFailed) else ""
        reason = f"{error.code.name}{why}"
        log_end(logger, "closing", self.remote, reason, error, self.application_id)
        self.send(error_response(None, error))
        transport = self._transport
        if before is not State.OPEN or self.state.side is Side.CONNECTED or transport is None:
            self.close()
            return
        self._enter_closed()
        self._abort_later()
        self._lingers = True
        if self._decoder.blocked:
            transport.resume_reading()
        self._decoder.close()
        if transport.can_write_eof():
            transport.write_eof()

    def abort(self, error: SluiceError) -> None:
        """Drop the connection at once; the handler gets ``error``."""
        self._error = self._error or error
        if isinstance(error, RemoteError) and self.state.side is Side.ACCEPTED:
            verb = "the other side ends"
            log_end(logger, verb, self.remote, error.code.name, error, self.application_id)
        self._enter_closed()
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.BufferedProtocol ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport and begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self.remote = socket_options.describe_peer(transport)
        self.is_encrypted = transport.get_extra_info("ssl_object") is not None
        if (sock := transport.get_extra_info("socket")) is not None:
            socket_options.apply(sock, self._config)
        self._low_water = ReceiveLowWater.of(transport)
        self._out.open(self._transport)
        if self.closing:  # closed before the loop made it
            self._transport.close()
            return
        try:
            hello = self._greeting.begin(transport, self._config.handshake_timeout_seconds)
        except SluiceError as refusal:
            self.fail(refusal)
            return
        if hello is not None:
            self.send(hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes."""
        return _discarded if self._lingers else self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Decode received bytes."""
        self.bytes_in += nbytes
        if self._lingers:
            self._read_turn.after_read(self._transport, nbytes)
            return
        decoder = self._decoder
        try:
            decoder.buffer_updated(nbytes)
        except Exception as error:  # noqa: BLE001
            self._receive_failed(error)
            return
        if self._low_water is not None and not self.closing:
            self._low_water.expect(decoder.missing_bytes, decoder.frames)
        self._read_turn.after_read(self._transport, nbytes)
        if not decoder.blocked:
            self._frame_deadline.watch()
        elif self._transport is not None and not self.closing:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Close this side too, within the close deadline: the peer sends no more."""
        self.close()
        return False

    def pause_writing(self) -> None:
        """Stop writing: the loop's buffer is above the current limit."""
        self._out.paused()

    def resume_writing(self) -> None:
        """Let the handler send again: the loop's buffer fell to the current limit."""
        if self._out.resumed():
            self._backlog.cleared()
            if self._handler is not None:
                self._handler.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """End every lease and notify all waiters that the connection is closed."""
        self._enter_closed()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._transport = None
        self._out.lost()
        error = self._error or ConnectionLost(
            f"Connection {self.remote} was lost", value=None if exc is None else repr(exc)
        )
        if self.opened is not None and not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # retrieved, because it may have no waiters
        handler, self._handler = self._handler, None
        try:
            if handler is not None:
                handler.connection_lost(error)
        finally:
            if self._on_closed is not None:
                self._on_closed(self)
            self._let_go()

    # ---- sluice.protocol.framing.FrameSink ------------------------------------------------------

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Check the message and ask the handler for memory."""
        self.state.check(message)
        if self._handler is None:
            return None
        return self._handler.payload_buffer(message, length)

    def message_received(self, message: Message, payload_length: int) -> None:
        """Handle messages of the connection itself; pass the others to the handler."""
        if self.state.state is not State.OPEN:
            self._before_open(message)
            return
        if payload_length == 0:
            self.state.check(message)  # payload_buffer checked the others
            if type(message) is Ping:
                self._backlog.pong(self._out)
                self.send(Pong(message.nonce))
                return
            if type(message) is Pong:
                return
            if type(message) is ErrorResponse and message.channel is None:
                self.abort(RemoteError(message))
                return
        if self._handler is not None:
            self._handler.message_received(message, payload_length)

    # ---- internal ----------------------------------------------------------------------------

    def _abort_later(self) -> None:
        if self._transport is not None:
            seconds, abort = self._config.close_timeout_seconds, self._transport.abort
            self._close_timer = self._loop.call_later(seconds, abort)

    def _enter_closed(self) -> None:
        self.state.close()
        self._greeting.end()
        self._out.close()
        self._decoder.payloads = self  # drops later payloads before they reach the handler

    def _let_go(self) -> None:
        """Drop all reference cycles, so that the connection is freed without the collector."""
        self._backlog.close()
        self._read_turn.leave()
        self._decoder.close()
        self._frame_deadline.close()
        self._greeting.close()
        self._handler_factory = self._on_closed = self._error = None

    def _before_open(self, message: Message) -> None:
        if self.state.state is State.CLOSED:
            return  # the buffer of the closed connection still had a message
        self.state.check(message)
        if type(message) is ErrorResponse:
            self.abort(RemoteError(message))
            return
        step = self._greeting.receive(message)
        if step.agreed is None:
            self.state.await_next(step.state)
            self.send_together(step.replies)
            return
        greeting = self._greeting.other_side(step.agreed)
        if isinstance(greeting, Hello):
            self.name, self.claim = greeting.name, self._greeting.claim
            self.application_id = self._greeting.application_id
            self._open(greeting.role, greeting, step.agreed)
            self.send_together(step.replies)
        else:
            self._open(self.state.role, greeting, step.agreed)
            if self.opened is not None and not self.opened.done():
                self.opened.set_result(greeting)

    def _open(self, role: int, greeting: Hello | HelloAck, agreed: HelloAck) -> None:
        self.flow_control = agreed.flow_control
        self._greeting.end()
        self._decoder.handshake_done(CONTROL_LIMITS[self.state.side, role])
        self.other_segment_size_bytes = greeting.segment_size_bytes
        self.state.open(role, self.flow_control)
        sends_data = role != ROLE_CONSUMER or self.state.side is Side.CONNECTED
        largest = self.large_payload_bytes if sends_data else self.max_payload_bytes
        self._decoder.max_payload_bytes = largest
        self._backlog.serve(self.application_id)
        self.loop_share = self._read_turn.join(self.application_id, id(self))
        self._handler = cast("HandlerFactory", self._handler_factory)(self, greeting)
        if not self.closing:
            self._decoder.payloads = self._handler

    def _receive_failed(self, error: Exception) -> None:
        if not isinstance(error, SluiceError) or error.code is ErrorCode.INTERNAL:
            # A bug of this side must end only this connection, and must be in the log.
            fields = {"application": self.application_id, "peer": self.remote}
            fields["code"] = ErrorCode.INTERNAL.name
            logger.error(
                "internal error on connection %s", self.remote, exc_info=error, extra=fields
            )
            error = SluiceError("Internal error", value=repr(error), remedy="See the log")
        self.fail(error.with_traceback(None))  # the traceback refers to this connection

    def _limit_backlog(self) -> None:
        if (error := self._backlog.refusal(self._out)) is not None:
            self._evicted(error)

    def _evicted(self, error: SluiceError) -> None:
        """Close: too much is unread, or another connection took the memory."""
        if self._out.backlog_bytes or self.closing:
            code = error.code.name
            log_end(logger, "dropping", self.remote, code, error, self.application_id)
            self.abort(error)
        else:
            self.fail(error)
