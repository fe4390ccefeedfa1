"""The part of a connection's user: it takes messages and supplies memory for their payloads."""

from typing import Protocol

from ..protocol.errors import SluiceError
from ..protocol.framing import PayloadMemory
from ..protocol.schema import Message


class ConnectionHandler(Protocol):
    """Takes the messages of a connection and supplies its memory once the handshake is over.

    Any :class:`ProtocolViolation` that a method raises is sent to the peer and closes the
    connection.
    """

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Supply memory for a payload; None stops reading until ``resume_reading``.

        The decoder asks the handler directly, for speed. So the handler must refuse, with an
        UnexpectedMessage, a message whose payload has no place on its leg.
        """

    def message_received(self, message: Message, payload_length: int) -> None:
        """Take a message other than Ping, Pong and errors of the whole connection."""

    def writable(self) -> None:
        """Send on: the write buffer fell to the low watermark."""

    def connection_lost(self, error: SluiceError) -> None:
        """Give up all messages in flight: the connection is gone."""
