"""Settings of Spark's that would break Sluice are refused (what the plugin sets: executor life)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.processes import ProcessFailed
from tests.spark.applications import LOCAL_MASTER, Application, sluice_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.daemons import Daemons


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
