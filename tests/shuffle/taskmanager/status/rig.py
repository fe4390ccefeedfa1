"""The waits of a running TaskManager, as its status has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.shuffle.taskmanager.status.waits import waits_of
from sluice.shuffle.wait_status import WAIT_KINDS

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from sluice.shuffle.wait_status import WaitParty, WaitStatus
    from tests.support.mini_cluster import MiniCluster


def waits(cluster: MiniCluster, index: int = 0) -> list[WaitStatus]:
    """Return the waits of a TaskManager."""
    return waits_at(cluster[index])


def waits_at(environment: NetworkEnvironment) -> list[WaitStatus]:
    found, _ = waits_of(environment)
    for each in found:
        assert each.text
        assert each.remedy
        assert {each.waiter.kind, each.resource.kind} <= set(WAIT_KINDS)
        assert each.resource.name
        assert each.taskmanager_id == environment.taskmanager_id
    return list(found)


def pairs(cluster: MiniCluster, index: int = 0) -> set[tuple[str, str]]:
    """Return the kinds of waiter and resource of each wait."""
    return {(each.waiter.kind, each.resource.kind) for each in waits(cluster, index)}


def wait_of(cluster: MiniCluster, waiter: str, resource: str, index: int = 0) -> WaitStatus:
    """Return the one wait between two kinds."""
    (found,) = [
        each
        for each in waits(cluster, index)
        if (each.waiter.kind, each.resource.kind) == (waiter, resource)
    ]
    return found


def causes(found: list[WaitStatus], first: WaitParty) -> set[WaitParty]:
    """Return everything that a waiter waits for, and what that waits for in turn."""
    reached = {first}
    while True:
        more = {each.resource for each in found if each.waiter in reached} | reached
        if more == reached:
            return reached - {first}
        reached = more
