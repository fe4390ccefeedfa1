"""What an event loop holds on to for a connection.

An event loop wants a protocol derived from asyncio's class; a compiled class derives from none
that is interpreted. So the loop gets this object, and calls the connection's own methods by it:
they are its attributes, with no call in between.
"""

import asyncio
from typing import Final

from sluice.transport.connection import Connection

CALLED_BY_LOOPS: Final = (
    "connection_made",
    "get_buffer",
    "buffer_updated",
    "eof_received",
    "pause_writing",
    "resume_writing",
    "connection_lost",
)


class LoopProtocol(asyncio.BufferedProtocol):
    """Stands for a connection before an event loop.

    Args:
        connection: What the loop is to call.
    """

    def __init__(self, connection: Connection) -> None:
        for name in CALLED_BY_LOOPS:
            setattr(self, name, getattr(connection, name))
