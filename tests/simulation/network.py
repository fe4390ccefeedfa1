"""A network between hosts: delays, partitions, resets, half-open connections.

Bytes of one direction of a connection arrive in order; everything else arrives when its delay says.
The delays come from a generator of their own, so a fault that is left out changes little else.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections import deque
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.loop import PROCESS
from tests.simulation.transport import SimulatedTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.loop import Process, SimulatedLoop

FASTEST_SECONDS: Final = 50e-6
SLOWEST_SECONDS: Final = 2e-3
"""Bounds of the usual delay of a packet."""

SLOW_SECONDS: Final = 0.4
"""Longest delay of a packet of a slow host."""

SYN_SECONDS: Final = 127.0
"""Time after which the kernel gives up connecting."""

SILENCE_SECONDS: Final = 30.0, 60.0
"""Bounds of the time after which the kernel drops a connection whose other side is silent."""

RESEND_SECONDS: Final = 0.5
"""Longest time until bytes are sent again after a partition."""


def os_error(number: int) -> OSError:
    """Return the error of a system call."""
    return OSError(number, os.strerror(number))


class ListeningSocket:
    """Stands for a TCP socket that is bound and listens."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._callback: Callable[[], object] | None = None
        self._context: Context = copy_context()
        self._waiting: deque[AcceptedSocket] = deque()
        self._address = ("", 0)
        self._is_open = True
        self.process: Process | None = PROCESS.get()

    def setsockopt(self, *_: object) -> None:
        """Ignore it."""

    def setblocking(self, flag: bool) -> None:
        """Ignore it: nothing blocks."""

    def bind(self, address: tuple[Any, ...]) -> None:
        """Take an address.

        Raises:
            OSError: It is in use.
        """
        self._address = self._network.bind(self, address[0], address[1])

    def getsockname(self) -> tuple[str, int]:
        """Return the address."""
        return self._address

    def listen(self, backlog: int) -> None:
        """Begin to listen."""

    def fileno(self) -> int:
        """Return -1 once it is closed."""
        return 1 if self._is_open else -1

    def watch(self, callback: Callable[[], object] | None) -> bool:
        """Call a function when a connection waits."""
        had, self._callback = self._callback is not None, callback
        self._wake()
        return had

    def push(self, accepted: AcceptedSocket) -> None:
        """Let a connection wait."""
        self._waiting.append(accepted)
        self._wake()

    def accept(self) -> tuple[AcceptedSocket, tuple[str, int]]:
        """Take the connection that has waited longest.

        Raises:
            BlockingIOError: None waits.
        """
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "no connection waits")
        accepted = self._waiting.popleft()
        return accepted, accepted.transport.peername

    def close(self) -> None:
        """Stop listening; connections that wait are reset."""
        if self._is_open:
            self._is_open = False
            self._network.unbind(self._address)
            for accepted in self._waiting:
                accepted.close()

    def _wake(self) -> None:
        if self._waiting and self._callback is not None:
            self._network.loop.call_soon(self._ready, context=self._context)

    def _ready(self) -> None:
        if self._callback is not None and self._waiting and self._is_open:
            self._callback()
            self._wake()


class AcceptedSocket:
    """Stands for the socket of a connection that was accepted and has no protocol yet."""

    def __init__(self, transport: SimulatedTransport) -> None:
        self.transport = transport

    def __enter__(self) -> AcceptedSocket:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def setblocking(self, flag: bool) -> None:
        """Ignore it: nothing blocks."""

    def recv(self, length: int) -> bytes:
        """Drop what has arrived."""
        self.transport.drop_received()
        return b""

    def send(self, data: bytes) -> int:
        """Send bytes."""
        self.transport.write(data)
        return len(data)

    def shutdown(self, how: int) -> None:
        """Ignore it: it is closed next."""

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()


class SocketModule:
    """Stands for the module ``socket`` where sockets are bound."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def socket(self, *_: object) -> ListeningSocket:
        """Make a socket."""
        return ListeningSocket(self._network)

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)


class Network:
    """All hosts, and the connections between them.

    Args:
        loop: Runs the simulation.
        seed: Decides the delays.
        trace: Records what happens.
    """

    def __init__(self, loop: SimulatedLoop, seed: int, trace: Callable[[str], None]) -> None:
        self.loop = loop
        self.random = random.Random(f"network {seed}")
        self.trace = trace
        self.context = copy_context()
        """Of no process: the kernels go on when a process is killed."""
        self.slow_hosts: set[str] = set()
        self.down_hosts: set[str] = set()
        self.transports: dict[SimulatedTransport, None] = {}
        """The open ends of connections, oldest first."""
        self.held: dict[SimulatedTransport, None] = {}
        """Ends, closed ones too, whose bytes could not pass."""
        self._blocked: set[tuple[str, str]] = set()
        self._listening: dict[tuple[str, int], ListeningSocket] = {}
        self._healed: deque[asyncio.Future[None]] = deque()
        self._ports = 40000
        self.connections_made = 0

    # ---- faults ----------------------------------------------------------------------------

    def block(self, first: str, second: str, *, both: bool = True) -> None:
        """Let nothing pass from a host to another, and back."""
        self._blocked.add((first, second))
        if both:
            self._blocked.add((second, first))
        self.watch_silence()

    def unblock(self, first: str, second: str) -> None:
        """Let everything pass again between two hosts; what was held is sent again."""
        self._blocked -= {(first, second), (second, first)}
        self.resend()

    def watch_silence(self) -> None:
        """Let connections whose other host is out of reach end when the kernel notices."""
        for each in list(self.transports):
            if self.is_apart(each.host, each.other_host):
                each.watch_silence(self.silence_seconds())

    def resend(self) -> None:
        """Let bytes that could not pass move again."""
        for each in list(self.held):
            if self.passes(each.host, each.other_host):
                del self.held[each]
                self.loop.call_later(
                    self.random.uniform(0, RESEND_SECONDS), each.resend, context=self.context
                )
        while self._healed:
            waiter = self._healed.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def sockets_of(self, process: Process) -> int:
        """Return the number of open sockets of a process."""
        listening = sum(sock.process is process for sock in self._listening.values())
        return listening + sum(each.process is process for each in self.transports)

    def process_died(self, process: Process, *, silently: bool) -> None:
        """End all connections of a process: its kernel closes them, or its host is gone."""
        for address, sock in list(self._listening.items()):
            if sock.process is process:
                del self._listening[address]
        for each in list(self.transports):
            if each.process is process:
                each.die(silently=silently)

    # ---- for the loop and the transports ---------------------------------------------------

    def delay(self, source: str, target: str) -> float:
        """Return the delay of the next packet, in seconds."""
        if source == target:
            return self.random.uniform(10e-6, 50e-6)
        if source in self.slow_hosts or target in self.slow_hosts:
            return self.random.uniform(SLOWEST_SECONDS, SLOW_SECONDS)
        return self.random.uniform(FASTEST_SECONDS, SLOWEST_SECONDS)

    def longest_delay(self, host: str) -> float:
        """Return how long a packet of a host may be on its way, in seconds."""
        return SLOW_SECONDS if host in self.slow_hosts else SLOWEST_SECONDS

    def silence_seconds(self) -> float:
        """Return the time after which a kernel notices that the other side is silent."""
        return self.random.uniform(*SILENCE_SECONDS)

    def passes(self, source: str, target: str) -> bool:
        """Return whether a packet reaches its target."""
        return (
            (source, target) not in self._blocked
            and source not in self.down_hosts
            and target not in self.down_hosts
        )

    def is_apart(self, first: str, second: str) -> bool:
        """Return whether packets in one direction at least do not arrive."""
        return not (self.passes(first, second) and self.passes(second, first))

    async def addresses(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """Return the address of a host."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    def bind(self, sock: ListeningSocket, host: str, port: int) -> tuple[str, int]:
        """Take an address for a listening socket.

        Raises:
            OSError: It is in use.
        """
        if (host, port) in self._listening:
            raise os_error(errno.EADDRINUSE)
        if not port:
            self._ports += 1
            port = self._ports
        self._listening[host, port] = sock
        return host, port

    def unbind(self, address: tuple[str, int]) -> None:
        """Give an address back."""
        self._listening.pop(address, None)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Connect the current process to an address.

        Raises:
            ConnectionRefusedError: No process listens there.
            TimeoutError: The host is out of reach.
        """
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a connection needs a process")
        source = process.host
        await asyncio.sleep(self.delay(source, host))
        deadline = self.loop.time() + SYN_SECONDS
        while self.is_apart(source, host):
            waiter = self.loop.create_future()
            self._healed.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                raise os_error(errno.ETIMEDOUT) from None
            await asyncio.sleep(self.random.uniform(0, RESEND_SECONDS))
        sock = self._listening.get((host, port))
        await asyncio.sleep(self.delay(host, source))
        if sock is None or sock.fileno() < 0 or sock.process is None or not sock.process.is_alive:
            raise os_error(errno.ECONNREFUSED)
        self._ports += 1
        here, there = (source, self._ports), (host, port)
        client = SimulatedTransport(self, process, here, there)
        server = SimulatedTransport(self, sock.process, there, here)
        client.peer, server.peer = server, client
        self.connections_made += 1
        sock.push(AcceptedSocket(server))
        return await self._start(client, factory)

    async def begin(self, factory: Callable[[], Any], accepted: AcceptedSocket) -> tuple[Any, Any]:
        """Give an accepted connection its protocol."""
        return await self._start(accepted.transport, factory)

    async def _start(
        self, transport: SimulatedTransport, factory: Callable[[], Any]
    ) -> tuple[Any, Any]:
        protocol = factory()
        started = self.loop.create_future()
        transport.start(protocol, started)
        await started
        return transport, protocol
