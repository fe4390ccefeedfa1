"""The processes of a cluster's executors, found among all processes of this machine."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAIN_CLASS = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_YARN_MAIN_CLASS = b"org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
_PROCESSES = Path("/proc")
_OPTIONS = ("--executor-id", "--hostname", "--app-id")


@dataclass(frozen=True, slots=True)
class Executor:
    """One executor process."""

    pid: int
    executor_id: str
    host: str
    application_id: str


def executors_below(directory: Path, application_id: str | None = None) -> list[Executor]:
    """Executors of the standalone cluster whose files are below ``directory``, in order of pid.

    They are all executors, or those of one application. The working directory counts too, because
    ids of applications are not unique among clusters.
    """
    directory = directory.resolve()
    found = (
        executor
        for executor, place in _all_executors()
        if directory in place.parents and application_id in (None, executor.application_id)
    )
    return sorted(found, key=lambda executor: executor.pid)


def wait_for_end(executors: list[Executor], timeout_seconds: float) -> None:
    """Wait until all of these processes have ended.

    Raises:
        TimeoutError: Some still run.
    """
    deadline = time.monotonic() + timeout_seconds
    for executor in executors:
        try:
            ended = os.pidfd_open(executor.pid)
        except ProcessLookupError:
            continue
        try:
            left = max(deadline - time.monotonic(), 0.0)
            if not select.select([ended], [], [], left)[0]:
                raise TimeoutError(f"{executor} still runs after {timeout_seconds:g} s")
        finally:
            os.close(ended)


def _all_executors() -> Iterator[tuple[Executor, Path]]:
    """Every executor on this machine and its working directory."""
    for process in _PROCESSES.iterdir():
        if not process.name.isdigit():
            continue
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if (_MAIN_CLASS in arguments and b"-cp" in arguments) or _YARN_MAIN_CLASS in arguments:
                options = {
                    name: arguments[place + 1].decode()
                    for place, argument in enumerate(arguments[:-1])
                    if (name := argument.decode()) in _OPTIONS
                }
                executor = Executor(int(process.name), *(options[name] for name in _OPTIONS))
                yield executor, (process / "cwd").readlink()
        except (OSError, KeyError):  # it has ended meanwhile, or its program has not started yet
            continue
