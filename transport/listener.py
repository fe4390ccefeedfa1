"""Accepts connections on TCP and Unix sockets, up to a limit, and closes them in order."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

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
from .loop_protocol import LoopProtocol
from .loop_share import LoopShares
from .outcomes import Outcomes
from .tls import ReloadingTls, reloading_tls
from .tls_transport import TlsTransport
from .traffic import Traffic

_log = logging.getLogger(__name__)


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
        self._socket_file: tuple[int, int] | None = None
        """Device and inode of the Unix socket file that this listener made."""
        self._accepting = False
        self._changed = asyncio.Event()
        self._limits = config.max_connections, config.max_handshakes
        """Most connections, and most of them without a handshake."""
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
                await self._start_unix(self._config.socket_path)
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
        made, self._socket_file = self._socket_file, None
        if made is not None and self._config.socket_path is not None:
            # Another process may have put its own file there since then: that one stays.
            with contextlib.suppress(FileNotFoundError):
                if _identity(self._config.socket_path) == made:
                    self._config.socket_path.unlink()

    async def close(self) -> None:
        """Close everything and wait until every connection is gone.

        Bounded by ``close_timeout_seconds``, after which connections are aborted.

        Cancellation: safe; connections go on closing.
        """
        self.stop_accepting()
        for acceptor in self._acceptors:
            await acceptor.wait_started()
        for connection in list(self.connections):
            connection.close()
        while self.connections:
            self._changed.clear()
            await self._changed.wait()

    async def _start_tcp(self) -> None:
        host, port = self._config.bind_host or LOOPBACK, self._config.data_port
        tls = self.tls = reloading_tls(self._config, accepts=True)

        def accept() -> asyncio.BaseProtocol:
            connection = self._accept()
            if tls is None:
                return LoopProtocol(connection)
            return TlsTransport(connection, tls.current(), self._config.handshake_timeout_seconds)

        try:
            sockets = await bind(host, port)
            self.port = sockets[0].getsockname()[1]
            name = f"the data port {host}:{self.port}"
            # What it could be told under TLS takes a handshake first, which takes its time.
            in_need = InNeed(self._refuse_without_descriptors if tls is None else _say_nothing)
            self._acceptors += listen(sockets, accept, self._config.listen_backlog, name, in_need)
        except OSError as error:
            raise AddressUnavailable(
                f"Cannot listen on {host}:{port}",
                value=error.strerror or error,
                remedy="Stop the process that has it (ss -ltnp), or set transport.data_port and "
                "transport.bind_host",
            ) from error

    async def _start_unix(self, path: Path) -> None:
        def accept() -> asyncio.BaseProtocol:
            return LoopProtocol(self._accept(over_tcp=False))

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.bind(str(path))
                self._socket_file = _identity(path)
                os.chmod(path, self._config.socket_mode)
            except BaseException:
                sock.close()
                raise
            name = f"the socket {path}"
            in_need = InNeed(self._refuse_without_descriptors)
            self._acceptors += listen([sock], accept, self._config.listen_backlog, name, in_need)
        except OSError as error:
            raise AddressUnavailable(
                f"Cannot listen on the Unix socket {path}",
                value=error.strerror or error,
                remedy="Stop the TaskManager that has it, or set transport.socket_path",
            ) from error

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
        if served < limits[0] and unproven < limits[1]:
            return None
        self.refused_total += 1
        if served < limits[0]:
            return TooManyConnections(
                "The TaskManager has reached its limit of unfinished handshakes",
                value=unproven + 1,
                limit=limits[1],
                remedy="Try again; if these are no attack, raise transport.max_handshakes",
            )
        return TooManyConnections(
            "The TaskManager has reached its limit of connections",
            value=served + 1,
            limit=limits[0],
            remedy="Raise transport.max_connections, and the limit of open files with it",
        )

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

    def _within_open_files(self) -> tuple[int, int]:
        """Return the limits of connections and of handshakes that the process can keep.

        Strangers over TCP and over the Unix socket together get no more than two thirds.
        """
        most = data_connections()
        config = self._config
        limits = min(config.max_connections, most), min(config.max_handshakes, max(1, most // 3))
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


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a dead daemon; a living one keeps it.

    Raises:
        OSError: A process answers there, or the file is not a socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is not a socket is in the way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            _log.info("removing the socket file of a dead TaskManager: %s", path)
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another TaskManager answers there")
