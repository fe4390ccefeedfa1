"""Settings of Spark's that would break Sluice are refused (what the plugin sets: executor life)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.spark.applications import sluice_settings

if TYPE_CHECKING:
    from tests.spark.driver import Driver
    from tests.support.daemons import Daemons


def test_what_needs_sparks_own_shuffle_files_is_refused(driver: Driver, daemons: Daemons):
    settings = sluice_settings(daemons) | {
        "spark.shuffle.push.enabled": "true",
        "spark.shuffle.useOldFetchProtocol": "true",
    }
    output = driver.refused("refused", settings)
    assert "spark.shuffle.push.enabled is true: push-based shuffle needs Spark's own" in output
    assert "spark.shuffle.useOldFetchProtocol is true: map attempts need unique" in output
    assert "set it to false" in output
