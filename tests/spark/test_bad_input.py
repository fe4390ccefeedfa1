"""Wrong settings and missing TaskManagers: what the user is told, and when."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks.processes import ProcessFailed
from spark_integration import spark_conf
from tests.spark.applications import LOCAL_MASTER, Application

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.cluster import StandaloneCluster

AT_ONCE_SECONDS = 30.0


@pytest.fixture
def nobody() -> Iterator[str]:
    """An endpoint where nobody listens, kept from being used by anyone else."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_all_wrong_settings_are_told_at_the_start(directory: Path):
    settings = spark_conf("tm1:7337:9") | {
        "spark.sluice.fallback.policy": "maybe",
        "spark.sluice.io.timeout": "soon",
        "spark.sluice.writer.regionSize": "1g",
        "spark.sluice.reader.creditPerChannel": "1",
        "spark.sluice.endpoint": "tm1:7337",
    }
    with pytest.raises(ProcessFailed), Application("wrong", LOCAL_MASTER, directory, settings):
        pass
    output = (directory / "wrong.log").read_text(encoding="utf-8")
    for told in (
        "spark.sluice.endpoints is 'tm1:7337:9'",
        "spark.sluice.fallback.policy is 'maybe': must be one of fail, spark",
        "spark.sluice.io.timeout is 'soon': write a time, 1s to 1h",
        "spark.sluice.writer.regionSize is 1073741824 bytes: must be between 65536 and 67108864",
        "spark.sluice.reader.creditPerChannel is 1: must be between 2 and 1024",
        "spark.sluice.endpoint is unknown; there are spark.sluice.endpoints,",
    ):
        assert told in output


def test_no_taskmanager_fails_the_job_at_once(directory: Path, nobody: str):
    with Application("nobody", LOCAL_MASTER, directory, spark_conf(nobody)) as application:
        started = time.monotonic()
        with pytest.raises(ProcessFailed) as failure:
            application.rows("rdd_reduce_by_key")
        assert time.monotonic() - started < AT_ONCE_SECONDS
    message = str(failure.value)
    assert f"no TaskManager is reachable for shuffle 0: {nobody}" in message
    assert "Start TaskManagers (sluice taskmanager)" in message
    assert "spark.sluice.fallback.policy=spark" in message


def test_no_taskmanager_and_the_policy_to_fall_back(directory: Path, own: Application, nobody: str):
    settings = spark_conf(nobody) | {"spark.sluice.fallback.policy": "spark"}
    with Application("fallback", LOCAL_MASTER, directory, settings) as application:
        for job in ("rdd_reduce_by_key", "frame_join"):
            assert application.rows(job).read_text() == own.rows(job).read_text()
    assert "Shuffle 0 uses Spark's own shuffle: no TaskManager is reachable" in application.output


def test_no_taskmanager_on_the_executors_hosts(directory: Path, cluster: StandaloneCluster):
    settings = spark_conf(f"unix:{directory}/nowhere-{{host}}.sock")
    application = Application("unix", cluster.master_url, directory, settings)
    with application, pytest.raises(ProcessFailed) as failure:
        application.rows("rdd_reduce_by_key")
    assert "nowhere-127.0.0." in str(failure.value)
    assert "spark.sluice.endpoints" in str(failure.value)
