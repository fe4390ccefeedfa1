"""Shares one connection per peer, or a few, among all its users.

Concurrent first users share one attempt, and a failed attempt is not kept. An unused connection is
kept for a while: gates open and close every second, and each handshake would cost latency, and with
TLS CPU time. A user that finds a closing connection gets a new one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from .address import Address
from .errors import ConnectFailed
from .loop import start_task


class Client(Protocol):
    """Speaks on one connection; a pool keeps such objects."""

    @property
    def closing(self) -> bool:
        """True once it cannot accept a new user."""

    def close(self) -> None:
        """Close the connection; idempotent."""


C = TypeVar("C", bound=Client)

PoolKey = tuple[Address, int]


class _PooledConnection(Generic[C]):
    """An attempt and, after it succeeds, its client."""

    __slots__ = ("client", "expiry", "key", "task", "users")

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self.task: asyncio.Task[C] | None = None
        self.client: C | None = None
        self.expiry: asyncio.TimerHandle | None = None
        """Closes the client; set while the client has no users."""
        self.users = 0


class ConnectionPool(Generic[C]):
    """Shares clients by address.

    Args:
        factory: Makes a client; every user that waits for the client gets its errors.
        connections_per_peer: Number of connections that the users of an address share.
        idle_timeout_seconds: Time for which a client without users is kept; 0 closes it after its
            last user.
    """

    def __init__(
        self,
        factory: Callable[[Address], Awaitable[C]],
        connections_per_peer: int = 1,
        idle_timeout_seconds: float = 0,
    ) -> None:
        self._factory = factory
        self._connections_per_peer = connections_per_peer
        self._idle_timeout_seconds = idle_timeout_seconds
        self._entries: dict[PoolKey, _PooledConnection[C]] = {}
        self._retired: set[_PooledConnection[C]] = set()
        """Entries that get no new users."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    @property
    def _all(self) -> list[_PooledConnection[C]]:
        return [*self._entries.values(), *self._retired]

    def clients(self, address: Address | None = None) -> list[C]:
        """Return the connected clients, including idle ones: all, or those of an address."""
        return [
            entry.client
            for entry in self._all
            if entry.client is not None
            and not entry.client.closing
            and address in (None, entry.key[0])
        ]

    def connects(self, address: Address) -> bool:
        """Return whether the next user of an address starts a new attempt to connect to it."""
        return any(self._is_free((address, index)) for index in range(self._connections_per_peer))

    async def acquire(self, address: Address) -> C:
        """Return a connected client for an address; pass it to :meth:`release` later.

        Raises:
            SluiceError: The shared attempt failed, or the pool is closed.

        Cancellation: safe. The attempt continues for other waiters; without them it is canceled.
        """
        if self._closed:
            raise _pool_closed(address)
        entry = self._entry(address)
        entry.users += 1
        if entry.expiry is not None:
            entry.expiry.cancel()
            entry.expiry = None
        if entry.client is not None:
            return entry.client
        if entry.task is None:
            entry.task = start_task(self._make(entry))
        try:
            # shield: one user's cancellation must not end the attempt of the others
            return await asyncio.shield(entry.task)
        except BaseException as error:
            self._leave(entry)
            if isinstance(error, asyncio.CancelledError):
                user = asyncio.current_task()
                if user is not None and not user.cancelling():
                    # close() canceled the attempt, not this user.
                    raise _pool_closed(address) from None
            raise

    def retire(self) -> None:
        """Connect anew for new users; each connection is closed after its last present user."""
        for entry in list(self._entries.values()):
            if entry.expiry is not None:
                entry.expiry.cancel()
            if entry.users == 0:
                self._drop(entry)
            else:
                self._forget(entry)
                self._retired.add(entry)

    def release(self, address: Address, client: C) -> None:
        """Release a client; after its last user it is closed when it times out."""
        named = [self._entries.get((address, index)) for index in range(self._connections_per_peer)]
        for entry in (*named, *self._retired):
            if entry is not None and entry.client is client:
                self._leave(entry)
                return
        # The entry was replaced because the client was closing: its users no longer count.
        client.close()

    def close(self) -> None:
        """Close all connections, cancel all attempts; :meth:`acquire` then raises."""
        self._closed = True
        entries = self._all
        self._entries.clear()
        self._retired.clear()
        for entry in entries:
            if entry.expiry is not None:
                entry.expiry.cancel()
            if entry.task is not None:
                entry.task.cancel()
            if entry.client is not None:
                entry.client.close()

    def _entry(self, address: Address) -> _PooledConnection[C]:
        """Return the address's entry with the fewest users, preferably a new one."""
        best: _PooledConnection[C] | None = None
        for index in range(self._connections_per_peer):
            key = (address, index)
            entry = self._entries.get(key)
            if entry is None or self._is_free(key):
                if entry is not None and entry.expiry is not None:
                    entry.expiry.cancel()  # it was idle when the other side closed it
                entry = self._entries[key] = _PooledConnection(key)
            if entry.users == 0:
                return entry
            if best is None or entry.users < best.users:
                best = entry
        if best is None:
            raise ValueError(f"connections_per_peer is {self._connections_per_peer}, at least 1")
        return best

    def _is_free(self, key: PoolKey) -> bool:
        """Return whether a place of the pool has neither a client nor an attempt."""
        entry = self._entries.get(key)
        return entry is None or (entry.client is not None and entry.client.closing)

    async def _make(self, entry: _PooledConnection[C]) -> C:
        try:
            # Set here, not by the waiters: a user that comes before they run must see it.
            entry.client = client = await self._factory(entry.key[0])
        except BaseException:
            self._forget(entry)
            raise
        if self._entries.get(entry.key) is not entry and entry not in self._retired:
            client.close()  # the last waiter left, or the pool was closed, in this turn
        return client

    def _leave(self, entry: _PooledConnection[C]) -> None:
        entry.users -= 1
        if entry.users > 0:
            return
        client = entry.client
        if (
            client is not None
            and not client.closing
            and self._idle_timeout_seconds > 0
            and self._entries.get(entry.key) is entry
        ):
            entry.expiry = asyncio.get_running_loop().call_later(
                self._idle_timeout_seconds, self._drop, entry
            )
            return
        self._drop(entry)

    def _drop(self, entry: _PooledConnection[C]) -> None:
        """Close a client without users, or cancel an attempt without waiters."""
        self._forget(entry)
        if entry.client is not None:
            entry.client.close()
        elif entry.task is not None:
            entry.task.cancel()

    def _forget(self, entry: _PooledConnection[C]) -> None:
        self._retired.discard(entry)
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]


def _pool_closed(address: Address) -> ConnectFailed:
    return ConnectFailed(
        f"No connection to {address} can be made", remedy="This process is shutting down"
    )
