"""A client that sends bytes of its own making, for everything that a good client never does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sluice.protocol.limits import MAGIC, PREFIX_BYTES, VERSION
from sluice.protocol.schema import (
    FLOW_CREDIT,
    ErrorResponse,
    Hello,
    HelloAck,
    Message,
    decode_control,
    encode,
)

if TYPE_CHECKING:
    from sluice.transport.address import Address

DEADLINE_SECONDS = 60


class RawClient:
    """A TCP connection to a TaskManager; what comes back is cut into messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: Address) -> RawClient:
        return cls(*await asyncio.open_connection(*address))

    async def greet(self, role: int, application_id: str = "app", **changes: object) -> Message:
        """Say Hello; return the answer."""
        hello = Hello(
            MAGIC,
            VERSION,
            VERSION,
            role,
            application_id,
            b"",
            0,
            FLOW_CREDIT,
            0,
            "raw client",
        )
        self.send_message(replace(hello, **changes))
        message, _ = await self.receive()
        return message

    def send_message(self, message: Message, payload: bytes = b"") -> None:
        self._writer.write(encode(message, len(payload)) + payload)

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> tuple[Message, bytes]:
        """Wait for the next message.

        Raises:
            asyncio.IncompleteReadError: The connection has ended.
        """
        async with asyncio.timeout(DEADLINE_SECONDS):
            prefix = await self._reader.readexactly(PREFIX_BYTES)
            control = await self._reader.readexactly(int.from_bytes(prefix[:4]))
            payload = await self._reader.readexactly(int.from_bytes(prefix[4:]))
        return decode_control(control), payload

    async def expect(self, kind: type[Message]) -> Message:
        """Wait for a message of a kind; others are skipped."""
        while True:
            message, _ = await self.receive()
            if type(message) is kind:
                return message

    async def until_refused(self) -> ErrorResponse | None:
        """Wait for the end; return the connection-wide error that was told before it, if any."""
        error: ErrorResponse | None = None
        try:
            while True:
                message, _ = await self.receive()
                if type(message) is ErrorResponse and message.channel is None:
                    error = message
        except (asyncio.IncompleteReadError, ConnectionError):
            return error

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def acknowledged(message: Message) -> HelloAck:
    """Check that a Hello was taken."""
    assert type(message) is HelloAck, message
    return message
