"""Settings of Spark's that would break Sluice are refused, or set by the plugin."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks.processes import ProcessFailed
from tests.spark.applications import LOCAL_MASTER, Application, sluice_settings

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.cluster import StandaloneCluster
    from tests.spark.daemons import Daemons

MAPS = 4
RELEASE_SECONDS = 60.0
TRACKING = "spark.dynamicAllocation.shuffleTracking.enabled"


def test_what_needs_sparks_own_shuffle_files_is_refused(directory: Path, daemons: Daemons):
    settings = sluice_settings(daemons) | {
        "spark.shuffle.push.enabled": "true",
        "spark.shuffle.useOldFetchProtocol": "true",
    }
    with pytest.raises(ProcessFailed), Application("refused", LOCAL_MASTER, directory, settings):
        pass
    output = (directory / "refused.log").read_text(encoding="utf-8")
    assert "spark.shuffle.push.enabled is true: push-based shuffle needs Spark's own" in output
    assert "spark.shuffle.useOldFetchProtocol is true: map attempts need unique" in output
    assert "set it to false" in output


def test_idle_executors_are_released_though_they_wrote_map_outputs(
    directory: Path, cluster: StandaloneCluster, daemons: Daemons, own: Application
):
    """With shuffle tracking, which is Spark's default, they would stay as long as the shuffle."""
    settings = sluice_settings(daemons) | {
        TRACKING: "true",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "2",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
    }
    expected = own.rows("prepare").read_text() + own.rows("read_again").read_text()
    with Application("idle", cluster.master_url, directory, settings) as application:
        setting = application.rows("setting", key=TRACKING).read_text(encoding="utf-8")
        assert json.loads(setting) == [TRACKING, "false"]
        application.new_events()
        prepared = application.rows("prepare").read_text()
        # The event log says so when it happens, and nothing else does.
        events, deadline = application.new_events(), time.monotonic() + RELEASE_SECONDS
        assert events.map_runs() == dict.fromkeys(range(MAPS), 1)
        removed = events.executors_removed()
        while removed < 2:
            assert time.monotonic() < deadline, f"{removed} executors were released"
            time.sleep(0.2)
            removed += application.new_events().executors_removed()
        assert prepared + application.rows("read_again").read_text() == expected
        assert application.new_events().map_runs() == {}
