"""Executors that come and go: killed in each phase of a job, sent away, not needed for a while.

What an executor wrote outlives it, so the only map tasks that run again are those that it ran.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import sluice_settings
from tests.spark.barrier import Barrier
from tests.support.cluster import installed_spark
from tests.support.executors import executors_below, wait_for_end
from tests.support.extended import first_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.applications import Application
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemons import Daemons

MAPS = 4
SLOTS = 2
RESULT_SECONDS = 150.0
LEAVE_SECONDS = 60.0

ONCE = dict.fromkeys(range(MAPS), 1)
"""Every map task ran once."""

DECOMMISSION = {
    "spark.decommission.enabled": "true",
    # Spark would copy away the shuffle files that it thinks an executor has.
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    "spark.storage.decommission.rddBlocks.enabled": "true",
    # An executor with nothing left to copy ends after this time, 30 s by default.
    "spark.storage.decommission.replicationReattemptInterval": "1s",
}

LEFT_TO_SPARK = {"spark.sluice.enabled": "false"}
"""Settings of a job whose shuffle is left to Spark."""

DYNAMIC = {
    "spark.scheduler.minRegisteredResourcesRatio": "0.0",  # the first job asks for executors
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": str(SLOTS),
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
}


@pytest.fixture(scope="module")
def standalone(
    driver: Driver, cluster: StandaloneCluster, daemons: Daemons
) -> Iterator[Application]:
    settings = sluice_settings(daemons) | DECOMMISSION
    with driver.application("life", cluster.master_url, settings) as running:
        yield running


@pytest.fixture(scope="module")
def local_cluster(driver: Driver, daemons: Daemons) -> Iterator[Application]:
    settings = sluice_settings(daemons)
    application = driver.application("local", "local-cluster[2,1,768]", settings)
    try:
        with application as running:
            yield running
    finally:
        # The one place where this master puts the logs of its executors.
        shutil.rmtree(
            installed_spark().home / "work" / application.application_id, ignore_errors=True
        )


@pytest.fixture(scope="module")
def dynamic(driver: Driver, cluster: StandaloneCluster, daemons: Daemons) -> Iterator[Application]:
    settings = sluice_settings(daemons) | DYNAMIC
    with driver.application("dynamic", cluster.master_url, settings) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(
    driver: Driver, cluster: StandaloneCluster, daemons: Daemons
) -> Iterator[Application]:
    """Start an application that fails at its first fetch failure."""
    settings = sluice_settings(daemons) | {"spark.stage.maxConsecutiveAttempts": "1"}
    with driver.application("impatient", cluster.master_url, settings) as running:
        yield running


# In this order, because an application ends when the next one begins.
@pytest.mark.parametrize("kind", first_of(["standalone", "local_cluster"]))
def test_killed_while_it_runs_a_map_task(
    own: Application, request: pytest.FixtureRequest, barrier: Barrier, kind: str
):
    application: Application = request.getfixturevalue(kind)
    expected = own.rows("map_waits", barrier=None)
    application.fill_slots(barrier, SLOTS)
    application.new_events()
    running = application.start("map_waits", barrier=str(barrier.path))
    first = {arrival.point for arrival in barrier.wait("map-", SLOTS)}
    barrier.release(*first)  # these two end, the other two begin
    arrivals = barrier.wait("map-", MAPS)
    victim = next(arrival for arrival in arrivals if arrival.point not in first)
    os.kill(victim.executor_pid, signal.SIGKILL)
    barrier.release()
    assert running.result(RESULT_SECONDS).read_text() == expected.read_text()
    events = application.new_events()
    lost = int(victim.point.removeprefix("map-"))
    # Also not those that the same executor had run before.
    assert events.map_runs() == ONCE | {lost: 2}
    assert events.executors_removed() == 1


def test_decommissioned_between_stages(
    own: Application, standalone: Application, barrier: Barrier, directory: Path
):
    expected = [own.rows("prepare"), own.rows("read_again")]
    standalone.fill_slots(barrier, SLOTS)
    standalone.new_events()
    prepared = standalone.rows("prepare")
    leaving = executors_below(directory, standalone.application_id)
    assert len(leaving) == SLOTS
    for executor in leaving:
        os.kill(executor.pid, signal.SIGPWR)
    wait_for_end(leaving, LEAVE_SECONDS)
    # By executors that were not there when the map tasks ran.
    found = standalone.rows("read_again")
    assert [prepared.read_text(), found.read_text()] == [path.read_text() for path in expected]
    standalone.fill_slots(barrier, SLOTS)  # by new executors: the end of both is known
    events = standalone.new_events()
    assert events.map_runs() == ONCE
    assert events.executors_removed() == SLOTS


def test_decommissioned_while_it_reads(own: Application, standalone: Application, barrier: Barrier):
    expected = own.rows("reduce_waits_inside", barrier=None)
    standalone.fill_slots(barrier, SLOTS)
    standalone.new_events()
    running = standalone.start("reduce_waits_inside", barrier=str(barrier.path))
    reader = barrier.wait("reduce", SLOTS)[0]
    os.kill(reader.executor_pid, signal.SIGPWR)
    barrier.release()
    assert running.result(RESULT_SECONDS).read_text() == expected.read_text()
    events = standalone.new_events()
    assert events.map_runs() == ONCE
    assert events.task_ends().keys() == {"Success"}


@pytest.mark.parametrize("kills", [False, True], ids=["task", "executor"])
def test_a_barrier_stage_that_fails_is_run_again_as_a_whole(
    own: Application,
    standalone: Application,
    daemons: Daemons,
    barrier: Barrier,
    tmp_path: Path,
    kills: bool,
):
    expected = own.rows("barrier_stages")
    standalone.fill_slots(barrier, SLOTS)
    standalone.new_events()
    before = sum(daemon.status().counters.map_outputs_committed for daemon in daemons)
    running = standalone.start(
        "barrier_stages", failed=str(tmp_path / "failed"), kills=kills, barrier=str(barrier.path)
    )
    barrier.wait("fails", 1)
    # If the other task ended while the stage fails, Spark might take its output for one of the next
    # attempt, of which a part would then wait in vain for the rest.
    daemons.wait_until(
        lambda statuses: (
            sum(status.counters.map_outputs_committed for status in statuses) == before + MAPS + 1
        ),
        RESULT_SECONDS,
    )
    barrier.release("fails")
    found = running.result(RESULT_SECONDS)
    assert found.read_text() == expected.read_text()
    events = standalone.new_events()
    assert events.executors_removed() == kills
    starts = events.task_starts()
    stages = sorted({stage for stage, _ in starts})
    runs = [sorted(starts[key] for key in starts if key[0] == stage) for stage in stages]
    # Both tasks of the barrier stage, whatever the other one had written; nothing else.
    assert runs == [[1] * MAPS, [2] * SLOTS, [1] * 6]


def test_idle_executors_leave_and_others_read_what_they_wrote(
    own: Application, dynamic: Application
):
    """With shuffle tracking, which is Spark's default, outputs of a shuffle keep an executor."""
    expected = [own.rows("prepare"), own.rows("read_again")]
    prepared = dynamic.rows("prepare")
    events = dynamic.new_events()
    assert events.map_runs() == ONCE
    writers = events.map_executors()
    # Some may have left before the job's answer came.
    for writer in writers:
        dynamic.wait_for_output(re.compile(rf"Executor {writer} is removed\."), LEAVE_SECONDS)
    found = dynamic.rows("read_again")
    assert [prepared.read_text(), found.read_text()] == [path.read_text() for path in expected]
    events = dynamic.new_events()
    assert events.map_runs() == {}
    assert events.task_ends().keys() == {"Success"}
    assert writers.isdisjoint(events.reduce_executors())


def test_an_idle_executor_stays_while_it_holds_outputs_left_to_spark(
    own: Application, dynamic: Application, barrier: Barrier, directory: Path
):
    expected = [own.rows("prepare", maps=1), own.rows("read_again")]
    dynamic.new_events()
    prepared = dynamic.rows("prepare", maps=1, settings=LEFT_TO_SPARK)
    (holder,) = dynamic.new_events().map_executors()
    dynamic.fill_slots(barrier, SLOTS)  # they become idle at the same time
    executors = executors_below(directory, dynamic.application_id)
    others = [executor for executor in executors if executor.executor_id != holder]
    assert len(executors) - len(others) == 1
    wait_for_end(others, LEAVE_SECONDS)
    dynamic.new_events()
    found = dynamic.rows("read_again")
    assert [prepared.read_text(), found.read_text()] == [path.read_text() for path in expected]
    events = dynamic.new_events()
    assert events.map_runs() == {}, "no map task runs again"
    assert events.task_ends().keys() == {"Success"}


@pytest.mark.extended
def test_outputs_left_to_spark_are_unregistered_with_their_executors(
    own: Application, impatient: Application, barrier: Barrier, directory: Path
):
    expected = [own.rows("prepare"), own.rows("read_again")]
    impatient.rows(
        "reduce_waits", barrier=None
    )  # from now on Spark assumes that outputs survive executors
    impatient.fill_slots(barrier, SLOTS)
    prepared = impatient.rows("prepare", settings=LEFT_TO_SPARK)
    lost = executors_below(directory, impatient.application_id)
    assert len(lost) == SLOTS
    impatient.new_events()
    for executor in lost:
        os.kill(executor.pid, signal.SIGKILL)
    wait_for_end(lost, LEAVE_SECONDS)
    impatient.fill_slots(barrier, SLOTS)  # by new executors: the loss is known
    found = impatient.rows("read_again")
    assert [prepared.read_text(), found.read_text()] == [path.read_text() for path in expected]
    events = impatient.new_events()
    assert events.map_runs() == ONCE, "all of them run again"
    assert "FetchFailed" not in events.task_ends()


@pytest.mark.extended
def test_decommissioned_and_cancelled_tasks_count_as_with_sparks_own_shuffle(
    driver: Driver,
    cluster: StandaloneCluster,
    daemons: Daemons,
    barrier: Barrier,
    directory: Path,
):
    with driver.application("plainlife", cluster.master_url, DECOMMISSION) as application:
        expected = _counted(application, barrier, directory, {})
    settings = sluice_settings(daemons) | DECOMMISSION
    with driver.application("counted", cluster.master_url, settings) as application:
        assert _counted(application, barrier, directory, {}) == expected
        assert _counted(application, barrier, directory, LEFT_TO_SPARK) == expected


def _counted(
    application: Application, barrier: Barrier, directory: Path, settings: dict[str, str]
) -> list[object]:
    """Return rows and counts of a job that loses an executor, and of one that is cancelled."""
    application.fill_slots(barrier, SLOTS)
    application.new_events()
    counted: list[object] = [application.rows("prepare", settings=settings).read_text()]
    leaving = executors_below(directory, application.application_id)[:1]
    os.kill(leaving[0].pid, signal.SIGPWR)
    wait_for_end(leaving, LEAVE_SECONDS)
    counted.append(application.rows("read_again").read_text())
    application.fill_slots(barrier, SLOTS)  # one by a new executor: the end of the other is known
    events = application.new_events()
    counted += [events.map_runs(), events.task_ends(), events.executors_removed()]
    with Barrier(directory / f"{application.name}-{len(settings)}.sock") as held:
        running = application.start(
            "cancelled", barrier=str(held.path), record_bytes=10, settings=settings
        )
        held.wait("map-", SLOTS)
        held.release("driver")
        counted.append(running.result(RESULT_SECONDS).read_text())
    application.fill_slots(barrier, SLOTS)  # the killed tasks have ended
    events = application.new_events()
    return [*counted, events.map_runs(), events.task_ends()]
