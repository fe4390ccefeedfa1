"""The loss of half of eight TaskManagers at once costs at most one fetch failure.

The other ways to lose data are in ``LossesTest`` of the plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import LOCAL_MASTER, sluice_settings
from tests.spark.daemons import Daemons

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.applications import Application
    from tests.spark.driver import Driver

MAPS = 14
OF_EACH = 4
HALF = 4
HOSTS = [f"127.0.0.{number}" for number in range(41, 49)]


@pytest.fixture(scope="module")
def eight(directory: Path) -> Iterator[Daemons]:
    """Start TaskManagers that accept four map outputs each, so a job uses at least four."""
    options = {host: {"quota-map-outputs": OF_EACH} for host in HOSTS}
    with Daemons(directory / "eight", hosts=HOSTS, options=options, memory_tier="8 MiB") as running:
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


@pytest.mark.parametrize("returns_empty", [True, False], ids=["empty-directory", "for-ever"])
def test_losing_half_of_the_taskmanagers_costs_one_fetch_failure_at_most(
    own: Application, application: Application, eight: Daemons, returns_empty: bool
):
    expected = [own.rows(job, maps=MAPS).read_text() for job in ("prepare", "read_again")]
    found = [application.rows("prepare", maps=MAPS).read_text()]
    outputs = eight.newest_outputs(application.application_id)
    numbers = sorted(range(len(HOSTS)), key=lambda number: -outputs[number])[:HALF]
    assert all(outputs[number] for number in numbers)
    lost = [eight[number] for number in numbers]
    application.new_events()
    for daemon in lost:
        daemon.kill()
        daemon.lose_data()
    if returns_empty:
        for daemon in lost:
            daemon.start()
    found.append(application.rows("read_again", maps=MAPS).read_text())
    assert found == expected
    events = application.new_events()
    # Each lost map task ran once more, and the stage that reads failed at most once.
    assert events.map_runs().total() == sum(outputs[number] for number in numbers)
    assert len(events.attempts_ended_by("FetchFailed")) <= 1
    assert events.task_ends().keys() <= {"Success", "FetchFailed"}
