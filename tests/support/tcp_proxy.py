"""A bounded proxy over TCP and Unix sockets that breaks links on purpose.

Each direction of each connection has its own :class:`Fault`; it may be changed at any time. What
happens is observed through events and counters, never by sleeping. No more than one read
(64 KiB) is buffered per direction, so a stalled direction pushes back as a slow network does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER on, with no time: close sends RST."""

_READ_BYTES = 64 * 1024


class Cut(Enum):
    """The fate of a link whose byte count is used up."""

    CLOSE = "both sides see an orderly end"
    HALF_CLOSE = "the receiver sees an end, the other direction goes on"
    RESET = "both sides see a reset"
    STALL = "nothing more is read, nothing is closed"


@dataclass
class Flips:
    """How many bits may be changed, and how many were."""

    most: int
    done: int = 0


@dataclass
class Fault:
    """How one direction behaves; the default does no harm.

    Attributes:
        delay_seconds: Pause before each chunk is passed on.
        chunk_bytes: Most bytes passed on at once; with a delay, 1 is a slow drip.
        cut_after_bytes: Bytes to pass on before ``cut`` happens; None for never.
        cut: What happens then.
        flip_at_byte: Position of a byte of which one bit is changed on the way; None for never.
        flips: Counts the changes of all links that share it, and bounds them.
    """

    delay_seconds: float = 0.0
    chunk_bytes: int = _READ_BYTES
    cut_after_bytes: int | None = None
    cut: Cut = Cut.CLOSE
    flip_at_byte: int | None = None
    flips: Flips | None = None


@dataclass(eq=False)
class Direction:
    """One direction of a proxied connection."""

    source: socket.socket
    target: socket.socket
    fault: Fault
    passed_bytes: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when this direction carries nothing more."""
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it reads nothing for the time being (what one read brought before is held)."""
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._flowing.set()

    def stop_reading(self) -> None:
        """Read nothing from the source until :meth:`resume_reading`."""
        self._flowing.clear()

    def resume_reading(self) -> None:
        """Go on."""
        self.stalled.clear()
        self._flowing.set()

    def _damaged(self, piece: bytes) -> bytes:
        """Return a piece as its receiver is to see it."""
        flips = self.fault.flips
        if self.fault.flip_at_byte is None or flips is None or flips.done >= flips.most:
            return piece
        at = self.fault.flip_at_byte - self.passed_bytes
        if not 0 <= at < len(piece):
            return piece
        flips.done += 1
        return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]

    async def pump(self, on_cut: Callable[[Cut], None]) -> None:
        """Pass bytes on until an end, an error or a cut."""
        loop = asyncio.get_running_loop()
        data = b""
        try:
            while True:
                if not self._flowing.is_set():
                    self.stalled.set()
                    await self._flowing.wait()
                fault = self.fault  # looked at anew for each piece: tests change it on the way
                room = fault.chunk_bytes
                if fault.cut_after_bytes is not None:
                    room = min(room, fault.cut_after_bytes - self.passed_bytes)
                    if room <= 0:
                        if fault.cut is Cut.STALL:
                            self.stop_reading()
                            continue
                        on_cut(fault.cut)
                        return
                if not data:
                    data = await loop.sock_recv(self.source, _READ_BYTES)
                    if not data:
                        return
                    continue
                if fault.delay_seconds:
                    await asyncio.sleep(fault.delay_seconds)
                piece, data = data[:room], data[room:]
                await loop.sock_sendall(self.target, self._damaged(piece))
                self.passed_bytes += len(piece)
        except OSError:
            on_cut(Cut.RESET)
        finally:
            with contextlib.suppress(OSError):
                self.target.shutdown(socket.SHUT_WR)
            self.ended.set()


class ProxiedConnection:
    """A client's connection and the one the proxy made for it."""

    def __init__(
        self, client: socket.socket, server: socket.socket, up: Fault, down: Fault
    ) -> None:
        self.up = Direction(client, server, up)
        """Client to server."""
        self.down = Direction(server, client, down)
        """Server to client."""
        self._sockets = (client, server)
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Pump both ways until both have ended or the link is cut."""
        self._tasks = [
            asyncio.ensure_future(direction.pump(self._cut)) for direction in (self.up, self.down)
        ]
        for task in self._tasks:
            task.add_done_callback(self._one_ended)
        try:
            await self._over.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            try:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            finally:  # a cancellation may come here, too
                for sock in self._sockets:
                    sock.close()

    def close(self) -> None:
        """End the link in an orderly way."""
        self._over.set()

    def reset(self) -> None:
        """End the link with a reset on both sides (on a Unix socket: an end)."""
        for sock in self._sockets:
            if sock.family != socket.AF_UNIX and sock.fileno() >= 0:  # not closed already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._over.set()

    def half_close(self, direction: Direction) -> None:
        """End one direction; the other goes on."""
        direction.fault = Fault(cut_after_bytes=0, cut=Cut.HALF_CLOSE)
        with contextlib.suppress(OSError):
            direction.source.shutdown(socket.SHUT_RD)  # wakes a waiting recv

    def _one_ended(self, _: asyncio.Task[None]) -> None:
        if all(task.done() for task in self._tasks):
            self._over.set()

    def _cut(self, cut: Cut) -> None:
        if cut is Cut.RESET:
            self.reset()
        elif cut is Cut.CLOSE:
            self.close()


class FaultProxy:
    """Listens, and connects each client to a target through two faulty directions.

    Args:
        target: Host and port, or (port 0) the path of a Unix socket.
        socket_path: Path to listen on; None listens on a free TCP port of ``host``.
        host: A loopback address.
        up: Fault of new connections, client to server; copied for each.
        down: The same, server to client.
        max_connections: More are closed at once.
        socket_buffer_bytes: Kernel buffers of the proxy's sockets; small ones push back soon.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        socket_path: str | None = None,
        host: str = "127.0.0.1",
        up: Fault | None = None,
        down: Fault | None = None,
        max_connections: int = 64,
        socket_buffer_bytes: int | None = None,
    ) -> None:
        self.up = up or Fault()
        self.down = down or Fault()
        self.connections: list[ProxiedConnection] = []
        """All connections that were made, the ended ones too."""
        self.refusing = False
        """Whether new connections are closed at once."""
        self.host, self.port = (host if socket_path is None else socket_path), 0
        self.target = target
        """As the argument; may be changed, for connections to come."""
        self._unix = socket_path is not None
        self._max_connections = max_connections
        self._socket_buffer_bytes = socket_buffer_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted = asyncio.Event()
        self._listening: socket.socket | None = None

    async def __aenter__(self) -> FaultProxy:
        self._listening = self._new_socket(self._unix)
        if self._unix:
            self._listening.bind(self.host)
        else:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.bind((self.host, self.port))
            self.port = self._listening.getsockname()[1]
        self._listening.listen(self._max_connections)
        # No task that waits for sock_accept(): one that is cancelled in the turn in which a client
        # comes would lose the client's socket.
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
        for task in list(self._tasks):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def address(self) -> tuple[str, int]:
        """The address at which it listens: host and port, or path and 0."""
        return self.host, self.port

    async def connection(self, index: int = 0) -> ProxiedConnection:
        """Wait for a connection by its number, from 0."""
        while len(self.connections) <= index:
            self._accepted.clear()
            await self._accepted.wait()
        return self.connections[index]

    def _new_socket(self, unix: bool) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        if self._socket_buffer_bytes is not None:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, self._socket_buffer_bytes)
        return sock

    def _accept(self, listening: socket.socket) -> None:
        try:
            client, _ = listening.accept()
        except OSError:  # it has gone again
            return
        client.setblocking(False)
        if self.refusing or len(self._tasks) >= self._max_connections:
            client.close()
            return
        task = asyncio.ensure_future(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(partial(self._served, client))

    def _served(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        client.close()  # also of a task that was cancelled before it began

    async def _serve(self, client: socket.socket) -> None:
        host, port = self.target
        server = self._new_socket(port == 0)
        try:
            await asyncio.get_running_loop().sock_connect(server, (host, port) if port else host)
        except BaseException as error:
            server.close()
            if isinstance(error, OSError):
                return
            raise
        connection = ProxiedConnection(
            client, server, Fault(**vars(self.up)), Fault(**vars(self.down))
        )
        self.connections.append(connection)
        self._accepted.set()
        await connection.run()
