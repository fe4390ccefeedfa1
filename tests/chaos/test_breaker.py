"""The breaker, on real TaskManagers behind links: what it does happens, and it is mended."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.breaker import Breaker
from tests.chaos.links import Links
from tests.chaos.schedule import Action, Kind
from tests.chaos.timeline import Timeline
from tests.support import jumping_clock
from tests.support.cluster import WORKER_HOSTS
from tests.support.daemons import Daemons, leftovers
from tests.support.extended import first_of
from tests.support.jumping_clock import ClockError
from tests.support.loop_disk import LoopDisk, loop_disks

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = WORKER_HOSTS[1]
DISK_BYTES = 64 * 1024 * 1024
END_SECONDS = 90.0
LOOK_AGAIN_SECONDS = 0.02

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
WAITS = "import signal; print('ready', flush=True); signal.pause()"


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not pytest's own: the path of a Unix socket must stay short.
    with tempfile.TemporaryDirectory(prefix="sluice-") as path:
        yield Path(path)


@pytest.fixture
def executor(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like an executor of a cluster in that directory."""
    place = directory / "work" / "app" / "0"
    place.mkdir(parents=True)
    arguments = ["-cp", EXECUTOR, "--executor-id", "7", "--hostname", HOST, "--app-id", "app"]
    command = [sys.executable, "-c", WAITS, *arguments]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def answers(path: Path) -> bool:
    """Whether a TaskManager is behind that socket: it says so by waiting for the handshake."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.settimeout(0.5)
        try:
            return client.recv(1) != b""
        except TimeoutError:
            return True
        except OSError:
            return False


def can_mount(directory: Path) -> bool:
    with loop_disks(directory / "try", [HOST], DISK_BYTES) as disks:
        return bool(disks)


def options_of(links: Links, disks: dict[str, LoopDisk]) -> dict[str, dict[str, object]]:
    options = {host: own | {"min_free_bytes": 0} for host, own in links.options().items()}
    for host, disk in disks.items():
        options[host]["data_directories"] = disk.data
    return options


@pytest.mark.parametrize("lost", first_of([True, False]), ids=["lost", "troubled"])
def test_every_kind_of_fault_is_mended(
    directory: Path, executor: subprocess.Popen[bytes], lost: bool
):
    kinds = [kind for kind in Kind if (kind in (Kind.LOSE_HOST, Kind.MIGRATE)) is lost]
    if not can_mount(directory) and not lost:
        kinds.remove(Kind.FILL_DISK)
    # The executor's end comes last.
    kinds.sort(key=lambda kind: kind is Kind.KILL_EXECUTOR)
    actions = [
        Action(number * 0.01, kind, HOST, 0.0 if kind.instant else 0.05)
        for number, kind in enumerate(kinds)
    ]
    with (
        loop_disks(directory / "disks", WORKER_HOSTS, DISK_BYTES) as disks,
        Links(directory / "tm", WORKER_HOSTS) as links,
        Daemons(directory / "tm", options=options_of(links, disks)) as daemons,
    ):
        clocks = {HOST: ClockError(directory / "clock")}
        before, pid = daemons[1].status(), daemons[1].pid
        with Breaker(actions, 1, directory, daemons, links, Timeline(), disks, clocks) as breaker:
            breaker.wait(END_SECONDS)
        assert clocks[HOST].seconds == 0
        assert breaker.error is None
        assert not breaker.at_work
        assert {trouble.what for trouble in breaker.troubles} == {
            kind.value for kind in kinds if not kind.of_executor
        }
        # Another process, in the same place; a host that was lost comes back as a new one.
        after = daemons[1].status()
        assert daemons[1].pid != pid
        assert (after.taskmanager_id == before.taskmanager_id) is not lost
        assert after.address == before.address == f"{HOST}:{links.options()[HOST]['data_port']}"
        assert answers(directory / "tm" / f"{HOST}.sock")
        for daemon in daemons:
            # The question just now was a connection, whose end comes through the link.
            daemon.wait_until(lambda status: not leftovers(status), END_SECONDS)
    assert executor.wait(END_SECONDS) == -signal.SIGKILL


def test_the_end_of_a_run_mends_the_last_fault(directory: Path):
    action = Action(0.0, Kind.KILL_TASKMANAGER, HOST, 1000.0)
    with (
        Links(directory / "tm", WORKER_HOSTS) as links,
        Daemons(directory / "tm", options=links.options()) as daemons,
    ):
        first = daemons[1].pid
        with Breaker([action], 1, directory, daemons, links, Timeline(), {}, {}):
            deadline = time.monotonic() + END_SECONDS
            while daemons[1].running:
                assert time.monotonic() < deadline
                time.sleep(LOOK_AGAIN_SECONDS)  # another thread ends it, and tells nobody
        assert daemons[1].running
        assert daemons[1].pid != first


def test_the_clock_of_a_taskmanager_jumps(directory: Path):
    error = ClockError(directory / "clock")
    shows = "import time; input(); print(time.time(), flush=True)"
    program = directory / "shows.py"
    program.write_text(shows)
    command = [sys.executable, jumping_clock.__file__, str(error.path), str(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        error.seconds = 1e6
        shown, _ = process.communicate(b"\n", END_SECONDS)
    assert float(shown) > time.time() + 1e6 - END_SECONDS
