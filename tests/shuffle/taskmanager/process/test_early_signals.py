"""Signals while ``sluice taskmanager`` imports its modules, and as the first process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.daemon import ENVIRONMENT, TIMEOUT_SECONDS

SIGNAL_AT_IMPORTS = """
import os, signal, sys

class Signals:
    def find_spec(self, name, path, target=None):
        if name in ("click", "pydantic", "tomllib"):
            print(name, file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGHUP)

# Not what the caller of the tests had: nohup ignores it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.meta_path.insert(0, Signals())
sys.argv = {argv}
from sluice.cli.main import main
main()
"""

ENDED = """
import os, signal
from sluice.shuffle.taskmanager.process import early_signals
early_signals.install({pid})
os.kill(os.getpid(), signal.{name})
print("alive")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env=ENVIRONMENT,
    )


def test_a_sighup_before_the_daemon_is_ready_does_not_end_it():
    argv = ["/opt/sluice/bin/sluice", "taskmanager", "--data-port=-1"]
    done = run(SIGNAL_AT_IMPORTS.format(argv=argv))
    assert {"click", "pydantic", "tomllib"} <= set(done.stderr.split())
    assert done.returncode == 2, "the end of a wrong configuration, not of a signal"
    assert "data_port = " in done.stderr


@pytest.mark.parametrize("argv", [["/opt/sluice/bin/sluice", "status"], ["program", "taskmanager"]])
def test_other_programs_keep_their_signals(argv):
    assert run(SIGNAL_AT_IMPORTS.format(argv=argv)).returncode == -signal.SIGHUP


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_the_first_process_of_a_container_ends_at_a_signal(name):
    done = run(ENDED.format(pid=1, name=name))
    assert done.stdout == ""
    assert done.returncode == 128 + signal.Signals[name]


def test_any_other_process_ends_at_sigterm_by_its_default():
    assert run(ENDED.format(pid=2, name="SIGTERM")).returncode == -signal.SIGTERM
