"""The page about Spark's own test suites is made of the results, and explains each difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.metrics import Moved
from tools.spark_suites import results, run
from tools.spark_suites.results import Outcome, Reason, Side, Suite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REPORT = """\
<testsuite name="org.example.Suite" tests="4" failures="1" errors="1" skipped="1">
  <testcase classname="org.example.Suite" name="passes" time="0.1"></testcase>
  <testcase classname="org.example.Suite" name="fails" time="0.1">
    <failure message="  &#010;4 did not equal 3&#010;at line 7" type="x"></failure>
  </testcase>
  <testcase classname="org.example.Suite" name="throws" time="0.1">
    <error type="java.lang.Error"></error>
  </testcase>
  <testcase classname="org.example.Suite" name="cancels" time="0.1"><skipped/></testcase>
</testsuite>
"""


def test_the_page_is_generated_from_the_results():
    assert results.PAGE.read_text(encoding="utf-8") == results.page()


def test_each_difference_is_explained():
    _, outcomes = results.read_results()
    assert outcomes
    assert results.unexplained(outcomes) == []


def test_each_reason_belongs_to_a_suite_that_runs():
    suites, reasons = results.read_suites()
    assert {reason.suite for reason in reasons} <= {suite.name for suite in suites}


def test_a_report_of_a_suite_is_parsed(tmp_path: Path):
    path = tmp_path / "TEST-org.example.Suite.xml"
    path.write_text(REPORT, encoding="utf-8")
    side = results.read_report(path)
    assert side.tests == 3
    assert side.failed == {"fails": "4 did not equal 3", "throws": "java.lang.Error"}
    assert side.aborted == ""


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (REPORT.replace('errors="1"', 'errors="2"'), "the suite aborted itself"),
        ('<testsuite name="x" tests="0" errors="1"/>', "the suite aborted itself"),
        ('<testsuite name="x" tests="0" errors="0"/>', "no test ran"),
    ],
)
def test_a_suite_that_aborted_has_not_passed(tmp_path: Path, report: str, why: str):
    path = tmp_path / "TEST-org.example.Suite.xml"
    path.write_text(report, encoding="utf-8")
    assert results.read_report(path).aborted == why


@pytest.mark.parametrize(
    ("own", "sluice", "found"),
    [
        (Side(), Side(failed={"a": "x"}), {"a": "x"}),
        (Side(failed={"a": "y"}), Side(failed={"a": "x"}), {}),
        (Side(failed={"a": "y"}), Side(), {}),
        (Side(), Side(aborted="it left no report"), {"the whole suite": "it left no report"}),
        (Side(aborted="not done"), Side(aborted="not done"), {}),
    ],
)
def test_a_difference_fails_with_sluice_only(own: Side, sluice: Side, found: dict[str, str]):
    assert Outcome(own, sluice).differences() == found


def test_a_difference_needs_a_reason_of_its_suite():
    reasons = [Reason("org.Suite", "sizes: *", "because")]
    assert results.why(reasons, "org.Suite", "sizes: some", "x") == "because"
    assert results.why(reasons, "org.Suite", "other", "x") is None
    assert results.why(reasons, "org.Other", "sizes: some", "x") is None


def test_a_reason_can_ask_for_a_message():
    reasons = [Reason("org.Suite", "*", "because", "*push.enabled is true*")]
    refusal = "cannot start: push.enabled is true: set it to false"
    assert results.why(reasons, "org.Suite", "some", refusal) == "because"
    assert results.why(reasons, "org.Suite", "some", "4 did not equal 3") is None


class IdleTaskManagers:
    """TaskManagers that move nothing."""

    def moved(self) -> Moved:
        return Moved()


class PassingRunner:
    """A runner in which every suite passes."""

    def run(self, suite: Suite, side: str, tests: Sequence[str] = ()) -> Side:
        return Side(tests=1)


def test_a_suite_that_bypasses_the_taskmanager_compares_nothing():
    suite = Suite("org.example.Suite")
    with pytest.raises(RuntimeError, match=r"no byte of org.example.Suite went through"):
        run.compare(suite, PassingRunner(), IdleTaskManagers())  # type: ignore[arg-type]


def test_a_suite_without_a_shuffle_need_not_use_the_taskmanager():
    suite = Suite("org.example.Suite", shuffles=False)
    outcome = run.compare(suite, PassingRunner(), IdleTaskManagers())  # type: ignore[arg-type]
    assert outcome.differences() == {}
