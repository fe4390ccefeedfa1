"""Accepts connections on TCP and Unix sockets, up to a limit, and closes them in order."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from ..protocol.codec import encode
from ..protocol.control_memory import ControlMemory
from ..protocol.messages import Hello, HelloAck
from ..protocol.remote_error import error_response
from .acceptor import Acceptor, InNeed, bind, listen
from .access import Accepting, Access
from .config import LOOPBACK, TransportConfig
from .connection import Connection, ConnectionHandler, HandlerFactory
from .descriptors import data_connections
from .errors import AddressUnavailable, TooManyConnections
from .host_port import host_ports
from .loop_protocol import LoopProtocol
from .loop_share import LoopShares
from .outcomes import Outcomes
from .tls import ReloadingTls, reloading_tls
from .tls_transport import TlsTransport
from .traffic import Traffic
from .unix_socket import UnixSocket

_log = logging.getLogger(__name__)


REFUSALS_SHARE: Final = 8
"""An eighth of the data connections is kept for those that wait for their refusal."""


class Limits(NamedTuple):
    """How many connections are kept at a time.

    Attributes:
        connections: Connections that are served.
        handshakes: Connections in their handshake, over TCP and over the Unix socket each.
        refusals: Room for connections that wait for their refusal. When ``connections`` and this
            are used up, by any of them, further connections are closed at once.
    """

    connections: int
    handshakes: int
    refusals: int


class Listener:
    """All listening sockets of a TaskManager and the connections accepted on them.

    Args:
        config: Addresses, limits, deadlines.
        segment_size_bytes: Largest payload to accept.
        handler_factory: Makes the handler of a connection from its Hello.
        offer: Makes the answer to a good Hello; called for each connection.
        access: Who may connect; by default, whoever reaches the port, and on the Unix socket this
            process's user and group.
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
        self._unproven: tuple[set[Connection], set[Connection]] = set(), set()
        """Connections that were let in and have not finished their handshake, over TCP and over the
        Unix socket: strangers on the network must not shut out this host."""
        self._refused: set[Connection] = set()
        """Connections that get an error and are closed; they do not count for the limits."""
        self.control_memory = ControlMemory(config.max_control_memory_bytes)
        """Counts the control parts and the unread messages of all connections."""
        self.loop_shares = LoopShares()
        self.accepted_total = 0
        self.refused_total = 0
        self.outcomes = Outcomes()
        self._ended: dict[int, Traffic] = {}
        """Traffic of connections that are gone, by role."""
        self.port = 0
        """The TCP port that is bound, once started."""
        self.tls: ReloadingTls | None = None
        """Certificates of the TCP port, once started; None without TLS."""

    async def start(self) -> None:
        """Bind and listen.

        Raises:
            AddressUnavailable: An address is in use or of another host.
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

    def traffic(self) -> dict[int, Traffic]:
        """Return the traffic of accepted connections so far, by their roles."""
        found: dict[int, Traffic] = {}
        for role, ended in self._ended.items():
            found.setdefault(role, Traffic()).add(ended)
        for connection in self.connections:
            found.setdefault(connection.role, Traffic()).add(connection.traffic)
        return found

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections go on. Idempotent."""
        self._accepting = False
        for acceptor in self._acceptors:
            acceptor.close()
        if self.unix_socket is not None:
            self.unix_socket.stop_accepting()

    async def close(self) -> None:
        """Close everything and wait until every connection is gone.

        Bounded by ``close_timeout_seconds``, after which connections are aborted.

        Cancellation: safe; connections go on closing.
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
        tls = self.tls = reloading_tls(self._config, accepts=True)

        def accept() -> asyncio.BaseProtocol:
            connection = self._accept()
            if tls is None:
                return LoopProtocol(connection)
            return TlsTransport(connection, tls.current(), self._config.handshake_timeout_seconds)

        try:
            sockets = await bind(hosts, port)
            self.port = sockets[0].getsockname()[1]
            name = f"the data port {host_ports(hosts, self.port)}"
            # What it could be told under TLS takes a handshake first, which takes its time.
            refusal = self._refuse_without_descriptors if tls is None else _say_nothing
            in_need = InNeed(refusal, is_full=self._is_full)
            self._acceptors += listen(sockets, accept, self._config.listen_backlog, name, in_need)
        except OSError as error:
            raise AddressUnavailable(
                f"Cannot listen on {host_ports(hosts, port)}",
                value=error.strerror or error,
                remedy="Stop the process that has it (ss -ltnp), or set transport.data_port and "
                "transport.bind_host",
            ) from error

    def _start_unix(self, path: Path) -> None:
        self.unix_socket = UnixSocket(
            path,
            self._config.socket_mode,
            lambda: LoopProtocol(self._accept(over_tcp=False)),
            self._config.listen_backlog,
            InNeed(self._refuse_without_descriptors, is_full=self._is_full),
        )
        self.unix_socket.start()

    def _accept(self, *, over_tcp: bool = True) -> Connection:
        unproven = self._unproven[0 if over_tcp else 1]
        refusal = self._refusal(len(unproven))
        connection = Connection(
            self._config,
            self._segment_size_bytes,
            self._proven,
            accepting=Accepting(
                self._offer(),
                self._access,
                refusal,
                self._config.tls_certificate_roles,
                self.control_memory,
                self.loop_shares,
            ),
            on_closed=self._closed,
        )
        self.connections.add(connection)
        (unproven if refusal is None else self._refused).add(connection)
        self.accepted_total += 1
        if not self._accepting:
            connection.close()  # the loop had accepted it before stop_accepting()
        return connection

    def _refusal(self, unproven: int) -> TooManyConnections | None:
        """Return the error for the next connection if a limit is reached."""
        served = len(self.connections) - len(self._refused)
        limits = self._limits
        if served < limits.connections and unproven < limits.handshakes:
            return None
        self.refused_total += 1
        if served < limits.connections:
            return TooManyConnections(
                "The TaskManager has reached its limit of unfinished handshakes",
                value=unproven + 1,
                limit=limits.handshakes,
                remedy="Try again; if these are no attack, raise transport.max_handshakes",
            )
        return TooManyConnections(
            "The TaskManager has reached its limit of connections",
            value=served + 1,
            limit=limits.connections,
            remedy="Raise transport.max_connections, and the limit of open files with it",
        )

    def _is_full(self, starting: int) -> bool:
        """Return whether to close the next connection at once: no room is left to keep it."""
        limits = self._limits
        return len(self.connections) + starting >= limits.connections + limits.refusals

    def _refuse_without_descriptors(self) -> bytes:
        """Return the error for a connection that has no descriptor to be served with."""
        self.accepted_total += 1
        self.refused_total += 1
        error = TooManyConnections(
            "The TaskManager has no open file left for another connection",
            value=len(self.connections) + 1,
            limit=len(self.connections),
            remedy="Try again, or raise the limit of open files of the TaskManager (ulimit -n)",
        )
        self.outcomes.turned_away(error)
        return encode(error_response(None, error))

    def _within_open_files(self) -> Limits:
        """Return the limits of connections that the process can keep.

        Strangers over TCP and over the Unix socket together get no more than two thirds.
        """
        config = self._config
        most = data_connections()
        refusals = max(1, min(config.max_handshakes, most // REFUSALS_SHARE))
        most = max(1, most - refusals)
        limits = Limits(
            min(config.max_connections, most),
            min(config.max_handshakes, max(1, most // 3)),
            refusals,
        )
        if most < config.max_connections:
            _log.info(
                "the limit of open files lets %d connections be served, max_connections is %d",
                most,
                config.max_connections,
            )
        return limits

    def _proven(self, connection: Connection, greeting: Hello | HelloAck) -> ConnectionHandler:
        handler = self._handler_factory(connection, greeting)
        for unproven in self._unproven:
            unproven.discard(connection)
        self.outcomes.greeted += 1
        return handler

    def _closed(self, connection: Connection) -> None:
        greeted = not any(connection in each for each in (*self._unproven, self._refused))
        for each in (self.connections, *self._unproven, self._refused):
            each.discard(connection)
        self._ended.setdefault(connection.role, Traffic()).add(connection.traffic)
        self.outcomes.ended(connection, greeted=greeted)
        self._changed.set()


def _say_nothing() -> bytes:
    return b""
