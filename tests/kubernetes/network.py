"""Networks of a cluster: control plane and nodes are on a switch, pods are behind nodes."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.compose.commands import run
from tests.compose.namespace import private_network

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL_ADDRESS = "198.19.0.1"
"""Address of the control plane. 198.18.0.0/15 is reserved for tests."""
PODS = "198.19.128.0/17"
"""Addresses of all pods."""
SERVICES = "198.19.64.0/20"
"""Addresses of services."""
DNS_ADDRESS = "198.19.64.10"
_SWITCH = "cluster"
_SETUP_SECONDS = 10


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The network namespace of a node."""

    name: str
    """Name of the namespace, below ``/run/netns``."""
    address: str
    pods: str
    """Addresses of its pods."""


@contextmanager
def cluster_network(name: str, nodes: int) -> Iterator[list[NodeNetwork]]:
    """Run the block, and what it starts, in the network of the control plane.

    Namespaces, links and routes are gone at the end. Nothing of it is in the machine's own network,
    so addresses and ports are always the same.

    Args:
        name: Prefix of the namespaces' names; unique on the machine.
        nodes: How many nodes to make, at most 9.
    """
    networks = [
        NodeNetwork(f"{name}-{number}", f"198.19.0.{10 + number}", f"198.19.{128 + number}.0/24")
        for number in range(1, nodes + 1)
    ]
    with private_network(name), ExitStack() as undo:
        _ip("link", "add", _SWITCH, "type", "bridge")
        undo.callback(_ip, "link", "delete", _SWITCH)
        _ip("address", "add", f"{CONTROL_ADDRESS}/24", "dev", _SWITCH)
        _ip("link", "set", _SWITCH, "up")
        for number, node in enumerate(networks):
            _ip("netns", "add", node.name)
            undo.callback(_ip, "netns", "delete", node.name)
            link = f"node{number}"
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", node.name)
            _ip("link", "set", link, "master", _SWITCH, "up")
            _ip("-n", node.name, "address", "add", f"{node.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", node.name, "link", "set", device, "up")
            _ip("-n", node.name, "route", "add", "default", "via", CONTROL_ADDRESS)
            forwarding = "echo 1 >/proc/sys/net/ipv4/ip_forward"
            _ip("netns", "exec", node.name, "sh", "-c", forwarding)
            _ip("route", "add", node.pods, "via", node.address)
            for other in networks[:number]:
                _ip("-n", node.name, "route", "add", other.pods, "via", other.address)
                _ip("-n", other.name, "route", "add", node.pods, "via", node.address)
        yield networks


def _ip(*arguments: str) -> None:
    run(["ip", *arguments], timeout_seconds=_SETUP_SECONDS)
