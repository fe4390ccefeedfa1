"""Runs jobs while things break, and checks their rows and whom Spark blames."""

from __future__ import annotations

import contextlib
import subprocess
import time
from typing import TYPE_CHECKING

from tests.chaos.blame import MapRuns, Trouble, wrong_blame
from tests.chaos.timeline import NO_REPAIRS, Timeline, repairs, told
from tests.spark.jobs.repeated import repeated_unordered
from tests.support.comparison import differences
from tests.support.executors import executors_below
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.spark.applications import Application

JOB_SECONDS = 120.0
"""A job that takes longer hangs. Undisturbed it takes 2 to 10 seconds; the longest fault lasts 16,
and tasks may meet one several times."""
PATIENCE_SECONDS = 30.0
"""How long after the end of a fault a task may fail for it: what it waits for at most, more than
once."""

GIVES_UP = "cannot rollback the ResultStage"
"""Spark's error, with its own shuffle too, when an indeterminate stage must run again and some of
its results are in use."""


class CheckedJobs:
    """Jobs of one application.

    Args:
        application: The application.
        directory: Receives rows and stacks.
        expected: The rows of each job with Spark's own shuffle.
        timeline: Is told of everything.
        problems: Receives what is wrong.
        troubles: Those that may explain a failed fetch; may grow.
        job_seconds: Time after which a job hangs.
    """

    def __init__(
        self,
        application: Application,
        directory: Path,
        expected: Mapping[str, Path],
        timeline: Timeline,
        problems: list[str],
        troubles: list[Trouble] | None = None,
        *,
        job_seconds: float = JOB_SECONDS,
    ) -> None:
        self.problems = problems
        self.repairs = NO_REPAIRS
        self.count = 0
        self._application = application
        self._directory = directory
        self._expected = expected
        self._timeline = timeline
        self._map_runs = MapRuns()
        self._job_seconds = job_seconds
        self.explained_by([] if troubles is None else troubles)

    def explained_by(self, troubles: list[Trouble]) -> None:
        """Let these explain failed fetches from now on."""
        self._troubles = self._map_runs.troubles = troubles

    def problem(self, text: str) -> None:
        """Record something that is wrong."""
        self.problems.append(text)
        self._timeline.note("run", f"PROBLEM: {text}")

    def run(self, job: str) -> None:
        """Run a job and check what it did."""
        self.count += 1
        name = f"{job}-{self.count}"
        self._timeline.note("job", f"{name} begins")
        began = time.monotonic()
        rows = self._directory / f"{self._application.name}-{name}.rows"
        try:
            self._application.run(name, job, {}, rows_file=rows, timeout_seconds=self._job_seconds)
        except ProcessFailed as error:
            if "gave no answer" in str(error):
                self._diagnose(name)
            if job == repeated_unordered.__name__ and GIVES_UP in str(error):
                self._timeline.note("job", f"{name} is given up by Spark")
            else:
                self.problem(f"{name}: {error}")
        else:
            different = differences(self._expected[job], rows)
            took = f"{time.monotonic() - began:.1f} s"
            self._timeline.note("job", f"{name} {'is WRONG' if different else 'is right'}, {took}")
            if different:
                self.problem(f"{name}: {different}")
            rows.unlink()
        events = self._application.new_events().events
        self.repairs += repairs(events, self._map_runs.add(events))
        self._timeline.add(told(events))
        for blame in wrong_blame(events, self._troubles, PATIENCE_SECONDS):
            self.problem(f"{name}: {blame}")
        self._timeline.flush()

    def _diagnose(self, name: str) -> None:
        """Keep the stacks of driver and executors: what a job that hangs waits for."""
        application_id = self._application.application_id
        executors = [each.pid for each in executors_below(self._directory, application_id)]
        for pid in (*executors, self._application.driver_pid):
            path = self._directory / f"{name}-{pid}.jstack"
            with path.open("wb") as output, contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    ["jstack", "-l", str(pid)],
                    stdout=output,
                    stderr=output,
                    check=False,
                    timeout=30.0,
                )
            self._timeline.note("run", f"stacks of process {pid}: {path}")
