"""The daemon as a process of its own, started as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from sluice.transport.address import Address

SLUICE = Path(sys.executable).with_name("sluice")
TIMEOUT_SECONDS = 30
READY = re.compile(
    r"is ready: data port 127\.0\.0\.\d+:(?P<advertised>\d+)(?: \(here (?P<here>\d+)\))?, "
    r"HTTP port (?P<http>\d+)"
)
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}


def arguments(directory: Path, **keys: object) -> list[str]:
    """Return the command of a small TaskManager on loopback with all its files in a directory."""
    given = {
        "bind_host": "127.0.0.1",
        "http_host": "127.0.0.1",
        "data_port": 0,
        "http_port": 0,
        "network_segments": 64,
        "data_directories": directory / "data",
        "memory_directory": directory / "memory",
        "memory_tier_bytes": "4 MiB",
    } | keys
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return [str(SLUICE), "taskmanager", *flags]


class Daemon:
    """A running TaskManager; its log is read up to the line that says it is ready."""

    WRAPPER: ClassVar[tuple[str, ...]] = ()
    """Program and arguments that run the command given behind them."""

    environment: ClassVar[dict[str, str]] = ENVIRONMENT

    def __init__(self, directory: Path, **keys: object) -> None:
        self.process = subprocess.Popen(
            [*self.WRAPPER, *self.command(directory, **keys)],
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        assert self.process.stderr is not None
        self.log = ""
        for line in self.process.stderr:  # ends with the process; the test's timeout bounds it
            self.log += line
            if (found := READY.search(line)) is not None:
                self.data_port = int(found["here"] or found["advertised"])
                self.http_port = int(found["http"])
                return
        self.end()
        pytest.fail(f"the daemon did not start:\n{self.log}")

    @staticmethod
    def command(directory: Path, **keys: object) -> list[str]:
        """Return the command that starts it."""
        return arguments(directory, **keys)

    @property
    def address(self) -> Address:
        """Address of its data port."""
        return Address("127.0.0.1", self.data_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def identity(self) -> str:
        return self.log.partition("TaskManager ")[2].split()[0]

    def read_log_until(self, text: str) -> None:
        """Read the log up to a line with the text; the test's timeout bounds it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if text in line:
                return
        pytest.fail(f"the daemon ended without {text!r}:\n{self.log}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=TIMEOUT_SECONDS)
        self.log += rest
        return self.process.returncode


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env=ENVIRONMENT,
    )
