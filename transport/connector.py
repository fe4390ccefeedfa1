"""Makes a connection; one deadline covers all attempts and the handshake."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..protocol.errors import ErrorCode, SluiceError
from ..protocol.identity import Credential
from ..protocol.schema import Hello, HelloAck
from .address import UNIX, Address
from .backoff import Backoff
from .config import TransportConfig
from .connection import Connection, HandlerFactory
from .errors import ConnectFailed, ConnectionLost
from .loop_protocol import protocol_of, tls_of
from .name_lookup import look_up

if TYPE_CHECKING:
    from .peer_networks import PeerNetworks

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


class Attempts:
    """Schedules the attempts to reach an address, up to one deadline.

    Args:
        address: The address.
        config: Has the deadline and the number of retries.
    """

    def __init__(self, address: Address, config: TransportConfig) -> None:
        self._address = address
        self._config = config
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._failures = 0
        self.deadline = asyncio.get_running_loop().time() + config.connect_timeout_seconds
        """The time of the event loop at which the current attempt is canceled."""

    async def pause(self, error: Exception) -> None:
        """Wait after a failed attempt, before the next one.

        Raises:
            ConnectFailed: No time or no retry is left.

        Cancellation: safe.
        """
        pause_seconds = self._backoff.next_seconds()
        self._failures += 1
        retries = self._config.connect_retries
        too_often = retries is not None and self._failures > retries
        ends = asyncio.get_running_loop().time() + pause_seconds
        late = isinstance(error, TimeoutError) or ends >= self.deadline
        if late or too_often:
            limit = f"{self._config.connect_timeout_seconds} s" if late else f"{retries} retries"
            seen = error.value if isinstance(error, ConnectFailed) else str(error)
            failure = ConnectFailed(
                f"No TaskManager answers at {self._address}",
                value=seen or type(error).__name__,
                limit=limit,
                remedy="Check that it is running and that this host can reach the address",
            )
            if isinstance(error, ConnectFailed):
                failure.code = error.code
            elif isinstance(error, ConnectionRefusedError):
                failure.code = ErrorCode.CONNECT_REFUSED
            raise failure from error
        await asyncio.sleep(pause_seconds)


async def connect(  # noqa: PLR0913 - all of them are of one connection
    address: Address,
    hello: Hello,
    handler_factory: HandlerFactory,
    config: TransportConfig,
    segment_size_bytes: int,
    credential: Credential | None = None,
    networks: "PeerNetworks | None" = None,
    on_closed: Callable[[Connection], None] | None = None,
    tls_name: str = "",
) -> tuple[Connection, HelloAck]:
    """Connect and shake hands.

    With a credential both sides authenticate; a TaskManager that proves nothing is refused. With
    networks, only addresses in them are tried. ``on_closed`` is called once the connection, or one
    of an attempt that failed, is closed. ``tls_name`` is the host that the certificate must name,
    by default that of the address.

    If an attempt is refused or ends without an answer, it is retried with growing pauses, up to
    ``connect_retries`` times and until ``connect_timeout_seconds``. A TaskManager restarts within
    that time; until then its ending process, or a proxy in front of it, may accept and close the
    connection.

    Returns:
        The open connection and the other side's answer.

    Raises:
        ConnectFailed: There was no answer in time, or no retry is left.
        TlsConfigurationError: The TLS settings cannot be used.
        TlsRefused: One side does not trust the other; not retried.
        NotPermitted: The address is outside the networks; not retried.
        SluiceError: The other side refused the Hello; not retried.

    Cancellation: safe, an incomplete connection is dropped.
    """
    if credential is not None:
        credential = credential.at(str(address) if address.port else UNIX)
    attempts = Attempts(address, config)
    while True:
        try:
            async with asyncio.timeout_at(attempts.deadline):
                connection = Connection(
                    config,
                    segment_size_bytes,
                    handler_factory,
                    hello=hello,
                    credential=credential,
                    on_closed=on_closed,
                )
                name = tls_name or address.host
                return connection, await _attempt(address, connection, config, networks, name)
        except (OSError, ConnectionLost) as error:  # TimeoutError is an OSError
            await attempts.pause(error)


async def _connect_tcp(
    factory: Callable[[], asyncio.BaseProtocol], address: Address, networks: "PeerNetworks | None"
) -> None:
    """Connect to the first permitted address of the host that accepts."""
    loop = asyncio.get_running_loop()
    found = await look_up(address.host, address.port)
    failure: OSError | None = None
    for host, port in found if networks is None else networks.permitted(address, found):
        try:
            await loop.create_connection(factory, host, port)
        except OSError as error:
            # A refusal tells only if all addresses refuse.
            if failure is None or isinstance(failure, ConnectionRefusedError):
                failure = error
            continue
        return
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # its traceback has this frame, and would refer to itself


async def _attempt(
    address: Address,
    connection: Connection,
    config: TransportConfig,
    networks: "PeerNetworks | None",
    tls_name: str,
) -> HelloAck:
    loop = asyncio.get_running_loop()
    tls = tls_of(config) if address.port else None

    def factory() -> asyncio.BaseProtocol:
        return protocol_of(connection, tls, config, tls_name)

    try:
        # If canceled at a certain moment, it closes the socket without calling connection_lost.
        if address.port:
            await _connect_tcp(factory, address, networks)
        else:
            await loop.create_unix_connection(factory, address.host)
        if connection.opened is None:
            raise SluiceError("The connection has a Hello and no handshake to wait for")
        return await asyncio.shield(connection.opened)
    except BaseException:
        connection.abort(ConnectFailed(f"The handshake with {address} was canceled"))
        raise
