"""Tasks that are interrupted while their TaskManager stands still, and stored data gone bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import Application, sluice_settings
from tests.spark.barrier import Barrier
from tests.support.daemons import Daemons

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster

MAPS = 4
SLOTS = 2
RESULT_SECONDS = 150.0
END_SECONDS = 45.0
"""Less than the 120 seconds of spark.sluice.io.timeout, which would also end the waits."""

RECORD_BYTES = 4_000
"""Each reducer gets 13 MB, more than all buffers on its way hold."""

FIRST_STORED_BYTE = 28
"""Behind the header of the first block of the first map output in the arena."""


@pytest.fixture(scope="module")
def alone(directory: Path) -> Iterator[Daemons]:
    """TaskManagers that no other application uses."""
    with Daemons(directory / "alone") as running:
        yield running


@pytest.fixture(scope="module")
def application(
    driver: Driver, cluster: StandaloneCluster, alone: Daemons
) -> Iterator[Application]:
    with driver.application("waits", cluster.master_url, sluice_settings(alone)) as running:
        yield running


def test_one_damaged_map_output_is_made_again(
    own: Application, application: Application, alone: Daemons
):
    expected = own.rows("prepare").read_text() + own.rows("read_again").read_text()
    application.new_events()
    prepared = application.rows("prepare").read_text()
    assert alone.newest_outputs(application.application_id)[1] >= 1
    with alone[1].arenas[-1].open("r+b") as arena:
        arena.seek(FIRST_STORED_BYTE)
        byte = arena.read(1)[0]
        arena.seek(FIRST_STORED_BYTE)
        arena.write(bytes([byte ^ 1]))
    assert prepared + application.rows("read_again").read_text() == expected
    events = application.new_events()
    # Not the other outputs of that TaskManager.
    assert sorted(events.map_runs().values()) == [1] * (MAPS - 1) + [2]
    assert events.task_ends()["FetchFailed"] >= 1
    # Its TaskManager no longer serves it: it believed no reader, and has read its bytes again.
    counters = alone[1].status().counters
    assert counters.damaged_map_outputs_dropped == 1
    assert counters.damage_reports["damaged"] == 1


@pytest.mark.parametrize("stage", ["map", "reduce"])
def test_interrupted_tasks_do_not_wait_for_a_taskmanager_that_stands_still(
    own: Application,
    application: Application,
    alone: Daemons,
    directory: Path,
    stage: str,
):
    with Barrier(directory / f"{stage}-waits.sock") as barrier:
        path = str(barrier.path)
        application.new_events()
        running = application.start("cancelled", barrier=path, record_bytes=RECORD_BYTES)
        if stage == "reduce":
            barrier.release(*(f"map-{number}" for number in range(MAPS)))
        barrier.wait(stage, SLOTS)
        alone[1].pause()
        try:
            barrier.wait("driver", 1)
            barrier.release("driver", *(f"{stage}-{number}" for number in range(MAPS)))
            assert running.result(END_SECONDS).read_text() == '["cancelled"]\n'
            # Both slots are free again, though the TaskManager still stands still.
            slots = application.start("all_slots", barrier=path, point="slot-")
            barrier.wait("slot", SLOTS, END_SECONDS)
        finally:
            alone[1].resume()
        barrier.release()
        slots.result(RESULT_SECONDS)
    # Also those that were about to commit: killed tasks have not failed.
    ends = application.new_events().task_ends()
    assert ends["TaskKilled"] >= 1
    assert ends.keys() <= {"Success", "TaskKilled"}
    expected = own.rows("reduce_waits", barrier=None)
    assert application.rows("reduce_waits", barrier=None).read_text() == expected.read_text()
    for daemon in alone:
        daemon.wait_until(lambda status: not status.gates, END_SECONDS)
