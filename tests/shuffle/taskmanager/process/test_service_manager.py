"""Messages to systemd, received by a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.taskmanager.process.service_manager import ServiceManager
from tests.support.daemon import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SILENCE_SECONDS = 0.3
"""Several times the pause between two messages of a manager that is watched as below."""

WATCHDOG_SECONDS = 0.1


@contextmanager
def systemd(address: str) -> Iterator[socket.socket]:
    """Receive messages as systemd does, at a path or an abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        receiver.settimeout(TIMEOUT_SECONDS)
        yield receiver


def received(receiver: socket.socket) -> dict[str, str]:
    """Return the variables of the next message."""
    lines = receiver.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def until(receiver: socket.socket, **wanted: str) -> list[dict[str, str]]:
    """Return all messages up to the first that has these variables."""
    found = [received(receiver)]
    while not wanted.items() <= found[-1].items():
        found.append(received(receiver))
    return found


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_message_reaches_the_socket(address: str, kind: str):
    if kind == "abstract":
        address = f"@sluice-test-{os.getpid()}"
    with systemd(address) as receiver, closing(ServiceManager(address)) as manager:
        manager.notify(READY="1", STATUS="Ready")
        assert received(receiver) == {"READY": "1", "STATUS": "Ready"}


def test_the_variables_are_removed_for_children(address: str):
    environment = {
        "NOTIFY_SOCKET": address,
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": "1",
        "HOME": "/",
    }
    manager = ServiceManager.take(environment)
    assert manager is not None
    manager.close()
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("address", ["", "@", "vsock:2:1234", "notify"])
def test_other_addresses_are_ignored(address: str):
    assert ServiceManager.take({"NOTIFY_SOCKET": address}) is None


def test_a_missing_socket_is_ignored(address: str):
    with closing(ServiceManager(address)) as manager:
        manager.notify(READY="1")


def test_a_message_to_a_full_socket_is_sent_with_the_next(address: str):
    with systemd(address) as receiver, closing(ServiceManager(address)) as manager:
        for number in range(1000):
            manager.notify(WATCHDOG="1", STATUS=str(number))
        manager.notify(READY="1")  # the kernel queues a few messages
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            until(receiver, READY="1")
        manager.notify(WATCHDOG="1")
        assert received(receiver) == {"WATCHDOG": "1", "STATUS": "999", "READY": "1"}


async def test_a_loop_that_hangs_sends_no_watchdog_message(address: str):
    loop = asyncio.get_running_loop()
    with (
        systemd(address) as receiver,
        closing(ServiceManager(address, WATCHDOG_SECONDS)) as manager,
    ):
        manager.ready(lambda: "ready")
        first = [await asyncio.to_thread(received, receiver) for _ in range(4)]
        assert first == [
            {"READY": "1"},
            {"WATCHDOG": "1", "STATUS": "Ready"},
            {"WATCHDOG": "1"},
            {"WATCHDOG": "1"},
        ]
        receiver.settimeout(SILENCE_SECONDS)
        hung = loop.time()
        with pytest.raises(TimeoutError):
            until(receiver, STOPPING="1")  # the loop hangs in here
        assert loop.time() > hung
        receiver.settimeout(TIMEOUT_SECONDS)
        assert await asyncio.to_thread(received, receiver) == {"WATCHDOG": "1"}


@pytest.mark.parametrize("pid", [None, "own", "1"])
async def test_only_the_watched_process_sends_watchdog_messages(address: str, pid: str | None):
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000"}
    if pid is not None:
        environment["WATCHDOG_PID"] = str(os.getpid()) if pid == "own" else pid
    manager = ServiceManager.take(environment)
    assert manager is not None
    with systemd(address) as receiver, closing(manager):
        manager.ready(lambda: "ready")
        assert received(receiver) == {"READY": "1"}
        assert ("WATCHDOG" in received(receiver)) == (pid != "1")


async def test_a_drain_extends_the_timeout_while_the_loop_runs(address: str):
    with (
        systemd(address) as receiver,
        closing(ServiceManager(address, WATCHDOG_SECONDS)) as manager,
    ):
        manager.ready(lambda: "draining")
        assert received(receiver) == {"READY": "1"}
        first, second = [await asyncio.to_thread(received, receiver) for _ in range(2)]
        assert second == {"WATCHDOG": "1", "EXTEND_TIMEOUT_USEC": "30000000"}
        assert first == second | {
            "STATUS": "Draining: new map outputs are refused, readers are served"
        }
        manager.stopping(45)
        messages = await asyncio.to_thread(until, receiver, STOPPING="1")
        assert messages[-1]["EXTEND_TIMEOUT_USEC"] == "50000000"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_daemon_notifies_systemd(daemons, address: str, tmp_path: Path, processes: int):
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "300000"}
    with systemd(address) as receiver:
        daemon = daemons(
            tmp_path, environment=environment, processes=processes, drain_timeout_seconds=20
        )
        started = until(receiver, WATCHDOG="1")
        assert started == [{"READY": "1"}, {"WATCHDOG": "1", "STATUS": "Ready"}]
        assert until(receiver, WATCHDOG="1") == [{"WATCHDOG": "1"}]
        assert daemon.end() == 0
        receiver.setblocking(False)
        *running, stopping = until(receiver, STOPPING="1")
        assert all(message == {"WATCHDOG": "1"} for message in running)
        # Data processes do not notify: systemd would take their READY=1 for that of the service.
        assert "READY" not in stopping
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 20_000_000
