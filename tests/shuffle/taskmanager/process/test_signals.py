"""A process ends at its deadline and at its second signal, even if its threads hang."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

PROGRAM = """
import asyncio, logging, sys, threading
from sluice.shuffle.taskmanager.process import output
from sluice.shuffle.taskmanager.process.signals import ProcessSignals

def stuck():
    threading.Event().wait()

output.redirect()
output.start_logging("info")
signals = ProcessSignals({stop_seconds})
signals.start()
threading.Thread(target=stuck).start()  # not a daemon: the interpreter waits for it

async def serve():
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals.notify(loop, stop.set, lambda: logging.info("reloading"))
    logging.info("ready")
    {serve}

asyncio.run(serve())
"""
NEVER = 1000
TIMEOUT_SECONDS = 30


class Program:
    def __init__(self, serve: str, stop_seconds: float) -> None:
        source = PROGRAM.format(serve=serve, stop_seconds=stop_seconds)
        self.process = subprocess.Popen(
            [sys.executable, "-c", source], stderr=subprocess.PIPE, text=True
        )
        self.read_until("ready")

    def read_until(self, text: str) -> None:
        """Read the log up to a text; the test's timeout bounds it."""
        assert self.process.stderr is not None
        assert any(text in line for line in self.process.stderr)

    def end(self) -> tuple[int, str]:
        _, rest = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, rest


@contextmanager
def program(serve: str, stop_seconds: float = NEVER):
    made = Program(serve, stop_seconds)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


WAITS = "await stop.wait()"
LOOP_STANDS_STILL = "stuck()"
EXECUTOR_HANGS = "await stop.wait(); await asyncio.to_thread(stuck)"
WAITS_WHILE_CLOSING = "await stop.wait(); loop.run_in_executor(None, stuck)"
SITUATIONS = pytest.mark.parametrize(
    "serve", [WAITS, LOOP_STANDS_STILL, EXECUTOR_HANGS, WAITS_WHILE_CLOSING]
)


@SITUATIONS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_at_once(serve, number):
    with program(serve) as running:
        running.process.send_signal(number)
        running.read_until(f"{number.name} received")
        running.process.send_signal(signal.SIGTERM)
        code, log = running.end()
    assert code == 1
    assert "a second signal ends the process at once" in log


def test_a_signal_after_the_stop_of_a_supervisor_is_the_first():
    """A service manager sends one to all processes, and the supervisor may be faster."""
    with program("signals.stop(); " + WAITS + "; stuck()") as running:
        running.process.send_signal(signal.SIGTERM)
        running.read_until("SIGTERM received")
        running.process.send_signal(signal.SIGTERM)
        _, log = running.end()
    assert "SIGTERM received" in log
    assert "a second signal ends the process at once" in log


@SITUATIONS
def test_a_stop_ends_at_its_deadline(serve):
    with program(serve, stop_seconds=0.2) as running:
        running.process.send_signal(signal.SIGTERM)
        code, log = running.end()
    assert code == 1
    assert "stopping took longer than it may" in log
    assert "Traceback" not in log


def test_a_later_deadline_replaces_the_first():
    with program("await stop.wait(); signals.end_within(0.1); stuck()") as running:
        running.process.send_signal(signal.SIGTERM)
        code, log = running.end()
    assert code == 1
    assert "stopping took longer than it may" in log


def test_a_deadline_beyond_all_clocks_leaves_the_second_signal():
    with program(WAITS, stop_seconds=1e300) as running:
        running.process.send_signal(signal.SIGTERM)
        running.read_until("SIGTERM received")
        running.process.send_signal(signal.SIGTERM)
        code, log = running.end()
    assert code == 1
    assert "a second signal ends the process at once" in log


def test_a_deadline_holds_while_the_log_is_not_read():
    full = "logging.root.setLevel('DEBUG'); [logging.info('x' * 999) for _ in range(999)]; "
    with program(full + WAITS, stop_seconds=0.2) as running:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(TIMEOUT_SECONDS) == 1


def test_sighup_reloads_and_does_not_end_the_process():
    with program(WAITS) as running:
        for _ in range(3):
            running.process.send_signal(signal.SIGHUP)
            running.read_until("reloading")
        running.process.send_signal(signal.SIGTERM)
        running.read_until("SIGTERM received")
        running.process.send_signal(signal.SIGHUP)
        running.read_until("SIGHUP received")
        assert running.process.poll() is None


def test_a_signal_before_the_loop_runs_is_kept():
    early = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    source = PROGRAM.format(serve=f"{WAITS}; logging.info('stops')", stop_seconds=0.2)
    source = source.replace("async def", f"{early}\n\nasync def")
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 1  # because of the thread that is stuck
    assert "stops" in done.stderr
