"""One simulation: the cluster, its load, its faults, and the checks at the end."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation import determinism
from tests.simulation.bucket import Bucket, BucketObjects
from tests.simulation.disks import Disks
from tests.simulation.ending import end
from tests.simulation.faults import Faults
from tests.simulation.loop import FIRST_SECOND, PROCESS, SimulatedLoop, Stuck
from tests.simulation.network import Network, SocketModule
from tests.simulation.oracle import Oracle
from tests.simulation.plan import LOAD_SECONDS
from tests.simulation.processes import Member
from tests.simulation.strands import Strands
from tests.simulation.workload import APPLICATIONS, Application

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.loop import Process
    from tests.simulation.plan import Plan

LOOK_SECONDS: Final = 1.0
"""Time between two looks at all indexes."""

MAX_SECONDS: Final = 2000.0
"""Virtual time within which a simulation ends."""

MAX_LOG_LINES: Final = 4000
"""Most log lines of all TaskManagers together."""

_DIRECTORIES: Final = "/dev/shm/sluice-simulation"
_DIRECTORY: Final = re.compile(f"{_DIRECTORIES}/?[0-9]*")
"""The directory of a simulation, perhaps the beginning of it, because messages are cut."""


class Found(NamedTuple):
    """The findings of a simulation.

    Attributes:
        violations: Rules that did not hold, in the order of time.
        digest: Hash of the trace.
        seconds: Virtual seconds that it took.
        counts: Operations that ended well, operations that failed, requests, log lines, handles.
    """

    violations: list[str]
    digest: str
    seconds: float
    counts: dict[str, int]


class World:
    """Everything of one simulation.

    Args:
        plan: Its faults.
        directory: Empty directory for its disks.
        prints: Whether it prints its trace.
        on_violation: Called with what was found when a rule does not hold.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        *,
        prints: bool = False,
        on_violation: Callable[[Found], None] | None = None,
    ) -> None:
        self.plan = plan
        self.directory = directory
        self.loop = SimulatedLoop()
        self.loop.strands = Strands(self.loop)
        self.loop.network = self.network = Network(self.loop, plan.seed, self.trace)
        self.disks = Disks(self.loop, directory, plan.seed)
        self.bucket = Bucket(self.loop, plan.seed)
        self.oracle = Oracle(self)
        self.bucket.changed = self.oracle.bucket_changed
        self.graveyard: list[Process] = []
        """Processes that were killed; kept so that nothing of them ends."""
        self.load_ends = False
        self.violations: list[str] = []
        self.log_lines = 0
        self._prints = prints
        self._on_violation = on_violation
        self._hash = hashlib.sha256()
        self.faults: Faults
        self.members: list[Member] = []
        self.applications: list[Application] = []

    def trace(self, text: str) -> None:
        """Record what happens."""
        text = _DIRECTORY.sub("", text)
        line = f"{self.loop.time() - FIRST_SECOND:10.4f} {text}"
        self._hash.update(line.encode())
        if self._prints:
            sys.stdout.write(line + "\n")

    def violation(self, text: str) -> None:
        """Record that a rule does not hold."""
        text = _DIRECTORY.sub("", text)
        self.violations.append(f"{self.loop.time() - FIRST_SECOND:.2f} {text}")
        self.trace(f"VIOLATION {text}")
        if self._on_violation is not None:
            self._on_violation(self._found())

    def failed(self, what: str, error: BaseException | None) -> None:
        """Record an unexpected error as a violation."""
        text = "".join(traceback.format_exception(error)) if error is not None else ""
        self.violation(f"{what} failed: {text}")

    def run(self) -> Found:
        """Run the simulation to its end."""
        determinism.begin(self.loop, self.plan.seed)
        acceptor: Any = sys.modules["sluice.transport.acceptor"]
        acceptor.socket = SocketModule(self.network)
        power_cuts: Any = sys.modules["sluice.shuffle.taskmanager.store.journal.power_cuts"]
        power_cuts.boot_id = _boot_id
        objects: Any = sys.modules["sluice.shuffle.taskmanager.store.objects.remote_objects"]
        objects.RemoteObjects.open = lambda config, url: BucketObjects(
            self.bucket, url, config.remote_timeout_seconds
        )
        self.disks.install()
        self._log()
        self.loop.set_exception_handler(self._unhandled)
        self.members = [
            Member(self, index, self.plan.settings) for index in range(self.plan.members)
        ]
        self.applications = [Application(self, number) for number in range(APPLICATIONS)]
        try:
            self.loop.run_until_complete(self._main())
        except (Stuck, TimeoutError) as error:
            self.violation(f"the simulation does not end: {error!r}")
        if self.log_lines > MAX_LOG_LINES:
            self.violation(f"{self.log_lines} log lines")
        for path in dict.fromkeys(self.disks.blocked):
            self.violation(f"the event loop waited for the disk {path}")
        return self._found()

    def _found(self) -> Found:
        counts = {
            "reads": sum(each.reads for each in self.applications),
            "writes": sum(each.writes for each in self.applications),
            "streams": sum(each.streams for each in self.applications),
            "refused": sum(each.refused for each in self.applications),
            "requests to the bucket": self.bucket.requests,
            "log lines": self.log_lines,
            "handles": self.loop.handles_run,
        }
        seconds = self.loop.time() - FIRST_SECOND
        return Found(self.violations, self._hash.hexdigest()[:16], seconds, counts)

    async def _main(self) -> None:
        async with asyncio.timeout(MAX_SECONDS):
            for member in self.members:
                await member.start()
            for application in self.applications:
                application.start()
            watch = asyncio.create_task(self._look())
            self.faults = faults = Faults(self)
            await faults.run()
            await asyncio.sleep(max(0.0, FIRST_SECOND + LOAD_SECONDS - self.loop.time()))
            await faults.heal()
            await end(self)
            watch.cancel()
            for application in self.applications:
                application.check()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.oracle.look()
            self.oracle.check_bucket()

    def _log(self) -> None:
        world = self

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                world.log_lines += 1
                process = PROCESS.get()
                world.trace(f"{process} {record.levelname}: {record.getMessage()}")
                if record.exc_info is not None and record.exc_info[1] is not None:
                    world.failed(f"{process}: {record.getMessage()}", record.exc_info[1])

        root = logging.getLogger()
        root.handlers[:] = [Handler()]
        root.setLevel(logging.INFO)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failed(f"{PROCESS.get()}: {context.get('message')}", context.get("exception"))


def simulate(
    plan: Plan, *, prints: bool = False, on_violation: Callable[[Found], None] | None = None
) -> Found:
    """Run a simulation in this process, which must end afterwards.

    Args:
        plan: Its faults.
        prints: Whether it prints its trace.
        on_violation: Called at the first violation, when its disks are removed; it may end the
            process.
    """
    directory = Path(f"{_DIRECTORIES}/{os.getpid():07}")  # messages are cut at the same place
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)

    def stop(found: Found) -> None:
        if on_violation is not None:
            shutil.rmtree(directory, ignore_errors=True)
            on_violation(found)

    try:
        return World(plan, directory, prints=prints, on_violation=stop).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _boot_id() -> str:
    process = PROCESS.get()
    return "" if process is None else process.boot_id
