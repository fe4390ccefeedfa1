"""Accepts connections on a listening socket, also when the process is out of descriptors.

The event loops' own servers handle that badly: uvloop silently accepts and closes the connections
in the backlog, and may give up its listening socket for good; asyncio logs each of thousands of
attempts. Here the backlog is left in the kernel until there are descriptors again, and the log
says once when that begins and once when it ends.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)

MOST_A_TURN: Final = 64
"""Connections accepted before other work gets a turn of the event loop."""

PAUSE_SECONDS: Final = 0.1
"""Time until the next attempt when resources are short; no event tells when they are back."""

_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NOTHING_THERE: Final = (BlockingIOError, InterruptedError, ConnectionAbortedError)


class Acceptor:
    """Accepts the connections of a listening socket, which it takes over.

    Args:
        sock: A bound socket; it need not listen yet.
        factory: Makes the protocol of a connection.
        backlog: Connections that may wait in the kernel.
        name: Name of the socket for the log, such as ``the data port``.
    """

    def __init__(
        self,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        backlog: int,
        name: str,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._factory = factory
        self._name = name
        self._pause: asyncio.TimerHandle | None = None
        self._short_since: float | None = None
        self._starting: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        sock.listen(backlog)
        self._loop.add_reader(sock, self._ready)

    def close(self) -> None:
        """Stop listening; accepted connections go on. Idempotent."""
        if self._sock.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._loop.remove_reader(self._sock)
        self._sock.close()

    async def wait_started(self) -> None:
        """Wait until every accepted connection has its protocol, after :meth:`close`.

        That takes a few turns of the event loop. Cancellation: safe.
        """
        if self._starting:
            await asyncio.wait(self._starting)

    def _ready(self) -> None:
        for _ in range(MOST_A_TURN):
            try:
                accepted, _ = self._sock.accept()
            except _NOTHING_THERE:
                break
            except OSError as error:
                self._wait_for_resources(error)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._start(accepted))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
        if self._short_since is not None:
            seconds = self._loop.time() - self._short_since
            self._short_since = None
            _log.warning("%s accepts connections again after %.1f s", self._name, seconds)

    async def _start(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted)
        except BaseException as error:
            accepted.close()
            if isinstance(error, OSError):  # the peer has gone already
                _log.info("a connection to %s ended at its start: %s", self._name, error)
                return
            raise

    def _wait_for_resources(self, error: OSError) -> None:
        """Leave the other connections in the kernel's backlog for a while."""
        if self._short_since is None:
            self._short_since = self._loop.time()
            remedy = (
                "raise the limit of open files" if error.errno in _SHORT else "look at the host"
            )
            _log.error("%s cannot accept connections: %s; they wait, %s", self._name, error, remedy)
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._ready)
        self._ready()


async def bind(host: str, port: int) -> list[socket.socket]:
    """Bind a TCP socket to each address of a host.

    Raises:
        OSError: An address is unknown, in use or of another host; no socket stays bound.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, _, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, socket.SOCK_STREAM, protocol)
            bound.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # Both families are bound one by one, so this socket must not take IPv4 as well.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound


def listen(
    sockets: list[socket.socket],
    factory: Callable[[], asyncio.BaseProtocol],
    backlog: int,
    name: str,
) -> list[Acceptor]:
    """Accept on each of several bound sockets, see :class:`Acceptor`.

    Raises:
        OSError: One of them cannot listen; all are closed.
    """
    acceptors: list[Acceptor] = []
    try:
        for sock in sockets:
            acceptors.append(Acceptor(sock, factory, backlog, name))  # noqa: PERF401
    except BaseException:
        for acceptor in acceptors:
            acceptor.close()
        for sock in sockets:
            sock.close()
        raise
    return acceptors
