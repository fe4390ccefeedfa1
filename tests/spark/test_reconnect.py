"""Damage, lost connections, restarts and drains of TaskManagers in the middle of jobs.

Every client of a TaskManager comes through a proxy. None of this fails a task or runs one again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.links import Link, Links
from tests.spark.applications import Application, sluice_settings
from tests.spark.barrier import Barrier
from tests.support.cluster import WORKER_HOSTS
from tests.support.daemons import Daemons
from tests.support.tcp_proxy import Cut, Fault, Flips

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.driver import Driver
    from tests.spark.eventlog import Events
    from tests.support.cluster import StandaloneCluster

MAPS = 4
SLOTS = 2
WAIT_SECONDS = 60.0
RESULT_SECONDS = 150.0

PATIENT = {
    # A daemon starts slowly on a machine that does much else.
    "spark.sluice.reader.returnTimeout": "60s",
    "spark.sluice.reader.refusedTimeout": "60s",
    "spark.sluice.writer.returnTimeout": "60s",
}

MIB = 1024 * 1024
LARGE = {"record_bytes": 4_000}
"""Each map output has 20 MB, ten regions; each reducer gets 13 MB."""

ONCE = dict.fromkeys(range(MAPS), 1)


@pytest.fixture(scope="module")
def links(directory: Path) -> Iterator[Links]:
    with Links(directory / "links", WORKER_HOSTS) as running:
        yield running


@pytest.fixture(scope="module")
def linked(directory: Path, links: Links) -> Iterator[Daemons]:
    """TaskManagers behind the links: their clients' sockets are those of the proxies.

    They share no memory with the clients, so that all bytes of map outputs go over the links.
    """
    with Daemons(
        directory / "links",
        options=links.options(),
        memory_tier_bytes="256 MiB",
        region_areas_bytes=0,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def application(
    driver: Driver, cluster: StandaloneCluster, linked: Daemons
) -> Iterator[Application]:
    settings = sluice_settings(linked) | PATIENT
    with driver.application("links", cluster.master_url, settings) as running:
        yield running


@pytest.fixture
def unharmed(driver: Driver, cluster: StandaloneCluster, linked: Daemons) -> Iterator[Application]:
    """No executor of it passes a TaskManager over because it lately did not answer."""
    with driver.application("unharmed", cluster.master_url, sluice_settings(linked)) as running:
        yield running


@pytest.fixture
def client_links(links: Links) -> Iterator[list[Link]]:
    found = [Link(host, "clients") for host in WORKER_HOSTS]
    yield found
    for link in found:
        links.heal(link)


@pytest.fixture(scope="module")
def expected(own: Application) -> str:
    return own.rows("reduce_waits", barrier=None, **LARGE).read_text()


def check_that_nothing_failed(events: Events) -> None:
    assert events.map_runs() == ONCE
    assert events.failures() == []


def test_a_bit_that_flips_once_is_asked_for_again(
    application: Application, links: Links, client_links: list[Link], expected: str
):
    application.new_events()
    flips = Flips(most=2)
    for link in client_links:
        links.spoil_new(link, down=Fault(flip_at_byte=200_000, flips=flips))
    found = application.rows("reduce_waits", barrier=None, **LARGE)
    assert found.read_text() == expected
    assert flips.done == flips.most
    check_that_nothing_failed(application.new_events())


def test_connections_that_end_again_and_again(
    application: Application, links: Links, client_links: list[Link], expected: str
):
    application.new_events()
    for link in client_links:
        # Less than a map output has, and more than a region; less than a reducer takes, and more
        # than what it has to take again: its parts of two map outputs that are half read.
        up = Fault(cut_after_bytes=5 * MIB, cut=Cut.RESET)
        down = Fault(cut_after_bytes=9 * MIB, cut=Cut.RESET)
        links.spoil_new(link, up=up, down=down)
    found = application.rows("reduce_waits", barrier=None, **LARGE)
    assert found.read_text() == expected
    check_that_nothing_failed(application.new_events())


def test_a_taskmanager_killed_and_restarted_while_it_is_written_to(
    application: Application,
    links: Links,
    client_links: list[Link],
    linked: Daemons,
    expected: str,
):
    application.new_events()
    before = linked[1].status().counters
    assert before.region_area_bytes_in == 0
    links.spoil_new(client_links[1], up=Fault(cut_after_bytes=7 * MIB, cut=Cut.STALL))
    running = application.start("reduce_waits", barrier=None, **LARGE)
    # The first region is secured, and the connection stands still long before the last one.
    written = before.regions_written + 2
    linked[1].wait_until(lambda s: s.counters.regions_written >= written, WAIT_SECONDS)
    linked[1].kill()
    links.heal(client_links[1])
    linked[1].start()
    assert running.result(RESULT_SECONDS).read_text() == expected
    check_that_nothing_failed(application.new_events())
    # What was secured before is part of what is read: the outputs are where they were begun.
    # The counter is of the new process, and stays when Spark drops the shuffle.
    assert linked[1].status().counters.map_outputs_committed >= 1


def test_a_taskmanager_drains_during_a_job(
    own: Application, unharmed: Application, linked: Daemons, directory: Path
):
    expected = [own.rows(job).read_text() for job in ("prepare", "read_again", "map_waits")]
    unharmed.new_events()
    prepared = unharmed.rows("prepare").read_text()
    assert linked.newest_outputs(unharmed.application_id)[1] >= 1
    with Barrier(directory / "drain.sock") as barrier:
        running = unharmed.start("map_waits", barrier=str(barrier.path))
        barrier.wait("map", SLOTS)
        linked[1].drain()
        barrier.release()
        written_elsewhere = running.result(RESULT_SECONDS).read_text()
    assert linked.newest_outputs(unharmed.application_id) == [MAPS, 0]
    found = [prepared, unharmed.rows("read_again").read_text(), written_elsewhere]
    assert found == expected
    events = unharmed.new_events()
    assert set(events.task_ends()) == {"Success"}
    assert events.map_runs() == dict.fromkeys(range(MAPS), 2)  # of two shuffles, each once
