"""The handshake of one connection: its deadline, its clock, and its channel binding."""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..protocol.errors import SluiceError
from ..protocol.handshake import ConnectingHandshake, Step
from ..protocol.identity import Claim, Credential
from ..protocol.limits import NONCE_BYTES
from ..protocol.schema import Hello, HelloAck, Message
from .address import UNIX
from .errors import DeadlineExceeded
from .socket_options import describe_peer

if TYPE_CHECKING:
    from ..protocol.admission import AcceptingHandshake
    from .access import Accepting

CHANNEL_BINDING: Final = "channel_binding"
"""Extra info of a transport: bytes that only the two ends of the connection share."""


class Greeting:
    """One side's handshake.

    Args:
        hello: First message of the side that connects; None on the side that accepts.
        credential: The credential that the side that connects proves, or None.
        accepting: Answer and rules of the side that accepts.
        fail: Called with the error when the deadline has passed.
    """

    def __init__(
        self,
        hello: Hello | None,
        credential: Credential | None,
        accepting: "Accepting | None",
        fail: Callable[[SluiceError], None],
    ) -> None:
        self._accepting = accepting
        self._hello = hello
        self._credential = credential
        self._connects: ConnectingHandshake | None = None
        self._accepts: AcceptingHandshake | None = None
        self._refusal: SluiceError | None = None
        self._fail = fail
        self._transport: asyncio.BaseTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def application_id(self) -> str:
        """The application of an accepted connection, in its namespace; empty at first."""
        return "" if self._accepts is None else self._accepts.application_id

    @property
    def claim(self) -> Claim | None:
        """What an accepted connection has proven, if anything."""
        return None if self._accepts is None else self._accepts.claim

    def begin(self, transport: asyncio.BaseTransport, timeout_seconds: float) -> Hello | None:
        """Start the deadline; return the first message of the side that connects.

        Raises:
            SluiceError: There are too many connections.
        """
        self._transport = transport
        loop = asyncio.get_running_loop()
        accepting = self._accepting
        if accepting is not None:
            if accepting.refusal is not None:
                raise accepting.refusal
            try:
                self._accepts = accepting.handshake(transport.get_extra_info("socket"))
            except SluiceError as error:
                # Sent after the Hello: a client that writes to a closed socket never reads it.
                self._refusal = error
        self._timer = loop.call_later(timeout_seconds, self._late, timeout_seconds)
        if self._hello is None:
            return None
        credential = self._credential
        if credential is not None and credential.claim.dialed not in ("", UNIX):
            credential = credential.at(describe_peer(transport))  # it dialed a name, perhaps
        self._connects = connecting_handshake(self._hello, credential)
        return self._connects.hello

    def receive(self, message: Message) -> Step:
        """Handle a message of the handshake.

        Raises:
            ProtocolViolation: The handshake failed; send the error to the other side.
        """
        if self._refusal is not None:
            raise self._refusal
        handshake = self._accepts or self._connects
        if handshake is None or self._transport is None:
            raise RuntimeError("a message before the handshake began")
        binding = self._transport.get_extra_info(CHANNEL_BINDING) or b""
        return handshake.receive(message, binding, time.time())

    def other_side(self, agreed: HelloAck) -> Hello | HelloAck:
        """Return the other side's Hello or HelloAck, at the end of the handshake."""
        hello = None if self._accepts is None else self._accepts.hello
        return agreed if hello is None else hello

    def end(self) -> None:
        """Stop the deadline: the handshake is over, or the connection is. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop the deadline, and drop the connection and its transport. Idempotent."""
        self.end()
        self._transport = None
        self._fail = _nobody

    def _late(self, timeout_seconds: float) -> None:
        self._fail(
            DeadlineExceeded(
                "No handshake in time",
                limit=f"{timeout_seconds} s",
                remedy="Check that the other side speaks the Sluice protocol",
            )
        )


def connecting_handshake(hello: Hello, credential: Credential | None) -> ConnectingHandshake:
    """Begin the handshake of a connection that this side makes."""
    return ConnectingHandshake(hello, credential, secrets.token_bytes(NONCE_BYTES))


def _nobody(error: SluiceError) -> None:
    """Ignore: the connection is closed."""
