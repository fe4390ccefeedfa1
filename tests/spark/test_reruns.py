"""Lost map outputs of stages that give something else when they run again.

Half of the tasks that read such a stage have ended, or wait, when a TaskManager is lost. If they
were not run again as well, rows would come twice or never, or from both runs of a map task.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import Application, sluice_settings
from tests.spark.jobs.reruns import LAST, MAPS, READERS, RECORDS
from tests.support.daemons import is_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.spark.eventlog import Events
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemon import Daemon
    from tests.support.daemons import Daemons

SLOTS = 2
RESULT_SECONDS = 150.0


@pytest.fixture(scope="module")
def application(
    driver: Driver, cluster: StandaloneCluster, daemons: Daemons
) -> Iterator[Application]:
    # The TaskManager does not come back: nothing is won by waiting for it.
    settings = sluice_settings(daemons) | {"spark.sluice.reader.returnTimeout": "1s"}
    with driver.application("reruns", cluster.master_url, settings) as running:
        yield running


def runs_by_stage(events: Events) -> list[list[int]]:
    """How often each task of each stage began, stages in order."""
    starts = events.task_starts()
    stages = sorted({stage for stage, _ in starts})
    return [sorted(starts[key] for key in starts if key[0] == stage) for stage in stages]


def read_half(
    application: Application, barrier: Barrier, daemons: Daemons, point: str = "read"
) -> None:
    """Let the first readers end; return when the next ones have begun."""
    first = {arrival.point for arrival in barrier.wait(f"{point}-", SLOTS)}
    barrier.release(*first)
    barrier.wait(f"{point}-", 2 * SLOTS)
    # There is something to lose.
    assert any(
        is_of(application.application_id, shuffle.application_id)
        for shuffle in daemons[1].status().partitions
    )


def check_that_readers_ran_again(runs: list[int]) -> None:
    """All that had begun when data was lost; of the others some began only afterwards."""
    assert len(runs) == READERS
    assert max(runs) == 2
    assert runs.count(2) >= 2 * SLOTS


def test_rows_of_two_runs_are_told_apart_by_their_checksums(
    application: Application,
    daemons: Daemons,
    barrier: Barrier,
    revived: Daemon,
    directory: Path,
):
    version = tuple(map(int, application.spark_version.split(".")[:2]))
    if version < (4, 1):
        pytest.skip(f"Spark {application.spark_version} has no checksums of rows")
    token = directory / "token"
    token.write_text("first", encoding="utf-8")
    application.fill_slots(barrier, SLOTS)
    application.new_events()
    running = application.start("told_apart", barrier=str(barrier.path), token=str(token))
    read_half(application, barrier, daemons)
    token.write_text("second", encoding="utf-8")
    revived.kill()
    barrier.release()
    lines = running.result(RESULT_SECONDS).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    # What each map task gave comes from one run of it, and is complete.
    assert [(row[0], row[2]) for row in rows] == [(n, RECORDS // MAPS) for n in range(MAPS)]
    assert {row[1] for row in rows} == {"first", "second"}
    makers, readers, _ = runs_by_stage(application.new_events())
    assert set(makers) == {1, 2}
    check_that_readers_ran_again(readers)


def test_a_stage_known_to_differ_is_rolled_back_and_tasks_left_over_write_in_vain(
    application: Application,
    daemons: Daemons,
    barrier: Barrier,
    revived: Daemon,
    directory: Path,
):
    token = directory / "token-of-rolled-back"
    token.write_text("first", encoding="utf-8")
    application.fill_slots(barrier, SLOTS)
    application.new_events()
    running = application.start("rolled_back", barrier=str(barrier.path), token=str(token))
    read_half(application, barrier, daemons, "first")
    token.write_text("second", encoding="utf-8")
    revived.kill()
    # One reader of the first attempt stays behind, and has read what is now void.
    left_over = barrier.wait("first-", 2 * SLOTS)[-1].point
    barrier.release(*{f"first-{index}" for index in range(READERS)} - {left_over})
    barrier.wait("second-", 1)
    barrier.release(left_over)
    barrier.wait("second-", SLOTS)  # its slot is free: it has ended
    barrier.release()
    lines = running.result(RESULT_SECONDS).read_text().splitlines()
    numbers = [range(rest, RECORDS, LAST) for rest in range(LAST)]
    assert [json.loads(line) for line in lines] == [
        ["second", rest, len(of_rest), sum(of_rest), sum(n**2 for n in of_rest)]
        for rest, of_rest in enumerate(numbers)
    ]
    events = application.new_events()
    _, makers, readers, _ = runs_by_stage(events)
    assert set(makers) == {2}
    assert len(makers) == MAPS
    check_that_readers_ran_again(readers)
