"""One connection per peer, shared by all its users (T3, T4 of the acceptance table).

Concurrent first users share one attempt; a failed attempt is not kept; the last user closes the
connection; a user that meets a closing connection gets a fresh one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from transport.connector import Address


class Client(Protocol):
    """What a pool keeps: something that speaks on one connection."""

    @property
    def closing(self) -> bool:
        """True once it can take no new user."""

    def close(self) -> None:
        """Close the connection; idempotent."""


C = TypeVar("C", bound=Client)

PoolKey = tuple[Address, int]


class _Entry(Generic[C]):
    __slots__ = ("client", "task", "users")

    def __init__(self, task: "asyncio.Task[C]") -> None:
        self.task = task
        self.client: C | None = None
        self.users = 0


class ConnectionPool(Generic[C]):
    """Shares clients by address.

    Args:
        factory: Makes a client; its errors go to every user that waits for it.
        connections_per_peer: How many connections the users of an address are spread over.
    """

    def __init__(
        self, factory: Callable[[Address], Awaitable[C]], connections_per_peer: int = 1
    ) -> None:
        self._factory = factory
        self._connections_per_peer = connections_per_peer
        self._entries: dict[PoolKey, _Entry[C]] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._entries)

    def clients(self) -> list[C]:
        """Return the connected clients, for status."""
        return [entry.client for entry in self._entries.values() if entry.client is not None]

    async def acquire(self, address: Address) -> C:
        """Return a connected client for an address; give it back with :meth:`release`.

        Raises:
            SluiceError: The shared attempt failed.

        Cancellation: safe. The attempt goes on for the other waiters; without any it is cancelled.
        """
        self._turn += 1
        key = (address, self._turn % self._connections_per_peer)
        entry = self._entries.get(key)
        if entry is not None and entry.client is not None and entry.client.closing:
            entry = None
        if entry is None:
            entry = _Entry(asyncio.ensure_future(self._make(address)))
            self._entries[key] = entry
        entry.users += 1
        try:
            # shield: one user's cancellation must not end the attempt of the others
            client = await asyncio.shield(entry.task)
        except BaseException:
            self._leave(key, entry)
            raise
        entry.client = client
        return client

    def release(self, address: Address, client: C) -> None:
        """Give a client back; the last user closes it."""
        for index in range(self._connections_per_peer):
            key = (address, index)
            entry = self._entries.get(key)
            if entry is not None and entry.client is client:
                self._leave(key, entry)
                return
        # The entry was replaced because the client was closing: its users count no more.
        client.close()

    def close(self) -> None:
        """Close every connection and give up every attempt."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            entry.task.cancel()
            if entry.client is not None:
                entry.client.close()

    async def _make(self, address: Address) -> C:
        return await self._factory(address)

    def _leave(self, key: PoolKey, entry: _Entry[C]) -> None:
        entry.users -= 1
        if entry.users > 0 and not (entry.task.done() and entry.client is None):
            return
        if self._entries.get(key) is entry:
            del self._entries[key]
        if not entry.task.done():
            entry.task.cancel()
        elif entry.client is not None:
            entry.client.close()
        elif not entry.task.cancelled() and entry.task.exception() is None:
            entry.task.result().close()  # connected for users that had all been cancelled
