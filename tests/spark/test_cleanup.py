"""What a TaskManager has left when an application is over, in good order or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import BACK_PRESSURE, Application, sluice_settings
from tests.spark.barrier import Barrier
from tests.spark.daemons import Daemons, leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from benchmarks.cluster import StandaloneCluster

EXPIRY_SECONDS = 5.0
JOB_SECONDS = 120.0
END_SECONDS = 45.0
SLOTS = 2
LARGE = {"record_bytes": 4_000}
"""Each reducer gets 13 MB, more than all buffers on its way hold."""

IN_USE = {"partitions", "applications", "gates", "connections", "bytes stored"}


@pytest.fixture(scope="module")
def lonely(directory: Path) -> Iterator[Daemons]:
    """TaskManagers that no other application uses."""
    with Daemons(directory / "lone", expiry_seconds=EXPIRY_SECONDS) as running:
        yield running


def test_nothing_is_left_when_the_application_has_ended(
    directory: Path, cluster: StandaloneCluster, lonely: Daemons
):
    with _application("ended", directory, cluster, lonely) as application:
        with Barrier(directory / "ended-barrier.sock") as barrier:
            running = _until_it_reads(application, barrier)
            assert _in_use(lonely) >= IN_USE
            barrier.release()
            running.result(JOB_SECONDS)
        application.finish()
        for daemon in lonely:
            # Executors that end late may still knock, so the name of the application stays known.
            status = daemon.wait_until(
                lambda status: leftovers(status).keys() <= {"applications"}, END_SECONDS
            )
            assert status.counters.applications_expired == 0


def test_nothing_is_left_when_the_driver_was_killed(
    directory: Path, cluster: StandaloneCluster, lonely: Daemons
):
    with (
        _application("killed", directory, cluster, lonely) as application,
        Barrier(directory / "killed-barrier.sock") as barrier,
    ):
        running = _until_it_reads(application, barrier)
        assert _in_use(lonely) >= IN_USE
        application.kill()
        for daemon in lonely:
            status = daemon.wait_until(
                lambda status: not leftovers(status), EXPIRY_SECONDS + END_SECONDS
            )
            assert status.counters.applications_expired >= 1
        assert running.exception(END_SECONDS) is not None


def _application(
    name: str, directory: Path, cluster: StandaloneCluster, daemons: Daemons
) -> Application:
    return Application(
        name, cluster.master_url, directory, sluice_settings(daemons) | BACK_PRESSURE
    )


def _until_it_reads(application: Application, barrier: Barrier) -> Future[Path]:
    """Start a job whose reduce tasks stop in the middle of reading, and wait for that."""
    running = application.start("reduce_waits_inside", barrier=str(barrier.path), **LARGE)
    barrier.wait("reduce", SLOTS)
    return running


def _in_use(daemons: Daemons) -> set[str]:
    """What there is on each of them."""
    return set.intersection(*(set(leftovers(daemon.status())) for daemon in daemons))
