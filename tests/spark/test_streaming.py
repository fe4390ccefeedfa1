"""Structured Streaming: what micro-batches leave behind, and when a stream sees a setting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.applications import Application
    from tests.support.daemons import Daemons

BATCHES = 50
KEPT_SHUFFLES = 4
"""Of ``jobs/streaming.py``."""

MIB = 1024 * 1024
FEW = 12
"""Threads, files and objects that come and go between two samples."""


@pytest.mark.extended
def test_fifty_micro_batches(
    own: Application, sluice: Application, daemons: Daemons, directory: Path
):
    stream = directory / "stream"
    stream.mkdir()
    found = sluice.rows(
        "stateful_stream",
        directory=str(stream),
        taskmanagers=[(daemon.url, daemon.access_token()) for daemon in daemons],
    )
    rows = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    state = sorted(row for row in rows if row[0] == "state")
    expected = own.rows("sums_of_stream").read_text(encoding="utf-8")
    assert state == sorted(map(json.loads, expected.splitlines()))
    assert ["batches", BATCHES] in rows
    samples = [json.loads(row[2]) for row in sorted(rows, key=str) if row[0] == "sample"]
    print(*samples, sep="\n")
    assert len(samples) == BATCHES // 10
    _check_no_growth(samples)


def test_a_running_stream_picks_up_the_switch_at_its_next_start(
    own: Application, sluice: Application, tmp_path: Path
):
    found = sluice.rows("switched_stream", directory=str(tmp_path))
    (_, left), *state = [json.loads(line) for line in found.read_text().splitlines()]
    assert left[:2] == [0, 0]
    assert left[2] > 0
    expected = own.rows("sums_of_stream", batches=len(left)).read_text()
    assert state == [json.loads(line) for line in expected.splitlines()]


def _check_no_growth(samples: list[dict[str, Any]]) -> None:
    first, last = samples[0], samples[-1]
    assert max(sample["shuffles"] for sample in samples) <= KEPT_SHUFFLES
    assert max(sample["stored_bytes"] for sample in samples) <= 2 * MIB
    assert max(sample["lent_segments"] for sample in samples) <= FEW
    assert last["resident_bytes"] - first["resident_bytes"] < 4 * MIB
    assert last["heap_bytes"] - first["heap_bytes"] < 16 * MIB
    for counted in ("threads", "open_files", "sluice_objects"):
        assert last[counted] - first[counted] <= FEW
