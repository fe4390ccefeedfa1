"""An innocent application beside each attack gets no error, all its bytes, and keeps its rates.

``make test`` checks the errors and the bytes. ``make attack`` also compares rates, with those at
another TaskManager that nobody attacks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.attack import innocents
from tests.attack.innocents import hellos_of_producers, starts_that_cannot_work
from tests.attack.rates import (
    EXCHANGES,
    LONGEST_SECONDS,
    RECORDS,
    ROUNDS,
    Attack,
    Side,
    is_served_beside,
    keeps_its_rate,
)
from tests.attack.rig import (
    ALICE,
    BOB,
    Application,
    AttackedDaemon,
    Cluster,
    application,
    commit,
    new_name,
    read,
)
from tests.support.daemon import SLUICE, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
with_rates = pytest.mark.skipif(not ROUNDS, reason="make attack compares rates")
pytestmark = pytest.mark.timeout(LONGEST_SECONDS)


@one_loop
@pytest.mark.parametrize(
    "attack",
    [
        innocents.claims,
        innocents.unread_pongs,
        innocents.announced_regions,
        innocents.full_store,
        innocents.unread_gates,
        innocents.idle_disk_writers,
        innocents.pipelined_without_reader,
        innocents.half_requests,
        innocents.flood,
        innocents.open_partitions,
        innocents.failed_handshakes,
    ],
    ids=lambda attack: attack.__name__,
)
async def test_an_innocent_application_is_served_beside(
    cluster: Cluster,
    victim: Application,
    secret_file: Path,
    attack: Callable[[AttackedDaemon, Application], Attack],
) -> None:
    going_on = attack(cluster.first, application(BOB, new_name()))
    await is_served_beside(attack.__name__, going_on, cluster, victim, secret_file)


@one_loop
@with_rates
async def test_readers_of_a_draining_taskmanager_keep_their_rate(
    start, secret_file, tmp_path, cluster, victim
):
    daemon = start(tmp_path, cluster_secret_files=secret_file)
    owner = application(ALICE, new_name())
    for each in (daemon, cluster.second):
        await commit(each.address, owner, 1, RECORDS)
    drain = [str(SLUICE), "drain", daemon.url, "--secret-file", str(secret_file)]
    drained = await asyncio.to_thread(run, drain)
    assert drained.returncode == 0, drained.stderr

    def reads(daemon: AttackedDaemon) -> Side:
        async def work() -> None:
            for _ in range(2 * EXCHANGES):  # a read is half an exchange
                assert await read(daemon.address, owner, [1]) == RECORDS

        return Side(daemon, owner, work)

    async with hellos_of_producers(daemon, owner) as step:
        attacked = reads(daemon)._replace(step=step)
        await keeps_its_rate("hellos_of_producers", attacked, reads(cluster.second))


@one_loop
@with_rates
async def test_starts_that_are_refused_take_nothing_from_a_running_taskmanager(
    cluster, victim, secret_file, tmp_path
):
    starts = starts_that_cannot_work(tmp_path)
    await is_served_beside("starts_that_cannot_work", starts, cluster, victim, secret_file)
