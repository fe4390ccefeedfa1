"""An application at its quota: its map outputs go where there is room, or it hears why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import sluice_settings
from tests.support.cluster import WORKER_HOSTS
from tests.support.daemons import Daemons
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.applications import Application
    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster

LITTLE, MORE = 2, 20
"""Map outputs that the application may have on the one host and on the other."""

SLOTS = 2


@pytest.fixture(scope="module")
def bounded(directory: Path) -> Iterator[Daemons]:
    quotas = dict(zip(WORKER_HOSTS, (LITTLE, MORE), strict=True))
    options = {host: {"quota_map_outputs": most} for host, most in quotas.items()}
    with Daemons(directory / "bounded", options=options) as running:
        yield running


@pytest.fixture(scope="module")
def application(
    driver: Driver, cluster: StandaloneCluster, bounded: Daemons
) -> Iterator[Application]:
    with driver.application("bounded", cluster.master_url, sluice_settings(bounded)) as running:
        yield running


def test_no_task_fails_while_another_taskmanager_has_room(
    own: Application, application: Application, barrier: Barrier, bounded: Daemons
):
    jobs, maps = ("prepare", "read_again"), 12
    expected = [own.rows(job, maps=maps).read_text() for job in jobs]
    application.fill_slots(barrier, SLOTS)
    application.new_events()
    found = [application.prepare_evenly(barrier, maps, SLOTS).read_text()]
    assert bounded.newest_outputs(application.application_id) == [LITTLE, maps - LITTLE]
    found.append(application.rows("read_again", maps=maps).read_text())
    assert found == expected
    events = application.new_events()
    assert events.map_runs() == dict.fromkeys(range(maps), 1)
    assert set(events.task_ends()) == {"Success"}


def test_the_error_of_the_task_names_the_quota_where_none_has_room(application: Application):
    application.new_events()
    with pytest.raises(ProcessFailed, match="quota of map outputs"):
        application.rows("prepare", maps=LITTLE + MORE + 1)
    failures = application.new_events().failures()
    refusals = [each for each in failures if "QUOTA_EXCEEDED" in each]
    assert refusals
    for each in refusals:
        assert f"limit {LITTLE})" in each or f"limit {MORE})" in each
        assert "raise quota_map_outputs" in each
