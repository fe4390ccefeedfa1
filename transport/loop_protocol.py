"""The protocol object of a connection for an event loop.

An event loop requires a protocol derived from asyncio's class, and a compiled class cannot derive
from an interpreted one. So the loop gets this object. Its attributes are the connection's methods,
so the loop calls them directly.
"""

import asyncio
from typing import Final

from .connection import Connection

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
    """Represents a connection to an event loop.

    Args:
        connection: The loop calls its methods.
    """

    def __init__(self, connection: Connection) -> None:
        for name in CALLED_BY_LOOPS:
            setattr(self, name, getattr(connection, name))
