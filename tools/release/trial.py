"""Install wheels as a user does, in a new virtual environment, and run the first job."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from tools.release.run import ROOT, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PAGE = ROOT / "docs" / "guide" / "first-job.md"
PRINTS = {("to", "2"), ("be", "2"), ("or", "1"), ("not", "1")}
"""The rows that the job of the page shows."""

_JOB = re.compile(
    r"^<!-- example: submit\n.*?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_ROW = re.compile(r"^\|\s*(\w+)\|\s*(\d+)\|$", re.MULTILINE)
_MANAGER = "io.sluice.spark.SluiceShuffleManager"
_PRINT_MANAGER = 'print("manager", spark.sparkContext.getConf().get("spark.shuffle.manager"))\n'
_STOP = "spark.stop()\n"
_DATA_PATH = "from sluice.shuffle.taskmanager.status.status import data_path; print(data_path())"
_SMALL = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2",
          "--conf", "spark.ui.enabled=false")  # fmt: skip
_INSTALL_SECONDS = 1800
_JOB_SECONDS = 600


class WrongResultError(Exception):
    """An installed wheel does not do what the page says."""


def first_job(page: str) -> str:
    """Return the job of the page, with a line that prints its shuffle manager.

    Raises:
        ValueError: The page has no such job.
    """
    found = _JOB.search(page)
    if found is None or _STOP not in found["code"]:
        raise ValueError("docs/guide/first-job.md has no job that ends with spark.stop()")
    return found["code"].replace(_STOP, _PRINT_MANAGER + _STOP)


def check_output(output: str) -> None:
    """Check what the job has printed.

    Raises:
        WrongResultError: A row is wrong, or Spark used its own shuffle.
    """
    rows = set(_ROW.findall(output))
    if rows != PRINTS:
        raise WrongResultError(f"the first job shows {sorted(rows)} instead of {sorted(PRINTS)}")
    if f"manager {_MANAGER}" not in output:
        raise WrongResultError(f"the first job did not shuffle with {_MANAGER}")


def try_wheels(wheels: Sequence[tuple[Path, str]], directory: Path) -> list[str]:
    """Install each wheel, one after the other in one environment, and run the first job.

    Args:
        wheels: Files, each with the data path that it should have: ``compiled`` or
            ``interpreted``.
        directory: A new directory for the environment and the job.

    Returns:
        One line for each wheel.

    Raises:
        CommandFailedError: An installation or a job failed.
        WrongResultError: A job printed something else, or a data path is not the expected one.
    """
    environment = directory / "environment"
    run([sys.executable, "-m", "venv", environment], deadline_seconds=_INSTALL_SECONDS)
    python = environment / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--require-hashes"]
    # PySpark has only a source distribution; its build takes pinned tools too.
    for words in (
        [*install, "--only-binary", ":all:", "--requirement", ROOT / "requirements/build.txt"],
        [*install, "--no-build-isolation", "--requirement", ROOT / "requirements/spark.txt"],
    ):
        run(words, deadline_seconds=_INSTALL_SECONDS)
    job = directory / "job.py"
    job.write_text(first_job(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    lines = []
    for wheel, expected in wheels:
        again = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]
        run([*again, wheel], deadline_seconds=_INSTALL_SECONDS)
        run([python, "-m", "pip", "check"], deadline_seconds=_INSTALL_SECONDS)
        found = run([python, "-P", "-c", _DATA_PATH], deadline_seconds=60, directory=directory)
        if found.strip() != expected:
            raise WrongResultError(f"{wheel.name} has the data path {found.strip()}: {expected}?")
        submit = [environment / "bin" / "sluice", "submit", "--", *_SMALL, job]
        check_output(run(submit, deadline_seconds=_JOB_SECONDS, directory=directory))
        lines.append(f"{wheel.name}: installed, {expected}, the first job gives the right rows")
    return lines
