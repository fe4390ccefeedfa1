"""What the trial of a wheel takes for a right result."""

from __future__ import annotations

import re

import pytest

from tools.release.trial import PAGE, WrongResultError, check_output, first_job

TABLE = """+----+-----+
|word|count|
+----+-----+
|  be|    2|
| not|    1|
|  or|    1|
|  to|    2|
+----+-----+
"""
MANAGER = "manager io.sluice.spark.SluiceShuffleManager\n"


def test_the_job_is_the_one_of_the_page():
    job = first_job(PAGE.read_text(encoding="utf-8"))
    assert "to be or not to be" in job
    assert job.endswith('get("spark.shuffle.manager"))\nspark.stop()\n')
    compile(job, "job.py", "exec")


def test_a_page_without_the_job_is_an_error():
    with pytest.raises(ValueError, match=re.escape("first-job.md has no job")):
        first_job("```python\nprint(1)\n```\n")


def test_right_rows_through_sluice_are_accepted():
    check_output(f"{TABLE}{MANAGER}")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (TABLE.replace("|  to|    2|", "|  to|    1|") + MANAGER, "('to', '1')"),
        (MANAGER, "the first job shows [] instead of"),
        (TABLE, "did not shuffle with io.sluice.spark.SluiceShuffleManager"),
    ],
)
def test_another_result_is_an_error(output, message):
    with pytest.raises(WrongResultError, match=re.escape(message)):
        check_output(output)
