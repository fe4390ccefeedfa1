"""Wrong settings and missing TaskManagers: what the user is told, and when."""

from __future__ import annotations

import re
import socket
import time
from typing import TYPE_CHECKING

import pytest

from sluice.spark_integration import spark_conf
from tests.spark.applications import LOCAL_MASTER, Application, sluice_settings
from tests.support.daemons import Daemons
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster

AT_ONCE_SECONDS = 30.0


@pytest.fixture
def nobody() -> Iterator[str]:
    """An endpoint where nobody listens, kept from being used by anyone else."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_all_wrong_settings_are_told_at_the_start(driver: Driver):
    settings = spark_conf() | {
        "spark.sluice.endpoints": "tm1:7337:9",
        "spark.sluice.fallback.policy": "maybe",
        "spark.sluice.io.timeout": "soon",
        "spark.sluice.writer.regionSize": "1g",
        "spark.sluice.reader.creditPerChannel": "1",
        "spark.sluice.endpoint": "tm1:7337",
    }
    output = driver.refused("wrong", settings)
    for told in (
        "spark.sluice.endpoints is 'tm1:7337:9'",
        "spark.sluice.fallback.policy is 'maybe': must be one of fail, spark",
        "spark.sluice.io.timeout is 'soon': write a time, 1s to 1h",
        "spark.sluice.writer.regionSize is 1073741824 bytes: must be between 65536 and 67108864",
        "spark.sluice.reader.creditPerChannel is 1: must be between 2 and 1024",
        "spark.sluice.endpoint is unknown; there are spark.sluice.enabled, spark.sluice.active,",
    ):
        assert told in output


def test_no_taskmanager_fails_the_job_at_once(driver: Driver, nobody: str):
    with driver.application("nobody", LOCAL_MASTER, spark_conf(nobody)) as application:
        started = time.monotonic()
        with pytest.raises(ProcessFailed) as failure:
            application.rows("rdd_reduce_by_key")
        assert time.monotonic() - started < AT_ONCE_SECONDS
    message = str(failure.value)
    assert f"no TaskManager is reachable for shuffle 0: {nobody}" in message
    assert "Start TaskManagers (sluice taskmanager)" in message
    assert "spark.sluice.fallback.policy=spark" in message


def test_no_taskmanager_and_the_policy_to_fall_back(driver: Driver, own: Application, nobody: str):
    settings = spark_conf(nobody) | {"spark.sluice.fallback.policy": "spark"}
    with driver.application("fallback", LOCAL_MASTER, settings) as application:
        for job in ("rdd_reduce_by_key", "frame_join"):
            assert application.rows(job).read_text() == own.rows(job).read_text()
    assert "Shuffle 0 uses Spark's own shuffle: no TaskManager is reachable" in application.output


def test_no_taskmanager_on_the_executors_hosts(
    driver: Driver, directory: Path, cluster: StandaloneCluster
):
    """Only the executors can tell, so the driver waits for their word before any task runs."""
    settings = spark_conf(f"unix:{directory}/nowhere-{{host}}.sock")
    with driver.application("unix", cluster.master_url, settings) as application:
        application.new_events()
        started = time.monotonic()
        with pytest.raises(ProcessFailed) as failure:
            application.rows("rdd_reduce_by_key")
        assert time.monotonic() - started < AT_ONCE_SECONDS
        assert not application.new_events().task_starts()
    message = str(failure.value)
    assert "no TaskManager is reachable for shuffle 0: " in message
    # Which of them reports first is up to them.
    assert re.search(r"executor \d: unix:\S+nowhere-127\.0\.0\.", message)
    assert "Start TaskManagers (sluice taskmanager)" in message
    assert "spark.sluice.fallback.policy=spark" in message


@pytest.mark.extended
def test_no_taskmanager_on_the_executors_hosts_and_the_policy_to_fall_back(
    directory: Path, cluster: StandaloneCluster, own: Application
):
    metrics = directory / "metrics"
    metrics.mkdir()
    settings = spark_conf(f"unix:{directory}/nowhere-{{host}}.sock") | {
        "spark.sluice.fallback.policy": "spark",
        "spark.metrics.conf.driver.sink.csv.class": "org.apache.spark.metrics.sink.CsvSink",
        "spark.metrics.conf.driver.sink.csv.directory": str(metrics),
    }
    # In a JVM of its own, which counts the shuffles of all its applications.
    with Application("unixfallback", cluster.master_url, directory, settings) as application:
        for job in ("rdd_reduce_by_key", "frame_join"):
            assert application.rows(job).read_text() == own.rows(job).read_text()
        assert application.new_events().task_ends().keys() == {"Success"}
    told = application.output.count("uses Spark's own shuffle: no TaskManager is reachable (unix:")
    assert told >= 2
    (counter,) = metrics.glob("*.driver.*.fallbackShuffles.csv")
    assert counter.read_text().splitlines()[-1].split(",")[1] == str(told)


def test_executors_tell_the_driver_and_each_other_of_a_taskmanager(
    driver: Driver, directory: Path, cluster: StandaloneCluster, own: Application
):
    """Driver and one executor have no socket on their host; the other executor has."""
    with Daemons(directory / "second", hosts=cluster.hosts[1:]) as second:
        settings = sluice_settings(second)
        with driver.application("second", cluster.master_url, settings) as application:
            job = "rdd_reduce_by_key"
            assert application.rows(job).read_text() == own.rows(job).read_text()
            assert second.moved().written_bytes > 0
            assert second.moved().read_bytes > 0


def test_the_last_taskmanager_dies_during_a_job(
    driver: Driver, directory: Path, cluster: StandaloneCluster, own: Application
):
    """The job whose data is gone fails at once; the next one begins without TaskManagers."""
    with Daemons(directory / "mortal") as mortal:
        settings = sluice_settings(mortal) | {
            "spark.sluice.fallback.policy": "spark",
            "spark.sluice.reader.returnTimeout": "1s",
        }
        with driver.application("widow", cluster.master_url, settings) as application:
            application.rows("prepare")
            application.new_events()
            for daemon in mortal:
                daemon.kill()
            with pytest.raises(ProcessFailed) as failure:
                application.rows("read_again")
            starts = application.new_events().task_starts()
            assert starts
            assert set(starts.values()) == {1}
            job = "rdd_reduce_by_key"
            assert application.rows(job).read_text() == own.rows(job).read_text()
    message = str(failure.value)
    assert "cancelled because no TaskManager is reachable from any executor: " in message
    assert "Start TaskManagers (sluice taskmanager)" in message
