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


def test_wrong_names_intervals_and_places_are_refused(driver: Driver, daemons: Daemons):
    settings = sluice_settings(daemons) | {
        "spark.sluice.endpoints": "dns:10.0.0.1",
        "spark.sluice.resolveInterval": "500ms",
        "spark.sluice.node": "caf\u00e9",
        "spark.sluice.zone": "z" * 254,
    }
    output = driver.refused("refused-places", settings)
    assert "spark.sluice.endpoints is 'dns:10.0.0.1': 'dns:10.0.0.1' has no host name" in output
    assert "spark.sluice.resolveInterval is 500 ms: must be between 1000 and 3600000" in output
    assert "write at most 253 characters of printable ASCII" in output
    assert "spark.sluice.node is 'caf" in output
    assert "spark.sluice.zone is 'zzz" in output
