"""A real spark-submit application gets its jobs over the control socket."""

from __future__ import annotations

import collections
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.application import SparkApplication
from tests.support.eventlog import read_event_log
from tests.support.jobs.rows import canonical_lines
from tests.support.jobs.wordcount import words_of
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
]

TEXTS = {"one.txt": "to be or not to be", "two.txt": "be that as it may"}


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not pytest's own directory: the path of a Unix socket must stay short.
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as path:
        yield Path(path)


@pytest.mark.extended
def test_a_job_its_rows_its_numbers_and_a_job_that_fails(directory: Path):
    files = []
    for name, content in TEXTS.items():
        (directory / name).write_text(content)
        files.append(str(directory / name))
    rows_file = directory / "words.rows"
    application = SparkApplication("words", "local[1]", {}, directory)
    with application:
        record = application.run(
            "count words",
            "wordcount",
            {"files": files, "partitions": 2},
            rows_file=rows_file,
            timeout_seconds=120,
        )
        with pytest.raises(ProcessFailed, match="TPC-H has queries 1 to 22, not 99"):
            application.run(
                "wrong", "tpch", {"query": 99, "data": str(directory)}, timeout_seconds=120
            )

    uses = collections.Counter(word for text in TEXTS.values() for word in words_of(text))
    using = {word: sum(word in words_of(text) for text in TEXTS.values()) for word in uses}
    expected = canonical_lines((word, count, using[word]) for word, count in uses.items())
    assert rows_file.read_text() == "".join(expected)
    assert record.rows == len(uses)

    shuffle = read_event_log(application.event_log)["count words"]
    assert shuffle.bytes_written > 0
    assert shuffle.map_tasks > 0
