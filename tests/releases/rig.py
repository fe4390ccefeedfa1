"""The previous release beside this one: its command, its daemons, its clients and its plugin."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.support.daemon import ENVIRONMENT, Daemon
from tests.support.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

WHEEL: Final = Path(__file__).with_name("sluice-previous.whl")
COMMAND_SECONDS: Final = 120
JOB_SECONDS: Final = 220
_COMMAND: Final = "import sys; from sluice.cli.main import main; sys.argv[0] = 'sluice'; main()"


class Release(NamedTuple):
    """A release that commands, daemons and programs run with.

    Attributes:
        name: ``previous`` or ``this``.
        import_path: Value of ``PYTHONPATH``.
    """

    name: str
    import_path: str

    @classmethod
    def this(cls) -> Self:
        """Return the release of this tree, compiled or not as these tests are."""
        return cls("this", ENVIRONMENT["PYTHONPATH"])

    @classmethod
    def previous(cls, directory: Path) -> Self:
        """Unpack the wheel of the previous release into an empty directory."""
        with zipfile.ZipFile(WHEEL) as wheel:
            wheel.extractall(directory)
        return cls("previous", str(directory))

    def run(
        self, words: Sequence[str], directory: Path, timeout_seconds: float = COMMAND_SECONDS
    ) -> str:
        """Run ``sluice`` with arguments and return its output.

        Raises:
            AssertionError: Its exit code is not 0; the message has what it printed.
        """
        return self._run(["-c", _COMMAND, *words], directory, timeout_seconds)

    def program(self, text: str, words: Sequence[str], directory: Path) -> str:
        """Run a Python program with arguments and return its output.

        Raises:
            AssertionError: Its exit code is not 0; the message has what it printed.
        """
        return self._run(["-c", text, *words], directory, COMMAND_SECONDS)

    def daemon(self, directory: Path, **settings: Any) -> Daemon:
        """Return a TaskManager that is not started yet."""
        return Daemon(
            directory,
            program=(sys.executable, "-P", "-c", _COMMAND),
            environment={"PYTHONPATH": self.import_path},
            **settings,
        )

    def _run(self, arguments: Sequence[str], directory: Path, timeout_seconds: float) -> str:
        kept = {name: value for name, value in os.environ.items() if "SLUICE" not in name}
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=directory,
            env=kept | {"PYTHONPATH": self.import_path},
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        assert done.returncode == 0, f"{self.name} release, {arguments[2:]}: {done.stderr[-3000:]}"
        return done.stdout


class Mixed:
    """Two TaskManagers of one cluster, each of a release.

    Attributes:
        daemons: In the order of the releases.
    """

    def __init__(self, directory: Path, releases: Sequence[Release]) -> None:
        hosts = [f"127.0.0.{number + 1}" for number in range(len(releases))]
        ports = [free_ports(1, host) for host in hosts]
        members = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
        self.daemons = [
            release.daemon(
                directory / release.name,
                host=host,
                data_port=port,
                taskmanagers=members,
                memory_tier_bytes="16 MiB",
                min_free_bytes=0,
            )
            for release, host, port in zip(releases, hosts, ports, strict=True)
        ]
        for daemon, port in zip(self.daemons, ports, strict=True):
            daemon.data_port = port

    def __enter__(self) -> Self:
        try:
            for daemon in self.daemons:
                daemon.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self.daemons:
            daemon.kill()
