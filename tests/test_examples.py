"""The examples run, with small sizes, and print what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.class_archive import kept_archive, options_for
from tests.support.extended import first_of

FOLDER = Path(__file__).parents[1] / "examples"
PYTHON = sorted((FOLDER / "python").glob("*.py"))
SPARK = sorted((FOLDER / "spark").glob("*.py"))
DEADLINE_SECONDS = 100
SPARK_DEADLINE_SECONDS = 250
SUBMIT = (sys.executable, "-c", "from sluice.cli.main import main; main()", "submit")
SMALL_JOB = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")
SAID = {
    "counts_streaming": "4 micro-batches gave the counts of one query",
    "pagerank_rdd": "The ranks of 2000 pages add up to 2000",
    "sales_sql": "Sluice is active: true; Spark's own shuffle gives the same 12 rows",
}
"""The last line of each Spark job."""


def run(name: str, *arguments: str) -> str:
    """Run an example as a user does; return what it prints."""
    return output_of([sys.executable, str(FOLDER / "python" / f"{name}.py"), *arguments])


def output_of(
    command: list[str],
    timeout_seconds: float = DEADLINE_SECONDS,
    environment: dict[str, str] | None = None,
) -> str:
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.stem)
def test_it_says_how_it_is_used(path):
    said = run(path.stem, "--help")
    assert "usage:" in said
    assert "--endpoints" in said


@pytest.mark.parametrize("path", [*PYTHON, *SPARK], ids=lambda path: path.stem)
def test_it_uses_what_users_have(path):
    imported = re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    others = {"uvloop", "sluice"} if path in PYTHON else {"pyspark"}
    assert {name for name in imported if name not in sys.stdlib_module_names} <= others


def test_the_page_lists_each_example():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| \[(\S+)\]\(\1\) \|", page, re.MULTILINE))
    assert listed == {path.relative_to(FOLDER).as_posix() for path in (*PYTHON, *SPARK)}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("examples")
@pytest.mark.timeout(SPARK_DEADLINE_SECONDS + 50)
@pytest.mark.parametrize("path", first_of(SPARK), ids=lambda path: path.stem)
def test_spark_job(path, tmp_path, request):
    archive = kept_archive(request.config.cache.mkdir("spark-classes"))
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options_for(archive)}
    warehouse = ("--conf", f"spark.sql.warehouse.dir={tmp_path}/warehouse")
    said = output_of(
        [*SUBMIT, "--", *SMALL_JOB, *warehouse, str(path)], SPARK_DEADLINE_SECONDS, environment
    )
    assert said.splitlines()[-1] == SAID[path.stem]


def test_word_count(tmp_path):
    (tmp_path / "one.txt").write_text("to be or not to be\n" * 50)
    (tmp_path / "two.txt").write_text("that is the question, to be sure\n" * 30)
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    said = run(
        "wordcount", "--mappers", "3", "--reducers", "2", "--processes", "2", "--top", "2", *files
    )
    assert re.search(r"^ +130 +(to|be)$", said, re.MULTILINE)
    assert "510 words, 9 different ones, of 2 files" in said
    assert "3 TaskManagers" in said
    assert "The result is right" in said


def test_streaming_back_pressure():
    said = run(
        "streaming_backpressure",
        *("--seconds", "3", "--interval-seconds", "0.5", "--slow-records-per-second", "10000"),
    )
    found = re.search(r"phase: ([\d,]+) records/s with a fast sink, ([\d,]+) with one of", said)
    assert found, said
    fast, slow = (int(rate.replace(",", "")) for rate in found.groups())
    assert slow < fast / 2
    waits = [int(line.split()[3].rstrip("%")) for line in said.splitlines() if "slow " in line]
    assert max(waits) > 50  # the source has waited for most of an interval
    assert "have arrived at the sink, unchanged" in said


def test_throughput():
    said = run("throughput", "--seconds", "0.3")
    rates = re.findall(r"^(\w+): ([\d,]+) records of 100 bytes/s", said, re.MULTILINE)
    assert [way for way, _ in rates] == ["single", "batch"]
    assert all(int(rate.replace(",", "")) > 0 for _, rate in rates)


def test_streaming_checkpoints_are_the_same_inside_a_program_and_through_daemons():
    said = run("streaming_checkpoints", "--records", "1500")
    lines = said.splitlines()
    for line, way in zip(lines, ("embedded", "daemons"), strict=False):
        assert line.startswith(f"{way}: 6,000 records, 20 keys, ")
        assert line.endswith("both checkpoints are exact")
    assert lines[2:] == ["The results are the same"]
