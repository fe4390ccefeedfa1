"""The interface of a connection's user: it handles messages and supplies payload memory."""

from typing import Protocol

from ..protocol.errors import SluiceError
from ..protocol.framing import PayloadMemory
from ..protocol.schema import Message


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
