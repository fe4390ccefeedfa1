"""The Spark tests (`tests/spark`) on every line of Spark, with the same jar: `make test-matrix`.

    .venv/bin/python -m tests.spark_lines.run
    .venv/bin/python -m tests.spark_lines.run 3.5.9 4.0.5 -- tests/spark/test_results.py -k join

Without versions it takes all of ``LINES``. The installed line runs as it is; each other gets a
virtual environment with that PySpark, pandas and pyarrow (a download of about 400 MB and two
minutes the first time; kept for the next run). What comes after ``--`` goes to pytest, in the
place of ``tests/spark``. At the end there is one row for each line; the exit code is 0 if all tests
passed on all.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.cluster import REPOSITORY, SPARK_PYTHON_VARIABLE
from tests.support.progress_bar import with_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
"""The lines that Sluice supports, each with the patch release it is tested with."""

DIRECTORY = REPOSITORY / ".spark-lines"
INSTALL_TIMEOUT_SECONDS = 1200.0
TESTS_TIMEOUT_SECONDS = 3600.0

# What Spark 3.5 and 4.0 accept alike; setuptools has the distutils that 3.5 still imports.
COMPANIONS = ("pandas==2.2.*", "pyarrow==18.*", "numpy<2", "setuptools<80", "wheel")

_SUMMARY = re.compile(r"\d+ (?:passed|failed|error|skipped).* in [\d.]+s.*")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests went on one line."""

    version: str
    passed: bool
    summary: str
    seconds: float


def environment(version: str, directory: Path) -> Path:
    """The Python that has this PySpark: ours, or that of a virtual environment below ``directory``.

    An environment is made when it is not there, and completed when it lacks what is needed now.

    Raises:
        subprocess.SubprocessError: The installation failed or took too long.
    """
    if version == _installed():
        return Path(sys.executable)
    home = directory / f"spark-{version}"
    python, ready = home / "bin" / "python", home / "ready"
    needed = "\n".join([*COMPANIONS, *_own_dependencies(), f"pyspark=={version}"])
    if ready.exists() and ready.read_text(encoding="utf-8") == needed:
        return python
    install = [str(python), "-m", "pip", "install", "--quiet"]
    commands = [
        [*install, *COMPANIONS, *_own_dependencies()],
        # Not isolated: PySpark's own build of 3.5 needs the older setuptools above.
        [*install, "--no-build-isolation", f"pyspark=={version}"],
    ]
    if not ready.exists():
        commands.insert(0, [sys.executable, "-m", "venv", "--clear", str(home)])
    print(f"Installing PySpark {version} into {home}", flush=True)
    for command in commands:
        subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_SECONDS)
    ready.write_text(needed, encoding="utf-8")
    return python


def _installed() -> str | None:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_dependencies() -> list[str]:
    """Of the packages that jobs import from this repository."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return list(project["project"]["dependencies"])


def run_tests(version: str, python: Path, arguments: Sequence[str]) -> Outcome:
    """Run the Spark tests on one line, their output as it comes."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--extended",
        "-p",
        "tests.spark_lines.installed_version",
    ]
    command += arguments or ["tests/spark"]
    started = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=os.environ | {SPARK_PYTHON_VARIABLE: str(python)},
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        summary = "no summary"
        for line in tests.stdout or ():
            print(f"[{version}] {line}", end="", flush=True)
            if match := _SUMMARY.search(line):
                summary = match[0].strip("= ")
        code = tests.wait(TESTS_TIMEOUT_SECONDS)
    return Outcome(version, has_passed(code, summary), summary, time.monotonic() - started)


def has_passed(code: int, summary: str) -> bool:
    """Whether a run has shown something: one that only skipped has not."""
    return code == 0 and re.search(r"\b[1-9]\d* passed\b", summary) is not None


def main() -> int:
    """Run the lines one after the other."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark_lines.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION", help=f"such as 3.5.9 (default {' '.join(LINES)})"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=DIRECTORY,
        help="for the virtual environments (default %(default)s)",
    )
    ours, after = _split(sys.argv[1:])
    options = parser.parse_args(ours)
    outcomes = [
        run_tests(version, environment(version, options.directory.resolve()), after)
        for version in with_bar(options.versions or LINES, "lines of Spark")
    ]
    for outcome in outcomes:
        verdict = "passed" if outcome.passed else "FAILED"
        print(f"Spark {outcome.version}: {verdict}, {outcome.summary}, {outcome.seconds:.0f} s")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into ours and, after ``--``, pytest's."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
