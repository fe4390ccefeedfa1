"""A disk that hangs keeps no process alive, and takes no new work."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support import hanging_disk
from tests.support.daemon import SLUICE, TIMEOUT_SECONDS, Daemon

pytestmark = pytest.mark.slow


def with_hanging_disk(daemons, directory: Path, **keys: object) -> Daemon:
    """Start a TaskManager with two directories, one of which hangs."""
    disks = [directory / name for name in ("sound", "hanging")]
    for disk in disks:
        disk.mkdir(mode=0o700)
    daemon = daemons(
        directory,
        program=[sys.executable, hanging_disk.__file__, str(disks[1]), str(SLUICE)],
        data_directories=":".join(map(str, disks)),
        health_check_seconds=0.1,
        slow_disk_seconds=0.1,
        **keys,
    )
    Path(f"{disks[1]}.hangs").touch()
    daemon.wait_for_log("is left out from now on")
    return daemon


def test_a_stop_ends_at_its_deadline_while_a_disk_hangs(daemons, tmp_path):
    """It is that of closing alone: nothing is written or read, so draining takes no time."""
    daemon = with_hanging_disk(
        daemons, tmp_path, drain_timeout_seconds=1000, close_timeout_seconds=0.1
    )
    assert daemon.end() == 1
    assert "stopping took longer than it may; committed data is safe" in daemon.log
    assert "Traceback" not in daemon.log


def test_the_second_signal_ends_the_process_while_a_disk_hangs(daemons, tmp_path):
    daemon = with_hanging_disk(daemons, tmp_path, close_timeout_seconds=1000)
    daemon.terminate()
    daemon.wait_for_log("drains")
    daemon.terminate()
    assert daemon.process.wait(TIMEOUT_SECONDS) == 1
    daemon.wait_for_log("a second signal ends the process at once")


@pytest.mark.parametrize("hanging", ["hanging", ""])
def test_readiness_names_the_directories_when_all_of_them_hang(daemons, tmp_path, hanging):
    disks = tmp_path / "disks"
    directories = [disks / name for name in ("sound", "hanging")]
    for each in directories:
        each.mkdir(mode=0o700, parents=True)
    stuck = disks / hanging if hanging else disks
    daemon = daemons(
        tmp_path,
        program=[sys.executable, hanging_disk.__file__, str(stuck), str(SLUICE)],
        data_directories=":".join(map(str, directories)),
        memory_tier_bytes=0,
        health_check_seconds=0.1,
        slow_disk_seconds=0.1,
    )
    expected = [each for each in directories if each.is_relative_to(stuck)]
    Path(f"{stuck}.hangs").touch()
    for each in expected:
        daemon.wait_for_log(f"storage directory {each} is left out from now on")
    status, reason = readiness(daemon)
    if hanging:
        assert (status, reason) == (200, None)
    else:
        assert status == 503
        assert reason is not None
        assert all(f"{each}: it is slow" in reason for each in expected)
    daemon.kill()


def readiness(daemon: Daemon) -> tuple[int, str | None]:
    """Status and reason of /readyz."""
    try:
        with urllib.request.urlopen(f"{daemon.url}/readyz") as answer:
            return answer.status, json.load(answer)["reason"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["reason"]
