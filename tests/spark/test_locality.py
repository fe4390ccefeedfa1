"""Where reduce tasks run: beside their input if that is beside an executor, else anywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import sluice_settings
from tests.spark.jobs.locality import RECORDS
from tests.support.cluster import WORKER_HOSTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.applications import Application, Both
    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemons import Daemons

SLOTS = 2
"""Executors, of one core and on a host of its own each."""

FOR_EVER = "1h"


@pytest.fixture(scope="module")
def one_sided(
    driver: Driver, cluster: StandaloneCluster, daemons: Daemons
) -> Iterator[Application]:
    settings = sluice_settings(daemons) | {
        "spark.sluice.endpoints": daemons[0].endpoint,
        "spark.locality.wait": FOR_EVER,
    }
    with driver.application("onesided", cluster.master_url, settings) as running:
        yield running


@pytest.mark.parametrize("maps", [2, 20])
def test_a_host_without_a_taskmanager_gets_reduce_tasks(
    one_sided: Application, barrier: Barrier, maps: int
):
    """A task that waited for the TaskManager's host would wait longer than the test."""
    one_sided.new_events()
    job = one_sided.start("held_reducers", barrier=str(barrier.path), reducers=SLOTS, maps=maps)
    barrier.wait("reduce", SLOTS)
    barrier.release()
    rows = job.result().read_text(encoding="utf-8").splitlines()
    assert sum(json.loads(row)[0] for row in rows) == RECORDS
    assert {host for host, _ in one_sided.new_events().placements()} == set(WORKER_HOSTS)


def test_reduce_tasks_prefer_the_hosts_of_their_input(both: Both):
    compared = both.compare("rdd_group_by_key")
    assert compared.differences == []
    assert {locality for _, locality in compared.events.placements()} == {"NODE_LOCAL"}


def test_reduce_tasks_prefer_no_host_after_hosts_are_hidden(both: Both):
    """Also for map outputs written before."""
    expected = [both.own.rows(job).read_text() for job in ("prepare", "read_again")]
    found = [both.sluice.rows("prepare").read_text()]
    both.sluice.rows("hide_hosts")
    both.sluice.new_events()
    found.append(both.sluice.rows("read_again").read_text())
    assert found == expected
    events = both.sluice.new_events()
    # Each of the few outputs names a host that does not exist.
    assert {locality for _, locality in events.placements()} == {"ANY"}
    assert events.task_ends().keys() == {"Success"}
    assert events.map_runs() == {}
