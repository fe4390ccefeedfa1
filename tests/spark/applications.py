"""Spark applications of the tests, and the comparison of a job on two of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.spark_integration import spark_conf
from tests.spark.class_archive import java_options, recording_options
from tests.spark.eventlog import EventLog, Events
from tests.support.application import SparkApplication
from tests.support.comparison import differences
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from tests.spark.barrier import Barrier
    from tests.support.daemons import Daemons
    from tests.support.metrics import Moved

JOB_TIMEOUT_SECONDS = 200.0
DUMP_TIMEOUT_SECONDS = 10.0
LOG_SECONDS = 60.0
"""For a line that the driver has written to come into its log."""
_LAST_OF_DUMP = re.compile("JNI global ref")
_NUMBERS = itertools.count()
SCRIPT = Path(__file__).resolve().parent / "jobs" / "serve.py"

SETTINGS = {
    "spark.driver.memory": "768m",
    "spark.executor.memory": "768m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.default.parallelism": "4",
    "spark.sql.shuffle.partitions": "8",
}

LOCAL_MASTER = "local[2,4]"
"""Two cores, and as many attempts of a task as on a cluster."""


class Application(SparkApplication):
    """One application that serves the jobs of the tests.

    Args:
        name: Its name and prefix of its files.
        master_url: As spark-submit takes it.
        directory: Receives its files; keep the path short.
        settings: Spark settings besides those that all tests have.
        archive: Options about the class archive in place of using that in ``directory``.
        wrapper: Program and arguments that run the driver's command, which follows them.
    """

    def __init__(
        self,
        name: str,
        master_url: str,
        directory: Path,
        settings: Mapping[str, str],
        *,
        archive: str = "",
        wrapper: Sequence[str] = (),
    ) -> None:
        java = archive or java_options(directory)
        every = {
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            **SETTINGS,
            **settings,
        }
        super().__init__(name, master_url, every, directory, script=SCRIPT, wrapper=wrapper)
        self._log: EventLog | None = None
        self._killed = False
        self._driver_pid = 0
        self._runner = ThreadPoolExecutor(1, thread_name_prefix=f"job-{name}")

    @property
    def driver_pid(self) -> int:
        """Process id of the driver's JVM."""
        return self._driver_pid

    @property
    def output(self) -> str:
        """Return the log of the driver so far."""
        return (self.directory / f"{self.name}.log").read_text(encoding="utf-8")

    def new_events(self) -> Events:
        """Events since the last call."""
        if self._log is None:
            self._log = EventLog(self.event_log)
        return self._log.new_events()

    def rows(self, job: str, **parameters: Any) -> Path:
        """Run a job; return the file with its canonical rows.

        Raises:
            ProcessFailed: It failed or took too long.
        """
        with tempfile.NamedTemporaryFile(dir=self.directory, delete=False) as file:
            path = Path(file.name)
        self.run(job, job, parameters, rows_file=path, timeout_seconds=JOB_TIMEOUT_SECONDS)
        return path

    def start(self, job: str, **parameters: Any) -> Future[Path]:
        """Run a job while the test does something else; one at a time."""
        return self._runner.submit(self.rows, job, **parameters)

    def fill_slots(self, barrier: Barrier, count: int) -> None:
        """Wait until ``count`` tasks run at the same time; executors come and go."""
        # A point of its own each time: at one that was released nobody stops again.
        point = f"slot-{next(_NUMBERS)}-"
        slots = self.start("all_slots", slots=count, barrier=str(barrier.path), point=point)
        arrivals = barrier.wait(point, count)
        barrier.release(*(arrival.point for arrival in arrivals))
        slots.result(JOB_TIMEOUT_SECONDS)

    def prepare_evenly(self, barrier: Barrier, maps: int, slots: int) -> Path:
        """Run the job ``prepare`` with as many of its map tasks on each executor of one core."""
        running = self.start("prepare", maps=maps, barrier=str(barrier.path))
        for before in range(0, maps, slots):
            arrivals = barrier.wait("map-", before + slots)
            barrier.release(*(arrival.point for arrival in arrivals[before:]))
        return running.result(JOB_TIMEOUT_SECONDS)

    def kill(self) -> None:
        """End the driver as a crash does."""
        self._killed = True
        os.kill(self._driver_pid, signal.SIGKILL)

    def finish(self) -> None:
        """End the application in good order, unless it was killed."""
        if self._killed:
            return
        try:
            super().finish()
        except ProcessFailed as error:
            error.add_note(self.thread_dump())
            raise

    def thread_dump(self) -> str:
        """Return the stacks of the threads of the driver's JVM, or nothing if it is gone."""
        try:
            os.kill(self._driver_pid, signal.SIGQUIT)  # the JVM's own way to ask for one
        except ProcessLookupError:
            return ""
        with contextlib.suppress(ProcessFailed):
            self.wait_for_output(_LAST_OF_DUMP, DUMP_TIMEOUT_SECONDS)
        return self.output[self.output.rfind("Full thread dump") :]

    def __enter__(self) -> Self:
        super().__enter__()
        self._driver_pid = int(self.rows("driver").read_text(encoding="utf-8").strip("[]\n"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._runner.shutdown()


_FELL_BACK = re.compile(r"Shuffle (\d+) uses Spark's own shuffle: (.*) \(fallback policy (\S+)\)")


def fallbacks(application: Application) -> list[tuple[str, ...]]:
    """Shuffle, reason and policy of each fallback in the driver's log."""
    # A thread copies the log, later than the answer of a job comes.
    mark = f"The log is complete up to mark {next(_NUMBERS)}."
    application.rows("say", text=mark)
    application.wait_for_output(re.compile(re.escape(mark)), LOG_SECONDS)
    return [match.groups() for match in _FELL_BACK.finditer(application.output)]


def record_classes(archive: Path, directory: Path) -> None:
    """Make the class archive, by an application that uses what most of the tests use.

    Raises:
        ProcessFailed: The application failed or wrote no archive.
    """
    new = archive.with_name(f"{os.getpid()}.new")  # other test runs may be making it, too
    with Application(
        "classes", LOCAL_MASTER, directory, {}, archive=recording_options(new)
    ) as application:
        for job in ("rdd_reduce_by_key", "frame_join", "frame_group_by", "frame_python_udf"):
            application.rows(job)
    if not new.exists():
        raise ProcessFailed(f"Spark application classes wrote no {new}:\n{application.output}")
    new.rename(archive)


BACK_PRESSURE = {"spark.python.unix.domain.socket.enabled": "true"}
"""Makes a waiting Python function hold up the reader that feeds it: a Unix socket holds 200 kB,
Spark's usual TCP connection to Python workers some 10 MB."""


def sluice_settings(daemons: Daemons) -> dict[str, str]:
    """Return the settings that turn Sluice on, with deadlines for a busy machine."""
    return {
        **spark_conf(daemons.endpoints),
        **daemons.credentials,
        "spark.sluice.io.connectTimeout": "30s",
        # Some TaskManagers of the tests let applications expire soon.
        "spark.sluice.driver.pingInterval": "1s",
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """One job with Spark's own shuffle and with Sluice."""

    differences: list[str]
    rows: Path
    """The canonical rows of the run with Sluice."""
    events: Events
    """Of the run with Sluice."""
    moved: Moved
    """By the TaskManagers during that run."""

    def unaccounted(self) -> dict[str, tuple[int, int]]:
        """Return the byte counts that differ: Spark's number and that of the TaskManagers."""
        use = self.events.shuffle_use()
        pairs = {
            "written": (use.bytes_written, self.moved.written_bytes),
            "read locally": (use.local_bytes_read, self.moved.read_bytes_local),
            "read remotely": (use.remote_bytes_read, self.moved.read_bytes_remote),
        }
        return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


class Both:
    """An application with Spark's own shuffle and one with Sluice."""

    def __init__(self, own: Application, sluice: Application, daemons: Daemons) -> None:
        self.own = own
        self.sluice = sluice
        self._daemons = daemons

    def moved(self) -> Moved:
        """Return the bytes that the TaskManagers have moved so far."""
        return self._daemons.moved()

    def compare(
        self, job: str, *, other: Mapping[str, Any] | None = None, **parameters: Any
    ) -> Comparison:
        """Run a job on both, one after the other.

        Args:
            job: Its name.
            other: What Spark's own shuffle gets in place of some of the parameters.
            parameters: What the job gets.
        """
        expected = self.own.rows(job, **(parameters | dict(other or {})))
        self.sluice.new_events()
        before = self._daemons.moved()
        found = self.sluice.rows(job, **parameters)
        moved = self._daemons.moved() - before
        return Comparison(differences(expected, found), found, self.sluice.new_events(), moved)
