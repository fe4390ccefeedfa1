"""Processes that are killed or stopped in the middle of a job, and what Spark then runs again."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import BACK_PRESSURE, Application, sluice_settings
from tests.support.daemons import is_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluice.shuffle.taskmanager.serve.serving_status import GateStatus
    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
    from sluice.shuffle.taskmanager.store.store_status import ShuffleStatus
    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemon import Daemon
    from tests.support.daemons import Daemons

MAPS = 4
"""Map tasks of the jobs in ``jobs/failing.py``."""

SLOTS = 2
"""Tasks that run at the same time: one on each executor."""

STAGE_ATTEMPTS = 4
"""After as many failures in a row Spark gives a stage up."""

RESULT_SECONDS = 150.0
RELEASE_SECONDS = 12.0
"""Less than the 15 seconds after which TaskManagers drop all of an application that is gone."""
COLLECTIONS = 15
"""How often a driver looks for unused shuffles at most."""
COLLECTED_SECONDS = 4.0
"""For what it has found to be gone from the TaskManagers."""
GIVE_UP_SECONDS = 60.0
"""Time for readers to give a lost TaskManager up: connect attempts of their own one included."""
PATIENT = {
    # A TaskManager starts slowly on a machine that does much else.
    "spark.sluice.reader.refusedTimeout": "15s",
    # Longer than a test may take: nothing here waits for it.
    "spark.sluice.reader.returnTimeout": "10min",
    "spark.sluice.writer.returnTimeout": "60s",
}
LARGE = {"record_bytes": 4_000}
"""Each reducer gets 13 MB, more than all buffers on its way hold: it is in the middle of reading
while its function waits."""


@pytest.fixture(scope="module")
def frail(driver: Driver, cluster: StandaloneCluster, daemons: Daemons) -> Iterator[Application]:
    settings = sluice_settings(daemons) | BACK_PRESSURE | PATIENT
    with driver.application("frail", cluster.master_url, settings) as running:
        yield running


@pytest.mark.parametrize("job", ["reduce_waits", "reduce_waits_inside"])
def test_an_executor_killed_after_the_map_stage(
    own: Application, frail: Application, barrier: Barrier, job: str
):
    expected = own.rows(job, barrier=None)
    frail.new_events()
    running = frail.start(job, barrier=str(barrier.path))
    reducers = barrier.wait("reduce", SLOTS)
    os.kill(reducers[0].executor_pid, signal.SIGKILL)
    barrier.release()
    assert running.result(RESULT_SECONDS).read_text() == expected.read_text()
    events = frail.new_events()
    assert events.map_runs() == dict.fromkeys(range(MAPS), 1)
    assert events.executors_removed() == 1


def test_a_taskmanager_killed_and_restarted_before_the_reduce_stage(
    own: Application, frail: Application, barrier: Barrier, daemons: Daemons, revived: Daemon
):
    expected = [own.rows("prepare"), own.rows("read_again")]
    frail.fill_slots(barrier, SLOTS)
    frail.new_events()
    prepared = frail.rows("prepare")
    stored = daemons.newest_outputs(frail.application_id)
    assert sum(stored) == MAPS
    assert stored[1] >= 1
    revived.kill()
    revived.start()
    assert revived.status().counters.map_outputs_adopted >= stored[1]
    found = frail.rows("read_again")
    assert [prepared.read_text(), found.read_text()] == [path.read_text() for path in expected]
    assert frail.new_events().map_runs() == dict.fromkeys(range(MAPS), 1)


def test_a_taskmanager_killed_and_restarted_while_reducers_read(
    own: Application, frail: Application, barrier: Barrier, revived: Daemon
):
    expected = own.rows("reduce_waits_inside", barrier=None, **LARGE)
    frail.new_events()
    running = frail.start("reduce_waits_inside", barrier=str(barrier.path), **LARGE)
    barrier.wait("reduce", SLOTS)
    revived.kill()
    revived.start()
    barrier.release()
    assert running.result(RESULT_SECONDS).read_text() == expected.read_text()
    events = frail.new_events()
    assert events.map_runs() == dict.fromkeys(range(MAPS), 1)
    # The reducers of both hosts went on where they were: one lost its own TaskManager, one another.
    assert set(events.task_ends()) == {"Success"}


def test_a_directory_removed_while_its_taskmanager_runs(
    own: Application, frail: Application, barrier: Barrier, daemons: Daemons, revived: Daemon
):
    """The driver hears which map outputs are lost, and just these are made again."""
    jobs, many = ("prepare", "read_again"), 24
    expected = [own.rows(job, maps=many).read_text() for job in jobs]
    frail.fill_slots(barrier, SLOTS)
    frail.new_events()
    found = [frail.prepare_evenly(barrier, many, SLOTS).read_text()]
    lost = daemons.newest_outputs(frail.application_id)[1]
    assert STAGE_ATTEMPTS < lost < many
    revived.remove_memory_directory()
    try:
        revived.wait_until(
            lambda status: not all(tier.healthy for tier in status.storage), GIVE_UP_SECONDS
        )
        found.append(frail.rows("read_again").read_text())
    finally:
        revived.wait_for_all_tiers()
    assert found == expected
    events = frail.new_events()
    assert sorted(events.map_runs().values()) == [1] * (many - lost) + [2] * lost


def test_a_taskmanager_killed_for_good(
    own: Application, frail: Application, barrier: Barrier, daemons: Daemons, revived: Daemon
):
    expected = own.rows("prepare").read_text() + own.rows("read_again").read_text()
    frail.fill_slots(barrier, SLOTS)
    frail.new_events()
    prepared = frail.rows("prepare")
    lost = daemons.newest_outputs(frail.application_id)[1]
    assert 1 <= lost < MAPS
    revived.kill()
    found = prepared.read_text() + frail.rows("read_again").read_text()
    assert found == expected
    events = frail.new_events()
    assert sorted(events.map_runs().values()) == [1] * (MAPS - lost) + [2] * lost

    # Readers of the first attempt may still wait for the lost TaskManager; after them, nobody reads
    # that shuffle. The outputs that its TaskManager adopts are released, too.
    daemons[0].wait_until(lambda status: not gates_of(frail, status), GIVE_UP_SECONDS)
    drop_unused_shuffles(frail, daemons[0])
    revived.start()
    assert revived.status().counters.map_outputs_adopted >= lost
    revived.wait_until(lambda status: not stored_for(frail, status), RELEASE_SECONDS)


def drop_unused_shuffles(application: Application, daemon: Daemon) -> None:
    """Have Spark's driver look for unused shuffles until a TaskManager has none of them.

    It looks after each job. Its scheduler may let go of a stage's last shuffle a moment after that.
    """
    for left in reversed(range(COLLECTIONS)):
        application.rows("driver")
        try:
            daemon.wait_until(lambda status: not stored_for(application, status), COLLECTED_SECONDS)
        except TimeoutError:
            if not left:
                raise
        else:
            return


def stored_for(application: Application, status: TaskManagerStatus) -> list[ShuffleStatus]:
    """Return what a TaskManager keeps for an application."""
    return [
        shuffle
        for shuffle in status.partitions
        if is_of(application.application_id, shuffle.application_id)
    ]


def gates_of(application: Application, status: TaskManagerStatus) -> list[GateStatus]:
    """The gates that an application has open at a TaskManager."""
    return [gate for gate in status.gates if is_of(application.application_id, gate.application_id)]


def test_a_paused_reducer_stalls_only_itself(
    own: Application, frail: Application, sluice: Application, barrier: Barrier, daemons: Daemons
):
    expected = own.rows("reduce_waits_inside", barrier=None, **LARGE)
    running = frail.start("reduce_waits_inside", barrier=str(barrier.path), **LARGE)
    reducers = barrier.wait("reduce", SLOTS)
    paused = reducers[0].executor_pid
    os.kill(paused, signal.SIGSTOP)
    try:
        barrier.release()
        other = sluice.rows("reduce_waits_inside", barrier=None, **LARGE)
        assert other.read_text() == expected.read_text()
        # It was in the middle of reading, and still is.
        assert any(gates_of(frail, daemon.status()) for daemon in daemons)
        assert not running.done()
    finally:
        os.kill(paused, signal.SIGCONT)
    assert running.result(RESULT_SECONDS).read_text() == expected.read_text()
