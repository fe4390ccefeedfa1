"""TaskManagers keep nothing of a shuffle that is released, or of an application that is over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.applications import BACK_PRESSURE, sluice_settings
from tests.spark.barrier import Barrier
from tests.support.daemons import Daemons, leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.spark.applications import Application
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster

EXPIRY_SECONDS = 5.0
PATIENT: dict[str, Any] = {"application_expiry_seconds": 3600, "memory_tier_bytes": "16 MiB"}
JOB_SECONDS = 120.0
END_SECONDS = 45.0
SLOTS = 2
MAPS = 4
LARGE = {"record_bytes": 4_000}
"""Each reducer gets 13 MB, more than all buffers on its way hold."""

IN_USE = {"partitions", "applications", "gates", "connections", "bytes stored"}


@pytest.fixture(scope="module")
def lonely(directory: Path) -> Iterator[Daemons]:
    """TaskManagers that no other application uses, with less memory than a large job needs."""
    with Daemons(
        directory / "lone", application_expiry_seconds=EXPIRY_SECONDS, memory_tier_bytes="16 MiB"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def patient(directory: Path) -> Iterator[Daemons]:
    """The like, but what they drop within a test is dropped because somebody told them to."""
    with Daemons(directory / "patient", **PATIENT) as running:
        yield running


def test_a_shuffle_is_dropped_when_the_garbage_collector_has_found_it_unused(
    driver: Driver, cluster: StandaloneCluster, lonely: Daemons
):
    with _application("tidy", driver, cluster, lonely) as application:
        application.rows("prepare")
        kept = _shuffles(lonely)
        for _ in range(3):
            application.rows("rdd_reduce_by_key")
        _collect_until(application, lonely, kept)
        application.rows("read_again")
        _collect_until(application, lonely, set())
        _wait_for_space(lonely)


def test_queries_drop_their_shuffles_at_their_end(
    driver: Driver, cluster: StandaloneCluster, lonely: Daemons, own: Application
):
    """No garbage collector has a part in it: Spark's cleaner is off."""
    if tuple(map(int, own.spark_version.split(".")[:2])) < (4, 1):
        pytest.skip("Spark has this since 4.1")
    # Spark's own shuffle has to keep it all: 4.1 gives no rows where it should run map tasks again.
    jobs = ("eager_query", "eager_twice", "eager_rdd")
    expected = {job: own.rows(job, settings={}).read_text() for job in jobs}
    never = {"spark.cleaner.referenceTracking": "false"}
    with _application("eager", driver, cluster, lonely, never) as application:
        application.new_events()
        assert application.rows("eager_query").read_text() == expected["eager_query"]
        _wait_for_space(lonely)
        for job in jobs[1:]:
            assert application.rows(job).read_text() == expected[job]
        # What is gone is known to be gone: no task finds it out by failing.
        assert application.new_events().task_ends().keys() == {"Success"}


def test_a_release_that_comes_late_leaves_outputs_written_since_then(
    driver: Driver, cluster: StandaloneCluster, patient: Daemons, own: Application
):
    expected = [own.rows(job).read_text() for job in ("prepare", "read_again")]
    late = {
        # Usually map tasks write again before the driver connects again.
        "spark.sluice.driver.pingInterval": "5s",
        "spark.sluice.replicas.lostAfter": "0",
    }
    with _application("late", driver, cluster, patient, late) as application:
        found = [application.rows("prepare").read_text()]
        application.new_events()
        patient[1].kill()
        application.rows("release_prepared")
        patient[1].start()
        found.append(application.rows("read_again", kept=True).read_text())
        name = application.application_id
        patient.wait_until(lambda _: sum(patient.newest_outputs(name)) == MAPS, END_SECONDS)
        assert patient.newest_outputs(name)[1] > 0
        assert application.rows("read_again").read_text() == found[1]
        assert found == expected
        events = application.new_events()
        assert events.task_ends().keys() == {"Success"}
        assert events.map_runs() == dict.fromkeys(range(MAPS), 1)


def test_nothing_is_left_when_the_application_has_ended(
    driver: Driver, directory: Path, cluster: StandaloneCluster, patient: Daemons
):
    with _application("ended", driver, cluster, patient) as application:
        with Barrier(directory / "ended-barrier.sock") as barrier:
            running = _until_it_reads(application, barrier)
            assert _in_use(patient) >= IN_USE
            assert _stored(patient, "disk") > 0
            barrier.release()
            running.result(JOB_SECONDS)
        application.finish()
        for daemon in patient:
            # Executors that end late may still knock, so the name of the application stays known.
            daemon.wait_until(
                lambda status: leftovers(status).keys() <= {"applications"}, END_SECONDS
            )


def test_nothing_is_left_when_the_driver_was_killed(
    driver: Driver, directory: Path, cluster: StandaloneCluster, lonely: Daemons
):
    with (
        _application("killed", driver, cluster, lonely) as application,
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
    name: str,
    driver: Driver,
    cluster: StandaloneCluster,
    daemons: Daemons,
    settings: dict[str, str] | None = None,
) -> Application:
    every = sluice_settings(daemons) | BACK_PRESSURE | (settings or {})
    return driver.application(name, cluster.master_url, every)


def _until_it_reads(application: Application, barrier: Barrier) -> Future[Path]:
    """Start a job whose reduce tasks stop in the middle of reading, and wait for that."""
    running = application.start("reduce_waits_inside", barrier=str(barrier.path), **LARGE)
    barrier.wait("reduce", SLOTS)
    return running


def _in_use(daemons: Daemons) -> set[str]:
    """Return what each of them holds."""
    return set.intersection(*(set(leftovers(daemon.status())) for daemon in daemons))


def _shuffles(daemons: Daemons) -> set[int]:
    """All that any of them has map outputs of."""
    return {shuffle.shuffle_id for daemon in daemons for shuffle in daemon.status().partitions}


def _collect_until(application: Application, daemons: Daemons, kept: set[int]) -> None:
    """Have Spark's cleaner look for unused shuffles until only these are left.

    Each job of the tests ends with a collection in the driver, which finds what Python had let go
    of before; the cleaner works in a thread of its own.
    """
    deadline = time.monotonic() + END_SECONDS
    while (found := _shuffles(daemons)) != kept:
        assert time.monotonic() < deadline, f"shuffles {found} are there, {kept} wanted"
        assert found >= kept
        application.rows("driver")


def _wait_for_space(daemons: Daemons) -> None:
    """Wait until they store nothing.

    A released shuffle is out of the status at once; its bytes are free when the release is written.
    """
    for daemon in daemons:
        daemon.wait_until(
            lambda status: leftovers(status).keys() <= {"applications", "connections"}, END_SECONDS
        )


def _stored(daemons: Daemons, tier: str) -> int:
    """Bytes that a tier holds, of all of them."""
    tiers = [each for daemon in daemons for each in daemon.status().storage]
    return sum(each.used_bytes for each in tiers if each.tier == tier)
