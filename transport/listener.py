"""Accepts connections on TCP and Unix sockets, up to a limit, and closes them."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ..protocol.admission import refusal
from ..protocol.control_memory import ControlMemory
from ..protocol.errors import ErrorCode, SluiceError
from ..protocol.remote_error import error_response
from ..protocol.schema import ROLE_COPIER, ROLE_PEER, Hello, HelloAck, encode
from .acceptor import Acceptor, InNeed, bind, bind_remedy, listen
from .access import Accepting, Access
from .address import host_ports
from .config import LOOPBACK, TransportConfig
from .connection import Connection, ConnectionHandler, HandlerFactory, Traffic
from .descriptors import data_connections
from .loop_protocol import LoopProtocol, protocol_of, tls_of
from .loop_share import LoopShares
from .outcomes import Outcomes
from .unfinished_handshakes import UnfinishedHandshakes
from .unix_socket import UnixSocket

if TYPE_CHECKING:
    from .tls import ReloadingTls

logger = logging.getLogger(__name__)


REFUSALS_SHARE: Final = 16
"""A sixteenth of the data connections is reserved for TCP connections that wait for their refusal,
and another one for those over the Unix socket."""


class Limits(NamedTuple):
    """How many connections are kept at a time.

    Attributes:
        connections: Connections that are served, over TCP and over the Unix socket together.
        handshakes: Connections in their handshake, over TCP and over the Unix socket each.
        refusals: Connections that wait for their refusal, over TCP and over the Unix socket each;
            more are closed at once.
    """

    connections: int
    handshakes: int
    refusals: int


class Unserved(NamedTuple):
    """Accepted connections that are not served, of TCP or of the Unix socket.

    Each has its own limits, so that strangers on the network cannot lock out this host.

    Attributes:
        unproven: Connections that have not finished their handshake; one makes room for another.
        refused: Connections that get an error and are closed.
        dropped: Connections that made room, until the next turn of the event loop closes them.
    """

    unproven: UnfinishedHandshakes
    refused: set[Connection]
    dropped: set[Connection]


class Listener:
    """All listening sockets of a TaskManager and the connections accepted on them.

    Args:
        config: Addresses, limits, deadlines.
        segment_size_bytes: Largest payload to accept.
        handler_factory: Makes the handler of a connection from its Hello.
        offer: Makes the answer to a valid Hello; called for each connection.
        access: Who may connect; by default everyone over TCP, and on the Unix socket this process's
            user and group.
    """

    def __init__(
        self,
        config: TransportConfig,
        segment_size_bytes: int,
        handler_factory: HandlerFactory,
        offer: Callable[[], HelloAck],
        access: Access | None = None,
    ) -> None:
        self._config = config
        self._segment_size_bytes = segment_size_bytes
        self._handler_factory = handler_factory
        self._offer = offer
        self._access = Access() if access is None else access
        self._acceptors: list[Acceptor] = []
        self.unix_socket: UnixSocket | None = None
        """The Unix socket, once started; None without one."""
        self._accepting = False
        self._changed = asyncio.Event()
        self._limits = Limits(config.max_connections, config.max_handshakes, config.max_handshakes)
        self.connections: set[Connection] = set()
        self._over_tcp = Unserved(UnfinishedHandshakes(), set(), set())
        self._over_unix = Unserved(UnfinishedHandshakes(), set(), set())
        self.control_memory = ControlMemory(config.max_control_memory_bytes)
        """Counts the control parts and the unread messages of all connections."""
        self.loop_shares = LoopShares()
        self.accepted_total = 0
        self.refused_total = 0
        self.outcomes = Outcomes()
        self._ended: dict[int, Traffic] = {}
        """Traffic of closed connections, by role."""
        self.port = 0
        """The TCP port that is bound, once started."""
        self.tls: ReloadingTls | None = None
        """Certificates of the TCP port, once started; None without TLS."""

    async def start(self) -> None:
        """Bind and listen.

        Raises:
            CONFIGURATION: An address is in use or of another host.
            TlsConfigurationError: The TLS settings cannot be used.
        """
        self._accepting = True
        self._limits = self._within_open_files()
        try:
            await self._start_tcp()
            if self._config.socket_path is not None:
                self._start_unix(self._config.socket_path)
        except BaseException:
            self.stop_accepting()
            raise

    @property
    def max_connections(self) -> int:
        """Limit of its connections; less than configured if there are few open files."""
        return self._limits.connections

    def traffic(self) -> dict[int, Traffic]:
        """Return the traffic of accepted connections so far, by their roles."""
        found: dict[int, Traffic] = {}
        for role, ended in self._ended.items():
            found.setdefault(role, Traffic()).add(ended)
        for connection in self.connections:
            found.setdefault(connection.role, Traffic()).add(connection.traffic)
        return found

    def close_revoked(self) -> None:
        """Close the connections that have proven a revoked token or a removed secret."""
        secrets = self._access.secrets
        for connection in list(self.connections):
            claim = connection.claim
            error = None if claim is None or secrets is None else refusal(claim, secrets)
            if error is not None and connection.role in (ROLE_PEER, ROLE_COPIER):
                connection.close()  # the other TaskManager connects again, with another secret
            elif error is not None:
                connection.fail(error)

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay open. Idempotent."""
        self._accepting = False
        for acceptor in self._acceptors:
            acceptor.close()
        if self.unix_socket is not None:
            self.unix_socket.stop_accepting()

    async def close(self) -> None:
        """Close everything and wait until every connection is closed.

        Connections are aborted after ``close_timeout_seconds``.

        Cancellation: safe; connections continue to close.
        """
        self.stop_accepting()
        for acceptor in self._acceptors:
            await acceptor.wait_started()
        if self.unix_socket is not None:
            await self.unix_socket.wait_started()
        for connection in list(self.connections):
            connection.close()
        while self.connections:
            self._changed.clear()
            await self._changed.wait()

    async def _start_tcp(self) -> None:
        hosts, port = self._config.bind_host or (LOOPBACK,), self._config.data_port
        tls = self.tls = tls_of(self._config, accepts=True)

        def accept() -> asyncio.BaseProtocol:
            return protocol_of(self._accept(self._over_tcp), tls, self._config)

        try:
            sockets = await bind(hosts, port)
            self.port = sockets[0].getsockname()[1]
            name = f"the data port {host_ports(hosts, self.port)}"
            # With TLS, the reason can be sent only after a handshake, which takes time.
            in_need = self._in_need(self._over_tcp, tells=tls is None)
            self._acceptors += listen(sockets, accept, self._config.listen_backlog, name, in_need)
        except OSError as error:
            raise SluiceError(
                f"Cannot listen on {host_ports(hosts, port)}",
                code=ErrorCode.CONFIGURATION,
                value=error.strerror or error,
                remedy=bind_remedy(error, "transport.bind_host", "transport.data_port"),
            ) from error

    def _start_unix(self, path: Path) -> None:
        self.unix_socket = UnixSocket(
            path,
            self._config.socket_mode,
            lambda: LoopProtocol(self._accept(self._over_unix)),
            self._config.listen_backlog,
            self._in_need(self._over_unix, tells=True),
        )
        self.unix_socket.start()

    def _accept(self, unserved: Unserved) -> Connection:
        self._make_room(unserved)
        refusal = self._refusal()
        connection = Connection(
            self._config,
            self._segment_size_bytes,
            self._proven,
            accepting=Accepting(
                self._offer(),
                self._access,
                refusal,
                self.control_memory,
                self.loop_shares,
            ),
            on_closed=self._closed,
        )
        self.connections.add(connection)
        (unserved.unproven if refusal is None else unserved.refused).add(connection)
        self.accepted_total += 1
        self.refused_total += refusal is not None
        if not self._accepting:
            connection.close()  # the loop had accepted it before stop_accepting()
        return connection

    def _make_room(self, unserved: Unserved) -> None:
        """Drop the connections that wait longest for their handshakes, of the largest source."""
        while len(unserved.unproven) >= self._limits.handshakes:
            longest = unserved.unproven.longest()
            if longest is None:
                return
            unserved.unproven.discard(longest)
            # The end of one that is closing already takes longer: the other side reads the reason.
            (unserved.refused if longest.closing else unserved.dropped).add(longest)
            self.refused_total += 1
            longest.abort(
                SluiceError(
                    "The TaskManager has reached its limit of unfinished handshakes",
                    code=ErrorCode.TOO_MANY_CONNECTIONS,
                    value=len(unserved.unproven) + 2,
                    limit=self._limits.handshakes,
                )
            )

    @property
    def _served(self) -> int:
        unserved = (self._over_tcp, self._over_unix)
        return len(self.connections) - sum(
            len(each.refused) + len(each.dropped) for each in unserved
        )

    def _refusal(self, starting: int = 0) -> SluiceError | None:
        """Return the error for the next connection if the limit is reached.

        Args:
            starting: Connections that will be accepted before it.
        """
        served = self._served + starting
        if served < self._limits.connections:
            return None
        return SluiceError(
            "The TaskManager has reached its limit of connections",
            code=ErrorCode.TOO_MANY_CONNECTIONS,
            value=served + 1,
            limit=self._limits.connections,
            remedy="Raise transport.max_connections and the limit of open files",
        )

    def _in_need(self, unserved: Unserved, *, tells: bool) -> InNeed:
        """Return how a socket refuses connections immediately.

        Args:
            unserved: Those of the socket.
            tells: Whether they get the reason; otherwise they are closed silently.
        """

        def refuse(error: SluiceError) -> bytes:
            self.accepted_total += 1
            self.refused_total += 1
            self.outcomes.turned_away(error)
            return encode(error_response(None, error)) if tells else b""

        def refuse_early(starting: int) -> bytes | None:
            # Starting connections may be refused later, or reach the limit of served ones.
            if len(unserved.refused) + starting < self._limits.refusals:
                return None
            error = self._refusal(starting)
            return None if error is None else refuse(error)

        def must_wait(starting: int) -> bool:
            # Connections that make room have their descriptors until the next turn.
            limits = self._limits
            return (
                len(unserved.unproven) + starting >= limits.handshakes
                and len(unserved.dropped) + starting >= limits.refusals
            )

        return InNeed(
            lambda: refuse(self._no_descriptor()), early_refusal=refuse_early, must_wait=must_wait
        )

    def _no_descriptor(self) -> SluiceError:
        return SluiceError(
            "The TaskManager has no open file left for another connection",
            code=ErrorCode.TOO_MANY_CONNECTIONS,
            value=len(self.connections) + 1,
            limit=len(self.connections),
            remedy="Raise the TaskManager's limit of open files (ulimit -n)",
        )

    def _within_open_files(self) -> Limits:
        """Return limits of connections that fit into the limit of open files.

        Strangers over TCP and over the Unix socket together get at most two thirds.
        """
        config = self._config
        most = data_connections()
        refusals = max(1, min(config.max_handshakes, most // REFUSALS_SHARE))
        most = max(1, most - 2 * refusals)
        limits = Limits(
            min(config.max_connections, most),
            min(config.max_handshakes, max(1, most // 3)),
            refusals,
        )
        if most < config.max_connections:
            logger.info(
                "the limit of open files allows %d connections, max_connections is %d",
                most,
                config.max_connections,
            )
        return limits

    def _proven(self, connection: Connection, greeting: Hello | HelloAck) -> ConnectionHandler:
        handler = self._handler_factory(connection, greeting)
        for unserved in (self._over_tcp, self._over_unix):
            unserved.unproven.discard(connection)
        self.outcomes.greeted += 1
        return handler

    def _closed(self, connection: Connection) -> None:
        unserved = (*self._over_tcp, *self._over_unix)
        greeted = not any(connection in each for each in unserved)
        for each in (self.connections, *unserved):
            each.discard(connection)
        self._ended.setdefault(connection.role, Traffic()).add(connection.traffic)
        self.outcomes.ended(connection, greeted=greeted)
        self._changed.set()
