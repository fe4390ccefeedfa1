"""Addresses of TaskManagers and their text form, with the same rules everywhere.

A client's endpoint, ``[cluster]`` and the settings of Spark and the plugin accept ``HOST:PORT``,
with brackets around an IPv6 address, and ``unix:/PATH`` where a socket is allowed.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from ..protocol.errors import ErrorCode, SluiceError

ANY_FAMILY: Final = "*"
"""Host to listen on: every IPv4 and IPv6 address of this host."""

MAX_SOCKET_PATH_BYTES: Final = 107
"""Longest path of a Unix socket: ``sun_path`` has 108 bytes on Linux, with a final zero."""

MAX_PORT: Final = (1 << 16) - 1
UNIX: Final = "unix:"
# Without brackets an IPv6 address would look like a host with two ports.
_HOST_PORT: Final = re.compile(
    r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,9})"
)


class InvalidAddress(SluiceError):
    """The text is neither ``HOST:PORT`` nor ``unix:/PATH``."""

    code = ErrorCode.CONFIGURATION


class Address(NamedTuple):
    """The address of a TaskManager: host and port, or (port 0) path of a Unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port) if self.port else f"{UNIX}{self.host}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read an address from its text.

        Raises:
            InvalidAddress: It is neither ``HOST:PORT`` nor ``unix:/PATH``.
        """
        if text.startswith(UNIX):
            path = text.removeprefix(UNIX)
            if path.startswith("/") and len(path.encode()) <= MAX_SOCKET_PATH_BYTES:
                return cls(path, 0)
            raise InvalidAddress(
                "The path of a socket is not usable",
                value=text,
                limit=f"absolute, at most {MAX_SOCKET_PATH_BYTES} bytes",
                remedy="Write unix:/PATH",
            )
        found = _HOST_PORT.fullmatch(text)
        if found is None or not 0 < int(found["port"]) <= MAX_PORT:
            raise InvalidAddress(
                "An address has no host or no port",
                value=text,
                limit="port 1 to 65535, an IPv6 address in brackets",
                remedy="Write HOST:PORT, such as tm1:7337 or [2001:db8::1]:7337, or unix:/PATH",
            )
        return cls(found["ipv6"] or found["host"], int(found["port"]))


def host_port(host: str, port: int) -> str:
    """Return ``node-1:7337``, ``10.0.0.1:7337`` or ``[2001:db8::1]:7337``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_ports(hosts: Iterable[str], port: int) -> str:
    """Return the texts of several hosts with the same port."""
    return ", ".join(host_port(host, port) for host in hosts)


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
    """Return whether a host to listen on means all addresses of one or both families."""
    if host == ANY_FAMILY:
        return True
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False
