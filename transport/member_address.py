"""Where other TaskManagers are: an address, or a DNS name with several addresses."""

import re
from typing import Final, NamedTuple

from .address import MAX_PORT, Address, InvalidAddress

DNS: Final = "dns:"
DATA_PORT: Final = 7337
"""Default data port of a TaskManager."""
MAX_NAME_BYTES: Final = 253
"""Longest name in the DNS."""
_LABEL: Final = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME: Final = re.compile(
    rf"(?![0-9.]+(?::|$))(?P<name>{_LABEL}(?:[.]{_LABEL})*[.]?)(?::(?P<port>[0-9]{{1,9}}))?"
)


class DnsName(NamedTuple):
    """A DNS name whose addresses are all TaskManagers, such as a headless service."""

    name: str
    port: int

    @property
    def host(self) -> str:
        """The host that the certificates of its addresses must name."""
        return self.name.rstrip(".")

    def __str__(self) -> str:
        return f"{DNS}{self.name}:{self.port}"


def parse_member(text: str) -> Address | DnsName:
    """Read where other TaskManagers are: ``HOST:PORT``, or ``dns:NAME`` with or without a port.

    Raises:
        InvalidAddress: It is neither.
    """
    if not text.startswith(DNS):
        address = Address.parse(text)
        if not address.port:
            raise InvalidAddress(
                "A Unix socket is not the address of another host",
                value=text,
                remedy="Write HOST:PORT, or dns:NAME for all addresses of a name",
            )
        return address
    found = _DNS_NAME.fullmatch(text.removeprefix(DNS))
    port = DATA_PORT if found is None or found["port"] is None else int(found["port"])
    if found is None or len(found["name"]) > MAX_NAME_BYTES or not 0 < port <= MAX_PORT:
        raise InvalidAddress(
            "The name of TaskManagers is not valid",
            value=text,
            limit=f"at most {MAX_NAME_BYTES} letters, digits, - _ and ., at most 63 between two "
            f"dots, and a port 1 to {MAX_PORT}",
            remedy="Write dns:NAME or dns:NAME:PORT, such as dns:sluice.default.svc:7337, and an "
            "address as HOST:PORT",
        )
    return DnsName(found["name"], port)
