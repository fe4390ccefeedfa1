"""A real YARN cluster (`make yarn-test`): both deploy modes, with dynamic allocation.

The jobs of the demo have the rows of Spark's own shuffle, and the TaskManagers count the bytes that
Spark counts. YARN has no shuffle service: what an executor wrote outlives its container.
"""

from __future__ import annotations

import os
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.spark_integration.endpoint_check import TOKEN_FILE
from tests.spark.applications import Application, Both, sluice_settings
from tests.spark.eventlog import Events
from tests.support.cluster import WORKER_HOSTS
from tests.support.daemons import Daemons
from tests.support.executors import wait_for_end
from tests.support.jobs import tpch
from tests.support.tpch_data import ensure_tpch
from tests.yarn.cluster import JARS_VARIABLE, NODE, PLACE, YarnCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.barrier import Barrier

JARS = os.environ.get(JARS_VARIABLE, "")

pytestmark = pytest.mark.skipif(not JARS, reason="make yarn-test")

MODES = ("client", "cluster")
SCALE_FACTOR = 0.1
QUERIES = (3, 9, 18)
TEXTS = 50
MAPS = 4
SLOTS = 2
RESULT_SECONDS = 150.0
LEAVE_SECONDS = 60.0
ONCE = dict.fromkeys(range(MAPS), 1)
"""Every map task ran once."""

SETTINGS = tpch.SETTINGS | {
    "spark.sql.shuffle.partitions": "8",
    "spark.executor.memory": "1g",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": str(SLOTS),
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.scheduler.minRegisteredResourcesRatio": "0.0",  # the first job asks for executors
}


class YarnApplication(Application):
    """An application on YARN, which adds the number of the attempt to the event log's name."""

    @property
    def event_log(self) -> Path:
        """The application's event log; complete once the application has ended."""
        found = super().event_log
        attempt = found.with_name(f"{found.name}_1")
        running = attempt.with_name(f"{attempt.name}.inprogress")
        return attempt if attempt.exists() or running.exists() else found


@dataclass(frozen=True, slots=True)
class OnYarn:
    """An application on YARN with Sluice, and one with Spark's own shuffle."""

    mode: str
    both: Both
    sluice: YarnApplication
    yarn: YarnCluster


@pytest.fixture(scope="module")
def yarn(directory: Path) -> Iterator[YarnCluster]:
    with YarnCluster(directory, JARS) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("YARN_CONF_DIR", str(cluster.configuration))
        yield cluster


@pytest.fixture(scope="module", params=MODES)
def on_yarn(
    request: pytest.FixtureRequest,
    yarn: YarnCluster,
    own: Application,
    daemons: Daemons,
    directory: Path,
) -> Iterator[OnYarn]:
    mode = request.param
    settings = sluice_settings(daemons) | SETTINGS | yarn_settings(yarn, mode)
    tcp = daemons.tcp_endpoints
    if mode == "client":
        # Executors of this host use the socket, and the driver's other endpoints are a reserve.
        socket_path = daemons[0].status().socket_path
        settings["spark.sluice.endpoints"] = f"unix:{socket_path},{tcp}"
    else:
        # The driver reads the token in the directory of its container.
        settings["spark.sluice.endpoints"] = tcp
        settings["spark.yarn.dist.files"] = daemons.token_file.as_uri()
        settings[TOKEN_FILE] = daemons.token_file.name
    application = YarnApplication(
        f"yarn-{mode}", "yarn", directory, settings, archive="-XX:TieredStopAtLevel=1"
    )
    with application as running:
        yield OnYarn(mode, Both(own, running, daemons), running, yarn)


@pytest.fixture(scope="module")
def on_node(yarn: YarnCluster, own: Application, directory: Path) -> Iterator[tuple[Both, Daemons]]:
    """An application whose executors have a node, which is that of the second TaskManager."""
    hosts = dict(zip(WORKER_HOSTS, ("another-node", NODE), strict=True))
    options = {host: {"node": node} for host, node in hosts.items()}
    with Daemons(directory / "tn", options=options) as daemons:
        settings = sluice_settings(daemons) | SETTINGS | yarn_settings(yarn, "client")
        settings["spark.sluice.endpoints"] = daemons.tcp_endpoints
        with YarnApplication(
            "yarn-node", "yarn", directory, settings, archive="-XX:TieredStopAtLevel=1"
        ) as running:
            yield Both(own, running, daemons), daemons


def yarn_settings(yarn: YarnCluster, mode: str) -> dict[str, str]:
    """Return what an application needs on this cluster besides its shuffles."""
    environment = {
        name: yarn.environment[name] for name in ("PYTHONPATH", "PYTHONHASHSEED", "SPARK_LOCAL_IP")
    }
    return {
        "spark.submit.deployMode": mode,
        "spark.yarn.stagingDir": (yarn.directory / "staging").as_uri(),
        # The installed Spark, instead of an upload of its jars for each application.
        "spark.yarn.jars": f"local:{yarn.environment['SPARK_HOME']}/jars/*",
        "spark.yarn.am.memory": "512m",
        "spark.yarn.submit.waitAppCompletion": "true",
        "spark.yarn.report.interval": "500ms",
        "spark.yarn.scheduler.heartbeat.interval-ms": "500",
        **{f"spark.yarn.appMasterEnv.{name}": value for name, value in environment.items()},
        **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
    }


def test_executors_run_in_containers(on_yarn: OnYarn, barrier: Barrier):
    on_yarn.sluice.fill_slots(barrier, SLOTS)
    executors = on_yarn.yarn.executors(on_yarn.sluice.application_id)
    assert len(executors) == SLOTS
    tokens = [Path(f"/proc/{each.pid}/cwd/token").exists() for each in executors]
    # YARN gives files of an application to all of its containers.
    assert tokens == [on_yarn.mode == "cluster"] * SLOTS
    driver = on_yarn.yarn.container_of(on_yarn.sluice.driver_pid)
    assert (driver is not None) == (on_yarn.mode == "cluster")


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_demo_has_equal_rows(on_yarn: OnYarn, query: int):
    data = str(ensure_tpch(SCALE_FACTOR))
    compared = on_yarn.both.compare("tpch", query=query, data=data)
    assert compared.differences == []
    assert compared.moved.written_bytes > 0
    assert compared.unaccounted() == {}


def test_the_rdd_job_of_the_demo_has_equal_rows(on_yarn: OnYarn):
    library = Path(sysconfig.get_path("stdlib"))
    texts = [str(path) for path in sorted(library.glob("*.py"))[:TEXTS]]
    compared = on_yarn.both.compare("wordcount", files=texts, partitions=MAPS)
    assert compared.differences == []
    assert compared.moved.written_bytes > 0
    assert compared.unaccounted() == {}


def test_a_killed_container_repeats_no_map_task(
    own: Application, on_yarn: OnYarn, barrier: Barrier
):
    expected = own.rows("reduce_waits_inside", barrier=None)
    application = on_yarn.sluice
    application.fill_slots(barrier, SLOTS)
    application.new_events()
    running = application.start("reduce_waits_inside", barrier=str(barrier.path))
    reader = barrier.wait("reduce", SLOTS)[0]
    lost = [
        each
        for each in on_yarn.yarn.executors(application.application_id)
        if each.pid == reader.executor_pid
    ]
    on_yarn.yarn.kill_container(reader.executor_pid)
    wait_for_end(lost, LEAVE_SECONDS)
    barrier.release()
    assert running.result(RESULT_SECONDS).read_text() == expected.read_text()
    events = application.new_events()
    assert events.map_runs() == ONCE
    assert "FetchFailed" not in events.task_ends()
    assert events.task_ends()["ExecutorLostFailure"] == 1
    assert events.executors_removed() == 1


def test_executors_use_the_taskmanager_of_their_node(
    yarn: YarnCluster, on_node: tuple[Both, Daemons], barrier: Barrier
):
    both, daemons = on_node
    both.sluice.fill_slots(barrier, SLOTS)
    for executor in yarn.executors(both.sluice.application_id):
        variables = Path(f"/proc/{executor.pid}/environ").read_text("utf-8").split("\0")
        assert {f"{name}={value}" for name, value in PLACE.items()} <= set(variables)
    before = [daemon.status().counters.map_outputs_committed for daemon in daemons]
    compared = both.compare("prepare", maps=MAPS)
    assert compared.differences == []
    after = [daemon.status().counters.map_outputs_committed for daemon in daemons]
    committed = [new - old for new, old in zip(after, before, strict=True)]
    assert committed == [0, MAPS]


def test_idle_executors_leave_and_others_read_what_they_wrote(own: Application, on_yarn: OnYarn):
    expected = [own.rows("prepare"), own.rows("read_again")]
    application = on_yarn.sluice
    application.new_events()
    prepared = application.rows("prepare")
    events = application.new_events()
    assert events.map_runs() == ONCE
    writers = events.map_executors()
    wait_for_removal(application, writers)
    found = application.rows("read_again")
    assert [prepared.read_text(), found.read_text()] == [path.read_text() for path in expected]
    events = application.new_events()
    assert events.map_runs() == {}
    assert events.task_ends().keys() == {"Success"}
    assert writers.isdisjoint(events.reduce_executors())


def wait_for_removal(application: Application, executors: set[str]) -> None:
    """Wait until the event log says that these executors are removed.

    Raises:
        TimeoutError: Some are there still.
    """
    seen: list[dict[str, Any]] = []
    deadline = time.monotonic() + LEAVE_SECONDS
    while left := executors - Events(seen).removed():
        if time.monotonic() > deadline:
            raise TimeoutError(f"executors {left} still run after {LEAVE_SECONDS:g} s")
        time.sleep(0.2)
        seen += application.new_events().events
