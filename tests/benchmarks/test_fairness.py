"""The benchmark of fairness: greedy loads take what they are greedy for, figures compare shares."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

from benchmarks import fairness
from benchmarks.fairness_applications import rest, work
from benchmarks.fairness_tenant import Application, Load
from sluice.shuffle.taskmanager.bounds.accounts import NO_LIMITS, Resource
from tests.support.mini_cluster import (
    DISK_ONLY,
    MiniCluster,
    eventually,
    mini_cluster,
    network_leftovers,
    until_clean,
)

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = "greedy"
HELD = {
    "segments": (Resource.NETWORK_SEGMENTS, 16),
    "memory_tier": (Resource.MEMORY_TIER_BYTES, 4 << 20),
    "connections": (Resource.CONNECTIONS, 50),
    "open_partitions": (Resource.OPEN_PARTITIONS, 2000),
}
"""Resources that can be held, and an amount that no ordinary application has."""


async def with_load(cluster: MiniCluster, name: str, socket: Path) -> Application:
    """Let an application be greedy until it has taken what it wants; return it at rest."""
    load = fairness.RESOURCES[name].load(2, is_greedy=True)
    application = Application(GREEDY, str(socket))
    working = asyncio.create_task(work(application, load))
    environment = cluster[0]
    account = environment.accounts.of(GREEDY)
    if name in HELD:
        resource, amount = HELD[name]
        await eventually(lambda: account.held[resource] >= amount or working.done())
    elif name == "control_memory":
        used = environment.listener.control_memory
        await eventually(lambda: used.used_bytes >= 1 << 20 or working.done())
    elif name == "data_loop":
        await eventually(lambda: account.held[Resource.CONNECTIONS] > 16 or working.done())
    else:
        await eventually(lambda: application.moved_bytes >= 16 << 20 or working.done())
    assert not working.done(), working
    await rest(application, working)
    return application


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("name", fairness.RESOURCES)
async def test_a_greedy_application_takes_the_resource_and_gives_it_back(tmp_path, name):
    tier = DISK_ONLY if fairness.RESOURCES[name].settings.get("memory_tier_bytes") else 8 << 20
    socket = tmp_path / "s"
    async with mini_cluster(
        tmp_path, 1, socket_path=socket, memory_tier_bytes=tier, segment_size_bytes=32768
    ) as cluster:
        application = await with_load(cluster, name, socket)
        assert not application.errors or name == "memory_tier"
        await until_clean(cluster[0], network_leftovers)
        assert not any(cluster[0].accounts.of(GREEDY).held)


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize(
    "load", [Load(window=3), Load(reconnects=True, part_bytes=16, parts=2000)], ids=str
)
async def test_an_ordinary_application_counts_what_it_moves(tmp_path, load):
    socket = tmp_path / "s"
    async with mini_cluster(tmp_path, 1, socket_path=socket) as cluster:
        application = Application("ordinary", str(socket))
        working = asyncio.create_task(work(application, load))
        size = load.part_bytes * load.parts
        await eventually(lambda: application.moved_bytes >= 10 * size)
        assert application.moved_bytes % size == 0
        await rest(application, working)
        assert not application.errors
        await until_clean(cluster[0], network_leftovers)
        await eventually(lambda: not any(cluster[0].accounts.of("ordinary").held))


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_an_ordinary_application_counts_refusals_and_goes_on(tmp_path):
    socket = tmp_path / "s"
    async with mini_cluster(tmp_path, 1, socket_path=socket) as cluster:
        application = Application("ordinary", str(socket))
        accounts = cluster[0].accounts
        accounts.set_limits(lambda *_: tuple(each != Resource.CONNECTIONS for each in Resource))
        working = asyncio.create_task(work(application, Load()))
        await eventually(lambda: application.errors)
        assert application.moved_bytes == 0
        accounts.set_limits(lambda *_: NO_LIMITS)
        await eventually(lambda: application.moved_bytes)
        await rest(application, working)
        assert set(application.errors) == {"QUOTA_EXCEEDED"}


@pytest.mark.extended
def test_a_resource_is_measured_in_processes_of_its_own(monkeypatch):
    plan = fairness.Plan(rounds=1, seconds=0.1, numbers=[2])
    monkeypatch.setattr(fairness, "SETTLE_SECONDS", 0.1)
    runs = uvloop.run(fairness.measure_all([fairness.RESOURCES["memory_tier"]], plan))
    figures = fairness.report_of(runs).figures
    assert figures["innocent_errors"] == 0
    assert figures["memory_tier_share"] == figures["smallest_share"] >= 0
    assert figures["memory_tier_p99_over_quiet"] == figures["innocent_p99"] > 0
    (probe, shares, errors) = runs
    assert probe["quiet_exchanges"] > 0
    assert (len(shares["shares"]), errors["errors"]) == (1, {})


def a_run(resource: str, equal: list[float], shares: list[float]) -> dict[str, object]:
    return {
        "resource": resource,
        "applications": len(shares) + 1,
        "equal_shares": equal,
        "shares": shares,
    }


def test_nothing_is_a_figure_where_equal_applications_did_nothing() -> None:
    with pytest.raises(RuntimeError, match="segments: equal applications have done nothing"):
        fairness.report_of([a_run("segments", [0.0], [1.0])])
