"""A network namespace with a way out: what an engine does to links and packet filters stays in it.

An engine in the machine's own namespace would set the policy of forwarded packets to DROP, add
bridges and rules, and publish ports that may be in use.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.commands import ComposeTestFailed, run
from tests.support.host_networks import dotted, enter_network

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETUP_SECONDS = 10
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


@contextmanager
def private_network(name: str) -> Iterator[None]:
    """Run the block, and all processes it starts, in a namespace of its own with an uplink.

    Outgoing packets take the machine's address. At the end link, rules and namespace are gone and
    the forwarding switch is as it was.

    Args:
        name: Names namespace, rules and, cut to what fits, the link; unique on the machine.
    """
    # 198.18.0.0/15 is set aside for tests: a network of four addresses out of it.
    number = os.getpid() % (1 << 14)
    first = (198 << 24) + (18 << 16) + number * 4
    network, outside, inside = (dotted(first + offset) for offset in (0, 1, 2))
    link = f"slc{number}"
    with ExitStack() as undo:
        forwarding = _FORWARDING.read_text()
        undo.callback(_FORWARDING.write_text, forwarding)
        _FORWARDING.write_text("1\n")
        _ip("netns", "add", name)
        undo.callback(_ip, "netns", "delete", name)
        _ip("link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", name)
        undo.callback(_ip, "link", "delete", link)
        _ip("address", "add", f"{outside}/30", "dev", link)
        _ip("link", "set", link, "up")
        for device in ("lo", "uplink"):
            _ip("-n", name, "link", "set", device, "up")
        _ip("-n", name, "address", "add", f"{inside}/30", "dev", "uplink")
        _ip("-n", name, "route", "add", "default", "via", outside)
        table = name.replace("-", "_")
        run(
            [
                "nft",
                f"add table ip {table};"
                f" add chain ip {table} out {{ type nat hook postrouting priority srcnat; }};"
                f" add rule ip {table} out ip saddr {network}/30 masquerade",
            ],
            timeout_seconds=_SETUP_SECONDS,
        )
        undo.callback(run, ["nft", f"delete table ip {table}"], timeout_seconds=_SETUP_SECONDS)
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        undo.callback(os.close, own)
        other = os.open(f"/run/netns/{name}", os.O_RDONLY)
        undo.callback(os.close, other)
        _enter(other)
        undo.callback(_enter, own)
        yield


def _ip(*arguments: str) -> None:
    run(["ip", *arguments], timeout_seconds=_SETUP_SECONDS)


def _enter(descriptor: int) -> None:
    """Move this thread, the only one, into a namespace."""
    try:
        enter_network(descriptor)
    except OSError as error:
        raise ComposeTestFailed(str(error)) from error
