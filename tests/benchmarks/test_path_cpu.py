"""The benchmark of CPU per gigabyte moves every byte on both paths and makes its figures."""

from __future__ import annotations

import pytest
import uvloop

from benchmarks.path_cpu import (
    BUFFER_BYTES,
    KINDS,
    PROCESSES,
    measure,
    most_expensive,
    profile,
    report,
)
from tests.support.daemons import Daemons

TOTAL_BYTES = 64 * BUFFER_BYTES


def test_every_kind_is_measured(tmp_path):
    with Daemons(tmp_path / "tm", authenticated=False, memory_tier_bytes="16 MiB") as taskmanagers:
        runs = uvloop.run(measure(tmp_path, taskmanagers, 1, TOTAL_BYTES))
    found = report(runs)
    assert found.figures["cpu_seconds_per_gb"] == max(
        found.figures[f"{kind}_seconds_per_gb"] for kind in KINDS
    )
    assert found.figures["cpu_over_bare"] > 0
    assert found.figures["bare_seconds_per_gb"] > 0
    assert found.figures["bare_shared_seconds_per_gb"] > 0
    assert found.figures["stored_read_seconds_per_gb"] > 0
    assert found.figures["direct_read_seconds_per_gb"] > 0
    assert all(found.figures[f"pipelined_{process}_us_per_buffer"] > 0 for process in PROCESSES)
    parts = [run for key, run in runs[0].items() if key.startswith("stored_write_")]
    assert len(parts) == len(PROCESSES)


@pytest.mark.extended
@pytest.mark.slow
def test_a_profile_names_functions_of_each_process(tmp_path, capsys):
    uvloop.run(profile(tmp_path, "64 MiB", TOTAL_BYTES))
    printed = capsys.readouterr().out
    for kind in KINDS:
        for process in PROCESSES:
            assert f"{kind}, {process}: own time" in printed
        assert len(most_expensive(tmp_path / kind / "produce.profile")) == 5
