"""Accepts connections on a listening socket, even when the process is out of descriptors.

The event loops' own servers handle that badly: uvloop silently accepts and closes the connections
in the backlog, and may lose its listening socket permanently; asyncio logs each of thousands of
attempts. An acceptor keeps descriptors in reserve instead. When there are no others it frees one
and accepts with it, either to refuse the other side at once or to serve the few connections that
the reserve is for. The log reports once when a shortage begins and once when it ends.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from .address import ANY_FAMILY
from .descriptors import Reserve
from .loop import start_task

logger = logging.getLogger(__name__)

MAX_A_TURN: Final = 64
"""Most connections accepted in one turn of the event loop."""

PAUSE_SECONDS: Final = 0.1
"""Time until the next attempt when resources are short; there is no event when they are back."""

MAX_DISCARDED_BYTES: Final = 64 * 1024
"""Received bytes that are discarded before a refused connection closes: unread bytes would reset
it, and the other side might lose the reason."""

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_SHORT: Final = _NO_DESCRIPTOR | {errno.ENOBUFS, errno.ENOMEM}
_EVERY_ADDRESS: Final = ("0.0.0.0", "::")
_FLAGS: Final = socket.AI_PASSIVE
_NOT_OURS: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""Errors for an address that this host does not have."""

_MAX_FREE_PORTS: Final = 16
"""Attempts to find a port that is free on all addresses; the kernel picks it on the first one."""

_Address: TypeAlias = tuple[int, int, tuple[Any, ...], bool]
"""Family, protocol, socket address, and whether it is skipped if its family is missing."""

_NOTHING_THERE: Final = (BlockingIOError, InterruptedError, ConnectionAbortedError)


class InNeed(NamedTuple):
    """How an acceptor behaves while its process has no descriptors left.

    Attributes:
        refusal: Returns the bytes to send to a connection that cannot be kept. None: it is served
            with a descriptor of the reserve.
        reserve: Number of descriptors to keep in reserve.
        make_room: Called when the reserve is used up; may close connections.
        early_refusal: Returns the bytes to send before the next connection is closed, or None to
            serve it; keeps descriptors free for other connections. Its argument is the number of
            accepted connections that do not have their protocol yet.
        must_wait: Returns whether no more connections are accepted in this turn of the event loop,
            so that others are closed first; with the same argument.
    """

    refusal: Callable[[], bytes] | None = None
    reserve: int = 1
    make_room: Callable[[], None] = lambda: None
    early_refusal: Callable[[int], bytes | None] = lambda starting: None
    must_wait: Callable[[int], bool] = lambda starting: False


class Acceptor:
    """Accepts the connections of a listening socket, which it owns.

    Args:
        sock: A bound socket; it need not listen yet.
        factory: Makes the protocol of a connection.
        backlog: Connections that may wait in the kernel.
        name: Name of the socket for the log, such as ``the data port``.
        in_need: What to do when the process is out of descriptors.
        most_a_turn: Most connections accepted in one turn of the event loop.
    """

    def __init__(
        self,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        backlog: int,
        name: str,
        in_need: InNeed = InNeed(),  # noqa: B008 - immutable
        most_a_turn: int = MAX_A_TURN,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._factory = factory
        self._name = name
        self._pause: asyncio.TimerHandle | None = None
        self._short_since: float | None = None
        self._in_need = in_need
        self._most_a_turn = most_a_turn
        self._reserve = Reserve(in_need.reserve)
        self._starting: set[asyncio.Task[None]] = set()
        self._without_protocol: set[socket.socket] = set()
        """Sockets of connections that do not have their protocol yet."""
        sock.setblocking(False)
        sock.listen(backlog)
        self._loop.add_reader(sock, self._ready)

    def close(self) -> None:
        """Stop listening; accepted connections stay open. Idempotent."""
        if self._sock.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._reserve.close()

    @property
    def is_starting(self) -> bool:
        """Whether an accepted connection does not have its protocol yet."""
        return bool(self._starting)

    async def wait_started(self) -> None:
        """Wait until every accepted connection has its protocol. Call after :meth:`close`.

        It takes a few turns of the event loop. Cancellation: safe.
        """
        if self._starting:
            await asyncio.wait(self._starting)

    def _ready(self) -> None:
        for _ in range(self._most_a_turn):
            if self._in_need.must_wait(len(self._without_protocol)):
                return
            try:
                accepted, _ = self._sock.accept()
            except _NOTHING_THERE:
                return
            except OSError as error:
                self._begin_shortage(error)
                if error.errno not in _NO_DESCRIPTOR or not self._accept_in_need():
                    self._wait_for_resources()
                    return
                continue
            reason = self._in_need.early_refusal(len(self._without_protocol))
            if reason is None:
                self._serve(accepted)
            else:
                _refuse(accepted, reason)

    def _serve(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        self._without_protocol.add(accepted)
        task = start_task(self._start(accepted))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _accept_in_need(self) -> bool:
        """Accept with a descriptor of the reserve; return whether to continue."""
        if not self._reserve.give():
            self._in_need.make_room()
            return False
        try:
            accepted, _ = self._sock.accept()
        except OSError:  # no connection: the kernel reports EMFILE before it checks the queue
            self._reserve.refill()
            return False
        if self._in_need.refusal is None:
            self._serve(accepted)
        else:
            _refuse(accepted, self._in_need.refusal())
            self._reserve.refill()
        return True

    async def _start(self, accepted: socket.socket) -> None:
        def make() -> asyncio.BaseProtocol:
            self._without_protocol.discard(accepted)
            return self._factory()

        try:
            await self._loop.connect_accepted_socket(make, accepted)
        except BaseException as error:
            self._without_protocol.discard(accepted)
            accepted.close()
            if isinstance(error, OSError):  # the peer has closed already
                extra = {"kind": "connections ended at their start", "source": self._name}
                logger.info(
                    "a connection to %s ended at its start: %s", self._name, error, extra=extra
                )
                return
            raise

    def _begin_shortage(self, error: OSError) -> None:
        if self._short_since is not None:
            return
        self._short_since = self._loop.time()
        remedy = "raise the limit of open files" if error.errno in _SHORT else "check the host"
        logger.error("%s cannot accept connections: %s; %s", self._name, error, remedy)

    def _wait_for_resources(self) -> None:
        """Leave connections in the kernel's backlog for a while."""
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._pause = None
        if self._reserve.refill() and self._short_since is not None and _can_open():
            seconds = self._loop.time() - self._short_since
            self._short_since = None
            logger.warning("%s accepts connections again after %.1f s", self._name, seconds)
        self._loop.add_reader(self._sock, self._ready)
        self._ready()
        self._watch_for_the_end()

    def _watch_for_the_end(self) -> None:
        if self._pause is None and self._short_since is not None:
            self._wait_for_resources()


def _can_open() -> bool:
    probe = Reserve(1)
    try:
        return probe.refill()
    finally:
        probe.close()


def _refuse(accepted: socket.socket, reason: bytes) -> None:
    """Send the reason without blocking, and close."""
    with accepted, contextlib.suppress(OSError):
        accepted.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            accepted.recv(MAX_DISCARDED_BYTES)
        accepted.send(reason)
        accepted.shutdown(socket.SHUT_WR)


async def bind(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Bind a TCP socket to each address of some hosts, all to the same port.

    Args:
        hosts: Names and addresses. ``*`` means every address of IPv4 and IPv6, or of the one that
            the kernel has.
        port: The port; 0: any port that is free on all addresses.

    Raises:
        OSError: An address is unknown, in use, not allowed or of another host; all sockets are
            closed.
    """
    addresses: dict[_Address, None] = {}
    for host in (ANY_FAMILY,) if ANY_FAMILY in hosts else hosts:
        loop = asyncio.get_running_loop()
        for each in _EVERY_ADDRESS if host == ANY_FAMILY else (host,):
            found = await loop.getaddrinfo(each, port, type=socket.SOCK_STREAM, flags=_FLAGS)
            for family, _, protocol, _, address in found:
                addresses[family, protocol, address, host == ANY_FAMILY] = None
    for _ in range(_MAX_FREE_PORTS):
        try:
            return _bind_all(addresses, port)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE:
                raise
    return _bind_all(addresses, port)


def bind_remedy(error: OSError, host_setting: str, port_setting: str) -> str:
    """Return the remedy for an error of binding or listening; empty if unknown.

    Args:
        error: The system's error.
        host_setting: Name of the setting with the hosts.
        port_setting: Name of the setting with the port.
    """
    if isinstance(error, socket.gaierror) or error.errno in _NOT_OURS:
        return f"Set {host_setting} to an address of this host (`ip address` lists them)"
    if error.errno == errno.EADDRINUSE:
        return (
            f"Stop the process that has it (`ss -ltnp` names it), set {port_setting} to a free "
            f"port or 0, or set {host_setting} to another address"
        )
    if error.errno == errno.EACCES:
        return f"Set {port_setting} to 1024 or more, or grant the capability CAP_NET_BIND_SERVICE"
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "Raise the limit of open files"
    return ""


def _bind_all(addresses: Iterable[_Address], port: int) -> list[socket.socket]:
    bound: list[socket.socket] = []
    try:
        for family, protocol, (host, _, *rest), either in addresses:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM, protocol)
            except OSError as error:
                if either and error.errno == errno.EAFNOSUPPORT:
                    continue
                raise
            bound.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # The families are bound separately, so this socket must not bind IPv4 as well.
                sock.setsockopt(*_ipv6_only(), 1)
            try:
                sock.bind((host, port, *rest))
            except OSError as error:
                if not (either and error.errno == errno.EADDRNOTAVAIL):
                    raise
                bound.remove(sock)  # the kernel supports the family, but it is turned off
                sock.close()
                continue
            port = sock.getsockname()[1]
        if not bound:
            raise OSError(errno.EADDRNOTAVAIL, "this host has neither IPv4 nor IPv6")
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound


def _ipv6_only() -> tuple[int, int]:
    """Return level and name of the option, with the kernel's numbers as a fallback."""
    return getattr(socket, "IPPROTO_IPV6", 41), getattr(socket, "IPV6_V6ONLY", 26)


def listen(
    sockets: list[socket.socket],
    factory: Callable[[], asyncio.BaseProtocol],
    backlog: int,
    name: str,
    in_need: InNeed = InNeed(),  # noqa: B008 - immutable
    most_a_turn: int = MAX_A_TURN,
) -> list[Acceptor]:
    """Accept on each of several bound sockets, see :class:`Acceptor`.

    Raises:
        OSError: One of them cannot listen; all are closed.
    """
    acceptors: list[Acceptor] = []
    try:
        for sock in sockets:
            acceptor = Acceptor(sock, factory, backlog, name, in_need, most_a_turn)
            acceptors.append(acceptor)
    except BaseException:
        for acceptor in acceptors:
            acceptor.close()
        for sock in sockets:
            sock.close()
        raise
    return acceptors
