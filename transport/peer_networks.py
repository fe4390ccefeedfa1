"""The networks in which clients may name TaskManagers to connect to."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from ..protocol.errors import NotPermitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .name_lookup import SocketAddress


class PeerNetworks:
    """A list of networks; an empty one permits every address.

    Args:
        networks: In the form of ``10.0.0.0/8``.
    """

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks = [ipaddress.ip_network(text) for text in networks]

    def permitted(self, name: object, found: list[SocketAddress]) -> list[SocketAddress]:
        """Return those of a host's addresses that lie in one of the networks.

        The caller connects to these addresses and does not look the name up again: the name
        service, which may be the attacker's, cannot answer differently in between.

        Args:
            name: The host as the client named it; the error does not tell its addresses.
            found: Its addresses.

        Raises:
            NotPermitted: There is none.
        """
        inside = [address for address in found if self._contains(address[0])]
        if found and not inside:
            raise NotPermitted(
                "No TaskManager may be read from at this address",
                reason="foreign network",
                value=name,
                limit="auth.peer_networks",
                remedy="Add its network to auth.peer_networks of the TaskManager that reads",
            )
        return inside

    def _contains(self, host: str) -> bool:
        if not self._networks:
            return True
        address = ipaddress.ip_address(host)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)
