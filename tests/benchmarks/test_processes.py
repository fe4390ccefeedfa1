"""Child processes: output, readiness, end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import ManagedProcess, ProcessFailed

if TYPE_CHECKING:
    from pathlib import Path


def start(directory: Path, program: str) -> ManagedProcess:
    return ManagedProcess(
        "child",
        [sys.executable, "-u", "-c", program],
        log_path=directory / "child.log",
        environment={},
        directory=directory,
    )


def test_a_line_is_waited_for_and_all_output_is_kept(tmp_path: Path):
    with start(tmp_path, "import sys; print('port 42'); sys.stderr.write('more\\n')") as child:
        assert child.wait_for_line(re.compile(r"port (\d+)"), 30)[1] == "42"
        assert child.wait(30) == 0
    assert (tmp_path / "child.log").read_text().splitlines() == ["port 42", "more"]


def test_an_early_end_is_reported_at_once_with_code_and_output(tmp_path: Path):
    child = start(tmp_path, "print('no such thing'); raise SystemExit(3)")
    with child, pytest.raises(ProcessFailed, match="no such thing"):
        child.wait_for_line(re.compile("ready"), 30)


def test_silence_ends_at_the_deadline(tmp_path: Path):
    child = start(tmp_path, "import signal; signal.pause()")
    with child, pytest.raises(ProcessFailed, match=r"within 0\.2 s"):
        child.wait_for_line(re.compile("ready"), 0.2)
    assert not child.running


def test_a_child_that_ignores_the_request_to_end_is_killed(tmp_path: Path):
    program = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); signal.pause()"
    )
    child = start(tmp_path, program)
    child.wait_for_line(re.compile("up"), 30)
    child.stop(timeout_seconds=0.2)
    assert child.wait(30) == -signal.SIGKILL


def test_descendants_end_with_the_child(tmp_path: Path):
    program = (
        "import subprocess, sys;"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
        "print('grandchild', p.pid, flush=True); p.wait()"
    )
    child = start(tmp_path, program)
    pid = int(child.wait_for_line(re.compile(r"grandchild (\d+)"), 30)[1])
    descriptor = os.pidfd_open(pid)
    try:
        child.stop()
        # A pidfd becomes readable when its process has ended.
        program = "import os, select, sys; sys.exit(not select.select([0], [], [], 30)[0])"
        assert subprocess.run([sys.executable, "-c", program], stdin=descriptor).returncode == 0
    finally:
        os.close(descriptor)
