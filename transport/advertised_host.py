"""Finds the host name or address to advertise.

Some distributions map the host's own name to 127.0.1.1 (``/etc/hosts``). If a TaskManager
advertised such a name, other hosts would connect to themselves. Spark then uses the address of a
network interface. This module does too, so that both use the same address.
"""

import asyncio
import ipaddress
import logging
import socket
from typing import Final

from .address import is_every_address, is_loopback
from .config import LOOPBACK, TransportConfig
from .name_lookup import look_up

logger = logging.getLogger(__name__)

_LOOKUP_SECONDS: Final = 5.0
"""Timeout of the name service; the host's own name usually comes from a file."""

_ELSEWHERE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation, which this host does not have. Nothing is sent to them."""


async def with_advertised_host(config: TransportConfig) -> TransportConfig:
    """Return settings with ``advertised_host`` filled in.

    It is the configured ``advertised_host``, or the address or name that the data port listens on,
    or this host's name. If a name resolves to the loopback on this host, a warning is logged. For
    this host's own name, the address of the interface that reaches other hosts is used instead.

    Cancellation: safe.
    """
    host = config.reachable_host()
    return config.model_copy(update={"advertised_host": await _checked(host, config)})


async def _checked(host: str, config: TransportConfig) -> str:
    if _is_address(host) or is_loopback(host):
        return host
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            found = [address for address, _ in await look_up(host, 0)]
    except (OSError, TimeoutError) as error:
        logger.warning(
            "the advertised name %s cannot be resolved on this host: %s; set advertised_host to a "
            "name or address that other hosts can reach",
            host,
            str(error) or f"no answer within {_LOOKUP_SECONDS:g} s",
        )
        return host
    if not all(is_loopback(address) for address in found):
        return host
    listened = config.bind_host or (LOOPBACK,)
    if config.advertised_host is not None or not any(map(is_every_address, listened)):
        logger.warning(
            "%s resolves to %s on this host, which no other host can reach; unless other hosts "
            "resolve it to another address, correct advertised_host or the name service",
            host,
            ", ".join(found),
        )
        return host
    own = _own_address(listened)
    logger.warning(
        "the host's name %s resolves to %s here, which no other host can reach; advertising %s "
        "instead: set advertised_host to the name or address under which others reach this host",
        host,
        ", ".join(found),
        own or f"{LOOPBACK}, as no network interface leads to others",
    )
    return own or LOOPBACK


def _own_address(listened: tuple[str, ...]) -> str | None:
    """Return the address of the interface that reaches other hosts, if listened on."""
    families = [socket.AF_INET6] if listened == ("::",) else [socket.AF_INET, socket.AF_INET6]
    if listened == ("0.0.0.0",):
        families = [socket.AF_INET]
    for family in families:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((_ELSEWHERE[family], 9))  # chooses a route; sends nothing
                address = str(probe.getsockname()[0])
        except OSError:
            continue
        if not is_loopback(address):
            return address
    return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
