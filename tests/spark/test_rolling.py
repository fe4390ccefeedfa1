"""All TaskManagers are replaced under a running job, one after the other.

Each gets SIGTERM, drains, ends and is started again on its directories, once while map tasks write
and once while reduce tasks read. Nothing fails, and no task runs again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import BACK_PRESSURE, Application, sluice_settings
from tests.support.daemons import Daemons, is_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemon import Daemon

MAPS = 4
REDUCERS = 6
SLOTS = 2
WAIT_SECONDS = 60.0
RESULT_SECONDS = 150.0

PATIENT = {
    # A TaskManager starts slowly on a machine that does much else.
    "spark.sluice.reader.returnTimeout": "60s",
    "spark.sluice.reader.refusedTimeout": "60s",
    "spark.sluice.writer.returnTimeout": "60s",
}
LARGE = {"record_bytes": 4_000}
"""Each map output has 20 MB, ten regions, and is written before its task ends; each reducer gets
13 MB, more than all buffers on its way hold."""


@pytest.fixture(scope="module")
def rolling(directory: Path) -> Iterator[Daemons]:
    with Daemons(directory / "rolling", memory_tier_bytes="64 MiB") as running:
        yield running


@pytest.fixture(scope="module")
def application(
    driver: Driver, cluster: StandaloneCluster, rolling: Daemons
) -> Iterator[Application]:
    settings = sluice_settings(rolling) | BACK_PRESSURE | PATIENT
    with driver.application("rolling", cluster.master_url, settings) as running:
        yield running


@pytest.fixture(scope="module")
def expected(own: Application) -> str:
    return own.rows("all_wait", barrier=None, **LARGE).read_text()


def is_written(application: Application, status: TaskManagerStatus) -> bool:
    return any(
        shuffle.open_map_outputs
        for shuffle in status.partitions
        if is_of(application.application_id, shuffle.application_id)
    )


def restart_while_written_to(
    application: Application, barrier: Barrier, daemon: Daemon, written: int, **options: object
) -> None:
    """Restart a TaskManager while the first ``written`` map tasks write; they end meanwhile."""
    writing = barrier.wait("map-", written)[written - SLOTS :]
    daemon.wait_until(lambda status: is_written(application, status), WAIT_SECONDS)
    daemon.terminate()
    daemon.wait_until(lambda status: status.state == "draining", WAIT_SECONDS)
    barrier.release(*(arrival.point for arrival in writing))
    assert daemon.process.wait(WAIT_SECONDS) == 0
    daemon.change(**options)
    daemon.start()


def test_all_taskmanagers_are_replaced_while_a_job_runs(
    application: Application, rolling: Daemons, barrier: Barrier, expected: str
):
    for daemon in rolling:
        daemon.restart(drain_timeout_seconds=None)
    application.fill_slots(barrier, SLOTS)
    application.new_events()
    pids = [daemon.pid for daemon in rolling]
    running = application.start("all_wait", barrier=str(barrier.path), **LARGE)

    # With two tasks at a time and two TaskManagers each has its turn while it is written to.
    restart_while_written_to(application, barrier, rolling[0], SLOTS, drain_timeout_seconds=1)
    restart_while_written_to(application, barrier, rolling[1], 2 * SLOTS, drain_timeout_seconds=1)
    kept = [daemon.status().counters.map_outputs_adopted for daemon in rolling]
    assert all(kept)

    # Readers stand still, so that these end by cutting them off.
    barrier.wait("reduce-", SLOTS)
    for daemon in rolling:
        daemon.restart()
    assert [daemon.status().counters.map_outputs_adopted for daemon in rolling] != [0, 0]
    assert not set(pids) & {daemon.pid for daemon in rolling}
    barrier.release()

    assert running.result(RESULT_SECONDS).read_text() == expected
    events = application.new_events()
    assert events.failures() == []
    assert events.map_runs() == dict.fromkeys(range(MAPS), 1)
    assert set(events.task_starts().values()) == {1}
