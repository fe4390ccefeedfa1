"""The forms of ``spark.sluice.endpoints``: addresses, names in the DNS, and patterns of sockets."""

from __future__ import annotations

import asyncio
import glob
import re
import socket
from pathlib import Path
from typing import Final

from ..transport.address import MAX_PORT, Address, InvalidAddress

DNS: Final = "dns:"
UNIX: Final = "unix:"
DATA_PORT: Final = 7337
"""Data port of a TaskManager by default."""
MAX_CHECKED: Final = 16
"""Maximum number of addresses of a name that are checked; the driver uses all of them."""

_LABEL: Final = r"[A-Za-z0-9_-]+"
_NAME: Final = re.compile(
    rf"dns:(?!-)(?P<name>{_LABEL}(?:\.{_LABEL})*\.?)(?::(?P<port>\d{{1,9}}))?"
)
_MAX_NAME_BYTES: Final = 253
_ADDRESS: Final = re.compile(r"[0-9.]+")
_FURTHER_PROCESS: Final = re.compile(r"(?P<first>.+)\.[1-9][0-9]{0,2}")


def check_form(text: str) -> None:
    """Check an endpoint as the plugin does.

    Raises:
        InvalidAddress: It has none of the forms.
    """
    if text.startswith(DNS):
        _name_and_port(text)
    elif text.startswith(UNIX) and glob.has_magic(text):
        directory = text.rpartition("/")[0]
        if not text.startswith("unix:/") or glob.has_magic(directory):
            raise InvalidAddress(
                "The pattern of sockets is not valid",
                value=text,
                remedy="Write an absolute path with a wildcard after its last slash only, such as "
                "unix:/run/sluice/*.sock",
            )
    else:
        Address.parse(text)


def _name_and_port(text: str) -> tuple[str, int]:
    found = _NAME.fullmatch(text)
    port = DATA_PORT if found is None or found["port"] is None else int(found["port"])
    if (
        found is None
        or len(found["name"]) > _MAX_NAME_BYTES
        or _ADDRESS.fullmatch(found["name"])
        or not 0 < port <= MAX_PORT
    ):
        raise InvalidAddress(
            "The name of TaskManagers is not valid",
            value=text,
            limit=f"a host name of at most {_MAX_NAME_BYTES} characters, and a port from 1 to "
            f"{MAX_PORT}",
            remedy="Write dns:NAME or dns:NAME:PORT, and an address as HOST:PORT",
        )
    return found["name"], port


async def expand(text: str) -> list[Address]:
    """Return some of the addresses that an endpoint stands for now.

    Raises:
        InvalidAddress: It has none of the forms.
        OSError: The name has no address, or no socket matches.
    """
    check_form(text)
    if text.startswith(DNS):
        name, port = _name_and_port(text)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        hosts = dict.fromkeys(str(address[0]) for *_, address in found)
        return [Address(host, port) for host in [*hosts][:MAX_CHECKED]]
    if text.startswith(UNIX) and glob.has_magic(text):
        sockets = [path for path in sorted(glob.glob(text.removeprefix(UNIX))) if _is_first(path)]
        if not sockets:
            raise FileNotFoundError(f"no socket matches {text}")
        return [Address.parse(UNIX + path) for path in sockets[:MAX_CHECKED]]
    return [Address.parse(text)]


def _is_first(path: str) -> bool:
    """Return whether a path is a socket, and not that of a further data process."""
    further = _FURTHER_PROCESS.fullmatch(path)
    return Path(path).is_socket() and not (further and Path(further["first"]).is_socket())
