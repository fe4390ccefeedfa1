"""Every Python block of README and docs is of the right types, runs, and keeps its promises."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sluice.spark_integration.local_taskmanager import LocalTaskManager
from tests.docs.examples import ROOT, Example, examples, examples_of, pages
from tests.spark.class_archive import kept_archive, options_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLES = examples()
DIFFERENT = list({example.module: example for example in EXAMPLES}.values())
DEADLINE_SECONDS = 250
SMALL_SESSION = "--master local[2] --conf spark.sql.shuffle.partitions=2 pyspark-shell"
SMALL_JOB = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]
SUBMIT = "from sluice.cli.main import main; main()"

# One worker runs them, and so one TaskManager serves them all.
pytestmark = [pytest.mark.xdist_group("docs"), pytest.mark.timeout(DEADLINE_SECONDS + 50)]


def _parameter(example: Example) -> object:
    marks = [pytest.mark.spark, pytest.mark.slow] if example.kind else []
    return pytest.param(example, id=example.name, marks=marks)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with LocalTaskManager() as taskmanager:
        yield taskmanager.endpoint


@pytest.fixture(scope="module")
def java_options(request: pytest.FixtureRequest) -> str:
    """Options with the class archive that the tests of Spark make, if they have made it."""
    return options_for(kept_archive(request.config.cache.mkdir("spark-classes")))


def test_every_block_is_an_example():
    fences = sum(page.read_text(encoding="utf-8").count("```python") for page in pages())
    assert len(EXAMPLES) == fences > 5


def test_types(tmp_path: Path):
    for example in EXAMPLES:
        (tmp_path / f"{example.name}.py").write_text(example.module, encoding="utf-8")
    files = sorted(str(path) for path in tmp_path.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", [_parameter(example) for example in DIFFERENT])
def test_it_runs(example: Example, endpoint: str, java_options: str, tmp_path: Path):
    program = tmp_path / f"{example.name}.py"
    program.write_text(example.module_for(endpoint), encoding="utf-8")
    submit = ["-c", SUBMIT, "submit", "--endpoints", endpoint, "--", *SMALL_JOB]
    done = subprocess.run(
        [sys.executable, *(submit if example.kind == "submit" else []), str(program)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYSPARK_SUBMIT_ARGS": SMALL_SESSION,
            "SPARK_SUBMIT_OPTS": java_options,
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if example.kind == "submit":
        assert "SluicePlugin" in done.stderr + done.stdout


def test_a_block_without_its_place_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.docs.examples.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- example\nx = 1\n-->\n```python\ny = 2\n```\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"page.md:5: the example has 0 <block> lines"):
        examples_of(page)


def test_a_block_in_a_tab_is_taken_without_its_indentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tests.docs.examples.ROOT", tmp_path)
    page = tmp_path / "page.md"
    text = (
        '<!-- example: spark\nx = 1\n\n<block>\n-->\n\n=== "Tab"\n\n    Try:\n\n'
        "    ```python\n    if x:\n        y = 2\n    ```\n"
    )
    page.write_text(text, encoding="utf-8")
    (example,) = examples_of(page)
    assert example.module == "x = 1\n\nif x:\n    y = 2\n"
    assert example.kind == "spark"
