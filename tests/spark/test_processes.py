"""TaskManagers of several data processes: what jobs see, and what one crash costs."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import (
    BACK_PRESSURE,
    LOCAL_MASTER,
    Application,
    Both,
    sluice_settings,
)
from tests.support.daemons import Daemons
from tests.support.extended import first_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluice.shuffle.taskmanager.status.process_status import ProcessStatus
    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemon import Daemon

MAPS = 4
SLOTS = 2
WAIT_SECONDS = 60.0
RESULT_SECONDS = 150.0
LARGE = {"record_bytes": 4_000}
"""Each reducer gets 13 MB, more than all buffers on its way hold."""

PATIENT = {
    "spark.sluice.reader.returnTimeout": "60s",
    "spark.sluice.reader.refusedTimeout": "60s",
}


@pytest.fixture(scope="module")
def doubled(directory: Path) -> Iterator[Daemons]:
    with Daemons(directory / "doubled", processes=2, memory_tier_bytes="128 MiB") as running:
        yield running


@pytest.fixture(scope="module", params=["unix", "tcp"])
def application(
    driver: Driver, cluster: StandaloneCluster, doubled: Daemons, request: pytest.FixtureRequest
) -> Iterator[Application]:
    settings = sluice_settings(doubled) | BACK_PRESSURE | PATIENT
    if request.param == "tcp":
        settings["spark.sluice.endpoints"] = doubled.tcp_endpoints
    with driver.application(f"doubled-{request.param}", cluster.master_url, settings) as running:
        yield running


def test_results_are_sparks_own_and_nothing_takes_another_hop(
    own: Application, application: Application, doubled: Daemons
):
    """Spark counts data of a sibling as local; a process that fetched it would count it remote."""
    both = Both(own, application, doubled)
    for job in ("rdd_reduce_by_key", "frame_join", "frame_group_by"):
        compared = both.compare(job)
        assert compared.differences == []
        assert compared.unaccounted() == {}
    for daemon in doubled:
        assert all(each.bytes_in and each.bytes_out for each in daemon.status().processes)


@pytest.mark.parametrize("job", first_of(["rdd_values", "rdd_sorted", "frame_rows"]))
def test_all_processes_of_one_taskmanager_give_the_order_of_sparks_local_mode(
    driver: Driver, own: Application, doubled: Daemons, job: str
):
    settings = sluice_settings(doubled) | {"spark.sluice.endpoints": doubled[0].endpoint}
    with driver.application(f"ordered-{job}", LOCAL_MASTER, settings) as application:
        assert Both(own, application, doubled).compare(f"order_{job}").differences == []


def wait_until_again(daemon: Daemon, before: ProcessStatus) -> None:
    def is_again(status: TaskManagerStatus) -> bool:
        after = status.processes[before.index]
        return after.restarts > before.restarts and after.state == "ready"

    daemon.wait_until(is_again, WAIT_SECONDS)


def test_readers_that_wait_survive_a_killed_process(
    application: Application, own: Application, doubled: Daemons, barrier: Barrier
):
    expected = own.rows("all_wait", barrier=None, **LARGE).read_text()
    application.fill_slots(barrier, SLOTS)
    application.new_events()
    running = application.start("all_wait", barrier=str(barrier.path), **LARGE)
    for before in range(0, MAPS, SLOTS):
        arrivals = barrier.wait("map-", before + SLOTS)
        barrier.release(*(arrival.point for arrival in arrivals[before:]))
    barrier.wait("reduce-", SLOTS)
    for daemon in doubled:
        second = daemon.status().processes[1]
        os.kill(second.pid, signal.SIGKILL)
        wait_until_again(daemon, second)
    barrier.release()

    assert running.result(RESULT_SECONDS).read_text() == expected
    events = application.new_events()
    assert events.failures() == []
    assert events.map_runs() == dict.fromkeys(range(MAPS), 1)
