"""Every chart can be drawn from the committed results, and is shown in the docs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.charts import CHARTS
from benchmarks.report import REFERENCE_DIRECTORY
from tests.support.cluster import REPOSITORY

PROGRAM = """
import json, sys
from pathlib import Path
from benchmarks.charts import renew
print(json.dumps(renew(*map(Path, sys.argv[1:]))))
"""


def renewed(tmp_path, results) -> str:
    # In a process of its own: the library keeps its font files open.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, results, tmp_path / "reference", tmp_path / "images"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_results_are_taken_over_and_drawn(tmp_path):
    assert renewed(tmp_path, REFERENCE_DIRECTORY) == "[]"
    for name in CHARTS:
        taken = (tmp_path / "reference" / f"{name}.json").read_bytes()
        assert taken == (REFERENCE_DIRECTORY / f"{name}.json").read_bytes()
        file = f"{name.replace('_', '-')}.svg"
        drawn = (tmp_path / "images" / file).read_bytes()
        assert drawn == (REPOSITORY / "docs" / "images" / file).read_bytes(), "run make charts"


def test_benchmarks_without_results_are_named(tmp_path):
    assert renewed(tmp_path, tmp_path) == str(list(CHARTS)).replace("'", '"')


@pytest.mark.parametrize("name", CHARTS)
def test_the_docs_show_it(name):
    shown = "".join(path.read_text("utf-8") for path in (REPOSITORY / "docs").rglob("*.md"))
    assert f"images/{name.replace('_', '-')}.svg)" in shown
