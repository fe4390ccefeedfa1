"""The docker compose stack, built, started and used for real; exit code 0 when all checks hold.

Not collected by pytest: it takes minutes and wants a Docker engine, or root to start one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tests.compose import checks, image_checks
from tests.compose.commands import ComposeTestFailed
from tests.compose.engine import any_engine
from tests.compose.images import REPOSITORY, image_names
from tests.compose.stack import SERVICES, Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compose.engine import Engine

TIMEOUT_SECONDS = 60 * 60
"""Time for everything; each step has a shorter one of its own."""
LOGS = REPOSITORY / "build" / "compose-test-logs"


def main() -> int:
    """Run everything, take everything down, say what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(TIMEOUT_SECONDS)
    directory = Path(tempfile.mkdtemp(prefix="sluice-compose-"))
    # Ids of processes come round; with a private engine the name is all that could clash.
    name = f"sluice-compose-{os.getpid()}"
    started = time.monotonic()
    try:
        with any_engine(directory, name) as engine:
            _test(engine, name, directory)
    except ComposeTestFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        signal.alarm(0)
        shutil.rmtree(directory)
    print(f"compose test passed in {time.monotonic() - started:.0f} s")
    return 0


def _test(engine: Engine, name: str, directory: Path) -> None:
    with _step("images"):
        stack = Stack(engine, name, image_names(engine, directory, tag=name))
    try:
        with _step("build"):
            stack.build()
        with _step("the image for any user of group 0"):
            image_checks.any_user_of_group_0_works(stack)
        with _step("the image ends at once"):
            image_checks.it_ends_at_a_signal_at_once(stack)
        with stack.up():
            try:
                _check(stack)
            except BaseException:
                shutil.rmtree(LOGS, ignore_errors=True)
                stack.save_logs(LOGS)
                print(f"logs of all containers: {LOGS}", file=sys.stderr)
                raise
    finally:
        if not engine.private:
            images = (stack.environment[key] for key in ("SLUICE_IMAGE", "SLUICE_SPARK_IMAGE"))
            engine.docker("rmi", "--force", *images, check=False)


def _check(stack: Stack) -> None:
    with _step("all services healthy"):
        stack.wait_healthy(*SERVICES)
        checks.workers_are_registered(stack)
    with _step("containers confined"):
        checks.containers_are_confined(stack)
    with _step("keys kept"):
        checks.keys_are_kept(stack)
    with _step("a stranger is refused"):
        checks.stranger_is_refused(stack)
        checks.names_are_for_the_owner(stack)
        checks.master_refuses_strangers(stack)
    with _step("demo job, compared with Spark's own shuffle"):
        digest = checks.same_result_as_spark(stack)
    with _step("metrics scraped by Prometheus"):
        checks.prometheus_has_scraped(stack)
    with _step("alerts evaluated by Prometheus"):
        checks.alerts_are_loaded(stack)
    with _step("everything released"):
        checks.released_after_jobs(stack)
    with _step("a TaskManager killed after the map stage"):
        checks.killed_taskmanager_is_survived(stack)
    with _step("the killed TaskManager started again"):
        checks.killed_taskmanager_comes_back(stack)
    with _step("demo job again"):
        checks.same_result_again(stack, digest)
        checks.released_after_jobs(stack)


@contextmanager
def _step(what: str) -> Iterator[None]:
    print(f"{what} ...", flush=True)
    started = time.monotonic()
    yield
    print(f"{what}: ok, {time.monotonic() - started:.0f} s", flush=True)


def _stop(number: int, frame: object) -> NoReturn:
    # Taking everything down has deadlines of its own, and must not be cut short.
    for later in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(later, signal.SIG_IGN)
    raise ComposeTestFailed(
        f"not done after {TIMEOUT_SECONDS} s"
        if number == signal.SIGALRM
        else f"told to stop by {signal.Signals(number).name}"
    )


if __name__ == "__main__":
    sys.exit(main())
