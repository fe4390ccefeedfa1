"""The contract of the results files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.report import Report

if TYPE_CHECKING:
    from pathlib import Path

REPORT = Report(
    name="spark",
    figures={"sort": 0.9},
    runs=[{"job": "sort", "ratio": 0.8}, {"job": "sort", "ratio": 1.0}],
    spread={"sort": (0.8, 1.0)},
    versions={"spark": "4.3.0"},
)


def test_the_file_has_the_keys_of_the_contract(tmp_path: Path):
    content = json.loads(REPORT.write(tmp_path / "results").read_text())
    assert sorted(content) == ["figures", "machine", "name", "runs", "spread", "versions"]
    assert content["figures"] == {"sort": 0.9}
    assert content["spread"] == {"sort": [0.8, 1.0]}
    assert content["versions"]["spark"] == "4.3.0"
    assert content["machine"]["cores"] >= 1
    assert content["machine"]["memory_bytes"] > 1 << 20


def test_writing_again_replaces_the_file_and_leaves_nothing_else(tmp_path: Path):
    REPORT.write(tmp_path)
    REPORT.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["spark.json"]
