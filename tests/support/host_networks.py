"""Network namespaces for two hosts on one machine: each has a loopback and interface of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.cluster import WORKER_HOSTS

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
_SETUP_SECONDS = 10
_LINK = "host"
"""Name of the interface in each namespace."""


@dataclass(frozen=True, slots=True)
class HostNetworks:
    """Two hosts.

    Attributes:
        hosts: Their addresses.
        wrapper: Program and arguments that run the command that follows them on a host, whose
            address replaces ``{host}``; empty if the hosts share the loopback.
        problem: Why they share the loopback, and what to do about it; empty if they do not.
    """

    hosts: tuple[str, ...] = WORKER_HOSTS
    wrapper: tuple[str, ...] = ()
    problem: str = ""


@contextmanager
def host_networks() -> Iterator[HostNetworks]:
    """Make two hosts, and run the block on the first one: this thread, and what it starts.

    At the end this thread is back, and links and namespaces are gone. If namespaces cannot be made
    here, the hosts are two addresses of the loopback.
    """
    # 198.18.0.0/15 is set aside for tests: a network of four addresses out of it.
    number = os.getpid() % (1 << 14)
    first = (198 << 24) + (18 << 16) + number * 4
    hosts = dotted(first + 1), dotted(first + 2)
    with ExitStack() as undo:
        try:
            _connect(hosts, undo)
        except (OSError, subprocess.SubprocessError) as error:
            undo.close()
            reason = (getattr(error, "stderr", None) or str(error)).strip()
            found = HostNetworks(
                problem=f"the hosts share the loopback, because network namespaces cannot be made: "
                f"{reason}. Run as root, with iproute2 and nsenter, to separate them"
            )
        else:
            found = HostNetworks(hosts, ("nsenter", f"--net={_path('{host}')}", "--"))
        yield found


def _connect(hosts: tuple[str, str], undo: ExitStack) -> None:
    """Make both namespaces and a link between them, and enter the first one."""
    subprocess.run(["nsenter", "--version"], check=True, capture_output=True, text=True)
    names = [_name(host) for host in hosts]
    for name in names:
        _ip("netns", "add", name)
        undo.callback(_ip, "netns", "delete", name)
    _ip("-n", names[0], "link", "add", _LINK, "type", "veth", "peer", _LINK, "netns", names[1])
    for host, name in zip(hosts, names, strict=True):
        _ip("-n", name, "address", "add", f"{host}/30", "dev", _LINK)
        for device in ("lo", _LINK):
            _ip("-n", name, "link", "set", device, "up")
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    undo.callback(os.close, own)
    other = os.open(_path(hosts[0]), os.O_RDONLY)
    undo.callback(os.close, other)
    enter_network(other)
    undo.callback(enter_network, own)


def enter_network(descriptor: int) -> None:
    """Move this thread into a network namespace (os.setns comes with Python 3.12).

    Raises:
        OSError: It may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the network namespace cannot be entered: {os.strerror(number)}")


def dotted(address: int) -> str:
    """Return an address in its usual form."""
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


def _name(host: str) -> str:
    return f"sluice-{host}"


def _path(host: str) -> str:
    return f"/run/netns/{_name(host)}"


def _ip(*arguments: str) -> None:
    subprocess.run(
        ["ip", *arguments], check=True, capture_output=True, text=True, timeout=_SETUP_SECONDS
    )
