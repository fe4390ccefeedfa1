"""TaskManagers at one port of several hosts, which find each other and change their addresses."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

from tests.support.daemon import SLUICE, Daemon
from tests.support.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class NamedCluster:
    """TaskManagers at one port of several hosts.

    Args:
        directory: For everything they store.
        wrapper: Program and arguments that run their command.
        members: The setting ``taskmanagers`` of each, without its port.
        settings: Further settings of all of them.
    """

    def __init__(
        self, directory: Path, wrapper: Sequence[str], members: str, **settings: object
    ) -> None:
        self.port = free_ports(1, "127.77.0.1")
        self.daemons: list[Daemon] = []
        self._directory = directory
        self._program = (*wrapper, str(SLUICE))
        self._settings = {
            "taskmanagers": f"{members}:{self.port}",
            "resolve_interval_seconds": 0.2,
            "lost_after_seconds": 2,
            **settings,
        }

    def __getitem__(self, index: int) -> Daemon:
        return self.daemons[index]

    def add(self, host: str, **settings: object) -> Daemon:
        """Start another TaskManager."""
        directory = self._directory / f"tm-{len(self.daemons)}"
        given: dict[str, Any] = {**self._settings, **settings}
        daemon = Daemon(directory, host, program=self._program, **given)
        daemon.data_port = self.port
        self.daemons.append(daemon)
        return daemon.start()

    def move(self, daemon: Daemon, host: str) -> None:
        """Start a TaskManager that has ended at another address, on its directories."""
        daemon.host = host
        daemon.start()

    def dialed(self, hosts: Sequence[str], seconds: float) -> list[str]:
        """Listen at hosts that TaskManagers have left; return the hosts that are dialed."""
        found = []
        with contextlib.ExitStack() as listening:
            servers = [listening.enter_context(socket.socket()) for _ in hosts]
            for server, left in zip(servers, hosts, strict=True):
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((left, self.port))
                server.listen()
                server.setblocking(False)
            time.sleep(seconds)
            for server, left in zip(servers, hosts, strict=True):
                with contextlib.suppress(BlockingIOError):
                    server.accept()[0].close()
                    found.append(left)
        return found

    def kill(self) -> None:
        """Kill all of them."""
        for daemon in self.daemons:
            daemon.kill()
