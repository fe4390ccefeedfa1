"""A driver in which applications of the tests follow one another.

A JVM takes several seconds of computing until it runs its first job, a context in a JVM that has
run jobs takes a fraction of that. So applications that need other settings, and nothing else that
a driver of their own would give them, take turns in one JVM. Executors are always new.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

from sluice.spark_integration import spark_conf
from sluice.spark_integration.conf import CLASS_PATHS, JARS
from tests.spark.applications import LOCAL_MASTER, Application
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from tests.support.application import JobRecord

POLL_SECONDS = 0.1
"""Pause between two looks at the log of a driver."""

END_TIMEOUT_SECONDS = 60.0
"""For the last line of an application's log, when the application has ended."""

FIRST_OF_ALL = (JARS, *CLASS_PATHS)
"""Settings that a JVM takes at its start."""


ALL_EXECUTORS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
}
"""Has the first job wait for all executors: a context is ready sooner than they are."""


class Driver:
    """A JVM for applications, one at a time; a context manager that ends it.

    Args:
        directory: Receives its files; keep the path short.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: Application | None = None
        self._starts = 0
        self._running: GuestApplication | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.__exit__(kind, error, traceback)

    def application(
        self, name: str, master_url: str, settings: Mapping[str, str]
    ) -> GuestApplication:
        """Return an application that begins when it is entered, and ends when the next one begins.

        Args:
            name: Its name and prefix of its files.
            master_url: As spark-submit takes it.
            settings: Spark settings besides those that all tests have; nothing about the JVM.
        """
        return GuestApplication(self, name, master_url, settings)

    def refused(self, name: str, settings: Mapping[str, str]) -> str:
        """Return the log of an application that does not start because of its settings.

        Raises:
            AssertionError: It has started.
        """
        application = self.application(name, LOCAL_MASTER, settings)
        try:
            with application:
                raise AssertionError(f"{name} has started")
        except ProcessFailed:
            return application.output

    def turn_of(self, application: GuestApplication) -> Application:
        """End the application that runs, for the turn of another; return the JVM's first one."""
        if self._running is not None:
            self._running.finish()
        if self._process is None:
            self._starts += 1
            settings = {key: text for key, text in spark_conf().items() if key in FIRST_OF_ALL}
            name = f"driver{self._starts}"
            self._process = Application(name, LOCAL_MASTER, self.directory, settings).__enter__()
        self._running = application
        return self._process

    def turn_has_ended(self) -> None:
        """Be ready for another application."""
        self._running = None

    def discard(self) -> None:
        """End the JVM, in which something is wrong; the next application gets a new one."""
        process, self._process, self._running = self._process, None, None
        if process is not None:
            error = ProcessFailed("its application has failed")
            process.__exit__(ProcessFailed, error, None)


class GuestApplication(Application):
    """One of several applications of a driver.

    Args:
        driver: Whose.
        name: Its name and prefix of its files.
        master_url: As spark-submit takes it.
        settings: Spark settings besides those that all tests have.
    """

    def __init__(
        self, driver: Driver, name: str, master_url: str, settings: Mapping[str, str]
    ) -> None:
        super().__init__(name, master_url, driver.directory, ALL_EXECUTORS | dict(settings))
        self._driver = driver
        words = self._command
        options = [words[place + 1] for place, word in enumerate(words[:-1]) if word == "--conf"]
        self._settings = dict(option.split("=", 1) for option in options)
        self._settings["spark.master"] = master_url
        # The JVM keeps to the directory of its first application.
        del self._settings["spark.local.dir"]
        self._host: Application | None = None
        self._log_file: Path | None = None
        self._log_start = 0
        self._log_end: int | None = None

    @property
    def host(self) -> Application:
        """The driver's process.

        Raises:
            ProcessFailed: This application does not run.
        """
        if self._host is None:
            raise ProcessFailed(f"Spark application {self.name} is not running")
        return self._host

    @property
    def output(self) -> str:
        """Return the driver's log from the beginning of this application to its end, or so far."""
        if self._log_file is None:
            return ""
        written = self._log_file.read_bytes()[self._log_start : self._log_end]
        return written.decode("utf-8", "replace")

    def start(self, job: str, **parameters: Any) -> Future[Path]:
        """Run a job while the test does something else; one at a time.

        Raises:
            ProcessFailed: This application does not run.
        """
        _ = self.host  # a test that waits for what the job does shall not wait in vain
        return super().start(job, **parameters)

    def wait_for_output(self, pattern: re.Pattern[str], timeout_seconds: float) -> None:
        """Wait until its output has a line that matches.

        Raises:
            ProcessFailed: The time ran out first.
        """
        deadline = time.monotonic() + timeout_seconds
        while not any(pattern.search(line) for line in self.output.splitlines()):
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self.name} did not write {pattern.pattern!r}")
            time.sleep(POLL_SECONDS)

    def run(
        self,
        name: str,
        job: str,
        parameters: Mapping[str, Any],
        *,
        rows_file: Path | None = None,
        timeout_seconds: float,
    ) -> JobRecord:
        """Run one job, as an application with a JVM of its own does."""
        return self.host.run(
            name, job, parameters, rows_file=rows_file, timeout_seconds=timeout_seconds
        )

    def finish(self) -> None:
        """End the application in good order, and the JVM with it if that was killed."""
        host = self._host
        if host is None:
            return
        try:
            if not self._killed:
                mark = f"The application {self.name} has ended"
                host.rows("end_application", mark=mark)
                self.wait_for_output(re.compile(mark), END_TIMEOUT_SECONDS)
                self._log_end = self._log_start + len(self.output.encode())
        except ProcessFailed as error:
            error.add_note(host.thread_dump())
            self._driver.discard()
            raise
        finally:
            self._host = None
        if self._killed:
            self._driver.discard()
        else:
            self._driver.turn_has_ended()

    def __enter__(self) -> Self:
        (self.directory / f"{self.name}-events").mkdir()
        self._host = host = self._driver.turn_of(self)
        self._log_file = self.directory / f"{host.name}.log"
        self._log_start = self._log_file.stat().st_size
        try:
            row = host.rows("begin_application", settings=self._settings)
        except ProcessFailed:
            self.finish()
            raise
        self.application_id, self.spark_version = json.loads(row.read_text(encoding="utf-8"))
        self._driver_pid = host.driver_pid
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
            elif self._host is not None:
                # A job may still run there.
                self._host = None
                self._driver.discard()
        finally:
            self._runner.shutdown()
