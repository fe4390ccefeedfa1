"""Ask a vulnerability service about every distribution that requirements/ pins (``make audit``).

Exit codes: 0 no vulnerabilities are known, 1 some are known, 3 no service gave a reliable answer.
pip-audit alone skips a distribution that the service does not know and still prints "No known
vulnerabilities found", so an index without that service would look like a clean audit. Therefore it
first asks about a version with known vulnerabilities, and no distribution may be skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.supply.lock import LOCKS, ROOT

CLEAN, VULNERABLE, NO_ANSWER = 0, 1, 3
SERVICES = ("pypi", "osv")
"""The services of pip-audit that do not need an account, in the order of use."""
KNOWN_BAD = "jinja2==2.4.1"
"""A version with long known vulnerabilities: a service that does not know them is useless."""

_ANSWER_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run of pip-audit."""

    asked: int
    skipped: list[str] = field(default_factory=list)
    vulnerable: list[str] = field(default_factory=list)
    """One line per vulnerability."""


class NoAnswerError(Exception):
    """A service gave no answer, or an unreliable one."""


def read_report(text: str) -> Report:
    """Read the JSON that pip-audit prints.

    Raises:
        NoAnswerError: It is not a report.
    """
    try:
        dependencies: list[dict[str, Any]] = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        raise NoAnswerError("it printed no report") from None
    return Report(
        len(dependencies),
        [each["name"] for each in dependencies if "skip_reason" in each],
        [
            f"{each['name']} {each['version']}: {found['id']}, fixed in"
            f" {', '.join(found['fix_versions']) or 'no version'}"
            for each in dependencies
            for found in each.get("vulns", ())
        ],
    )


def audit(service: str, requirements: list[Path], command: list[str]) -> list[str]:
    """Return the known vulnerabilities of all requirements files, one line each.

    Raises:
        NoAnswerError: The service does not answer, or does not know a vulnerability of
            ``KNOWN_BAD`` or a distribution.
    """
    with tempfile.TemporaryDirectory() as directory:
        control = Path(directory, "known-bad.txt")
        control.write_text(f"{KNOWN_BAD}\n")
        if not _ask(service, control, [*command, "--no-deps"]).vulnerable:
            raise NoAnswerError(f"it knows of nothing wrong with {KNOWN_BAD}")
    found: set[str] = set()
    for path in requirements:
        report = _ask(service, path, [*command, "--require-hashes"])
        if report.skipped or not report.asked:
            unknown = ", ".join(report.skipped[:5]) or "everything"
            raise NoAnswerError(f"it does not know {unknown} of {path.name}")
        found |= set(report.vulnerable)
    return sorted(found)


def _ask(service: str, path: Path, command: list[str]) -> Report:
    words = [*command, "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    words += ["--vulnerability-service", service, "--requirement", str(path)]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NoAnswerError("it did not answer in time") from None
    if not done.stdout.strip():
        lines = done.stderr.strip().splitlines() or ["no word"]
        raise NoAnswerError(f"pip-audit ended with {lines[-1].split(':')[0]}")
    return read_report(done.stdout)


def main(command: list[str] | None = None) -> int:
    """Ask the services in order until one answers; print its answer."""
    command = command or [str(Path(sys.executable).with_name("pip-audit"))]
    requirements = [ROOT / path for path in LOCKS]
    reasons = []
    for service in SERVICES:
        try:
            found = audit(service, requirements, command)
        except NoAnswerError as error:
            reasons.append(f"{service}: {error}")
            continue
        for line in found:
            sys.stdout.write(f"{line}\n")
        names = ", ".join(path.name for path in requirements)
        count = len(found) or "no"
        sys.stdout.write(f"{service} knows {count} vulnerabilities of what {names} pin\n")
        return VULNERABLE if found else CLEAN
    sys.stderr.write(
        "NOT AUDITED: no vulnerability service gave a reliable answer about"
        f" the dependencies ({'; '.join(reasons)})\n"
    )
    return NO_ANSWER


if __name__ == "__main__":
    sys.exit(main())
