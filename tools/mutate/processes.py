"""Runs of pytest in forked processes that have the large libraries loaded already.

A run of a few tests is mostly imports. This process imports the libraries once, and nothing of
Sluice; each run is a fork of it that imports Sluice from its working copy.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest.runner import runtestprotocol

from tools.mutate.recording import LineRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.mutate.working_copy import WorkingCopy

ROOT: Final = Path(__file__).resolve().parents[2]
LIBRARIES: Final = (
    "asyncio",
    "uvloop",
    "msgpack",
    "msgspec.msgpack",
    "lz4.block",
    "crc32c",
    "pydantic",
    "pydantic_settings",
    "aiohttp.web",
    "click",
    "prometheus_client",
    "hypothesis",
    "hypothesis.stateful",
    "trustme",
)
OPTIONS: Final = (
    "-q",
    "-x",
    "-n0",
    "-p",
    "no:cacheprovider",
    "--one-loop",
    "--hypothesis-seed=0",
    "--durations=0",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",  # plugins are loaded already
    "-m",
    "not spark and not slow",
)
LOOK_AGAIN_SECONDS: Final = 0.01


def preload() -> None:
    """Import the libraries; one that is not installed is left out."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class FirstFailure:
    """A plugin of pytest that runs chosen tests in their order, and notes the first that fails.

    A test that fails is run again, and counts only if it fails again: on a busy machine a test may
    fail for want of time.
    """

    def __init__(self, tests: list[str]) -> None:
        self.failed: str | None = None
        self.ran = 0
        self._place = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests."""
        place = self._place
        items[:] = sorted(
            (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test, and a failed one twice."""
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if any(report.failed for report in reports) and hasattr(item, "_initrequest"):
            item._initrequest()  # its fixtures are made anew
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        self.ran += 1
        for report in reports:
            if report.failed and self.failed is None:
                self.failed = report.nodeid
            item.ihook.pytest_runtest_logreport(report=report)
        return True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot even be imported."""
        if report.failed and self.failed is None:
            self.failed = report.nodeid


@dataclass
class Run:
    """A run of pytest under way, or over.

    Args:
        process: Number of the process.
        result: File that the process writes at its end.
        deadline: When it is killed.
    """

    process: int
    result: Path
    deadline: float
    is_over: bool = False
    timed_out: bool = False

    def poll(self) -> bool:
        """Return whether it is over; kill it if its time is."""
        if self.is_over:
            return True
        with contextlib.suppress(ChildProcessError):
            done, _ = os.waitpid(self.process, os.WNOHANG)
            if not done:
                if time.monotonic() < self.deadline:
                    return False
                self.timed_out = True
                self.kill()
                os.waitpid(self.process, 0)
        self.is_over = True
        return True

    def wait(self) -> None:
        """Wait until it is over."""
        while not self.poll():
            time.sleep(LOOK_AGAIN_SECONDS)

    def kill(self) -> None:
        """End it, with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)

    def outcome(self) -> dict[str, Any] | None:
        """Return what it has written; None if it ended before."""
        try:
            return dict(json.loads(self.result.read_text(encoding="utf-8")))
        except (FileNotFoundError, json.JSONDecodeError):
            return None


def start_tests(
    copy: WorkingCopy, tests: list[str], limit_seconds: float, test_seconds: float
) -> Run:
    """Run tests in their order until one fails.

    The outcome has ``code``, pytest's exit code; ``failed``, the test; and ``ran``, their number.

    Args:
        copy: Where to run them.
        tests: Their names.
        limit_seconds: Time of all of them.
        test_seconds: Time of each of them.
    """
    # Sorted: pytest forgets the fixtures of a folder's conftest.py when it comes to it again.
    files = sorted({test.partition("::")[0] for test in tests})

    def work() -> dict[str, Any]:
        sys.dont_write_bytecode = True
        chosen = FirstFailure(tests)
        code = _pytest([*OPTIONS, f"--timeout={test_seconds}", *files], chosen)
        return {"code": code, "failed": chosen.failed, "ran": chosen.ran}

    return _fork(copy, work, limit_seconds)


def start_recording(copy: WorkingCopy, files: list[str], limit_seconds: float) -> Run:
    """Run all tests of some files, and record their lines; see :class:`LineRecorder`."""

    def work() -> dict[str, Any]:
        recorder = LineRecorder(copy.package)
        options = [each for each in OPTIONS if each != "-x"]
        code = _pytest([*options, *files], recorder)
        return {
            "code": code,
            "lines": recorder.lines,
            "seconds": recorder.seconds,
            "failed": recorder.failed,
        }

    return _fork(copy, work, limit_seconds)


def _pytest(arguments: list[str], plugin: object) -> int:
    import sluice.protocol.errors as imported

    if not str(imported.__file__).startswith(os.getcwd()):
        raise RuntimeError(f"Sluice is imported from {imported.__file__}, not from its copy")
    return int(pytest.main(arguments, plugins=[plugin]))


def _fork(copy: WorkingCopy, work: Callable[[], dict[str, Any]], limit_seconds: float) -> Run:
    directory = copy.directory
    result = directory.with_name(f"{directory.name}.json")
    result.unlink(missing_ok=True)
    sys.stdout.flush()
    process = os.fork()
    if process:
        return Run(process, result, time.monotonic() + limit_seconds)
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(f"{directory}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.chdir(directory)
        # The checkout is on the path too, as an editable installation.
        elsewhere = [each for each in sys.path if os.path.realpath(each) != str(ROOT)]
        sys.path[:] = [str(directory), *elsewhere]
        outcome = work()
        partial = result.with_suffix(".part")
        partial.write_text(json.dumps(outcome), encoding="utf-8")
        partial.replace(result)
        code = 0
    except BaseException:  # noqa: BLE001 - the log is all that is left of it
        traceback.print_exc()
    finally:
        os._exit(code)
