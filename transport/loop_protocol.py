"""The protocol object of a connection for an event loop, and TLS below it if it is configured.

An event loop requires a protocol derived from asyncio's class, and a compiled class cannot derive
from an interpreted one. So the loop gets this object. Its attributes are the connection's methods,
so the loop calls them directly.

A process without TLS does not load the modules of TLS.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from .config import TransportConfig
from .connection import Connection

if TYPE_CHECKING:
    from .tls import ReloadingTls

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


def tls_of(config: TransportConfig, *, accepts: bool = False) -> "ReloadingTls | None":
    """Return the reloading TLS contexts of a configuration, None when TLS is off.

    Args:
        config: The settings.
        accepts: Whether this process accepts connections, which requires a certificate.

    Raises:
        TlsConfigurationError: As for :func:`sluice.transport.tls.reloading_tls`.
    """
    if not config.tls_enabled:
        return None
    from .tls import reloading_tls

    return reloading_tls(config, accepts=accepts)


def protocol_of(
    connection: Connection,
    tls: "ReloadingTls | None",
    config: TransportConfig,
    host: str | None = None,
) -> asyncio.BaseProtocol:
    """Return the protocol of a connection for the event loop.

    Args:
        connection: The connection.
        tls: The contexts; None: without TLS.
        config: Deadline of the TLS handshake.
        host: On the side that connects, the host that the certificate must name.
    """
    if tls is None:
        return LoopProtocol(connection)
    from .tls_transport import TlsTransport

    return TlsTransport(connection, tls.current(), config.handshake_timeout_seconds, host)
