"""The Sluice tab in Spark's history server, from the event log of a finished application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from sluice.spark_integration import jar_path
from tests.spark.applications import sluice_settings
from tests.spark.eventlog import EventLog
from tests.spark.history_server import HistoryServer
from tests.spark.ui import UI_TIMEOUT_SECONDS, Ui, numbers_of, rows_of
from tests.support.daemon import look_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemons import Daemons
    from tests.support.eventlog import ShuffleUse

TABLES = ("taskmanagers", "shuffles", "stages", "counters", "settings")
SETTINGS = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.sluice.ui.taskManagerUrl": "http://{host}:7338/?<script>",
}


@dataclass(frozen=True)
class Finished:
    """A finished application: a shuffle of Sluice, one of Spark's own, and two of Sluice."""

    application_id: str
    event_log: Path
    last_page: str
    """Of the tab in its own UI, when its executors had reported all."""

    def use(self) -> ShuffleUse:
        """Return the sums over all its tasks, as its event log has them."""
        return EventLog(self.event_log).new_events().shuffle_use()


@pytest.fixture(scope="module")
def finished(driver: Driver, cluster: StandaloneCluster, daemons: Daemons) -> Finished:
    settings = sluice_settings(daemons) | SETTINGS
    with driver.application("history", cluster.master_url, settings) as application:
        application.rows("rdd_sort_by_key")
        application.rows("excluded_job", settings={"spark.sluice.enabled": "false"})
        application.rows("frame_group_by")
        ui = Ui(application)
        use = application.new_events().shuffle_use()
        read = use.local_blocks_fetched + use.remote_blocks_fetched
        assert read > 0
        ui.settled_metrics()
        page = look_until(
            lambda: ui.get("/sluice/"),
            lambda page: {row[2] for row in rows_of(page, "sluice-stages")} == {"complete"},
            UI_TIMEOUT_SECONDS,
        )
    return Finished(application.application_id, application.event_log, page)


@pytest.fixture(scope="module")
def server(finished: Finished, directory: Path) -> Iterator[HistoryServer]:
    logs = finished.event_log.parent
    with HistoryServer("history-with-jar", directory, logs, jar_path()) as running:
        yield running


def test_the_history_server_shows_what_the_applications_ui_showed_last(
    finished: Finished, server: HistoryServer
):
    page = server.page(finished.application_id, "sluice/")
    for table in TABLES:
        rows = rows_of(page, f"sluice-{table}")
        assert rows, table
        assert rows == rows_of(finished.last_page, f"sluice-{table}")
    assert "<script>" not in page.partition('<div id="sluice">')[2]


def test_the_numbers_of_stages_are_those_of_the_event_log(
    finished: Finished, server: HistoryServer
):
    page = server.page(finished.application_id, "sluice/")
    use = finished.use()
    assert sum(numbers_of(page, "sluice-stages", "Written")) == use.bytes_written > 0
    assert sum(numbers_of(page, "sluice-stages", "Read")) == use.bytes_read > 0
    assert sum(numbers_of(page, "sluice-stages", "From the same host")) == use.local_bytes_read
    assert sum(numbers_of(page, "sluice-shuffles", "Written")) == use.bytes_written
    assert sum(numbers_of(page, "sluice-shuffles", "Records")) == use.records_written
    waits = sum(numbers_of(page, "sluice-stages", "Waiting for credit (part of it)"))
    counters = [row[0] for row in rows_of(page, "sluice-counters")]
    values = dict(zip(counters, numbers_of(page, "sluice-counters", "Value"), strict=True))
    assert waits == values["writerCreditWaitNanos"]
    ways = {row[3]: row[4] for row in rows_of(page, "sluice-shuffles")}
    assert ways == {"Sluice": "", "Spark's own": "disabled"}


def test_stages_lead_to_sparks_pages(finished: Finished, server: HistoryServer):
    page = server.page(finished.application_id, "sluice/")
    stage = rows_of(page, "sluice-stages")[0][0]
    assert f'href="../stages/stage/?id={stage}&amp;attempt=0"' in page
    details = server.page(finished.application_id, f"stages/stage/?id={stage}&attempt=0")
    assert f"Details for Stage {stage}" in details
    assert f'/history/{finished.application_id}/sluice/"' in details, "and the tab is there"


def test_sparks_settings_show_that_sluice_was_on(finished: Finished, server: HistoryServer):
    settings = server.settings(finished.application_id)
    assert settings["spark.sluice.active"] == "true"
    plugins = settings.get("spark.plugins", settings.get("spark.plugins.defaultList", ""))
    assert "io.sluice.spark.SluicePlugin" in plugins


def test_a_history_server_without_sluice_shows_the_application(finished: Finished, directory: Path):
    with HistoryServer("history", directory, finished.event_log.parent, None) as server:
        page = server.page(finished.application_id, "jobs/")
        assert "Spark Jobs" in page
        assert "/sluice/" not in page
        dropped = {line for line in server.output.splitlines() if "Drop unrecognized" in line}
        assert all("io.sluice.spark.ui." in line for line in dropped)
        assert len(dropped) == 2  # one line for each kind of event
