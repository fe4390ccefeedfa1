"""Lost map outputs of stages that give something else when they run again.

Half of the tasks that read such a stage have ended, or wait, when a TaskManager is lost. If they
were not run again as well, rows would come twice or never, or from both runs of a map task.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import Application, sluice_settings
from tests.spark.jobs.reruns import MAPS, READERS, RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.cluster import StandaloneCluster
    from tests.spark.barrier import Barrier
    from tests.spark.daemons import Daemon, Daemons
    from tests.spark.eventlog import Events

SLOTS = 2
RESULT_SECONDS = 150.0


@pytest.fixture(scope="module")
def application(
    directory: Path, cluster: StandaloneCluster, daemons: Daemons
) -> Iterator[Application]:
    # The TaskManager does not come back: nothing is won by waiting for it.
    settings = sluice_settings(daemons) | {"spark.sluice.reader.returnTimeout": "1s"}
    with Application("reruns", cluster.master_url, directory, settings) as running:
        yield running


def runs_by_stage(events: Events) -> list[list[int]]:
    """How often each task of each stage began, stages in order."""
    starts = events.task_starts()
    stages = sorted({stage for stage, _ in starts})
    return [sorted(starts[key] for key in starts if key[0] == stage) for stage in stages]


def read_half(application: Application, barrier: Barrier, daemons: Daemons) -> None:
    """Let the first readers end; return when the next ones have begun."""
    first = {arrival.point for arrival in barrier.wait("read-", SLOTS)}
    barrier.release(*first)
    barrier.wait("read-", 2 * SLOTS)
    # There is something to lose.
    assert any(
        shuffle.application_id == application.application_id
        for shuffle in daemons[1].status().partitions
    )


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
    assert len(readers) == READERS
    assert min(readers) == 2
