"""TLS below a connection: a protocol for the loop and a transport for the connection.

asyncio and uvloop have their own TLS transports, which hide too much. They report a handshake that
fails on the accepting side neither to the protocol (which would count as a connection forever) nor
to the log, they do not send an alert, and they discard the bytes of a client without TLS before it
can be answered. They also deliver one receive buffer per turn of the loop. Here the same
``ssl.SSLObject`` sits between the loop's plain transport and the connection.

**Memory.** ``write`` encrypts before it returns and then no longer needs the plain bytes, so a
lease could end at once. It ends by the rule of :mod:`sluice.transport.write_side`:
``get_write_buffer_size`` counts encrypted bytes, which are never fewer than their plain bytes, so
the mark may be too low but never too high, and is exact when the buffer is empty. The write limits,
``pause_writing`` and ``resume_writing`` are those of the loop's transport.

**Order.** The connection is made at once, and its handshake deadline covers the TLS handshake.
Messages that it sends earlier are queued until the TLS handshake ends.
"""

import asyncio
import contextlib
import enum
import hashlib
import logging
import ssl
import threading
from collections.abc import Iterable
from typing import Any, Final, cast

from .connection import Connection
from .errors import DeadlineExceeded, TlsRefused, log_end
from .greeting import CHANNEL_BINDING
from .tls import Tls, refusal
from .write_side import lines_writer

logger = logging.getLogger(__name__)

_RECEIVE_BYTES: Final = 256 * 1024
_RECORD_BYTES: Final = 16 * 1024
"""Most plain bytes in one TLS record (RFC 8446, section 5.1)."""

_LINGER_SECONDS: Final = 1.0
"""Time for the other side to receive the alert with the reason for the refusal."""

_RECORD_TYPES: Final = frozenset({20, 21, 22, 23})
"""First byte of every TLS record. A frame of Sluice begins with a zero."""


class _Scratch(threading.local):
    """Memory for encrypted bytes between the kernel and OpenSSL, which copies them at once.

    All connections of an event loop share it: no other connection runs between ``get_buffer`` and
    ``buffer_updated``.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_RECEIVE_BYTES))


_scratch = _Scratch()


class _TlsState(enum.Enum):
    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    PLAIN = enum.auto()
    """The other side does not use TLS and gets an error without TLS."""
    REFUSED = enum.auto()
    """An alert is being sent; other bytes are neither sent nor received."""
    CLOSED = enum.auto()


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """Speaks TLS for one connection.

    Args:
        connection: The connection that sends and receives through it.
        tls: The contexts.
        handshake_timeout_seconds: Time for the TLS handshake; the same as the connection's own.
        host: On the side that connects, the host that the certificate must name. None on the side
            that accepts.
    """

    def __init__(
        self,
        connection: Connection,
        tls: Tls,
        handshake_timeout_seconds: float,
        host: str | None = None,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._handshake_timeout_seconds = handshake_timeout_seconds
        self._own = tls.certificate
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        if host is not None:
            name = host if tls.client.check_hostname else None
            self._tls = tls.client.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        elif tls.server is not None:
            self._tls = tls.server.wrap_bio(self._incoming, self._outgoing, server_side=True)
        else:
            raise ValueError("the side that accepts needs a certificate")
        self._transport: asyncio.Transport
        self._state = _TlsState.HANDSHAKE
        self._close_when_open = False
        self._reading_paused = False
        self._heard = False
        self._channel_binding: bytes | None = None
        self._early: list[bytes] = []
        """Bytes written before the TLS handshake: a Hello, or an error that refuses."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    # ---- asyncio.BufferedProtocol, for the loop ---------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the plain transport and begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self._timer = self._loop.call_later(self._handshake_timeout_seconds, self._late)
        self._connection.connection_made(self)
        if not self._tls.server_side and self._state is _TlsState.HANDSHAKE:
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Receive encrypted bytes into memory that all connections share."""
        return _scratch.view

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt the received bytes."""
        if self._state is _TlsState.OPEN:
            self._incoming.write(_scratch.view[:nbytes])
            self._deliver()
        elif self._state is _TlsState.HANDSHAKE:
            if not self._heard:
                self._heard = True
                if _scratch.view[0] not in _RECORD_TYPES:
                    self._answer_in_plain()
                    return
            self._incoming.write(_scratch.view[:nbytes])
            self._shake_hands()

    def eof_received(self) -> bool:
        """Forward the end of file; the frames show whether bytes are missing."""
        if self._state is _TlsState.OPEN:
            self._connection.eof_received()
        return False

    def pause_writing(self) -> None:
        """Forward to the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Forward to the connection."""
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forward to the connection."""
        self._state = _TlsState.CLOSED
        self._cancel_timer()
        self._connection.connection_lost(exc)

    # ---- asyncio.Transport, for the connection -----------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and send, in one write."""
        if self._state is _TlsState.OPEN:
            # A record costs more calls and bytes on the wire than copying its content. So
            # neighbors that fit into one record are joined: the head of a message and its small
            # payload, or many messages without one.
            together: list[bytes | bytearray | memoryview] = []
            size = 0
            for data in list_of_data:
                if size + len(data) > _RECORD_BYTES:
                    self._encrypt(together)
                    together.clear()
                    size = 0
                together.append(data)
                size += len(data)
            self._encrypt(together)
            self._transport.write(self._outgoing.read())
        elif self._state is _TlsState.HANDSHAKE:
            self._early.extend(map(bytes, list_of_data))
        elif self._state is _TlsState.PLAIN:
            lines_writer(self._transport)(list_of_data)

    def get_write_buffer_size(self) -> int:
        """Return the unsent encrypted bytes, never fewer than their plain bytes."""
        waiting = self._transport.get_write_buffer_size()
        return waiting + sum(map(len, self._early)) if self._early else waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Forward to the plain transport."""
        self._transport.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        """Stop delivering until :meth:`resume_reading`."""
        self._reading_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again from the next turn on, buffered bytes first."""
        if self._reading_paused:
            self._reading_paused = False
            self._loop.call_soon(self._deliver_and_read_on)

    def can_write_eof(self) -> bool:
        """Return False: OpenSSL accepts no data after its close notification."""
        return False

    def close(self) -> None:
        """Flush and close, without waiting for the other side's close notification."""
        if self._state is _TlsState.HANDSHAKE and self._early:
            self._close_when_open = True
        elif self._state is _TlsState.OPEN:
            self._state = _TlsState.CLOSED
            with contextlib.suppress(ssl.SSLError):  # the other side has not closed yet
                self._tls.unwrap()
            self._flush()
            self._transport.close()
        elif self._state is not _TlsState.REFUSED:
            self._state = _TlsState.CLOSED
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection at once, except for an alert that is being sent."""
        if self._state is not _TlsState.REFUSED:
            self._state = _TlsState.CLOSED
            self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether writing has ended."""
        return self._close_when_open or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about TLS or about the plain transport.

        ``ssl_object``: the ``ssl.SSLObject``.

        ``channel_binding``: the SHA-256 digest of the accepting side's certificate, which both ends
        know; None until the TLS handshake is over.
        """
        if name == "ssl_object":
            return self._tls
        if name == CHANNEL_BINDING:
            return default if self._channel_binding is None else self._channel_binding
        return self._transport.get_extra_info(name, default)

    # ---- internal ----------------------------------------------------------------------------

    def _encrypt(self, together: list[bytes | bytearray | memoryview]) -> None:
        data = together[0] if len(together) == 1 else b"".join(together)
        if len(data):  # an empty record would be sent
            self._tls.write(data)

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._refuse(refusal(error, self._connection.remote))
            return
        self._flush()
        self._cancel_timer()
        self._state = _TlsState.OPEN
        self._set_channel_binding()
        early, self._early = self._early, []
        self.writelines(early)
        if self._close_when_open:
            self.close()
        else:
            self._deliver()  # bytes that came with the last flight

    def _set_channel_binding(self) -> None:
        if not self._tls.server_side:
            shown = self._tls.getpeercert(binary_form=True)
            self._channel_binding = None if shown is None else hashlib.sha256(shown).digest()
        elif self._own is not None:
            self._channel_binding = self._own.digest

    def _deliver(self) -> bool:
        """Decrypt into the connection's buffers until all is delivered or reading is paused.

        Returns:
            True if more may be received.
        """
        read = self._tls.read
        connection = self._connection
        dry = False
        while self._state is _TlsState.OPEN and not self._reading_paused and not dry:
            buffer = connection.get_buffer(-1)
            wanted = len(buffer)
            filled = 0
            try:
                # A read returns at most one record of 16 KiB; the connection is faster with full
                # buffers.
                while filled < wanted and not dry:
                    # With a buffer ``read`` returns the number of bytes.
                    count = cast("int", read(wanted - filled, cast("bytearray", buffer[filled:])))
                    filled += count
                    dry = count == 0  # the other side has closed
            except ssl.SSLWantReadError:
                if filled:
                    connection.buffer_updated(filled)
                break
            except ssl.SSLError as error:
                self._refuse(refusal(error, connection.remote))
                break
            if filled:
                connection.buffer_updated(filled)
            if dry:
                connection.eof_received()
                self.close()
        if self._outgoing.pending and self._state is _TlsState.OPEN:
            self._flush()  # an answer to a key update
        return self._state is _TlsState.OPEN and not self._reading_paused

    def _deliver_and_read_on(self) -> None:
        if self._state is _TlsState.OPEN and not self._reading_paused and self._deliver():
            self._transport.resume_reading()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _refuse(self, error: TlsRefused) -> None:
        """End the connection after sending OpenSSL's alert with the reason."""
        log_end(logger, "refusing", self._connection.remote, "TLS", error)
        self._flush()
        self._state = _TlsState.REFUSED
        self._early.clear()
        # On a close with unread bytes the kernel sends a reset, which would overtake the alert.
        self._transport.write_eof()
        self._cancel_timer()
        self._timer = self._loop.call_later(_LINGER_SECONDS, self._transport.abort)
        self._connection.abort(error)

    def _answer_in_plain(self) -> None:
        """Refuse a client that does not use TLS."""
        self._early.clear()
        self._cancel_timer()
        remote = self._connection.remote
        if self._tls.server_side and not self._connection.closing:
            self._state = _TlsState.PLAIN
            self._connection.fail(
                TlsRefused(
                    "This port speaks TLS only, and the client does not",
                    remedy="Set transport.tls_enabled and transport.tls_ca_file on the client, or "
                    "use the Unix socket",
                )
            )
            return
        error = TlsRefused(
            f"{remote} does not speak TLS",
            remedy="Set transport.tls_enabled on both sides, or on neither",
        )
        log_end(logger, "refusing", remote, "TLS", error)
        self._connection.abort(error)

    def _late(self) -> None:
        self._timer = None
        error = DeadlineExceeded(
            "No TLS handshake in time",
            limit=f"{self._handshake_timeout_seconds} s",
            remedy="Check that the other side speaks TLS to this port",
        )
        log_end(logger, "closing", self._connection.remote, error.code.name, error)
        self._connection.abort(error)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
