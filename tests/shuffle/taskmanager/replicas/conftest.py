"""Daemons that name each other in their settings."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from sluice.transport.address import Address
from tests.support.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path


class Pair:
    """Daemons on addresses of their own, that name each other in their settings."""

    def __init__(self, directory: Path, count: int = 2) -> None:
        self._directory = directory
        self.addresses = [free_address(f"127.0.0.{number + 1}") for number in range(count)]
        self.daemons: list[Daemon | None] = [None] * count

    def start(self, number: int, **keys: Any) -> Daemon:
        address = self.addresses[number]
        daemon = Daemon(
            self._directory / f"tm{number}",
            address.host,
            data_port=address.port,
            taskmanagers=",".join(map(str, self.addresses)),
            lost_after_seconds=keys.pop("lost_after_seconds", 1),
            memory_tier_bytes="16 MiB",
            min_free_bytes=0,
            partition_request_timeout_seconds=keys.pop("partition_request_timeout_seconds", 0.2),
            **keys,
        ).start()
        self.daemons[number] = daemon
        return daemon

    def kill(self, number: int) -> None:
        daemon = self.daemons[number]
        assert daemon is not None
        daemon.kill()


def free_address(host: str) -> Address:
    with socket.socket() as sock:
        sock.bind((host, 0))
        return Address(host, sock.getsockname()[1])


@pytest.fixture
def pair(tmp_path, request):
    pair = Pair(tmp_path, getattr(request, "param", 2))
    yield pair
    for daemon in pair.daemons:
        if daemon is not None:
            daemon.kill()
