"""How Spark's test suites went on both sides, which differences are explained, and their page."""

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
        cases: Texts in the names of the tests to run; empty for all tests.
        shuffles: Whether its jobs write to a TaskManager; some suites only start applications, or
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
        test: A pattern of their names, in the form of a shell's.
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
        tests: Tests that ran; those that cancelled themselves or are ignored do not count.
        failed: The first line of the message of each failed test.
        unsteady: Tests that failed and passed when they ran again.
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
        """Return the tests that fail with Sluice only, and their messages."""
        if self.sluice.aborted and not self.own.aborted:
            return {"the whole suite": self.sluice.aborted}
        return {
            test: message
            for test, message in self.sluice.failed.items()
            if test not in self.own.failed
        }


def read_suites() -> tuple[list[Suite], list[Reason]]:
    """Return the suites and the reasons of ``suites.toml``."""
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
    """Write the results file and the page made of it."""
    content = {"spark": spark, "suites": {name: asdict(one) for name, one in outcomes.items()}}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


def read_report(path: Path) -> Side:
    """Read the report of a suite, in the form of JUnit."""
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
    # ScalaTest counts the abort of a suite, for example before its first test, as an error only.
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
    """List the differences without a reason."""
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
    yield "# Spark's own test suites"
    yield ""
    yield "<!-- Made by `make spark-suites` from its results: do not edit. -->"
    yield ""
    yield (
        "`make spark-suites` runs suites of Spark's compiled tests jars twice: with Spark's own\n"
        "shuffle, and with Sluice as the shuffle manager and one TaskManager. Maven fetches the\n"
        "jars; nothing of Spark's is in the repository. A test that fails with Sluice only runs\n"
        "again, so that an unsteady test is told from a difference. A difference without a reason\n"
        "in `tools/spark_suites/suites.toml` fails the command.\n"
        '`make spark-suites SUITES="SortingSuite JoinSuite"` runs only these.'
    )
    yield ""
    yield f"The last run of each suite was with Spark {spark}. Tests that cancel themselves do not"
    yield "count."
    yield ""
    yield "| suite | tests | failed with Spark's own | failed with Sluice | only with Sluice |"
    yield "|---|---:|---:|---:|---:|"
    listed = [suite for suite in suites if suite.name in outcomes]
    for suite in listed:
        outcome = outcomes[suite.name]
        limited = f" ({', '.join(suite.cases)})" if suite.cases else ""
        yield (
            f"| {_short(suite.name)}{limited} | {outcome.own.tests} | {_failed(outcome.own)} |"
            f" {_failed(outcome.sluice)} | {len(outcome.differences())} |"
        )
    yield ""
    yield "## Tests that fail with Sluice only"
    yield ""
    yield "| suite | test | message | why |"
    yield "|---|---|---|---|"
    for suite in listed:
        for test, message in outcomes[suite.name].differences().items():
            reason = why(reasons, suite.name, test, message) or "**not explained**"
            yield f"| {_short(suite.name)} | {_cell(test)} | {_cell(message)} | {reason} |"
    yield ""
    yield "## Tests that fail on both sides"
    yield ""
    yield "They look for what a tests jar does not have, or for another machine."
    yield ""
    yield "| suite | test | message with Spark's own |"
    yield "|---|---|---|"
    for suite in listed:
        for test, message in outcomes[suite.name].own.failed.items():
            yield f"| {_short(suite.name)} | {_cell(test)} | {_cell(message)} |"
    unsteady = [
        (suite.name, test) for suite in listed for test in outcomes[suite.name].sluice.unsteady
    ]
    if unsteady:
        yield ""
        yield "## Tests that failed with Sluice once, and passed when they ran again"
        yield ""
        yield "| suite | test |"
        yield "|---|---|"
        for name, test in unsteady:
            yield f"| {_short(name)} | {_cell(test)} |"


def _short(name: str) -> str:
    return f"`{name.rpartition('.')[2]}`"


def _failed(side: Side) -> str:
    return f"did not end: {side.aborted}" if side.aborted else str(len(side.failed))


def _cell(text: str) -> str:
    """Make plain text of a message: no markup, no bar that would end the cell."""
    safe = text.replace("`", "'").replace("|", "\\|")
    return f"`{safe}`"
