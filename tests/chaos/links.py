"""The links of a TaskManager that chaos can cut: proxies before its data port and its socket.

Each host's TaskManager binds an address of its own (``127.0.1.N``) and advertises the host's
(``127.0.0.N``), where a proxy listens on the same port; executors get a proxy's Unix socket. So
whatever anybody knows about a TaskManager leads through a proxy.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.tcp_proxy import Cut, Direction, Fault, FaultProxy

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

LOOP_TIMEOUT_SECONDS = 30.0
MAX_CONNECTIONS = 1024

SLOW = Fault(delay_seconds=0.01)
"""Each piece of at most 64 KiB waits for 10 ms: some 6 MB/s and a round trip of 20 ms."""


def own_address(host: str) -> str:
    """The address that the TaskManager of ``host`` binds."""
    return host.replace("127.0.0.", "127.0.1.")


@dataclass(frozen=True, slots=True)
class Link:
    """A proxy's place among the links."""

    host: str
    kind: str
    """``"peers"``: the TCP port. ``"clients"``: the Unix socket."""


class Links:
    """Two proxies for each host, served by a thread of their own; a context manager.

    Args:
        directory: Where the Unix sockets are; the path must be short.
        hosts: Addresses that TaskManagers advertise.
    """

    def __init__(self, directory: Path, hosts: Sequence[str]) -> None:
        self._directory = directory
        self._hosts = tuple(hosts)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._proxies: dict[Link, FaultProxy] = {}
        self._open = AsyncExitStack()

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        try:
            self._run(self._start())
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._run(self._open.aclose())
        finally:
            self._stop_loop()

    def options(self) -> dict[str, dict[str, object]]:
        """The settings of each host's TaskManager that put it behind its proxies."""
        return {
            host: {
                "bind_host": own_address(host),
                "data_port": self._proxies[Link(host, "peers")].port,
                "advertised_host": host,
                "socket_path": self._real_socket(host),
            }
            for host in self._hosts
        }

    def reset(self, link: Link) -> None:
        """End all connections of a link at once; new ones are welcome."""
        self._run(self._reset(link))

    def cut(self, link: Link) -> None:
        """End all connections of a link and let no new one through, until :meth:`heal`."""
        self._run(self._reset(link, refusing=True))

    def stall(self, link: Link) -> None:
        """Pass nothing on and close nothing, new connections included, until :meth:`heal`."""
        self._run(self._spoil(link, Fault(cut_after_bytes=0, cut=Cut.STALL)))

    def slow(self, link: Link) -> None:
        """Pass everything on late and in small pieces, until :meth:`heal`."""
        self._run(self._spoil(link, SLOW))

    def spoil_new(self, link: Link, *, up: Fault | None = None, down: Fault | None = None) -> None:
        """End all connections of a link; those that come then are spoiled, until :meth:`heal`.

        Args:
            link: The link.
            up: What is wrong from the client to the TaskManager.
            down: What is wrong in the other direction.
        """
        self._run(self._spoil_new(link, up or Fault(), down or Fault()))

    def heal(self, link: Link) -> None:
        """Be a good link again."""
        self._run(self._heal(link))

    def _real_socket(self, host: str) -> str:
        return str(self._directory / f"{host}-own.sock")

    async def _start(self) -> None:
        for host in self._hosts:
            peers = FaultProxy((own_address(host), 0), host=host, max_connections=MAX_CONNECTIONS)
            clients = FaultProxy(
                (self._real_socket(host), 0),
                socket_path=str(self._directory / f"{host}.sock"),
                max_connections=MAX_CONNECTIONS,
            )
            for kind, proxy in (("peers", peers), ("clients", clients)):
                self._proxies[Link(host, kind)] = await self._open.enter_async_context(proxy)
            peers.target = (own_address(host), peers.port)

    async def _reset(self, link: Link, *, refusing: bool = False) -> None:
        proxy = self._proxies[link]
        proxy.refusing = refusing
        for connection in proxy.connections:
            connection.reset()
        proxy.connections.clear()

    async def _spoil(self, link: Link, fault: Fault) -> None:
        proxy = self._proxies[link]
        proxy.up = proxy.down = fault
        for direction in self._directions(proxy):
            direction.fault = fault
            if fault.cut is Cut.STALL:
                direction.stop_reading()

    async def _spoil_new(self, link: Link, up: Fault, down: Fault) -> None:
        proxy = self._proxies[link]
        proxy.up, proxy.down = up, down
        await self._reset(link)

    async def _heal(self, link: Link) -> None:
        proxy = self._proxies[link]
        proxy.refusing = False
        proxy.up = proxy.down = Fault()
        for direction in self._directions(proxy):
            direction.fault = Fault()
            direction.resume_reading()

    def _directions(self, proxy: FaultProxy) -> Iterator[Direction]:
        for connection in proxy.connections:
            yield connection.up
            yield connection.down

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(LOOP_TIMEOUT_SECONDS)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LOOP_TIMEOUT_SECONDS)
        self._loop.close()
