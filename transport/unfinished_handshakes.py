"""Accepted connections in their handshake, and which of them makes room for another.

A stranger can open any number of connections and leave them idle. So at the limit no connection is
kept out: the address that has the most of them loses the one that has waited longest. Connections
from other addresses stay. A good client at the stranger's address has as long for its handshake as
the stranger needs to open that many connections.
"""

import ipaddress
from collections.abc import Iterator
from typing import Final

from .connection import UNKNOWN, Connection

NETWORK_BITS: Final = 64
"""Bits of an IPv6 address that name a network: one host may have all addresses in it."""


class UnfinishedHandshakes:
    """The connections of one listening socket that are in their handshake."""

    def __init__(self) -> None:
        self._new: dict[Connection, None] = {}
        """Connections whose source has not been looked at."""
        self._sources: dict[Connection, str] = {}
        self._by_source: dict[str, dict[Connection, None]] = {}
        """The other connections, in the order in which they came."""

    def __len__(self) -> int:
        return len(self._new) + len(self._sources)

    def __iter__(self) -> Iterator[Connection]:
        yield from self._new
        yield from self._sources

    def __contains__(self, connection: object) -> bool:
        return connection in self._new or connection in self._sources

    def add(self, connection: Connection) -> None:
        """Add a connection."""
        self._new[connection] = None

    def discard(self, connection: Connection) -> None:
        """Remove a connection, if it is here."""
        self._new.pop(connection, None)
        source = self._sources.pop(connection, None)
        if source is not None:
            of_source = self._by_source[source]
            del of_source[connection]
            if not of_source:
                del self._by_source[source]

    def longest(self) -> Connection | None:
        """Return the oldest connection of the source that has the most.

        None if as many are starting, whose sources are known in the next turn of the event loop: an
        innocent one could be the only one that is known.

        Its time grows with the number of sources, not of connections.
        """
        for connection in [each for each in self._new if each.remote != UNKNOWN]:
            del self._new[connection]
            source = self._sources[connection] = source_of(connection.remote)
            self._by_source.setdefault(source, {})[connection] = None
        largest = max(self._by_source.values(), key=len, default=None)
        if largest is None or len(largest) <= len(self._new):
            return None
        return next(iter(largest))


def source_of(remote: str) -> str:
    """Return the part of ``host:port`` that names a source: the host, or its network of IPv6."""
    host = remote.rpartition(":")[0]
    if not host.startswith("["):
        return host
    address = ipaddress.ip_address(host[1:-1].partition("%")[0])
    return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))
