"""Texts of hosts and ports: brackets around an IPv6 address separate it from the port."""

import ipaddress
from collections.abc import Iterable
from typing import Final

ANY_FAMILY: Final = "*"
"""Host to listen on: every address of this host, of IPv4 and of IPv6."""

_MAX_PORT: Final = (1 << 16) - 1


def host_port(host: str, port: int) -> str:
    """Return ``node-1:7337``, ``10.0.0.1:7337`` or ``[2001:db8::1]:7337``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_ports(hosts: Iterable[str], port: int) -> str:
    """Return the texts of several hosts with the same port."""
    return ", ".join(host_port(host, port) for host in hosts)


def split_host_port(text: str) -> tuple[str, int] | None:
    """Return host, without brackets, and port of a text; None if one is missing.

    The host may be an IPv6 address without brackets: the port follows the last colon.
    """
    host, _, port = text.rpartition(":")
    host = without_brackets(host)
    if not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        return None
    return host, int(port)


def without_brackets(host: str) -> str:
    """Return a host without the brackets that an IPv6 address may have."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_loopback(host: str) -> bool:
    """Return whether a host is an address of the loopback, or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def is_every_address(host: str) -> bool:
    """Return whether a host to listen on stands for every address, of one family or of both."""
    if host == ANY_FAMILY:
        return True
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False
