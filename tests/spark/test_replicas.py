"""TaskManagers that are lost with copies elsewhere, or that leave: no map task runs again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.chaos.damage import PAGE_BYTES, flip
from tests.spark.applications import BACK_PRESSURE, Application, sluice_settings
from tests.spark.ui import Ui
from tests.support.daemons import Daemons

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.spark.eventlog import Events
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemon import Daemon

MAPS = 4
"""Map tasks of the jobs in ``jobs/failing.py``."""

SLOTS = 2
FIRST_STORED_BYTE = 28
RESULT_SECONDS = 150.0
COPY_SECONDS = 60.0
EXPIRY_SECONDS = 60.0
"""More than the 15 seconds after which the tests' TaskManagers drop what is left."""
LARGE = {"record_bytes": 4_000}
"""Each reducer gets 13 MB, more than all buffers on its way hold: it is in the middle of reading
while its function waits."""


def copied_settings(daemons: Daemons) -> dict[str, str]:
    """Settings of an application whose map tasks wait for a second copy."""
    return {
        **sluice_settings(daemons),
        **BACK_PRESSURE,
        "spark.sluice.replicas": "2",
        "spark.sluice.replicas.mode": "sync",
        "spark.sluice.replicas.lostAfter": "1s",
    }


@pytest.fixture(scope="module")
def copied(driver: Driver, cluster: StandaloneCluster, daemons: Daemons) -> Iterator[Application]:
    settings = copied_settings(daemons) | {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    with driver.application("copied", cluster.master_url, settings) as running:
        yield running


def wait_for_copies(application: Application, daemons: Daemons, maps: int = MAPS) -> None:
    """Wait until every TaskManager has all map outputs of the newest shuffle."""
    daemons.wait_until(
        lambda _: set(daemons.newest_outputs(application.application_id)) == {maps}, COPY_SECONDS
    )


def check_that_nothing_ran_again(events: Events, maps: int = MAPS) -> None:
    assert events.map_runs() == dict.fromkeys(range(maps), 1)
    assert set(events.task_ends()) == {"Success"}


def test_a_taskmanager_killed_for_good_between_the_stages(
    own: Application, copied: Application, barrier: Barrier, daemons: Daemons, revived: Daemon
):
    expected = [own.rows("prepare").read_text(), own.rows("read_again").read_text()]
    copied.fill_slots(barrier, SLOTS)
    copied.new_events()
    found = [copied.rows("prepare").read_text()]
    wait_for_copies(copied, daemons)
    revived.kill()
    found.append(copied.rows("read_again").read_text())
    assert found == expected
    check_that_nothing_ran_again(copied.new_events())


def test_a_taskmanager_killed_for_good_while_reducers_read(
    own: Application, copied: Application, barrier: Barrier, daemons: Daemons, revived: Daemon
):
    expected = own.rows("reduce_waits_inside", barrier=None, **LARGE)
    copied.fill_slots(barrier, SLOTS)
    copied.new_events()
    ui = Ui(copied)
    before = ui.settled_metrics()
    running = copied.start("reduce_waits_inside", barrier=str(barrier.path), **LARGE)
    barrier.wait("reduce", SLOTS)
    wait_for_copies(copied, daemons)
    revived.kill()
    barrier.release()
    assert running.result(RESULT_SECONDS).read_text() == expected.read_text()
    check_that_nothing_ran_again(copied.new_events())
    least = {
        "sourceFailovers": SLOTS,  # of those that were in the middle of reading
        "mapOutputsRelocated": 1,
    }
    ui.wait_until(lambda now: all(now[name] >= before[name] + least[name] for name in least))
    after = ui.settled_metrics()
    for name in ("fetchFailures", "refetches"):
        assert after[name] == before[name]


def test_a_directory_that_is_lost_has_copies_elsewhere(
    own: Application, copied: Application, barrier: Barrier, daemons: Daemons, revived: Daemon
):
    many = 24
    expected = [own.rows(job, maps=many).read_text() for job in ("prepare", "read_again")]
    copied.fill_slots(barrier, SLOTS)
    copied.new_events()
    found = [copied.rows("prepare", maps=many).read_text()]
    wait_for_copies(copied, daemons, many)
    revived.remove_memory_directory()
    try:
        revived.wait_until(
            lambda status: not all(tier.healthy for tier in status.storage), COPY_SECONDS
        )
        found.append(copied.rows("read_again").read_text())
    finally:
        revived.wait_for_all_tiers()
    assert found == expected
    check_that_nothing_ran_again(copied.new_events(), many)


def test_bits_that_flip_at_rest_are_repaired_from_the_copies(
    own: Application, copied: Application, barrier: Barrier, daemons: Daemons, revived: Daemon
):
    expected = [own.rows(job).read_text() for job in ("prepare", "read_again")]
    copied.fill_slots(barrier, SLOTS)
    copied.new_events()
    found = [copied.rows("prepare").read_text()]
    wait_for_copies(copied, daemons)
    before = revived.status().counters.damaged_map_outputs_dropped
    for arena in revived.arenas:
        flip(arena, range(FIRST_STORED_BYTE, arena.stat().st_size, PAGE_BYTES), Random(1))
    found.append(copied.rows("read_again").read_text())
    assert found == expected
    check_that_nothing_ran_again(copied.new_events())
    # What a reader has reported is dropped and comes back; what none has read stays as it is.
    revived.wait_until(
        lambda status: (
            status.counters.damaged_map_outputs_repaired
            == status.counters.damaged_map_outputs_dropped
            > before
        ),
        COPY_SECONDS,
    )


@pytest.fixture(scope="module")
def alert(driver: Driver, cluster: StandaloneCluster, daemons: Daemons) -> Iterator[Application]:
    """Like ``copied``, and soon tired of a TaskManager that is silent."""
    settings = copied_settings(daemons) | {
        "spark.sluice.io.silenceTimeout": "5s",
        # A reduce task whose source is silent, and not its own TaskManager, waits so long.
        "spark.sluice.io.timeout": "20s",
    }
    with driver.application("alert", cluster.master_url, settings) as running:
        yield running


def test_a_taskmanager_stopped_while_reducers_read(
    own: Application, alert: Application, barrier: Barrier, daemons: Daemons, revived: Daemon
):
    expected = own.rows("reduce_waits_inside", barrier=None, **LARGE)
    alert.fill_slots(barrier, SLOTS)
    alert.new_events()
    running = alert.start("reduce_waits_inside", barrier=str(barrier.path), **LARGE)
    barrier.wait("reduce", SLOTS)
    wait_for_copies(alert, daemons)
    revived.pause()
    try:
        barrier.release()
        assert running.result(RESULT_SECONDS).read_text() == expected.read_text()
    finally:
        revived.resume()
    # No task failed: those of its host went on through the other one.
    check_that_nothing_ran_again(alert.new_events())


@pytest.fixture(scope="module")
def single(driver: Driver, cluster: StandaloneCluster, daemons: Daemons) -> Iterator[Application]:
    """An application without copies: what is moved is nowhere else."""
    settings = sluice_settings(daemons) | BACK_PRESSURE
    with driver.application("single", cluster.master_url, settings) as running:
        yield running


def abandoned(status: TaskManagerStatus) -> list[str]:
    """Return the applications without clients whose data wait for their end."""
    return [
        application.application_id
        for application in status.applications
        if application.stored_bytes and application.expires_in_seconds is not None
    ]


@pytest.mark.parametrize("job", ["reduce_waits", "reduce_waits_inside"])
def test_a_taskmanager_moves_its_map_outputs_and_leaves(
    own: Application,
    single: Application,
    barrier: Barrier,
    daemons: Daemons,
    revived: Daemon,
    job: str,
):
    """Half of the reducers begin when it is gone; the others are in the middle of reading."""
    expected = own.rows(job, barrier=None, **LARGE)
    # What an application has left whose driver is gone cannot move, and goes after a while; until
    # then a TaskManager that still has it gives copies to one that was started again.
    daemons.wait_until(lambda statuses: not any(map(abandoned, statuses)), EXPIRY_SECONDS)
    single.fill_slots(barrier, SLOTS)
    single.new_events()
    running = single.start(job, barrier=str(barrier.path), **LARGE)
    barrier.wait("reduce", SLOTS)
    moving = daemons.newest_outputs(single.application_id)[1]
    assert 1 <= moving < MAPS
    with ThreadPoolExecutor(1) as drains:
        drained = drains.submit(revived.drain, migrate=True)
        daemons[0].wait_until(
            lambda _: daemons.newest_outputs(single.application_id)[0] == MAPS, COPY_SECONDS
        )
        # Their readers hold it up: they wait for the test.
        barrier.release()
        drained.result(RESULT_SECONDS)
    revived.stop()
    assert running.result(RESULT_SECONDS).read_text() == expected.read_text()
    check_that_nothing_ran_again(single.new_events())


@pytest.fixture(scope="module")
def with_remote(directory: Path) -> Iterator[Daemons]:
    """TaskManagers with one remote tier, in a directory that both have."""
    remote = directory / "remote"
    remote.mkdir()
    with Daemons(directory / "tm-copies", remote=remote) as running:
        yield running


@pytest.fixture(scope="module")
def in_remote(
    driver: Driver, cluster: StandaloneCluster, with_remote: Daemons
) -> Iterator[Application]:
    """An application whose map tasks wait for a copy in the remote tier."""
    settings = {
        **sluice_settings(with_remote),
        **BACK_PRESSURE,
        "spark.sluice.replicas.remote": "true",
        "spark.sluice.replicas.mode": "sync",
    }
    with driver.application("in-remote", cluster.master_url, settings) as running:
        yield running


def test_a_taskmanager_killed_for_good_is_read_from_the_remote_tier(
    own: Application, in_remote: Application, barrier: Barrier, with_remote: Daemons
):
    expected = [own.rows("prepare").read_text(), own.rows("read_again").read_text()]
    in_remote.fill_slots(barrier, SLOTS)
    in_remote.new_events()
    found = [in_remote.rows("prepare").read_text()]
    with_remote[1].kill()
    found.append(in_remote.rows("read_again").read_text())
    assert found == expected
    check_that_nothing_ran_again(in_remote.new_events())
    assert with_remote[0].status().counters.remote_copies_made > 0
