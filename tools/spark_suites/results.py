"""Results of Spark's test suites on both sides, reasons for differences, and their page."""

from __future__ import annotations

import json
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE: Final = Path(__file__).resolve().parent
SUITES: Final = HERE / "suites.toml"
RESULTS: Final = HERE / "results.json"
PAGE: Final = HERE.parents[1] / "docs" / "internals" / "spark-suites.md"
SIDES: Final = ("own", "sluice")
LONGEST_MESSAGE: Final = 160


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite to run.

    Attributes:
        name: Its class.
        cases: Texts in the names of the tests to run; empty: all tests.
        shuffles: Whether its jobs write to a TaskManager; some suites only start applications or
            fake the tasks.
    """

    name: str
    cases: tuple[str, ...] = ()
    shuffles: bool = True


@dataclass(frozen=True, slots=True)
class Reason:
    """Explains why tests fail with Sluice and not with Spark's own shuffle.

    Attributes:
        suite: The class of their suite.
        test: A shell pattern of their names.
        why: The explanation.
        message: A pattern that their failure messages must match.
    """

    suite: str
    test: str
    why: str
    message: str = "*"


@dataclass(slots=True)
class Side:
    """The run of a suite on one side.

    Attributes:
        tests: Tests that ran, except those that canceled themselves or are ignored.
        failed: The first line of the message of each failed test.
        unsteady: Tests that failed first and passed the second time.
        aborted: Why the suite did not end; empty if it did.
    """

    tests: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    unsteady: list[str] = field(default_factory=list)
    aborted: str = ""


@dataclass(slots=True)
class Outcome:
    """A suite on both sides."""

    own: Side
    sluice: Side

    def differences(self) -> dict[str, str]:
        """Return the tests that fail only with Sluice, and their messages."""
        if self.sluice.aborted and not self.own.aborted:
            return {"the whole suite": self.sluice.aborted}
        return {
            test: message
            for test, message in self.sluice.failed.items()
            if test not in self.own.failed
        }


def read_suites() -> tuple[list[Suite], list[Reason]]:
    """Return the suites and the reasons in ``suites.toml``."""
    content = tomllib.loads(SUITES.read_text(encoding="utf-8"))
    suites = [
        Suite(each["name"], tuple(each.get("cases", ())), each.get("shuffles", True))
        for each in content["suite"]
    ]
    return suites, [Reason(**each) for each in content.get("reason", ())]


def read_results() -> tuple[str, dict[str, Outcome]]:
    """Return the version of Spark and the outcome of each suite that has run."""
    if not RESULTS.is_file():
        return "", {}
    content = json.loads(RESULTS.read_text(encoding="utf-8"))
    return content["spark"], {
        name: Outcome(*(Side(**sides[side]) for side in SIDES))
        for name, sides in content["suites"].items()
    }


def write_results(spark: str, outcomes: Mapping[str, Outcome]) -> None:
    """Write the results file and its page."""
    content = {"spark": spark, "suites": {name: asdict(one) for name, one in outcomes.items()}}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


def read_report(path: Path) -> Side:
    """Read the JUnit report of a suite."""
    side = Side()
    suite = ET.parse(path).getroot()  # noqa: S314 - made by our own child
    for case in suite.iter("testcase"):
        if case.find("skipped") is not None:
            continue
        side.tests += 1
        for kind in ("failure", "error"):
            if (problem := case.find(kind)) is not None:
                text = problem.get("message") or problem.get("type") or kind
                side.failed[case.get("name", "")] = _first_line(text)
    # ScalaTest counts an aborted suite (before its first test, for example) only as an error.
    if int(suite.get("errors", "0")) > len(suite.findall("testcase/error")):
        side.aborted = "the suite aborted itself"
    elif not side.tests:
        side.aborted = "no test ran"
    return side


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"


def why(reasons: list[Reason], suite: str, test: str, message: str) -> str | None:
    """Return the explanation of a difference; None if there is none."""
    for reason in reasons:
        if (
            reason.suite == suite
            and fnmatchcase(test, reason.test)
            and fnmatchcase(message, reason.message)
        ):
            return reason.why
    return None


def unexplained(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return the differences without a reason."""
    _, reasons = read_suites()
    return [
        f"{name}: {test}: {message}"
        for name, outcome in outcomes.items()
        for test, message in outcome.differences().items()
        if why(reasons, name, test, message) is None
    ]


def page() -> str:
    """Make the page of the documentation."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    suites, reasons = read_suites()
    spark, outcomes = read_results()
    listed = [suite for suite in suites if suite.name in outcomes]
    yield "# Spark's own test suites"
    yield ""
    yield "<!-- Made by `make spark-suites` from its results: do not edit. -->"
    yield ""
    yield (
        "`make spark-suites` runs suites of Spark's published test jars with Spark's own shuffle,\n"
        "and with Sluice and one TaskManager. A test that fails only with Sluice runs twice.\n"
        "The command fails if a difference has no reason in `tools/spark_suites/suites.toml`;\n"
        "`results.json` beside it has the message of each failed test.\n"
        '`make spark-suites SUITES="SortingSuite JoinSuite"` runs only these.'
    )
    yield ""
    yield f"The figures are from Spark {spark}. Tests that cancel themselves do not count."
    yield ""
    yield "| suites | tests | fail with Spark's own | fail only with Sluice |"
    yield "|---|---:|---:|---:|"
    equal = [suite for suite in listed if not _shows(outcomes[suite.name])]
    if equal:
        tests = sum(outcomes[suite.name].own.tests for suite in equal)
        yield f"| {', '.join(map(_title, equal))} | {tests} | 0 | 0 |"
    for suite in listed:
        outcome = outcomes[suite.name]
        if _shows(outcome):
            yield (
                f"| {_title(suite)} | {outcome.own.tests} | {_failed(outcome.own)} |"
                f" {len(outcome.differences())} |"
            )
    yield ""
    yield "## Why tests fail only with Sluice"
    yield ""
    yield "| suites | tests | reason |"
    yield "|---|---:|---|"
    explained: dict[str, list[str]] = {}
    for suite in listed:
        for test, message in outcomes[suite.name].differences().items():
            reason = why(reasons, suite.name, test, message) or f"**not explained**: {_cell(test)}"
            explained.setdefault(reason, []).append(_short(suite.name))
    for reason, names in explained.items():
        yield f"| {', '.join(dict.fromkeys(names))} | {len(names)} | {reason} |"
    flaky = sum(len(outcomes[suite.name].sluice.unsteady) for suite in listed)
    if flaky:
        yield ""
        yield f"{flaky} tests failed with Sluice once and passed the second time."


def _shows(outcome: Outcome) -> bool:
    """Return whether a suite needs its own row: something failed or did not end."""
    return bool(outcome.own.failed or outcome.own.aborted or outcome.differences())


def _title(suite: Suite) -> str:
    return _short(suite.name) + (" (some tests)" if suite.cases else "")


def _short(name: str) -> str:
    return f"`{name.rpartition('.')[2]}`"


def _failed(side: Side) -> str:
    return f"did not end: {side.aborted}" if side.aborted else str(len(side.failed))


def _cell(text: str) -> str:
    """Return a message as plain text, without markup or a bar that ends the cell."""
    safe = text.replace("`", "'").replace("|", "\\|")
    return f"`{safe}`"
