"""The demo's verdict and its table."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.outcome import JobOutcome, problems
from tests.support.eventlog import ShuffleUse
from tests.support.metrics import Moved

SPARK = ShuffleUse(bytes_written=100, local_bytes_read=60, remote_bytes_read=50)
MOVED = Moved(written_bytes=100, read_bytes_local=70, read_bytes_remote=40, read_buffers_local=3)
GOOD = JobOutcome(
    name="q1",
    rows=4,
    differences=(),
    own_seconds=1.0,
    sluice_seconds=2.0,
    moved=MOVED,
    spark=SPARK,
)


def test_equal_results_and_equal_accounts_are_no_problem():
    assert GOOD.accounts_agree
    assert problems([GOOD], SPARK, MOVED) == []


def test_different_results_are_reported():
    bad = replace(GOOD, differences=("row 1: expected [1], found [2]",))
    assert problems([bad], SPARK, MOVED) == ["q1: results differ: row 1: expected [1], found [2]"]


def test_a_byte_that_went_elsewhere_is_reported_with_both_numbers():
    bad = replace(GOOD, spark=replace(SPARK, bytes_written=101))
    (problem,) = problems([bad], SPARK, MOVED)
    assert problem == (
        "q1: by Spark's count 101 bytes of shuffle were written, by the TaskManagers' 100 (-1)"
    )
    assert not bad.accounts_agree


def test_different_numbers_of_bytes_read_are_reported():
    bad = replace(GOOD, moved=replace(MOVED, read_bytes_remote=41))
    assert problems([bad], SPARK, MOVED) == [
        "q1: by Spark's count 110 bytes of shuffle were read, by the TaskManagers' 111 (+1)"
    ]


def test_bytes_outside_every_job_are_reported():
    everything = replace(SPARK, bytes_written=130)
    (problem,) = problems([GOOD], everything, MOVED)
    assert problem.startswith("the whole application:")


def test_a_run_that_moved_nothing_fails_even_if_all_is_equal():
    idle = replace(GOOD, moved=Moved(), spark=ShuffleUse())
    assert problems([idle], ShuffleUse(), Moved()) == [
        "no shuffle byte went through the TaskManagers"
    ]
