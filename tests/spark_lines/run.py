"""The Spark tests (`tests/spark`) on other lines of Spark, with the same jar.

    .venv/bin/python -m tests.spark_lines.run 3.5.9 4.0.5
    .venv/bin/python -m tests.spark_lines.run --directory DIR 4.0.5 -- tests/spark/test_results.py

Each line gets a virtual environment below DIR with that PySpark, pandas and pyarrow (a download of
about 400 MB and two minutes the first time; kept for the next run). What comes after ``--`` goes to
pytest, in the place of ``tests/spark``. At the end there is one row for each line; the exit code is
0 if all tests passed on all.

Not part of ``make test``: that runs the same tests on the installed line.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cluster import REPOSITORY, SPARK_PYTHON_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """The Python of a virtual environment with that PySpark; made when it is not there.

    Raises:
        subprocess.SubprocessError: The installation failed or took too long.
    """
    home = directory / f"spark-{version}"
    python = home / "bin" / "python"
    ready = home / "ready"
    if not ready.exists():
        print(f"Installing PySpark {version} into {home}", flush=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(home)],
            [*install, *COMPANIONS],
            # Not isolated: PySpark's own build of 3.5 needs the older setuptools above.
            [*install, "--no-build-isolation", f"pyspark=={version}"],
        ):
            subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_SECONDS)
        ready.touch()
    return python


def run_tests(version: str, python: Path, arguments: Sequence[str]) -> Outcome:
    """Run the Spark tests on one line, their output as it comes."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.spark_lines.installed_version"]
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
    return Outcome(version, code == 0, summary, time.monotonic() - started)


def main() -> int:
    """Run the lines one after the other."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark_lines.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="such as 3.5.9")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("~/.cache/sluice/spark-lines").expanduser(),
        help="for the virtual environments (default %(default)s)",
    )
    ours, after = _split(sys.argv[1:])
    options = parser.parse_args(ours)
    outcomes = [
        run_tests(version, environment(version, options.directory.resolve()), after)
        for version in options.versions
    ]
    for outcome in outcomes:
        verdict = "passed" if outcome.passed else "FAILED"
        print(f"Spark {outcome.version}: {verdict}, {outcome.summary}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what after ``--`` is pytest's."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
