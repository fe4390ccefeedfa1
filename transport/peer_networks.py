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
        networks: Texts such as ``10.0.0.0/8``.
    """

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks = [ipaddress.ip_network(text) for text in networks]

    def permitted(self, name: object, found: list[SocketAddress]) -> list[SocketAddress]:
        """Return the addresses of a host that are in one of the networks.

        The caller connects to these addresses without another lookup, because an attacker's name
        service could answer differently the second time.

        Args:
            name: The host as the client named it; the error does not reveal its addresses.
            found: Its addresses.

        Raises:
            NotPermitted: None of them is.
        """
        inside = [address for address in found if self._contains(address[0])]
        if found and not inside:
            raise NotPermitted(
                "This address is outside auth.peer_networks",
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
