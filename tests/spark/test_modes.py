"""The plugin in each mode of an application: on, off, and with each fallback policy."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import LOCAL_MASTER, sluice_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.applications import Application
    from tests.spark.driver import Driver, GuestApplication
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemons import Daemons

DYNAMIC = {
    "spark.scheduler.minRegisteredResourcesRatio": "0.0",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
}
OFF = {"spark.sluice.enabled": "false"}
MANAGER = {
    "spark.shuffle.manager": "io.sluice.spark.SluiceShuffleManager",
    "spark.shuffle.sort.io.plugin.class": "io.sluice.spark.SluiceShuffleDataIO",
}
HANDED_TO_EXECUTORS = "spark.plugins.internal.conf.io.sluice.spark.SluicePlugin."
NOT_SPARKS = re.compile(
    r"spark\.(sluice\.|app\.|driver\.port|driver\.host|eventLog\.dir|sql\.warehouse\.dir)"
)
"""Settings of Sluice, and settings that differ between any two applications."""
WARNING = re.compile(r" (WARN|ERROR) (?!Activation: ).*([sS]luice|DriverLink|TaskManager)")
"""All but the line that says at the start whether Sluice is active."""


def settings_of(application: Application) -> dict[str, str]:
    lines = application.rows("settings").read_text(encoding="utf-8").splitlines()
    return dict(json.loads(line) for line in lines)


def counters_of(application: Application) -> dict[str, int]:
    lines = application.rows("counters").read_text(encoding="utf-8").splitlines()
    return dict(json.loads(line) for line in lines)


@pytest.fixture(scope="module")
def plain(driver: Driver, cluster: StandaloneCluster) -> Iterator[dict[str, str]]:
    """Return all settings of an application without the plugin."""
    with driver.application("plain", cluster.master_url, DYNAMIC) as running:
        yield settings_of(running)


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param({}, id="on"),
        pytest.param(OFF, id="off"),
        pytest.param({"spark.sluice.fallback.policy": "spark"}, id="no-taskmanager"),
        pytest.param({"spark.sluice.fallback.belowSize": "1t"}, id="too-small"),
    ],
)
def test_an_application_with_dynamic_allocation_has_only_these_settings_changed(
    driver: Driver,
    cluster: StandaloneCluster,
    daemons: Daemons,
    plain: dict[str, str],
    mode: dict[str, str],
):
    given = sluice_settings(daemons) | DYNAMIC | mode
    name = f"mode-{next(iter(mode.values()), 'on')}"
    with driver.application(name, cluster.master_url, given) as application:
        found = settings_of(application)
    changed = {
        key: value
        for key, value in found.items()
        if plain.get(key) != value
        and key not in given
        and not NOT_SPARKS.match(key)
        and not key.startswith(HANDED_TO_EXECUTORS)
    }
    assert changed == {key: value for key, value in MANAGER.items() if key not in given}
    assert [key for key in plain if key not in found and not NOT_SPARKS.match(key)] == []


def test_settings_that_sluice_refuses_do_not_stop_an_application_with_sluice_off(
    own: Application, driver: Driver, daemons: Daemons
):
    given = sluice_settings(daemons) | OFF
    given["spark.shuffle.useOldFetchProtocol"] = "true"
    with driver.application("off", LOCAL_MASTER, given) as application:
        found = application.rows("reduce_waits", barrier=None)
        assert found.read_text() == own.rows("reduce_waits", barrier=None).read_text()
    assert "no session can turn it on: Sluice cannot start" in application.output


def test_an_application_with_sluice_off_needs_no_taskmanager(
    own: Application, driver: Driver, cluster: StandaloneCluster, daemons: Daemons
):
    nowhere = {"spark.sluice.endpoints": "127.0.0.1:1", "spark.sluice.io.connectTimeout": "1s"}
    given = sluice_settings(daemons) | OFF | nowhere
    with driver.application("nowhere", cluster.master_url, given) as application:
        found = application.rows("reduce_waits", barrier=None)
        assert found.read_text() == own.rows("reduce_waits", barrier=None).read_text()
        application.wait_for_output(re.compile("Executor 0 reaches no TaskManager"), 60.0)
    assert [line for line in application.output.splitlines() if WARNING.search(line)] == []


def test_an_application_ends_without_a_warning_and_the_next_one_counts_from_zero(
    driver: Driver, daemons: Daemons
):
    applications: list[GuestApplication] = []
    for name in ("count1", "count2"):
        with driver.application(name, LOCAL_MASTER, sluice_settings(daemons)) as application:
            applications.append(application)
            assert set(counters_of(application).values()) == {0}
            application.rows("reduce_waits", barrier=None)
            assert counters_of(application)["mapOutputsCommitted"] > 0
    lines = [line for application in applications for line in application.output.splitlines()]
    assert [line for line in lines if WARNING.search(line)] == []
