"""The loss of half of eight TaskManagers at once costs at most one fetch failure."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import LOCAL_MASTER, sluice_settings
from tests.support.daemons import Daemons, is_of
from tests.support.extended import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.spark.applications import Application
    from tests.spark.driver import Driver
    from tests.support.daemon import Daemon

MAPS = 14
OF_EACH = 4
HALF = 4
HOSTS = [f"127.0.0.{number}" for number in range(41, 49)]
EXPIRY_SECONDS = 60.0


@pytest.fixture(scope="module")
def eight(directory: Path) -> Iterator[Daemons]:
    """Start TaskManagers that accept four map outputs each, so a job uses at least four."""
    with Daemons(
        directory / "eight", hosts=HOSTS, quota_map_outputs=OF_EACH, memory_tier_bytes="8 MiB"
    ) as running:
        yield running


@pytest.fixture
def application(
    driver: Driver, eight: Daemons, request: pytest.FixtureRequest
) -> Iterator[Application]:
    settings = sluice_settings(eight) | {
        "spark.sluice.endpoints": ",".join(each.endpoint for each in eight),
        "spark.sluice.reader.returnTimeout": "2s",
    }
    with driver.application(
        f"losses-{request.node.callspec.id}", LOCAL_MASTER, settings
    ) as running:
        yield running


def _with_empty_directories(daemon: Daemon, _: Application) -> None:
    """Restart with a new id, as another TaskManager at the address has."""
    daemon.kill()
    daemon.lose_data()
    daemon.start()


def _without_one_directory(daemon: Daemon, _: Application) -> None:
    """Restart under the same id, without the directory that has the map outputs."""
    daemon.kill()
    daemon.lose_data(keeps_id=True)
    daemon.start()


def _for_ever(daemon: Daemon, _: Application) -> None:
    daemon.kill()
    daemon.lose_data()


def _expired(daemon: Daemon, application: Application) -> None:
    """Let the application expire at a TaskManager that it cannot connect to."""
    daemon.kill()
    daemon.change(application_expiry_seconds=0.2)
    os.kill(application.driver_pid, signal.SIGSTOP)
    try:
        daemon.start()
        daemon.wait_until(
            lambda status: (
                not any(
                    is_of(application.application_id, shuffle.application_id)
                    for shuffle in status.partitions
                )
            ),
            EXPIRY_SECONDS,
        )
        # On a busy machine the driver comes back late: data written meanwhile must not expire.
        daemon.restart(application_expiry_seconds=None)
    finally:
        os.kill(application.driver_pid, signal.SIGCONT)


LOSSES: dict[str, Callable[[Daemon, Application], None]] = {
    "empty-directories": _with_empty_directories,
    "directory-left-out": _without_one_directory,
    "for-ever": _for_ever,
    "application-expired": _expired,
}


@pytest.mark.parametrize("loss", first_of(LOSSES, 2))
def test_losing_half_of_the_taskmanagers_costs_one_fetch_failure_at_most(
    own: Application, application: Application, eight: Daemons, loss: str
):
    for daemon in eight:
        if not daemon.running:  # since the test before
            daemon.start()
    expected = [own.rows(job, maps=MAPS).read_text() for job in ("prepare", "read_again")]
    found = [application.rows("prepare", maps=MAPS).read_text()]
    outputs = eight.newest_outputs(application.application_id)
    numbers = sorted(range(len(HOSTS)), key=lambda number: -outputs[number])[:HALF]
    assert all(outputs[number] for number in numbers)
    application.new_events()
    for number in numbers:
        LOSSES[loss](eight[number], application)
    found.append(application.rows("read_again", maps=MAPS).read_text())
    assert found == expected
    events = application.new_events()
    # Each lost map task ran once more, and the stage that reads failed at most once.
    assert events.map_runs().total() == sum(outputs[number] for number in numbers)
    assert len(events.attempts_ended_by("FetchFailed")) <= 1
    assert events.task_ends().keys() <= {"Success", "FetchFailed"}
