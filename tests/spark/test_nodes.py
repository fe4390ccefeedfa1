"""Executors and TaskManagers of a node that have different addresses, as pods have.

The only thing that tells them apart is the name of their node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import Application, sluice_settings
from tests.spark.jobs.locality import RECORDS
from tests.support.cluster import WORKER_HOSTS, StandaloneCluster
from tests.support.daemons import Daemons

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.barrier import Barrier

MAPS = 4
SLOTS = 2
"""Executors, of one core and on a node of its own each."""

TASKMANAGER_HOSTS = ("127.0.0.51", "127.0.0.52")
RESULT_SECONDS = 150.0
LOOK_SECONDS = 60.0


def node_of(worker_host: str) -> str:
    return f"node-of-{worker_host}"


@pytest.fixture(scope="module")
def taskmanagers(directory: Path) -> Iterator[Daemons]:
    nodes = zip(TASKMANAGER_HOSTS, WORKER_HOSTS, strict=True)
    options = {host: {"node": node_of(worker)} for host, worker in nodes}
    with Daemons(
        directory / "nodes", hosts=TASKMANAGER_HOSTS, options=options, socket_path=None
    ) as running:
        yield running


@pytest.fixture(scope="module")
def application(directory: Path, taskmanagers: Daemons) -> Iterator[Application]:
    environment = {"SLUICE_NODE": node_of("{host}")}
    settings = sluice_settings(taskmanagers) | {
        "spark.sluice.endpoints": taskmanagers.tcp_endpoints,
        "spark.locality.wait": "1h",
    }
    place = directory / "nodes-cluster"
    place.mkdir()
    with (
        StandaloneCluster(place, memory="2g", worker_environment=environment) as cluster,
        Application("nodes", cluster.master_url, directory, settings) as running,
    ):
        yield running


def test_data_stays_on_its_node(application: Application, taskmanagers: Daemons, barrier: Barrier):
    application.fill_slots(barrier, SLOTS)
    application.new_events()
    before = taskmanagers.moved()
    job = application.start("own_partitions", barrier=str(barrier.path), maps=MAPS)
    for done in range(0, MAPS, SLOTS):
        arrivals = barrier.wait("map-", done + SLOTS)
        barrier.release(*(arrival.point for arrival in arrivals[done:]))
    assert len(job.result(RESULT_SECONDS).read_text().splitlines()) == MAPS
    assert taskmanagers.newest_outputs(application.application_id) == [MAPS // SLOTS] * SLOTS
    events = application.new_events()
    assert {locality for _, locality in events.placements()} == {"NODE_LOCAL"}
    assert {host for host, _ in events.placements()} == set(WORKER_HOSTS)
    use = events.shuffle_use()
    moved = taskmanagers.moved() - before
    assert use.remote_bytes_read == moved.read_bytes_remote == 0
    assert use.local_bytes_read == moved.read_bytes_local > MAPS * RECORDS


def test_bytes_of_the_other_node_are_remote(application: Application, taskmanagers: Daemons):
    application.new_events()
    before = taskmanagers.moved()
    application.rows("rdd_group_by_key")
    use = application.new_events().shuffle_use()
    moved = taskmanagers.moved() - before
    assert use.remote_bytes_read == moved.read_bytes_remote > 0
    assert use.local_bytes_read == moved.read_bytes_local > 0
    assert use.local_bytes_read + use.remote_bytes_read == use.bytes_written
