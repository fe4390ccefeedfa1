"""TaskManagers that come and go behind a name, while a job runs.

The driver has a resolver of its own, a name server of the test; the executors have the host's,
which does not know the name.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from sluice.spark_integration import spark_conf
from tests.spark.applications import Application
from tests.spark.barrier import Barrier
from tests.spark.class_archive import java_options
from tests.support.daemons import AUTHENTICATED, Daemons
from tests.support.free_ports import free_ports
from tests.support.name_server import NameServer, resolving_with, why_no_resolver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.cluster import StandaloneCluster
    from tests.support.daemon import Daemon

pytestmark = pytest.mark.skipif(bool(why_no_resolver()), reason=why_no_resolver())

NAME = "taskmanagers.sluice.test"
MAPS = 4
SLOTS = 2
FIRST_HOSTS = ("127.0.0.41", "127.0.0.42", "127.0.0.43")
MORE_HOSTS = ("127.0.0.44", "127.0.0.45")
FOREIGN_HOST = "127.0.0.46"
NEW_HOST = "127.0.0.47"
LOG_SECONDS = 90.0
RESULT_SECONDS = 150.0

UNCACHED = "-Dsun.net.inetaddr.ttl=1 -Dsun.net.inetaddr.negative.ttl=1"
"""Options with which the JVM keeps answers for a second."""


@pytest.fixture(scope="module")
def names() -> Iterator[NameServer]:
    with NameServer() as running:
        yield running


@pytest.fixture(scope="module")
def port() -> int:
    return free_ports(1, FIRST_HOSTS[0])


@pytest.fixture(scope="module")
def first(directory: Path, port: int) -> Iterator[Daemons]:
    with Daemons(directory / "m1", hosts=FIRST_HOSTS, processes=1, data_port=port) as running:
        yield running


@pytest.fixture
def more(directory: Path, first: Daemons, port: int) -> Iterator[Daemons]:
    secret: dict[str, Any] = {"cluster_secret_files": first.secret_file} if AUTHENTICATED else {}
    with Daemons(
        directory / "m2",
        hosts=MORE_HOSTS,
        authenticated=False,
        processes=1,
        data_port=port,
        **secret,
    ) as running:
        yield running


@pytest.fixture
def foreign(directory: Path, port: int) -> Iterator[Daemon]:
    """A TaskManager with a secret of its own."""
    with Daemons(
        directory / "m3", hosts=[FOREIGN_HOST], authenticated=True, processes=1, data_port=port
    ) as running:
        yield running[0]


@pytest.fixture(scope="module")
def application(
    directory: Path, cluster: StandaloneCluster, names: NameServer, first: Daemons, port: int
) -> Iterator[Application]:
    names.records = {NAME: list(first.hosts)}
    settings = {
        **spark_conf(f"dns:{NAME}:{port}"),
        **first.credentials,
        "spark.sluice.resolveInterval": "1s",
        "spark.sluice.io.connectTimeout": "30s",
        "spark.sluice.driver.pingInterval": "1s",
        # A TaskManager starts slowly on a busy machine.
        "spark.sluice.reader.returnTimeout": "30s",
        "spark.sluice.reader.refusedTimeout": "30s",
        "spark.driver.extraJavaOptions": f"{java_options(directory)} {UNCACHED}",
    }
    wrapper = resolving_with(names, directory)
    with Application("members", cluster.master_url, directory, settings, wrapper=wrapper) as it:
        yield it


def wait_for(application: Application, line: str) -> None:
    application.wait_for_output(re.compile(line), LOG_SECONDS)


def test_taskmanagers_come_and_go_under_a_job(
    own: Application,
    application: Application,
    names: NameServer,
    first: Daemons,
    port: int,
    request: pytest.FixtureRequest,
    directory: Path,
):
    """Three become five, and the first three leave."""
    expected = own.rows("map_waits", barrier=None).read_text()
    with Barrier(directory / "come-and-go.sock") as barrier:
        application.fill_slots(barrier, SLOTS)
        application.new_events()
        running = application.start("map_waits", barrier=str(barrier.path))
        writing = barrier.wait("map-", SLOTS)

        more: Daemons = request.getfixturevalue("more")
        names.records = {NAME: [*FIRST_HOSTS, *MORE_HOSTS]}
        wait_for(application, rf"dns:{NAME}:{port} has 5 addresses")
        for daemon in more:
            daemon.wait_until(lambda status: status.connections, LOG_SECONDS)
        barrier.release(*(arrival.point for arrival in writing))
        barrier.wait("map-", MAPS)
        assert sum(first.newest_outputs(application.application_id)) == SLOTS

        with ThreadPoolExecutor(len(FIRST_HOSTS)) as drains:
            list(drains.map(lambda daemon: daemon.drain(migrate=True), first))
        assert sum(more.newest_outputs(application.application_id)) == SLOTS
        for daemon in first:
            daemon.stop()
        names.records = {NAME: list(MORE_HOSTS)}
        for host in FIRST_HOSTS:
            wait_for(application, rf"The link to {re.escape(host)}:{port} ends")
        barrier.release()
        assert running.result(RESULT_SECONDS).read_text() == expected
    assert sum(more.newest_outputs(application.application_id)) == MAPS
    events = application.new_events()
    assert events.failures() == []
    assert events.map_runs() == dict.fromkeys(range(MAPS), 1)

    # A name that fails does not matter while its addresses answer.
    names.fails = True
    wait_for(application, rf"dns:{NAME}:{port} cannot be resolved")
    assert application.rows("map_waits", barrier=None).read_text() == expected
    assert application.new_events().failures() == []


def test_a_taskmanager_that_returns_at_another_address_keeps_its_map_outputs(
    own: Application,
    application: Application,
    names: NameServer,
    first: Daemons,
    port: int,
    directory: Path,
):
    """Readers that fail at its old address find it at the new one."""
    expected = [own.rows(job).read_text() for job in ("prepare", "read_again")]
    for daemon in first:
        if not daemon.running:
            daemon.start()
    names.fails = False
    names.records = {NAME: [first[0].host, first[1].host]}
    wait_for(application, rf"dns:{NAME}:{port} has 2 addresses")
    for daemon in first[0], first[1]:
        daemon.wait_until(lambda status: status.connections, LOG_SECONDS)
    with Barrier(directory / "elsewhere.sock") as barrier:
        application.fill_slots(barrier, SLOTS)
    application.new_events()
    found = [application.rows("prepare").read_text()]
    outputs = first.newest_outputs(application.application_id)
    moving = first[outputs.index(max(outputs))]
    old = moving.host
    moving.kill()
    reading = application.start("read_again")
    moving.host = NEW_HOST
    moving.start()
    names.records = {NAME: [daemon.host for daemon in (first[0], first[1])]}
    found.append(reading.result(RESULT_SECONDS).read_text())
    wait_for(application, rf"has moved from {re.escape(old)}:{port} to {re.escape(NEW_HOST)}")
    assert found == expected
    events = application.new_events()
    assert events.failures() == []
    assert events.map_runs() == dict.fromkeys(range(MAPS), 1)


@pytest.mark.skipif(not AUTHENTICATED, reason="without a secret every TaskManager is a member")
def test_an_address_that_a_foreign_taskmanager_takes_over_is_not_used(
    own: Application,
    application: Application,
    names: NameServer,
    first: Daemons,
    port: int,
    foreign: Daemon,
):
    for daemon in first:
        if not daemon.running:
            daemon.start()
    names.fails = False
    names.records = {NAME: [first[0].host, FOREIGN_HOST]}
    wait_for(application, rf"dns:{NAME}:{port} has 2 addresses")
    first[0].wait_until(lambda status: status.connections, LOG_SECONDS)
    foreign.wait_for_log("AUTHENTICATION_FAILED")
    expected = own.rows("map_waits", barrier=None).read_text()
    application.new_events()
    assert application.rows("map_waits", barrier=None).read_text() == expected
    assert application.new_events().failures() == []
    assert not foreign.status().partitions
